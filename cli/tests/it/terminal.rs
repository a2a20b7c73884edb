//! The command in a real terminal, which `script` of util-linux makes.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::run::{NESTLOCK, gone};
use crate::support::server::Server;
use crate::support::{eventually, soon};

/// A terminal in which a line runs. What is written to its input is typed there.
struct Terminal {
    child: tokio::process::Child,
    keys: tokio::process::ChildStdin,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Terminal {
    fn run(server: &Server, line: &str) -> Terminal {
        // A shell in between would also be interrupted.
        let line = format!("exec {}", line.replace("nestlock ", &format!("{NESTLOCK} ")));
        // As in [`nestlock`](crate::run::nestlock): an interrupt that is ignored here would be ignored there
        // too.
        let mut child = Command::new("env")
            .args(["--default-signal", "script", "--quiet", "--return", "--command", &line, "/dev/null"])
            .env("REDIS_URL", server.url())
            .env("SHELL", "/bin/sh")
            .env_remove("NESTLOCK_HOLDS")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let keys = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Terminal { child, keys, lines }
    }

    async fn line(&mut self) -> String {
        soon("a line", self.lines.next_line()).await.unwrap().expect("it has not ended").trim().to_owned()
    }

    /// Waits for this line. What is typed is also shown.
    async fn expect(&mut self, line: &str) {
        while self.line().await != line {}
    }

    async fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).await.unwrap();
        self.keys.flush().await.unwrap();
    }

    async fn status(mut self) -> Option<i32> {
        let ended = soon("the end", async {
            while let Ok(Some(_)) = self.lines.next_line().await {}
            self.child.wait().await
        });
        ended.await.unwrap().code()
    }
}

const INTERRUPT: &[u8] = b"\x03";
const QUIT: &[u8] = b"\x1c";
const STOP: &[u8] = b"\x1a";

#[tokio::test]
async fn the_child_reads_from_the_terminal() {
    let server = Server::start().await;
    let mut terminal = Terminal::run(
        &server,
        "nestlock exec a -- sh -c 'test -t 0 && echo ready; read word; echo got $word; exit 4'",
    );
    terminal.expect("ready").await;
    terminal.press(b"typed\n").await;
    terminal.expect("got typed").await;
    assert_eq!(terminal.status().await, Some(4));
}

#[tokio::test]
async fn an_interrupt_is_the_childs_and_comes_once() {
    let server = Server::start().await;
    for (key, name) in [(INTERRUPT, "INT"), (QUIT, "QUIT")] {
        let line = format!(
            "nestlock exec a -- sh -c 'trap \"echo got {name}\" {name}; echo ready; while :; do read word && echo got $word; test \"$word\" = end && exit 5; done'"
        );
        let mut terminal = Terminal::run(&server, &line);
        terminal.expect("ready").await;
        terminal.press(key).await;
        let shown = terminal.line().await;
        assert!(shown.ends_with(&format!("got {name}")), "{shown}");
        terminal.press(b"end\n").await;
        // A second signal would be shown before this line.
        let mut shown = terminal.line().await;
        if shown == "end" {
            shown = terminal.line().await;
        }
        assert_eq!(shown, "got end");
        assert_eq!(terminal.status().await, Some(5));
    }
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn an_interrupt_that_ends_the_child_ends_the_command() {
    let server = Server::start().await;
    let mut terminal = Terminal::run(&server, "nestlock exec a -- sh -c 'echo ready; exec sleep 1000'");
    terminal.expect("ready").await;
    terminal.press(INTERRUPT).await;
    assert_eq!(terminal.status().await, Some(130));
    assert!(server.keys().await.is_empty());
}

/// A shell ends a loop only if the signal itself has ended a command. A status alone would not do.
#[tokio::test]
async fn an_interrupt_ends_the_loop_of_a_shell() {
    let server = Server::start().await;
    let script =
        "for i in 1 2 3; do nestlock exec a -- sh -c \"echo ready; exec sleep 1000\"; done; echo over";
    let mut terminal = Terminal::run(&server, &format!("bash -c '{}'", script));
    terminal.expect("ready").await;
    terminal.press(INTERRUPT).await;
    assert_eq!(terminal.status().await, Some(130));
    // So does an interrupt while the command waits for the lock.
    let mut holder = Terminal::run(&server, "nestlock exec a -- sh -c 'echo ready; exec sleep 1000'");
    holder.expect("ready").await;
    let mut terminal = Terminal::run(&server, &format!("bash -c '{}'", script));
    eventually("a waiter", async || !server.channels().await.is_empty()).await;
    terminal.press(INTERRUPT).await;
    assert_eq!(terminal.status().await, Some(130));
}

/// Nothing renews the lease of a command that is stopped.
#[tokio::test]
async fn a_command_that_the_terminal_stops_loses_its_child_before_the_lease_is_over() {
    let server = Server::start().await;
    // An interactive shell continues when the command stops.
    let mut terminal = Terminal::run(&server, "sh -i");
    let line = format!(
        "{NESTLOCK} exec --lease 2s a -- sh -c 'echo child $$; sleep 1000; echo over'; echo status $?\n"
    );
    terminal.press(line.as_bytes()).await;
    let child: i32 = loop {
        let line = terminal.line().await;
        // The line is behind a prompt, and what was typed is also shown.
        if let Some(Ok(pid)) = line.split_once("child ").map(|(_, pid)| pid.parse()) {
            break pid;
        }
    };
    terminal.press(STOP).await;
    while !terminal.line().await.contains("status 148") {}
    // Nothing renews the lease any more.
    let end = std::time::Instant::now() + crate::run::ttl(&server, "a").await;
    gone(child).await;
    assert!(std::time::Instant::now() < end);
    terminal.press(b"fg\n").await;
    terminal.press(b"exit\n").await;
    terminal.status().await;
}

/// In a terminal, the child is in the process group of the command. What it has started is found by its
/// environment.
#[tokio::test]
async fn a_loss_ends_all_that_the_child_has_started() {
    let server = Server::start().await;
    let mut terminal = Terminal::run(
        &server,
        "nestlock exec --lease 1200ms --kill-after 300ms a -- sh -c 'sleep 1000 & echo $!; (trap \"\" TERM; while :; do sleep 0.05; done) & echo $!; echo $$; wait'",
    );
    let mut pids = Vec::new();
    for _ in 0..3 {
        pids.push(terminal.line().await.parse::<i32>().unwrap());
    }
    server.ask::<()>(&["DEL", "a"]).await;
    assert_eq!(terminal.status().await, Some(70));
    for pid in pids {
        gone(pid).await;
    }
}
