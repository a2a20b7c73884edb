//! Errors: their kind, the lock, the server, the cause, and what the user can do.

mod foreign;
mod kinds;
mod names;
mod options;
mod rights;
mod secrets;

use std::error::Error as _;

use nestlock::{Error, ErrorKind};

/// Checks an error: its kind, its lock, and that its message has all of `words`.
#[track_caller]
pub(crate) fn is(error: &Error, kind: ErrorKind, lock: Option<&str>, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert_eq!(error.lock(), lock, "{text}");
    if let Some(lock) = lock {
        assert!(text.starts_with(&format!("lock `{lock}`: ")), "{text}");
    }
    for word in words {
        assert!(text.contains(word), "`{word}` is missing: {text}");
    }
    assert!(text.len() < 600, "{text}");
    assert_eq!(error.loss().is_some(), kind == ErrorKind::Lost);
}

/// Returns all texts of an error: its message, its causes, and its `Debug` output.
fn everything(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(" {error} {error:?}");
        cause = error.source();
    }
    text
}
