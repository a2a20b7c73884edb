//! `ls`, `show`, `watch` and `release`.

use serde_json::Value;

use crate::run::{end, nestlock, on, start, status};
use crate::support::cluster::Cluster;
use crate::support::sentinel::{Group, NAME};
use crate::support::server::Server;
use crate::support::soon;

const UUID: &str = "4be5fd9c-8a3d-4c17-9d0e-0d8f8f1c2b3a";

/// A lock, as Redisson or the crate makes it.
async fn held(server: &Server, key: &str, by: &str) {
    server.ask::<()>(&["HSET", key, &format!("{by}{UUID}:7"), "2"]).await;
    server.ask::<()>(&["PEXPIRE", key, "20000"]).await;
}

fn json(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn names(text: &str) -> Vec<String> {
    json(text).iter().map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn ls_lists_the_locks_that_begin_so_and_nothing_else() {
    let server = Server::start().await;
    held(&server, "stock:1", "web@one:").await;
    held(&server, "stock:2", "").await;
    held(&server, "st*ck:1", "").await;
    held(&server, "app:stock:9", "").await;
    server.ask::<()>(&["HSET", "stock:hash", "name", "x"]).await;
    server.ask::<()>(&["HSET", "stock:expires", "name", "x"]).await;
    server.ask::<()>(&["PEXPIRE", "stock:expires", "20000"]).await;
    server.ask::<()>(&["HSET", "stock:for ever", &format!("{UUID}:1"), "1"]).await;
    server.ask::<()>(&["SET", "stock:text", "x", "PX", "20000"]).await;
    for n in 0..2000 {
        server.ask::<()>(&["SET", &format!("stock:many:{n}"), "x"]).await;
    }
    server.reset_commands_run().await;
    let list = async |args: &[&str]| {
        let ended = end(on(&server, &[&["--json", "ls"], args].concat())).await;
        assert_eq!(ended.status, Some(0), "{ended:?}");
        names(&ended.out)
    };
    assert_eq!(list(&["--prefix", "stock:"]).await, ["stock:1", "stock:2"]);
    assert_eq!(list(&["--prefix", "st*ck"]).await, ["st*ck:1"]);
    assert_eq!(list(&["--all"]).await, ["app:stock:9", "st*ck:1", "stock:1", "stock:2"]);
    assert_eq!(list(&["--key-prefix", "app:"]).await, ["stock:9"]);
    assert_eq!(list(&["--prefix", "nothing"]).await, [""; 0]);
    let run = server.commands_run().await;
    assert!(run["scan"] > 4 && !run.contains_key("keys"), "{run:?}");

    let text = end(on(&server, &["ls", "--prefix", "stock:"])).await.out;
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "HELD", "BY", "COUNT", "LEASE", "WAITERS"]);
    assert_eq!((&lines[1][..3], lines[1].last()), (&["stock:1", "web@one", "2"][..], Some(&"0")));
    assert_eq!(lines[2][1], format!("{UUID}:7"));
    assert_eq!(lines.len(), 3);
}

#[tokio::test]
async fn show_tells_who_holds_a_lock() {
    let server = Server::start().await;
    held(&server, "a", "web@one:").await;
    let ended = end(on(&server, &["show", "a"])).await;
    assert_eq!(ended.status, Some(0));
    assert!(ended.out.starts_with("a: held by web@one for another 19 s, hold web@one:4be"), "{ended:?}");
    assert!(ended.out.ends_with("count 2\n"), "{ended:?}");
    let ended = end(on(&server, &["show", "--json", "a"])).await;
    let lock = &json(&ended.out)[0];
    assert_eq!(
        (&lock["name"], &lock["held"], &lock["holder"]),
        (&"a".into(), &true.into(), &"web@one".into())
    );
    assert_eq!((&lock["hold"], &lock["count"]), (&format!("web@one:{UUID}:7").into(), &2.into()));
    assert!(lock["lease_ms"].as_u64().is_some_and(|left| left > 10_000 && left <= 20_000), "{lock}");
    let ended = end(on(&server, &["show", "b"])).await;
    assert_eq!((ended.status, ended.out.as_str()), (Some(1), "b: free\n"));
    let ended = end(on(&server, &["show", "b", "--json"])).await;
    assert_eq!(ended.out, "{\"held\":false,\"name\":\"b\",\"waiters\":[]}\n");
}

