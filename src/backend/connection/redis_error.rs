//! Turns errors of the redis crate into a [`Failure`]: what the server may have done, and the error for the user.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind as RedisErrorKind, RedisError, ServerErrorKind};

use crate::backend::resp::why_unsent;
use crate::base::{Failure, Outcome};
use crate::config::Replicas;
use crate::error::{Error, ErrorKind, shown};
use crate::wire::Call;

/// Errors that are returned before a script starts. OOM, READONLY, MISCONF and NOREPLICAS are not among them: they refuse a single
/// write, and may be returned by a script that has written before: see [`NOTHING_WRITTEN`].
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

/// The text that an acquire, a move and a renewal add if their first write to the lock is refused. The codes do not prove that: 1. `HSET`
/// runs. 2. A thread of the server fails to flush the append-only file. 3. `PEXPIRE` is refused with MISCONF in the same script.
const NOTHING_WRITTEN: &str = " script: user_script, nothing written";

/// Returns the failure of a call that the server answered with an error, or whose connection broke.
pub(crate) fn failed(error: RedisError, call: &Call, server: &Arc<str>) -> Failure {
    let outcome = outcome(&error);
    let (name, keys) = (call.name(), keys(call));
    let unavailable = |message| (ErrorKind::Unavailable, message);
    let (kind, message) = if let Some(text) = answer(&error) {
        if is_credentials(&error) {
            (ErrorKind::Denied, format!("the server rejects the credentials ({text}); {GIVE_CREDENTIALS}"))
        } else if is_denied(&error) {
            let message = format!(
                "the server denies this user a right that `{name}` on {keys} needs: {text}; grant it with \
                 ACL SETUSER, or connect as another user"
            );
            (ErrorKind::Denied, message)
        } else if is_scriptless(&error) {
            let text = text.split(", with args").next().unwrap_or_default();
            let message = format!(
                "the server does not run scripts, so that `{name}` on {keys} did not begin: {text}; give the address of a Redis \
                 server on which EVALSHA and EVAL are not renamed, and not that of a sentinel"
            );
            (ErrorKind::Config, message)
        } else {
            let is_node = matches!(error.code(), Some("MOVED" | "ASK"));
            let remedy = if is_node { ONE_MASTER } else { FIX_SERVER };
            unavailable(format!("the server refuses `{name}` on {keys}: {text}; {remedy}"))
        }
    } else if let Some(why) = why_unsent(&error) {
        unavailable(format!("`{name}` was not sent: {why}"))
    } else if error.is_io_error() {
        unavailable(format!("the connection was lost before the answer to `{name}` arrived; {CHECK}"))
    } else {
        unavailable(format!(
            "the answer to `{name}` on {keys} can't be parsed; check that a Redis server runs at this address"
        ))
    };
    Failure { outcome, error: Error::new(kind, message).at(server).because(error) }
}

/// Returns the address that a node of a cluster redirects to, after `MOVED` for all calls from now on, or after `ASK` for this call only:
/// the slot is migrating there.
pub(crate) fn redirect(failure: &Failure) -> Option<(&str, &str)> {
    let error = cause(&failure.error)?;
    Some((error.code()?, error.redirect_node()?.0))
}

/// Returns the keys of a call, for error texts.
fn keys(call: &Call) -> String {
    let key = shown(call.key());
    match &call.fence {
        Some(fence) => format!("keys `{key}` and `{}`", shown(&fence.counter)),
        None => format!("key `{key}`"),
    }
}

/// Returns the failure of a call that was sent and not answered in time. `why` is set if the server and the network are not to blame.
pub(crate) fn unanswered(call: &Call, limit: Duration, why: Option<&str>, server: &Arc<str>) -> Failure {
    let (name, why) = (call.name(), why.unwrap_or(CHECK));
    let message = format!("no answer to `{name}` within the `node_timeout` of {limit:?}; {why}");
    Failure::unknown(Error::new(ErrorKind::Unavailable, message).at(server))
}

/// Returns the failure of an acquire whose connection, or the one for commands that it is paired with, was replaced before replicas
/// acknowledged it.
pub(crate) fn connection_replaced(call: &Call, server: &Arc<str>) -> Failure {
    let message = format!(
        "the connection was replaced before `{}` on {} was acknowledged by replicas, so it is undone; {CHECK}",
        call.name(),
        keys(call)
    );
    Failure::unknown(Error::new(ErrorKind::Unavailable, message).at(server))
}

/// Returns the failure of a call that was answered after another server took the place of this one.
pub(crate) fn answer_of_a_former_master(call: &Call, server: &Arc<str>) -> Failure {
    let (name, keys) = (call.name(), keys(call));
    let message = format!("another server became the master before `{name}` on {keys} was answered; {CHECK}");
    Failure::unknown(Error::new(ErrorKind::Unavailable, message).at(server))
}

