//! The worker processes, as the conductor sees them.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

use crate::Result;
use crate::report::Report;
use crate::worker::Job;

/// An event of a worker. Workers are numbered in the order in which they were started.
pub(crate) enum Event {
    Reported(usize, Report),
    Ended(usize),
}

/// Processes that end with the conductor.
pub(crate) struct Crew {
    members: Vec<(Child, ChildStdin)>,
    sender: mpsc::UnboundedSender<Result<Event>>,
    events: mpsc::UnboundedReceiver<Result<Event>>,
}

impl Crew {
    pub(crate) fn new() -> Crew {
        let (sender, events) = mpsc::unbounded_channel();
        Crew { members: Vec::new(), sender, events }
    }

    /// Starts this very program once more, as a worker.
    pub(crate) fn start(&mut self, job: &Job) -> Result<()> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(job.to_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a worker without pipes".into());
        };
        let number = self.members.len();
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if sender.send(Report::read(&line).map(|report| Event::Reported(number, report))).is_err() {
                    return;
                }
            }
            // The receiver may be gone, which is fine.
            sender.send(Ok(Event::Ended(number))).unwrap_or_default();
        });
        self.members.push((child, stdin));
        Ok(())
    }

    pub(crate) async fn next(&mut self) -> Result<Event> {
        self.events.recv().await.ok_or("no worker is left")?
    }

    /// Sends SIGKILL: the process can't release, clean up or report anything.
    pub(crate) async fn kill(&mut self, number: usize) -> Result<()> {
        Ok(self.members[number].0.kill().await?)
    }

    /// Returns whether a worker that has ended was successful.
    pub(crate) async fn succeeded(&mut self, number: usize) -> Result<bool> {
        Ok(self.members[number].0.wait().await?.success())
    }
}
