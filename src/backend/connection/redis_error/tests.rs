use super::*;
use crate::backend::resp::{TOO_LATE, unsent};
use crate::wire::Action;

mod fuzz;

fn failure(wire: &str) -> Failure {
    let value = redis::parse_redis_value(format!("-{wire}\r\n").as_bytes()).unwrap();
    failed(value.extract_error().unwrap_err(), &Call::of("stock", "", Action::Look), &"host:1".into())
}

fn expect(wire: &str, outcome: Outcome, kind: ErrorKind) {
    let failure = failure(wire);
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
        expect(wire, Outcome::NotRun, ErrorKind::Unavailable);
    }
    expect("NOAUTH Authentication required.", Outcome::NotRun, ErrorKind::Denied);
    expect(
        "NOPERM this user has no permissions to run the 'evalsha' command",
        Outcome::NotRun,
        ErrorKind::Denied,
    );
}

#[test]
fn a_server_that_does_not_know_the_command_did_not_run_it_and_never_will() {
    for wire in [
        "ERR unknown command 'EVALSHA', with args beginning with: 'f00' '1' 'stock' ",
        "ERR unknown command `evalsha`, with args beginning with: `f00`, `1`, `stock`, ",
        "ERR unknown command 'EVAL'",
    ] {
        expect(wire, Outcome::NotRun, ErrorKind::Config);
        let text = failure(wire).error.to_string();
        assert!(text.contains("`look` on key `stock`") && !text.contains("with args"), "{text}");
    }
    for wire in [
        "ERR Unknown Redis command called from script script: f00, on @user_script:1.",
        "ERR unknown command 'EVALSHA' script: user_script",
        "ERR unknown command 'SPUBLISH'",
    ] {
        expect(wire, Outcome::Unknown, ErrorKind::Unavailable);
    }
}

#[test]
fn a_refusal_of_one_write_is_of_unknown_outcome() {
    for wire in [
        "OOM command not allowed when used memory > 'maxmemory'. script: f00, on @user_script:1.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "READONLY You can't write against a read only replica. script: f00, on @user_script:1.",
        "MISCONF Redis is configured to save RDB snapshots",
        "NOREPLICAS Not enough good replicas to write.",
        "ERR Error running script (call to f_f00): @user_script:1: -OOM command not allowed",
        "WHATEVER it is",
    ] {
        expect(wire, Outcome::Unknown, ErrorKind::Unavailable);
    }
}

#[test]
fn an_acquire_whose_first_write_was_refused_did_not_run() {
    for (text, kind) in [
        ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::Unavailable),
        ("MISCONF Redis is configured to save RDB snapshots", ErrorKind::Unavailable),
        // The text since Redis 6.2.
        ("@user_script: 24: -READONLY You can't write against a read only replica.", ErrorKind::Unavailable),
        ("NOPERM something", ErrorKind::Denied),
    ] {
        let wire = format!("{text} script: user_script, nothing written");
        expect(&wire, Outcome::NotRun, kind);
        assert!(is_refused_write(&failure(&wire)), "{wire}");
        assert!(!failure(&wire).error.to_string().contains("written"), "{wire}");
        // If the server's own suffix follows, the text is from an earlier write.
        expect(&format!("{wire} script: f00, on @user_script:1."), Outcome::Unknown, kind);
        expect(&format!("{text} script: user_script"), Outcome::Unknown, kind);
    }
}

#[test]
fn a_right_that_is_missing_within_a_script_is_denied_and_of_unknown_outcome() {
    for wire in [
        "ERR The user executing the script can't run this command or subcommand script: f00, on @user_script:1.",
        "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
        "ERR ACL failure in script: User bob has no permissions to run the 'hset' command script: f00, on @user_script:1.",
        "NOPERM something script: f00, on @user_script:1.",
        "NOPERM something script: user_script",
    ] {
        expect(wire, Outcome::Unknown, ErrorKind::Denied);
    }
}

#[test]
fn a_refusal_is_reported_with_the_servers_text_the_key_and_the_server() {
    let text = failure("OOM too much. script: f00, on @user_script:1.").error.to_string();
    assert_eq!(
        text,
        "the server refuses `look` on key `stock`: OOM too much; correct the server, or try again later (server host:1)"
    );
}

#[test]
fn a_redirection_of_a_single_server_is_reported_as_a_node_of_a_cluster() {
    for wire in ["MOVED 1 host:1", "ASK 1 host:1"] {
        let text = failure(wire).error.to_string();
        assert!(text.contains(wire) && text.contains(ONE_MASTER), "{text}");
    }
}

/// Returns an error of the redis crate that contains no error of the server or of the system.
fn by_client(text: &str) -> RedisError {
    (RedisErrorKind::Client, "client", text.to_owned()).into()
}

#[test]
fn what_the_redis_crate_reports_by_itself_may_have_run() {
    let call = Call::of("stock", "", Action::Look);
    let outcome = |error| failed(error, &call, &"host:1".into()).outcome;
    assert_eq!(outcome(by_client("Unexpected end")), Outcome::Unknown);
    assert_eq!(outcome(unsent(TOO_LATE)), Outcome::NotRun);
    let other_kind = (RedisErrorKind::Io, "io", TOO_LATE.to_owned());
    assert_eq!(outcome(other_kind.into()), Outcome::Unknown);
}

