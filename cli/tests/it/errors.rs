//! How the command ends if it can't work, and that no message contains a password.

use crate::run::{Ended, end, nestlock, on, status};
use crate::support::server::{Server, free_port};

const CALLS: [&[&str]; 5] = [
    &["exec", "a", "--", "true"],
    &["ls", "--all"],
    &["show", "a"],
    &["watch", "a"],
    &["release", "--force", "a"],
];

/// Checks that all calls on these servers end with this status, and with a message that has these words.
async fn all(servers: &[&str], password: Option<&str>, code: i32, words: &str) {
    for call in CALLS {
        for json in [false, true] {
            let mut args = servers.to_vec();
            args.extend(json.then_some("--json"));
            args.extend(call);
            let mut command = nestlock(&args);
            command.envs(password.map(|password| ("NESTLOCK_PASSWORD", password)));
            let Ended { status, out, err } = end(command).await;
            assert_eq!((status, out.as_str()), (Some(code), ""), "{args:?}: {err}");
            assert!(err.contains(words), "{args:?}: {err}");
            assert!(!err.contains("hunter2"), "{args:?}: {err}");
            assert_eq!(err.lines().count(), 1, "{err}");
            if json {
                let error: serde_json::Value = serde_json::from_str(&err).unwrap();
                assert_eq!(error["status"], code);
            }
        }
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let url = format!("redis://:hunter2@127.0.0.1:{}", free_port());
    all(&["--url", &url], None, 69, "check that it runs").await;
}

#[tokio::test]
async fn a_wrong_password_is_denied() {
    let server = Server::with(&["--requirepass", "right"]).await;
    let url = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    all(&["--url", &url], None, 77, "password").await;
    all(&["--url", &server.url()], Some("hunter2"), 77, "password").await;
    all(&["--url", &server.url()], None, 77, "").await;
}

#[tokio::test]
async fn the_password_may_be_in_the_environment() {
    let right = "a:b@c/%41 &d?#";
    let server = Server::with(&["--requirepass", right, "--unixsocket", "socket"]).await;
    let socket = format!("unix://{}?db=1", server.dir().join("socket").display());
    for url in [&server.url(), &socket] {
        for (call, expected) in CALLS.into_iter().filter(|call| call[0] != "watch").zip([0, 0, 1, 1]) {
            let mut command = nestlock(&["--url", url]);
            command.args(call).env("NESTLOCK_PASSWORD", right);
            let ended = end(command).await;
            assert_eq!(ended.status, Some(expected), "{url} {call:?}: {ended:?}");
        }
    }
    // A password in the address takes precedence over the variable.
    let server = Server::with(&["--requirepass", "right"]).await;
    let mut command =
        nestlock(&["--url", &format!("redis://:right@127.0.0.1:{}", server.port()), "show", "a"]);
    command.env("NESTLOCK_PASSWORD", "wrong");
    assert_eq!(end(command).await.status, Some(1));
}

#[tokio::test]
async fn an_address_that_cannot_be_used_is_a_mistake() {
    for url in ["http://hunter2@host", "hunter2", "redis://:hunter2@", "redis://a:hunter2@host:port"] {
        all(&["--url", url], None, 78, "redis://user:password@host").await;
    }
    // These are also refused if a password is added.
    for url in ["redis://host/0?tls=true", "redis://host#insecure"] {
        all(&["--url", url], Some("hunter2"), 78, "redis://user:password@host").await;
    }
    all(&[], None, 78, "REDIS_URL").await;
    all(&["--url", "redis://:hunter2@host", "--url", "redis://host"], None, 78, "more than once").await;
}

/// As `psql` and others take it.
#[tokio::test]
async fn an_address_in_the_place_of_a_name_is_not_repeated() {
    let url = "redis://:hunter2@host";
    let timeout = format!("--node-timeout={url}");
    let wrong = [
        &["ls", url][..],
        &[url],
        &[url, "ls"],
        &["show", "a", url],
        &["--node-timeout", url, "ls"],
        &[&timeout, "ls"],
    ];
    for args in wrong {
        for json in [false, true] {
            let mut all = args.to_vec();
            all.extend(json.then_some("--json"));
            let Ended { status, err, .. } = end(nestlock(&all)).await;
            assert_eq!(status, Some(64), "{all:?}: {err}");
            assert!(err.contains("--url") && !err.contains("hunter2"), "{all:?}: {err}");
        }
    }
}

#[tokio::test]
async fn a_name_or_an_option_that_cannot_work_is_a_mistake() {
    let server = Server::start().await;
    assert_eq!(status(&server, &["exec", "", "--", "true"]).await, Some(78));
    assert_eq!(status(&server, &["exec", "--holder-name", "a:b", "a", "--", "true"]).await, Some(78));
    assert_eq!(status(&server, &["exec", "--kill-after", "20s", "a", "--", "true"]).await, Some(78));
    assert_eq!(
        status(&server, &["exec", "--fixed-lease", "10s", "--kill-after", "6s", "a", "--", "true"]).await,
        Some(78)
    );
    assert_eq!(status(&server, &["ls"]).await, Some(78));
    server.ask::<()>(&["SET", "text", "x"]).await;
    assert_eq!(status(&server, &["exec", "text", "--", "true"]).await, Some(78));
    for wrong in [
        &["exec", "a"][..],
        &["exec", "a", "--such", "true"],
        &["release", "a"],
        &["exec", "--wait", "ten", "a", "--", "true"],
        &[],
    ] {
        assert_eq!(status(&server, wrong).await, Some(64), "{wrong:?}");
        let ended = end(on(&server, &[&["--json"], wrong].concat())).await;
        let error: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
        assert_eq!((&error["error"], &error["status"]), (&"usage".into(), &64.into()));
    }
    for (command, code) in [("/no/such/command", 127), ("/etc/passwd", 126)] {
        let ended = end(on(&server, &["exec", "--json", "a", command])).await;
        let error: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
        assert_eq!((ended.status, &error["status"]), (Some(code), &code.into()));
    }
}

#[tokio::test]
async fn a_missing_right_is_denied() {
    let server = Server::start().await;
    let rights = [
        "ACL", "SETUSER", "bob", "reset", "on", ">hunter2", "~*", "&*", "+@all", "-scan", "-hset", "-hincrby",
    ];
    server.ask::<()>(&rights).await;
    let url = format!("redis://bob:hunter2@127.0.0.1:{}", server.port());
    for call in [CALLS[0], CALLS[1]] {
        let mut args = vec!["--url", &*url];
        args.extend(call);
        let ended = end(nestlock(&args)).await;
        assert_eq!(ended.status, Some(77), "{ended:?}");
        assert!(!ended.err.contains("hunter2"), "{ended:?}");
    }
}