/// Returns the failure of a grant of a server that was a replica for a while, and has the data of the master that it followed.
pub(crate) fn other_data(call: &Call, server: &Arc<str>) -> Failure {
    let message = format!(
        "the server was a replica for a while and may lack what was granted before, so `{}` on {} is undone; {CHECK}",
        call.name(),
        keys(call)
    );
    Failure::unknown(Error::new(ErrorKind::Unavailable, message).at(server))
}

/// Returns the failure of a grant that too few replicas have acknowledged.
pub(crate) fn unacknowledged(acknowledged: i64, replicas: Replicas, server: &Arc<str>) -> Failure {
    let Replicas { count, wait } = replicas;
    let message = format!(
        "{acknowledged} of the {count} replicas that `replicas` asks for acknowledged the grant within {wait:?}, so it is undone; \
         check the replicas and the link to them, or ask for fewer"
    );
    Failure::unknown(Error::new(ErrorKind::Unavailable, message).at(server))
}

/// Returns the failure of a call over a connection that had logged in with a provider's credentials, and is not logged in any more.
pub(crate) fn logged_out(call: &Call, server: &Arc<str>) -> Failure {
    let why =
        format!("`{}` was refused: the connection is not logged in any more, and is replaced", call.name());
    not_sent(&why, server)
}

/// Returns the failure of a call that was not sent.
pub(crate) fn not_sent(why: &str, server: &Arc<str>) -> Failure {
    Failure::not_run(Error::new(ErrorKind::Unavailable, why).at(server))
}

/// Returns the error of a failed attempt to connect.
pub(crate) fn unreachable(error: RedisError, server: &Arc<str>) -> Error {
    let unavailable = |message| (ErrorKind::Unavailable, message);
    let (kind, message) = if is_credentials(&error) {
        let wrong = if is_logged_out(&error) {
            "it asks for a password, and none was given"
        } else {
            "user name or password is wrong, or the user is disabled"
        };
        (ErrorKind::Denied, format!("the server denies access: {wrong}; {GIVE_CREDENTIALS}"))
    } else if is_denied(&error) {
        (ErrorKind::Denied, format!("the server denies this user access: {error}; grant it with ACL SETUSER"))
    } else if is_database(&error) {
        (ErrorKind::Config, format!("the server refuses the database of its URL: {error}; name another one"))
    } else if error.kind() == RedisErrorKind::InvalidClientConfig
        && error.to_string().contains("o address found")
    {
        unavailable("the server's name has no address; check it".into())
    } else if error.kind() == RedisErrorKind::InvalidClientConfig {
        (ErrorKind::Config, format!("these settings can't be used to connect: {error}; correct them"))
    } else if error.kind() == RedisErrorKind::RESP3NotSupported {
        unavailable("the server is too old: nestlock needs Redis 6.2 or later".into())
    } else if let Some(text) = answer(&error) {
        unavailable(format!("the server refuses to work: {text}; {FIX_SERVER}"))
    } else if is_refused_handshake(&error) {
        unavailable(format!("the server refuses the handshake of TLS: {error}; {GIVE_CERTIFICATE}"))
    } else if is_certificate(&error) {
        unavailable(format!(
            "the connection is not trusted: {error}; check the server's certificate, its dates and its names, and the \
             authorities that are trusted here"
        ))
    } else {
        unavailable(format!("the server can't be reached: {error}; check that it runs, and its address"))
    };
    Error::new(kind, message).at(server).because(error)
}

/// Returns whether an attempt to connect failed because of a certificate: the server is reachable, and waiting does not help.
pub(crate) fn is_distrusted(error: &Error) -> bool {
    cause(error).is_some_and(|error| is_certificate(error) || is_refused_handshake(error))
}

/// Returns whether an attempt to connect failed because of the user or the password.
pub(crate) fn is_refused_login(error: &Error) -> bool {
    cause(error).is_some_and(is_credentials)
}

/// Returns the error of the redis crate that caused this one, if there is one.
pub(crate) fn cause(error: &Error) -> Option<&RedisError> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Returns the error of an attempt to connect if the server refused the credentials of a provider. It leaves out the server's text,
/// which may repeat them.
pub(crate) fn provided_wrong(error: RedisError, kind: ErrorKind, server: &Arc<str>) -> Error {
    let message = "the server denies access with the user and password that the provider of credentials returned; check \
         what it returns, and that the server knows it";
    Error::new(kind, message).at(server).because(error)
}

/// Decides by the text: the TLS libraries share no error type, and the redis crate maps them to different kinds.
fn is_certificate(error: &RedisError) -> bool {
    is_of_the_stream(error) && error.to_string().to_lowercase().contains("certificate")
}

/// Returns whether the server has ended the handshake with a TLS alert, because it finds fault with the client: 1. The client has none of
/// the certificates that the server asks for. 2. In TLS 1.3 the client's handshake is complete by then. 3. The alert is the answer to the
/// first command. Its text may be "certificate required", "unknown CA" or, before TLS 1.3, a mere "handshake failure". Other alerts, such
/// as an "internal error" during the handshake, are not caused by a certificate.
fn is_refused_handshake(error: &RedisError) -> bool {
    let text = error.to_string().to_lowercase();
    let is_refusal = [
        "certificate",
        "unknown ca",
        "unknownca",
        "access denied",
        "accessdenied",
        "handshake failure",
        "handshakefailure",
    ];
    is_of_the_stream(error) && text.contains("alert") && is_refusal.iter().any(|part| text.contains(part))
}