fn answered(wire: &str) -> RedisError {
    redis::parse_redis_value(format!("-{wire}\r\n").as_bytes()).unwrap().extract_error().unwrap_err()
}

/// Each text alone is enough, since each is the wording of some version of the server.
#[test]
fn a_missing_right_is_recognized_by_any_of_its_texts() {
    for wire in [
        "NOPERM whatever",
        "ERR the user executing the script can't run this command",
        "ERR ACL failure in script",
        "ERR Error running script: -NOPERM",
        "ERR user bob has no permissions",
    ] {
        assert!(is_denied(&answered(wire)), "{wire}");
    }
    assert!(!is_denied(&answered("ERR whatever")));
}

#[test]
fn a_server_that_became_a_replica_is_recognized_by_code_or_text() {
    for wire in [
        "READONLY You can't write",
        "ERR Error running script: -READONLY You can't write",
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down",
    ] {
        assert!(is_demoted(&answered(wire)), "{wire}");
    }
    assert!(!is_demoted(&answered("ERR whatever")));
}

#[test]
fn a_redirection_leads_to_an_address_for_good_or_for_one_call() {
    assert_eq!(redirect(&failure("MOVED 1 host:2")), Some(("MOVED", "host:2")));
    assert_eq!(redirect(&failure("ASK 1 host:2")), Some(("ASK", "host:2")));
    assert!(redirect(&failure("ERR whatever")).is_none());
}

#[test]
fn an_attempt_to_connect_that_fails_is_reported_with_its_cause() {
    let settings = |text: &str| (RedisErrorKind::InvalidClientConfig, "settings", text.to_owned()).into();
    let io = |text: &str| std::io::Error::other(text.to_owned()).into();
    for (error, kind, words) in [
        (answered("NOAUTH whatever"), ErrorKind::Denied, "none was given; give both in its URL"),
        (answered("WRONGPASS whatever"), ErrorKind::Denied, "password is wrong, or the user is disabled"),
        (answered("NOPERM whatever"), ErrorKind::Denied, "denies this user access"),
        (
            RedisError::from((
                RedisErrorKind::Server(ServerErrorKind::ResponseError),
                "Redis server refused to switch database",
            )),
            ErrorKind::Config,
            "refuses the database",
        ),
        (answered("ERR whatever"), ErrorKind::Unavailable, "refuses to work"),
        (answered("LOADING, and can't switch database"), ErrorKind::Unavailable, "refuses to work"),
        (settings("No address found for host"), ErrorKind::Unavailable, "has no address"),
        (settings("whatever"), ErrorKind::Config, "can't be used to connect"),
        (io("no address found"), ErrorKind::Unavailable, "can't be reached"),
        (io("invalid peer Certificate"), ErrorKind::Unavailable, "is not trusted"),
        (by_client("bad certificate"), ErrorKind::Unavailable, "is not trusted"),
        (
            io("received fatal alert: CertificateRequired"),
            ErrorKind::Unavailable,
            "`Tls::client_certificate`",
        ),
        (io("received fatal alert: UnknownCA"), ErrorKind::Unavailable, "`Tls::client_certificate`"),
        (
            io("tlsv1 alert unknown ca: SSL alert number 48"),
            ErrorKind::Unavailable,
            "`Tls::client_certificate`",
        ),
        (io("sslv3 alert handshake failure"), ErrorKind::Unavailable, "`Tls::client_certificate`"),
        (io("received fatal alert: HandshakeFailure"), ErrorKind::Unavailable, "`Tls::client_certificate`"),
        (io("received fatal alert: InternalError"), ErrorKind::Unavailable, "can't be reached"),
        (
            io("tlsv1 alert internal error: SSL alert number 80, during the handshake"),
            ErrorKind::Unavailable,
            "can't be reached",
        ),
        (io("whatever"), ErrorKind::Unavailable, "can't be reached"),
        (answered("ERR bad certificate"), ErrorKind::Unavailable, "refuses to work"),
    ] {
        let text = error.to_string();
        let distrusted = ["is not trusted", "`Tls::client_certificate`"].contains(&words);
        let error = unreachable(error, &"host:1".into());
        assert_eq!((error.kind(), is_distrusted(&error)), (kind, distrusted), "{text}: {error}");
        assert!(error.to_string().contains(words), "{text}: {error}");
    }
}

#[test]
fn after_a_lost_connection_the_outcome_is_unknown() {
    for io in
        [std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::TimedOut, std::io::ErrorKind::ConnectionRefused]
    {
        let error = RedisError::from(std::io::Error::from(io));
        let failure = failed(error, &Call::of("stock", "", Action::Look), &"host:1".into());
        assert_eq!((failure.outcome, failure.error.kind()), (Outcome::Unknown, ErrorKind::Unavailable));
    }
}
