//! The exit statuses of the command if it does not end with its child's own.

use std::fmt::Display;
use std::io::Write;

use nestlock::{Error, ErrorKind};
use serde_json::json;

/// The command line is wrong. The statuses are those of `sysexits.h`.
pub(crate) const USAGE: u8 = 64;
/// The servers can't be reached, or too few of them.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The lock was lost while the child ran.
pub(crate) const LOST: u8 = 70;
/// The operating system refuses something.
pub(crate) const SYSTEM: u8 = 71;
/// Another process has the lock.
pub(crate) const BUSY: u8 = 75;
/// A server refuses this user.
pub(crate) const DENIED: u8 = 77;
/// An address, an option or a name is not valid.
pub(crate) const CONFIG: u8 = 78;
/// The command can't be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;

/// Why the command ends, and with which status.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    kind: &'static str,
    message: String,
}

impl Failure {
    fn new(status: u8, kind: &'static str, message: impl Into<String>) -> Failure {
        Failure { status, kind, message: message.into() }
    }

    pub(crate) fn config(message: impl Into<String>) -> Failure {
        Failure::new(CONFIG, "config", message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(USAGE, "usage", message)
    }

    pub(crate) fn not_executable(message: impl Into<String>) -> Failure {
        Failure::new(NOT_EXECUTABLE, "not_executable", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Failure {
        Failure::new(NOT_FOUND, "not_found", message)
    }

    pub(crate) fn lost(message: impl Into<String>) -> Failure {
        Failure::new(LOST, "lost", message)
    }

    pub(crate) fn denied(message: impl Into<String>) -> Failure {
        Failure::new(DENIED, "denied", message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Failure {
        Failure::new(UNAVAILABLE, "unavailable", message)
    }

    pub(crate) fn system(what: &str, error: &dyn Display) -> Failure {
        Failure::new(SYSTEM, "system", format!("{what}: {error}"))
    }

    /// Returns the failure if another process has the lock; `error` may name it.
    pub(crate) fn busy(status: u8, name: &str, error: Option<&Error>) -> Failure {
        let holder = error.and_then(Error::holder).map(|holder| format!("held by {holder}"));
        let holder = holder.unwrap_or_else(|| "held by another".to_owned());
        let name = name.escape_debug();
        Failure::new(
            status,
            "busy",
            format!("lock `{name}`: {holder}; try again later, or wait longer with --wait"),
        )
    }

    /// Reports the failure. If a loss has ended the child, only the message says how it ended.
    pub(crate) fn report(&self, json: bool) -> u8 {
        if json {
            say(&json!({ "error": self.kind, "status": self.status, "message": self.message }).to_string());
        } else {
            say(&format!("nestlock: {}", self.message));
        }
        self.status
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let message = error.to_string();
        match error.kind() {
            ErrorKind::Timeout => Failure::busy(BUSY, error.lock().unwrap_or_default(), Some(&error)),
            ErrorKind::Lost => Failure::lost(message),
            ErrorKind::Denied => Failure::denied(message),
            ErrorKind::Unavailable => Failure::unavailable(message),
            ErrorKind::Config | ErrorKind::InvalidInput | ErrorKind::NotALock => Failure::config(message),
            _ => Failure::new(SYSTEM, "internal", message),
        }
    }
}

/// Writes a warning to standard error.
pub(crate) fn warn(json: bool, message: &str) {
    if json {
        say(&json!({ "warning": message }).to_string());
    } else {
        say(&format!("nestlock: {message}"));
    }
}

/// Writes a line to standard error. `eprintln!` would panic if nobody reads it, or if the disk of the log is full: the child would be
/// killed without TERM.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
