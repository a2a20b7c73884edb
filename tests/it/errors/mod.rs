//! What is told when something can't be done: the kind, the lock, the server, the cause, and what to do.

mod foreign;
mod kinds;
mod names;
mod options;
mod rights;
mod secrets;

use std::error::Error as _;

use nestlock::{Error, ErrorKind};

/// An error of this kind, about this lock, whose message has all of `words`.
#[track_caller]
pub(crate) fn is(error: &Error, kind: ErrorKind, lock: Option<&str>, words: &[&str]) {
    let told = error.to_string();
    assert_eq!(error.kind(), kind, "{told}");
    assert_eq!(error.lock(), lock, "{told}");
    if let Some(lock) = lock {
        assert!(told.starts_with(&format!("lock `{lock}`: ")), "{told}");
    }
    for word in words {
        assert!(told.contains(word), "`{word}` is missing: {told}");
    }
    assert!(told.len() < 600, "{told}");
    assert_eq!(error.loss().is_some(), kind == ErrorKind::Lost);
}

/// All that an error says to anybody: its message, its causes, and the same for developers.
fn everything(error: &Error) -> String {
    let mut told = format!("{error} {error:?} {error:#?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        told += &format!(" {error} {error:?}");
        cause = error.source();
    }
    told
}
