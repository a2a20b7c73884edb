//! What an error of the redis crate means: what the server may have done, and what to tell the user.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind as Told, RedisError, ServerErrorKind};

use crate::base::{Failure, Outcome};
use crate::config::Replicas;
use crate::error::{Error, ErrorKind, shown};
use crate::wire::Call;

/// Refusals that come before a script starts. Not among them: OOM, READONLY, MISCONF, NOREPLICAS, which are refusals of
/// a single write, and may come out of a script that has written before.
const BEFORE_START: [&str; 10] = [
    "NOSCRIPT",
    "NOAUTH",
    "NOPERM",
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "MOVED",
    "ASK",
    "TRYAGAIN",
];

/// A call that the server answered with an error, or whose connection broke.
pub(crate) fn failed(error: RedisError, call: &Call, server: &Arc<str>) -> Failure {
    let outcome = outcome(&error);
    let (name, keys) = (call.name(), keys(call));
    let (kind, message) = if let Some(text) = answer(&error) {
        if is_credentials(&error) {
            (ErrorKind::Denied, format!("the server wants other credentials ({text}); {GIVE_CREDENTIALS}"))
        } else if is_denied(&error) {
            let message = format!(
                "the server denies this user a right that `{name}` on {keys} needs: {text}; grant it with \
                 ACL SETUSER, or connect as another user"
            );
            (ErrorKind::Denied, message)
        } else {
            (
                ErrorKind::Unavailable,
                format!("the server refuses `{name}` on {keys}: {text}; {}", remedy(&error)),
            )
        }
    } else if is_unsent(&error) {
        (
            ErrorKind::Unavailable,
            format!("`{name}` was not sent: the node timeout was over before it could be"),
        )
    } else if error.is_io_error() {
        (
            ErrorKind::Unavailable,
            format!("the connection was lost before the answer to `{name}` came; {CHECK}"),
        )
    } else {
        (
            ErrorKind::Unavailable,
            format!(
                "the answer to `{name}` on {keys} can't be understood; check what it is that answers there"
            ),
        )
    };
    Failure { outcome, error: Error::new(kind, message).at(server).because(error) }
}

/// Where a node of a cluster says that a key is to be asked for.
pub(crate) enum Elsewhere<'a> {
    /// From now on.
    Moved(&'a str),
    /// This time, for the slot is on its way there.
    Ask(&'a str),
}

pub(crate) fn elsewhere(failure: &Failure) -> Option<Elsewhere<'_>> {
    let error = std::error::Error::source(&failure.error)?.downcast_ref::<RedisError>()?;
    let (address, _) = error.redirect_node()?;
    Some(if error.code() == Some("ASK") { Elsewhere::Ask(address) } else { Elsewhere::Moved(address) })
}

/// What it touches, for people to read.
fn keys(call: &Call) -> String {
    let key = shown(call.key());
    match call.fence() {
        Some(fence) => format!("keys `{key}` and `{}`", shown(&fence.counter)),
        None => format!("key `{key}`"),
    }
}

/// A call that was sent and not answered in time.
pub(crate) fn unanswered(call: &Call, limit: Duration, server: &Arc<str>) -> Failure {
    let message = format!("no answer to `{}` within {limit:?}; {CHECK}", call.name());
    Failure { outcome: Outcome::Unknown, error: Error::new(ErrorKind::Unavailable, message).at(server) }
}

/// An acquire whose connection, or the one for commands beside it, was replaced before it counted.
pub(crate) fn parted(call: &Call, server: &Arc<str>) -> Failure {
    let message = format!(
        "the connection was replaced before `{}` on {} was acknowledged by replicas, so it is undone; {CHECK}",
        call.name(),
        keys(call)
    );
    Failure { outcome: Outcome::Unknown, error: Error::new(ErrorKind::Unavailable, message).at(server) }
}

/// A grant that too few replicas have acknowledged.
pub(crate) fn unacknowledged(had: i64, replicas: Replicas, server: &Arc<str>) -> Failure {
    let Replicas { count, wait } = replicas;
    let message = format!(
        "{had} of the {count} replicas that `replicas` asks for acknowledged the grant within {wait:?}, so it is undone; \
         check the replicas and the link to them, or ask for fewer"
    );
    Failure { outcome: Outcome::Unknown, error: Error::new(ErrorKind::Unavailable, message).at(server) }
}

const UNSENT: &str = "its deadline was over";

