//! The reports of a worker to the conductor: one line on standard output each.

use std::io::Write;

use crate::Result;

#[derive(Debug, PartialEq)]
pub(crate) enum Report {
    /// An order is done.
    Done { order: String },
    /// An order that was begun by a process that died is done, after `before` steps of that process and `now`
    /// of this one.
    Finished { order: String, before: usize, now: usize },
    /// The worker is in the middle of an order, and waits.
    Inside { order: String },
    /// A lock was lost while an order was under way; the order is tried again.
    Lost { order: String },
    /// All is done. Locks were re-entered that often.
    Bye { reentries: u64 },
}

impl Report {
    pub(crate) fn send(&self) -> Result<()> {
        let line = match self {
            Report::Done { order } => format!("done {order}"),
            Report::Finished { order, before, now } => format!("finished {order} {before} {now}"),
            Report::Inside { order } => format!("inside {order}"),
            Report::Lost { order } => format!("lost {order}"),
            Report::Bye { reentries } => format!("bye {reentries}"),
        };
        Ok(writeln!(std::io::stdout().lock(), "{line}")?)
    }

    pub(crate) fn read(line: &str) -> Result<Report> {
        let words: Vec<&str> = line.split(' ').collect();
        Ok(match words[..] {
            ["done", order] => Report::Done { order: order.to_owned() },
            ["finished", order, before, now] => {
                Report::Finished { order: order.to_owned(), before: before.parse()?, now: now.parse()? }
            }
            ["inside", order] => Report::Inside { order: order.to_owned() },
            ["lost", order] => Report::Lost { order: order.to_owned() },
            ["bye", reentries] => Report::Bye { reentries: reentries.parse()? },
            _ => return Err(format!("a worker reported `{line}`").into()),
        })
    }
}
