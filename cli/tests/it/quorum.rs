//! Three independent masters.

use crate::run::{end, gone, nestlock, start};
use crate::support::server::Server;

#[tokio::test]
async fn a_minority_may_fail_and_a_majority_may_not() {
    let servers = [Server::start().await, Server::start().await, Server::start().await];
    // Masters that were started together grant nothing for one lease.
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let mut masters = vec!["--lease", "2s"];
    masters.extend(urls.iter().flat_map(|url| ["--url", url]));
    let all = |args: &[&str]| nestlock(&[&masters[..], args].concat());

    let script = format!(
        "echo $$; {} $SERVERS exec -n a -- echo inside; trap '' TERM; while :; do sleep 0.05; done",
        crate::run::NESTLOCK
    );
    let mut command = all(&["exec", "a", "--", "sh", "-c", &script]);
    command.env("SERVERS", masters.join(" "));
    let mut running = start(command);
    let child: i32 = running.number().await;
    assert_eq!(running.line().await, "inside");
    for server in &servers {
        assert_eq!(server.keys().await, ["a"]);
    }
    // A command that asks for the first time counts the age of a master from that master's answer, in whole
    // seconds.
    let busy = end(all(&["exec", "--wait", "4s", "a", "--", "true"])).await;
    assert_eq!(busy.status, Some(75), "{busy:?}");
    // In the environment, several servers are separated by spaces.
    let mut by_env = nestlock(&["show", "a"]);
    by_env.env("REDIS_URL", urls.join(" "));
    assert_eq!(end(by_env).await.status, Some(0));

    servers[0].kill();
    let ended = end(all(&["ls", "--all"])).await;
    assert!(ended.out.contains("\na "), "{ended:?}");
    assert_eq!(end(all(&["show", "a"])).await.status, Some(0));

    servers[1].kill();
    gone(child).await;
    assert_eq!(running.end().await.0, Some(70));
    for call in [&["ls", "--all"][..], &["show", "a"], &["exec", "a", "--", "true"]] {
        assert_eq!(end(all(call)).await.status, Some(69), "{call:?}");
    }
}