#[tokio::test]
async fn show_tells_who_waits_for_a_lock() {
    let server = Server::start().await;
    held(&server, "a", "web@one:").await;
    let waits = |name: &str| start(on(&server, &["exec", "--holder-name", name, "a", "--", "true"]));
    let line = async |count: i64| {
        while server.ask::<i64>(&["ZCARD", "nestlock_line:{a}"]).await < count {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let _one = waits("web@two");
    line(1).await;
    let _two = waits("web@three");
    line(2).await;
    let ended = end(on(&server, &["show", "a"])).await;
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(lines.len(), 3, "{ended:?}");
    assert!(
        lines[1].starts_with("  waits: web@two for ") && lines[1].contains(" s, hold web@two:"),
        "{ended:?}"
    );
    assert!(lines[2].starts_with("  waits: web@three for "), "{ended:?}");
    let ended = end(on(&server, &["show", "a", "--json"])).await;
    let waiters = &json(&ended.out)[0]["waiters"];
    assert_eq!((&waiters[0]["holder"], &waiters[1]["holder"]), (&"web@two".into(), &"web@three".into()));
    assert!(waiters[0]["waiting_ms"].is_u64() && waiters[0]["hold"].is_string(), "{waiters}");
    let listed = end(on(&server, &["ls", "--all"])).await;
    assert!(listed.out.lines().nth(1).is_some_and(|lock| lock.ends_with(" 2")), "{listed:?}");
    let listed = end(on(&server, &["ls", "--all", "--json"])).await;
    assert_eq!(json(&listed.out)[0]["waiters"][1]["holder"], "web@three");
}

#[tokio::test]
async fn what_others_wrote_is_escaped() {
    let server = Server::start().await;
    held(&server, "a\u{1b}[31m", "").await;
    let ended = end(on(&server, &["ls", "--all"])).await;
    assert!(ended.out.contains("a\\u{1b}[31m") && !ended.out.contains('\u{1b}'), "{ended:?}");
}

#[tokio::test]
async fn watch_prints_each_change() {
    let server = Server::start().await;
    let mut watch = start(on(&server, &["watch", "a", "--interval", "20ms"]));
    let first = watch.line().await;
    let (time, text) = first.split_once(' ').unwrap();
    assert_eq!((time.len(), text), ("2026-01-31T23:59:59Z".len(), "a: free"));
    held(&server, "a", "web@one:").await;
    // Between two commands of the test, the key may be seen without its TTL, and then counts as no lock.
    assert!(watch.line().await.contains("Z a: held by web@one for another"));
    server.ask::<()>(&["PEXPIRE", "a", "15000"]).await;
    assert_eq!(status(&server, &["release", "--force", "a"]).await, Some(0));
    assert!(watch.line().await.ends_with("Z a: free"));
    server.restart().await;
    held(&server, "a", "web@two:").await;
    assert!(watch.line().await.contains("Z a: held by web@two"));
    watch.signal(rustix::process::Signal::INT);
    let (status, err) = watch.end().await;
    assert_eq!(status, None, "{err}");

    let mut watch = start(on(&server, &["watch", "--json", "a"]));
    let lock: Value = serde_json::from_str(&watch.line().await).unwrap();
    assert_eq!(lock["holder"], "web@two");
    assert_eq!(lock["time"].as_str().map(str::len), Some(time.len()));
}

/// `nestlock watch a | head -1` ends although nothing changes any more.
#[tokio::test]
async fn watch_ends_when_nobody_reads_on() {
    let server = Server::start().await;
    let mut command = on(&server, &["watch", "a", "--interval", "20ms"]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = [0; 8];
    let mut out = child.stdout.take().unwrap();
    soon("a line", tokio::io::AsyncReadExt::read_exact(&mut out, &mut line)).await.unwrap();
    drop(out);
    assert_eq!(soon("its end", child.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn release_frees_a_lock_and_says_whose_it_was() {
    let server = Server::start().await;
    held(&server, "a", "web@one:").await;
    let ended = end(on(&server, &["release", "--force", "a"])).await;
    assert_eq!((ended.status, ended.out.as_str()), (Some(0), "a: freed; it was held by web@one\n"));
    assert!(server.keys().await.is_empty());
    let ended = end(on(&server, &["release", "--force", "a"])).await;
    assert_eq!((ended.status, ended.out.as_str()), (Some(1), "a: it was free\n"));
    held(&server, "a", "web@one:").await;
    let ended = end(on(&server, &["release", "--force", "--json", "a"])).await;
    let freed = &json(&ended.out)[0];
    assert_eq!((&freed["freed"], &freed["holder"]), (&true.into(), &"web@one".into()));
    // If a live command has the lock, its child is ended.
    let mut running =
        start(on(&server, &["exec", "--lease", "1s", "a", "--", "sh", "-c", "echo; sleep 1000"]));
    running.line().await;
    assert_eq!(status(&server, &["release", "--force", "a"]).await, Some(0));
    assert_eq!(running.end().await.0, Some(70));
}

/// A cart: `ls` leaves it out, and no other call takes it for a lock either.
#[tokio::test]
async fn a_hash_that_is_no_lock_is_neither_shown_nor_freed() {
    let server = Server::start().await;
    server.ask::<()>(&["HSET", "cart", "product:17", "3"]).await;
    server.ask::<()>(&["PEXPIRE", "cart", "20000"]).await;
    let ended = end(on(&server, &["ls", "--all", "--json"])).await;
    assert_eq!((ended.status, ended.out.as_str()), (Some(0), ""), "{ended:?}");
    for args in [&["show", "cart"][..], &["release", "--force", "cart"], &["exec", "cart", "--", "true"]] {
        let ended = end(on(&server, args)).await;
        assert_eq!((ended.status, ended.out.as_str()), (Some(78), ""), "{ended:?}");
        assert!(ended.err.contains("fields are not those of a lock"), "{ended:?}");
    }
    assert_eq!(server.keys().await, ["cart"]);
}

#[tokio::test]
async fn a_master_is_found_by_its_sentinels() {
    let group = Group::start().await;
    let sentinels: Vec<String> = group.urls("", "");
    let mut servers: Vec<&str> = sentinels.iter().flat_map(|url| ["--sentinel", url]).collect();
    servers.extend(["--master", NAME]);
    let mut running =
        start(nestlock(&[&servers[..], &["exec", "a", "--", "sh", "-c", "echo; sleep 1000"]].concat()));
    running.line().await;
    let ended = end(nestlock(&[&servers[..], &["ls", "--all", "--json"]].concat())).await;
    assert_eq!(names(&ended.out), ["a"], "{ended:?}");
}

#[tokio::test]
async fn all_nodes_of_a_cluster_are_listed() {
    let cluster = Cluster::shared().await;
    let url = cluster.node(0).url();
    let mut running = Vec::new();
    for name in ["one", "two", "three", "four"] {
        let mut one =
            start(nestlock(&["--cluster", &url, "exec", name, "--", "sh", "-c", "echo; sleep 1000"]));
        one.line().await;
        running.push(one);
    }
    let ended = end(nestlock(&["--cluster", &url, "ls", "--all", "--json"])).await;
    assert_eq!(names(&ended.out), ["four", "one", "three", "two"], "{ended:?}");
}

#[tokio::test]
async fn a_server_over_tls_is_listed() {
    let server = Server::tls().await;
    held(&server, "a", "").await;
    let mut command = nestlock(&["--url", &server.tls_url(), "ls", "--all", "--json"]);
    command.env("SSL_CERT_FILE", server.ca_file());
    let ended = end(command).await;
    assert_eq!(names(&ended.out), ["a"], "{ended:?}");
}