fn is_of_the_stream(error: &RedisError) -> bool {
    matches!(error.kind(), RedisErrorKind::Io | RedisErrorKind::Client)
}

const ONE_MASTER: &str = "it is a node of a cluster: give it to `Master::cluster`, or \
     give the address of a single master";

const FIX_SERVER: &str = "correct the server, or try again later";

const CHECK: &str = "check that the server runs, and the network";

/// Why a call has no answer although one has arrived over its connection.
pub(super) const UNREAD: &str = "an answer has arrived but is not read: the runtime that `connect` was awaited on is not driven, or its \
     threads are blocked; keep it running";

const GIVE_CERTIFICATE: &str = "if it asks clients for a certificate, give one by `Tls::client_certificate`, of an authority that the \
     server trusts, and within its dates";

const GIVE_CREDENTIALS: &str = "give both in its URL, redis://user:password@host:port, or for the default user redis://:password@host:port";

fn outcome(error: &RedisError) -> Outcome {
    let code = error.code().unwrap_or_default();
    // The error of a command within a script names the script: the server adds the name, or the script does if it catches the error.
    // The error code differs between versions, and may be `NOPERM`.
    let within = error.detail().is_some_and(|text| text.contains("user_script"));
    // A socket error does not prove that the call did not run, not even a refused connection, since calls are sent over established
    // connections:
    //
    // 1. A call is sent, and runs. A firewall rejects the packets after it with ICMP, as if nothing listened.
    // 2. The system retransmits, gives the connection up, and reports what ICMP said: that it was refused.
    if why_unsent(error).is_some()
        || is_scriptless(error)
        || (BEFORE_START.contains(&code) && !within)
        || is_unwritten(error)
    {
        Outcome::NotRun
    } else {
        Outcome::Unknown
    }
}

fn is_unwritten(error: &RedisError) -> bool {
    error.detail().is_some_and(|text| text.ends_with(NOTHING_WRITTEN))
}

/// Returns whether a script ran and its first write was refused. As long as the server is in this state, it refuses the next one too.
pub(crate) fn is_refused_write(failure: &Failure) -> bool {
    cause(&failure.error).is_some_and(is_unwritten)
}

pub(super) fn is_credentials(error: &RedisError) -> bool {
    error.kind() == RedisErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

/// Returns whether the connection that a call was sent over is not logged in.
pub(super) fn is_logged_out(error: &RedisError) -> bool {
    error.code() == Some("NOAUTH")
}

/// Returns whether a right is missing. For a command within a script only the text shows it, which differs between versions.
pub(crate) fn is_denied(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default();
    error.code() == Some("NOPERM")
        || text.contains("user executing the script can't")
        || text.contains("ACL failure in script")
        || text.contains("NOPERM")
        || text.contains("no permissions")
}

/// Returns whether the server never runs this command for this user: a right is missing, or a provider has renamed the command.
pub(super) fn is_withheld(error: &RedisError) -> bool {
    is_denied(error) || error.detail().is_some_and(|text| text.starts_with("unknown command"))
}

/// Returns whether the server does not know the command that runs a script: it is a sentinel, or the command was renamed. A command that
/// the script calls does not count: its error never names EVALSHA or EVAL.
fn is_scriptless(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default().to_lowercase();
    let unknown =
        text.strip_prefix("unknown command").map(|text| text.trim_start_matches([' ', '\'', '`', '"']));
    unknown.is_some_and(|name| name.starts_with("eval")) && !text.contains("user_script")
}

fn is_database(error: &RedisError) -> bool {
    error.kind() == RedisErrorKind::Server(ServerErrorKind::ResponseError)
        && error.to_string().contains("switch database")
}

/// Returns whether the server answered with an error.
pub(super) fn is_answer(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        RedisErrorKind::Server(_) | RedisErrorKind::Extension | RedisErrorKind::AuthenticationFailed
    )
}

/// Returns the server's error text, without the name of the script and the full stop, since our text follows it.
pub(crate) fn answer(error: &RedisError) -> Option<String> {
    if !is_answer(error) {
        return None;
    }
    let detail = error.detail().unwrap_or_default();
    let detail = detail.split(" script: ").next().unwrap_or(detail);
    Some(format!("{} {detail}", error.code().unwrap_or("ERR")).trim_end_matches([' ', '.']).to_owned())
}

/// Returns whether the server answers as one that has become a replica, which may load the data of its master, or have no link to it. The server's name
/// then has to be resolved again, since it may lead to another machine now.
pub(super) fn is_demoted(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "LOADING" | "MASTERDOWN"))
        || error.detail().is_some_and(|text| text.contains("READONLY"))
}

#[cfg(test)]
mod tests;
