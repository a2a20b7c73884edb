//! The processes that a signal goes to: the child, its process group, and processes that it has started outside that group.

use std::fs;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// The child and the processes that it has started.
pub(super) struct Targets {
    /// The child, until it and its group have ended.
    child: Option<Pid>,
    /// Whether the child leads a process group of its own.
    leads: bool,
    /// A text in the environment of everything that the child has started, and of nothing else.
    mark: String,
}

/// Which of the targets a signal reaches.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Reach {
    /// The child's process group, or only the child if it shares the command's group.
    Group,
    /// Also processes that have left the group, found by their environment (on Linux).
    All,
}

impl Targets {
    pub(super) fn new(child: Pid, leads: bool, mark: String) -> Targets {
        Targets { child: Some(child), leads, mark }
    }

    /// Forgets the child's process id, so that no other process is found by it.
    pub(super) fn forget_child(&mut self) {
        self.child = None;
    }

    /// Returns the line that the watchdog reads.
    pub(super) fn line(&self) -> String {
        let child = self.child.map_or(0, |child| child.as_raw_nonzero().get());
        format!("child {child} {} {}\n", u8::from(self.leads), self.mark)
    }

    /// Parses such a line.
    pub(super) fn read(line: &str) -> Option<Targets> {
        let mut words = line.strip_prefix("child ")?.split(' ');
        let child = Pid::from_raw(words.next()?.parse().ok()?);
        let leads = words.next()? == "1";
        Some(Targets { child, leads, mark: words.next()?.to_owned() })
    }

    /// Sends a signal. `lives` means that the child has not been waited for, so that its process id is still its own.
    pub(super) fn signal(&self, signal: Signal, lives: bool, reach: Reach) {
        // Processes that have ended in the meantime, and those of other users, can't be reached.
        if let Some(child) = self.child {
            if self.leads {
                let _ = kill_process_group(child, signal);
            } else if lives {
                let _ = kill_process(child, signal);
            }
        }
        if reach == Reach::All {
            self.each_marked(|process| process.signal(signal));
        }
    }

    /// Returns whether any of them still runs, apart from the child.
    pub(super) fn are_left(&self, reach: Reach) -> bool {
        if self.leads && self.child.is_some_and(group_runs) {
            return true;
        }
        let mut left = false;
        if reach == Reach::All {
            self.each_marked(|_| left = true);
        }
        left
    }

    /// Calls `call` for each process that has the mark, except for the child and its group.
    fn each_marked(&self, mut call: impl FnMut(&Process)) {
        for pid in pids() {
            // Opened before the look, so that the process id is not given to another process in between.
            let Some(process) = Process::open(pid) else { continue };
            let is_known =
                self.child.is_some_and(|child| pid == child || self.leads && group_of(pid) == Some(child));
            if !is_known && has_mark(pid, &self.mark) {
                call(&process);
            }
        }
    }
}

/// Returns the processes of this machine. There are none without `/proc`.
fn pids() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// Looks for the mark in the environment that the process was started with, which can't be read for processes of other users.
fn has_mark(pid: Pid, mark: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.windows(mark.len()).any(|part| part == mark.as_bytes())
}

/// Returns the state and the process group. They follow the name, which may contain anything.
fn stat(pid: Pid) -> Option<(char, Pid)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit_once(") ")?.1.split(' ');
    let state = words.next()?.chars().next()?;
    Some((state, Pid::from_raw(words.nth(1)?.parse().ok()?)?))
}

fn group_of(pid: Pid) -> Option<Pid> {
    stat(pid).map(|(_, group)| group)
}

/// Returns whether the group has a process that is not just waiting to be reaped.
#[cfg(target_os = "linux")]
fn group_runs(group: Pid) -> bool {
    // This call is cheap, and almost always enough.
    rustix::process::test_kill_process_group(group).is_ok()
        && pids().filter_map(stat).any(|(state, its)| its == group && !matches!(state, 'Z' | 'X'))
}

#[cfg(not(target_os = "linux"))]
fn group_runs(group: Pid) -> bool {
    rustix::process::test_kill_process_group(group).is_ok()
}

/// A handle of a process. While it lives, the process id can't be given to another process.
#[cfg(target_os = "linux")]
struct Process(rustix::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl Process {
    fn open(pid: Pid) -> Option<Process> {
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok().map(Process)
    }

    fn signal(&self, signal: Signal) {
        let _ = rustix::process::pidfd_send_signal(&self.0, signal);
    }
}

#[cfg(not(target_os = "linux"))]
struct Process(Pid);

#[cfg(not(target_os = "linux"))]
impl Process {
    fn open(pid: Pid) -> Option<Process> {
        Some(Process(pid))
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process(self.0, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_reads_the_line_that_it_is_sent() {
        let sent = Targets::new(Pid::INIT, true, "nestlock-1-2".to_owned());
        let read = Targets::read(sent.line().trim_end()).unwrap();
        assert_eq!((read.child, read.leads, read.mark), (Some(Pid::INIT), true, "nestlock-1-2".to_owned()));
        let mut sent = sent;
        sent.forget_child();
        assert_eq!(Targets::read(sent.line().trim_end()).unwrap().child, None);
        for line in ["", "child", "child x 1 a", "child 1 1", "until 5"] {
            assert!(Targets::read(line).is_none(), "{line}");
        }
    }
}
