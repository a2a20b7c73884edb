//! What a server answers to a command, on top of a simulated master.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use crate::base::{Outcome, lock};
use crate::sim::master::{Answered, Order, Run, SimMaster};
use crate::sim::network::Network;
use crate::wire::{Action, Call, Renewals};

/// The server's age before its first restart, in seconds: longer than any lease.
const OLD: u64 = 1_000_000;

pub(super) struct Server {
    network: Arc<Network>,
    master: usize,
    scripts: Mutex<Scripts>,
}

/// The scripts that one run of the server knows.
#[derive(Default)]
struct Scripts {
    run: u64,
    known: BTreeSet<&'static str>,
    /// When commands with unknown scripts were sent, by their keys and arguments.
    refused: BTreeMap<String, Order>,
}

impl Server {
    pub(super) fn new(network: Arc<Network>, master: usize) -> Server {
        Server { network, master, scripts: Mutex::default() }
    }

    pub(super) fn master(&self) -> &SimMaster {
        &self.network.masters[self.master]
    }

    pub(super) fn run(&self) -> Run {
        self.master().run()
    }

    /// Does what `SCRIPT FLUSH` does.
    pub(super) fn forgets_scripts(&self) {
        lock(&self.scripts).known.clear();
    }

    /// Returns whether the server knew the script before. From now on it does.
    fn learns(&self, script: &'static str) -> bool {
        let (run, mut scripts) = (self.run().number, lock(&self.scripts));
        if scripts.run != run {
            *scripts = Scripts { run, ..Scripts::default() };
        }
        !scripts.known.insert(script)
    }

    fn knows(&self, script: &'static str) -> bool {
        let scripts = lock(&self.scripts);
        scripts.run == self.run().number && scripts.known.contains(script)
    }

    /// Returns the answer to a command, and a description of the command if it belongs to a lock. `order`: its place among the commands of
    /// all processes.
    pub(super) fn answer(&self, words: &[&str], order: Order) -> (String, Option<String>) {
        let plain = |answer: &str| (format!("{answer}\r\n"), None);
        match words {
            ["EVALSHA" | "EVAL", script @ ..] if Renewals::read(script).is_some() => self.renew(words, order),
            ["EVALSHA" | "EVAL", script @ ..] => match Call::read(script) {
                Some((script, call)) if words[0] == "EVAL" || self.knows(script) => {
                    self.learns(script);
                    // A command that is sent by its text is the one that was sent by its hash before.
                    let refused = lock(&self.scripts).refused.remove(&words[2..].join(" "));
                    self.call(call, refused.unwrap_or(order))
                }
                Some((_, call)) => {
                    lock(&self.scripts).refused.insert(words[2..].join(" "), order);
                    let shown = format!("{} of {}: the script is unknown", call.name(), call.keys.key);
                    ("-NOSCRIPT No matching script. Please use EVAL.\r\n".to_owned(), Some(shown))
                }
                None => plain("-ERR no script of this crate"),
            },
            ["INFO", section] => {
                let info = self.info(section);
                (format!("${}\r\n{info}\r\n", info.len()), None)
            }
            ["HELLO", ..] => plain("%2\r\n+server\r\n+redis\r\n+role\r\n+master"),
            ["CLIENT" | "SELECT" | "AUTH", ..] => plain("+OK"),
            ["PING"] => plain("+PONG"),
            ["WAIT", ..] => plain(":0"),
            _ => plain("-ERR unknown command"),
        }
    }

    /// Renews several holds with one script.
    fn renew(&self, words: &[&str], order: Order) -> (String, Option<String>) {
        let Some((script, calls)) = Renewals::read(&words[1..]) else { return (String::new(), None) };
        if words[0] == "EVALSHA" && !self.knows(script) {
            lock(&self.scripts).refused.insert(words[2..].join(" "), order);
            let shown = format!("renew of {} locks: the script is unknown", calls.len());
            return ("-NOSCRIPT No matching script. Please use EVAL.\r\n".to_owned(), Some(shown));
        }
        self.learns(script);
        let order = lock(&self.scripts).refused.remove(&words[2..].join(" ")).unwrap_or(order);
        let (mut answers, mut shown) = (format!("*{}\r\n", calls.len()), Vec::new());
        for call in calls {
            let (answer, what) = self.call(call, order);
            answers += &answer;
            shown.extend(what);
        }
        (answers, Some(shown.join("; ")))
    }

    fn call(&self, call: Call, order: Order) -> (String, Option<String>) {
        let (master, history) = (self.master(), &self.network.history);
        if call.action == Action::Force
            && let Some(field) = master.held_by(&call.keys.key)
        {
            history.forced(&field);
        }
        let mut shown = format!("{:?} of {} {}", call.action, call.keys.key, call.field);
        if master.overtaken(&call.field, order) {
            shown += ", after what was sent after it";
        }
        match master.answer(call, self.network.is_full(self.master)) {
            Some(Answered::Reply(reply)) => (reply.write(), Some(format!("{shown}: {reply:?}"))),
            refused => {
                let nothing_written = matches!(refused, Some(Answered::Refused(Outcome::NotRun)));
                let of =
                    if nothing_written { "user_script, nothing written" } else { "x, on @user_script:1." };
                let refused =
                    format!("-OOM command not allowed when used memory > 'maxmemory'. script: {of}\r\n");
                (refused, Some(format!("{shown}: it is full")))
            }
        }
    }

    fn info(&self, section: &str) -> String {
        let Run { number, started } = self.run();
        let id = format!("m{}-{number}", self.master);
        match section {
            "server" => {
                let age = started.map_or(OLD, |started| (Instant::now() - started).as_secs() + 1);
                let time = self.master().time_of_day();
                format!(
                    "redis_build_id:1\r\nredis_mode:standalone\r\nexecutable:/redis-server\r\nrun_id:{id}\r\n\
                     uptime_in_seconds:{age}\r\nserver_time_usec:{time}\r\n"
                )
            }
            "replication" => format!("role:master\r\nmaster_replid:{id}\r\n"),
            _ => "maxmemory_policy:noeviction\r\n".to_owned(),
        }
    }
}