/// What a connection answers to a command that it did not send, since its time was over.
pub(crate) fn unsent() -> RedisError {
    (Told::Client, "not sent", UNSENT.to_owned()).into()
}

pub(crate) fn is_unsent(error: &RedisError) -> bool {
    error.kind() == Told::Client && error.detail() == Some(UNSENT)
}

/// A call that was not sent.
pub(crate) fn not_sent(why: &str, server: &Arc<str>) -> Failure {
    Failure { outcome: Outcome::NotRun, error: Error::new(ErrorKind::Unavailable, why).at(server) }
}

/// An attempt to connect that failed.
pub(crate) fn unreachable(error: RedisError, server: &Arc<str>) -> Error {
    let (kind, message) = if is_credentials(&error) {
        (
            ErrorKind::Denied,
            format!(
                "the server denies access: user name or password is wrong or missing; {GIVE_CREDENTIALS}"
            ),
        )
    } else if is_denied(&error) {
        (ErrorKind::Denied, format!("the server denies this user access: {error}; grant it with ACL SETUSER"))
    } else if is_database(&error) {
        (ErrorKind::Config, format!("the server refuses the database of its URL: {error}; name another one"))
    } else if error.kind() == Told::InvalidClientConfig && error.to_string().contains("o address found") {
        (ErrorKind::Unavailable, "the server's name has no address; check it".into())
    } else if error.kind() == Told::InvalidClientConfig {
        (ErrorKind::Config, format!("these settings can't be used to connect: {error}; correct them"))
    } else if error.kind() == Told::RESP3NotSupported {
        (ErrorKind::Unavailable, "the server is too old: nestlock needs Redis 6.2 or later".into())
    } else if let Some(text) = answer(&error) {
        (ErrorKind::Unavailable, format!("the server refuses to work: {text}; {PUT_RIGHT}"))
    } else if is_distrust(&error) {
        let message = format!(
            "the connection is not trusted: {error}; check the server's certificate, its dates and its names, and the \
             authorities that are trusted here"
        );
        (ErrorKind::Unavailable, message)
    } else {
        (
            ErrorKind::Unavailable,
            format!("the server can't be reached: {error}; check that it runs, and its address"),
        )
    };
    Error::new(kind, message).at(server).because(error)
}

/// Whether an attempt to connect failed for a certificate: the server is there, and time alone does not mend it.
pub(crate) fn is_distrusted(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<RedisError>());
    cause.is_some_and(is_distrust)
}

/// The TLS libraries have no type in common, nor does the redis crate give both the same kind; both name what it is about.
fn is_distrust(error: &RedisError) -> bool {
    matches!(error.kind(), Told::Io | Told::Client)
        && error.to_string().to_lowercase().contains("certificate")
}

/// What helps against a refusal.
fn remedy(error: &RedisError) -> &'static str {
    match error.code() {
        Some("MOVED" | "ASK") => ONE_MASTER,
        _ => PUT_RIGHT,
    }
}

const ONE_MASTER: &str = "it is a node of a cluster: give it to `Builder::cluster` (feature `cluster`) in place of `server`, or \
     give the address of a single master";

const PUT_RIGHT: &str = "put the server right, or try again later";

const CHECK: &str = "check that the server runs, and the network";

const GIVE_CREDENTIALS: &str = "give both in its URL, redis://user:password@host:port";

fn outcome(error: &RedisError) -> Outcome {
    let code = error.code().unwrap_or_default();
    // An error of a command within a script is marked with the script that it came out of: by the server, or by the script
    // where that catches the error. What stands in front differs between versions, and may be `NOPERM`.
    let within = error.detail().is_some_and(|text| text.contains("user_script"));
    if is_unsent(error) || error.is_connection_refusal() || (BEFORE_START.contains(&code) && !within) {
        Outcome::NotRun
    } else {
        Outcome::Unknown
    }
}

