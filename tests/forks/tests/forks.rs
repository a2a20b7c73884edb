//! After a fork the parent and the child are never the same owner.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// The tests of the crate use this module to start their servers.
#[allow(unreachable_pub, missing_docs, clippy::must_use_candidate)]
#[path = "../../it/support/mod.rs"]
mod support;

use support::server::Server;
use support::soon;

const CONNECTIONS: &str = "total_connections_received";

struct Output {
    lines: Vec<String>,
    /// How many connections the process and its child have made.
    connections: u64,
    /// What they left on the server.
    keys: Vec<String>,
}

impl Output {
    /// Returns the rest of the line that starts with this.
    fn of(&self, what: &str) -> &str {
        let mut found = self.lines.iter().filter_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
        found.next().unwrap_or_else(|| panic!("{what} is not in {:?}", self.lines))
    }
}

async fn forked(how: &[&str]) -> Output {
    let server = Server::start().await;
    let connections = async || server.info("stats").await[CONNECTIONS].parse::<u64>().unwrap();
    let before = connections().await;
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_forks"));
    command.arg(server.url()).args(how).kill_on_drop(true);
    let output = soon("the end of both", command.output()).await.unwrap();
    let lines = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    // The query itself makes one connection.
    let connections = connections().await - before - 1;
    let output_of = Output { lines, connections, keys: server.keys().await };
    assert!(output.status.success(), "{:?} {}", output_of.lines, String::from_utf8_lossy(&output.stderr));
    assert_eq!(output_of.of("parent is"), "done");
    output_of
}

/// Returns the part of a field that identifies its `Locks`.
fn instance(field: &str) -> &str {
    field.rsplit_once(':').unwrap().0
}

#[tokio::test]
async fn a_child_that_connects_is_a_stranger_with_ids_of_its_own() {
    for how in [&["own"][..], &["own", "drop"]] {
        let output = forked(how).await;
        assert_eq!((output.of("child try_lock:"), output.of("child within:")), ("busy", "busy"));
        let (parents, childs) = (output.of("parent has"), output.of("child another: has"));
        assert_ne!(instance(parents), instance(childs));
        // The parent's thread does not exist in the child.
        assert_eq!(output.of("child threads:"), "1");
        assert_eq!(output.of("parent check:"), "Ok(())");
        assert_eq!(output.keys, [""; 0]);
    }
}

#[tokio::test]
async fn locks_from_before_a_fork_take_nothing_in_the_child() {
    // If both use one runtime, the parent and the child use the same ids for what they do next.
    for how in [["continued"], ["inherited"]] {
        let output = forked(&how).await;
        for what in ["try_lock", "within", "another"] {
            assert_eq!(output.of(&format!("child {what}:")), "Misuse", "{:?}", output.lines);
        }
        assert_eq!(output.of("child threads:"), "0");
        assert_eq!(output.of("parent check:"), "Ok(())");
        assert_eq!(output.keys, [""; 0]);
    }
}

#[tokio::test]
async fn a_guard_from_before_a_fork_is_the_parents() {
    for how in
        [["inherited", "drop"], ["continued", "drop"], ["inherited", "release"], ["continued", "release"]]
    {
        let output = forked(&how).await;
        assert_eq!(output.of("child try_lock:"), "Misuse");
        // Otherwise it would be nested in the copy of the hold, without a command.
        assert_eq!(output.of("child nested:"), "Err(Misuse)", "{:?}", output.lines);
        assert_eq!(output.of("child check:"), "Err(Misuse)");
        // The child releases its copy, which would otherwise be passed on without a command.
        assert_eq!(output.of("child other owner:"), "Misuse", "{:?}", output.lines);
        if how[1] == "release" {
            assert_eq!(output.of("child release:"), "Err(Misuse)", "{:?}", output.lines);
        }
        assert_eq!(output.of("parent check:"), "Ok(())");
        assert_eq!(output.keys, [""; 0]);
    }
}

#[tokio::test]
async fn the_end_of_locks_in_the_child_leaves_the_parents_connection() {
    let output = forked(&["inherited"]).await;
    assert_eq!(output.connections, 1, "{:?}", output.lines);
}
