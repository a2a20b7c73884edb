//! The error of a command that was not sent.

use redis::{ErrorKind, RedisError};

const NOT_SENT: &str = "not sent";

/// Why a command was not sent.
pub(crate) const TOO_LATE: &str = "the node timeout was over first: the process had no CPU, a task blocked its \
     thread, or the server does not read";
pub(crate) const FORKED: &str = "the connection belongs to the process that forked this one";
pub(crate) const CONNECTION_LOST: &str = "the connection was lost first";

pub(crate) fn unsent(why: &'static str) -> RedisError {
    (ErrorKind::Client, NOT_SENT, why.to_owned()).into()
}

/// Returns why a command was not sent, if this error is about that.
pub(crate) fn why_unsent(error: &RedisError) -> Option<&'static str> {
    if error.kind() != ErrorKind::Client {
        return None;
    }
    [TOO_LATE, FORKED, CONNECTION_LOST].into_iter().find(|why| error.detail() == Some(*why))
}