fn is_credentials(error: &RedisError) -> bool {
    error.kind() == Told::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

/// Whether a right is missing; a script's commands are told by text alone, which differs between versions.
pub(crate) fn is_denied(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default();
    error.code() == Some("NOPERM")
        || text.contains("user executing the script can't")
        || text.contains("ACL failure in script")
        || text.contains("NOPERM")
        || text.contains("no permissions")
}

fn is_database(error: &RedisError) -> bool {
    error.kind() == Told::Server(ServerErrorKind::ResponseError)
        && error.to_string().contains("switch database")
}

/// Whether the server answered, though with an error.
pub(crate) fn is_answer(error: &RedisError) -> bool {
    matches!(error.kind(), Told::Server(_) | Told::Extension | Told::AuthenticationFailed)
}

/// The error's text as the server gave it, without the mark of the script and a full stop: more is said behind it.
pub(crate) fn answer(error: &RedisError) -> Option<String> {
    if !is_answer(error) {
        return None;
    }
    let detail = error.detail().unwrap_or_default();
    let detail = detail.split(" script: ").next().unwrap_or(detail);
    Some(format!("{} {detail}", error.code().unwrap_or("ERR")).trim_end_matches([' ', '.']).to_owned())
}

/// Whether the server has become a replica: its name is to be resolved anew, for it may mean another machine by now.
pub(crate) fn is_demoted(error: &RedisError) -> bool {
    error.code() == Some("READONLY") || error.detail().is_some_and(|text| text.contains("READONLY"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(wire: &str) -> Failure {
        let value = redis::parse_redis_value(format!("-{wire}\r\n").as_bytes()).unwrap();
        failed(value.extract_error().unwrap_err(), &Call::Look { key: "stock".into() }, &"host:1".into())
    }

    fn is(wire: &str, outcome: Outcome, kind: ErrorKind) {
        let failure = told(wire);
        assert_eq!((failure.outcome, failure.error.kind()), (outcome, kind), "{wire}: {}", failure.error);
    }

    #[test]
    fn a_refusal_before_the_script_starts_means_that_it_did_not_run() {
        for wire in [
            "LOADING Redis is loading the dataset in memory",
            "BUSY Redis is busy running a script.",
            "MASTERDOWN Link with MASTER is down",
            "CLUSTERDOWN The cluster is down",
            "MOVED 1 host:1",
        ] {
            is(wire, Outcome::NotRun, ErrorKind::Unavailable);
        }
        is("NOAUTH Authentication required.", Outcome::NotRun, ErrorKind::Denied);
        is(
            "NOPERM this user has no permissions to run the 'evalsha' command",
            Outcome::NotRun,
            ErrorKind::Denied,
        );
    }

    #[test]
    fn a_refusal_of_one_write_leaves_open_what_was_written_before() {
        for wire in [
            "OOM command not allowed when used memory > 'maxmemory'. script: f00, on @user_script:1.",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "READONLY You can't write against a read only replica. script: f00, on @user_script:1.",
            "MISCONF Redis is configured to save RDB snapshots",
            "NOREPLICAS Not enough good replicas to write.",
            "ERR Error running script (call to f_f00): @user_script:1: -OOM command not allowed",
            "WHATEVER it is",
        ] {
            is(wire, Outcome::Unknown, ErrorKind::Unavailable);
        }
    }

    #[test]
    fn a_right_that_is_missing_within_a_script_is_denied_and_leaves_open_what_was_written_before() {
        for wire in [
            "ERR The user executing the script can't run this command or subcommand script: f00, on @user_script:1.",
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
            "ERR ACL failure in script: User bob has no permissions to run the 'hset' command script: f00, on @user_script:1.",
            "NOPERM something script: f00, on @user_script:1.",
            "NOPERM something script: user_script",
        ] {
            is(wire, Outcome::Unknown, ErrorKind::Denied);
        }
    }

    #[test]
    fn a_refusal_is_told_in_the_servers_words_with_key_and_server() {
        let told = told("OOM too much. script: f00, on @user_script:1.").error.to_string();
        assert_eq!(
            told,
            "the server refuses `look` on key `stock`: OOM too much; put the server right, or try again later (server host:1)"
        );
    }

    #[test]
    fn a_node_of_a_cluster_is_told_as_what_it_is() {
        for wire in ["MOVED 1 host:1", "ASK 1 host:1"] {
            let told = told(wire).error.to_string();
            assert!(told.contains(wire) && told.contains(ONE_MASTER), "{told}");
        }
    }

    #[test]
    fn a_lost_connection_leaves_all_open_and_a_refused_one_nothing() {
        for (io, outcome) in [
            (std::io::ErrorKind::BrokenPipe, Outcome::Unknown),
            (std::io::ErrorKind::TimedOut, Outcome::Unknown),
            (std::io::ErrorKind::ConnectionRefused, Outcome::NotRun),
        ] {
            let error = RedisError::from(std::io::Error::from(io));
            let failure = failed(error, &Call::Look { key: "stock".into() }, &"host:1".into());
            assert_eq!((failure.outcome, failure.error.kind()), (outcome, ErrorKind::Unavailable));
        }
    }
}
