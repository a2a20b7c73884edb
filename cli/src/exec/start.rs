//! The process that becomes the child.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getpid, getppid, kill_process};

use crate::status::{NOT_EXECUTABLE, NOT_FOUND, say};

/// The first argument of that process. The second is the process id of its parent.
pub(crate) const START: &str = "--internal-start";

/// Stops itself until the watchdog knows its process id, and then becomes the user's command.
///
/// On Linux the kernel kills it when the command ends; the program that it becomes inherits that.
pub(crate) fn start(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = args.next().and_then(|pid| Pid::from_raw(pid.to_str()?.parse().ok()?));
    let Some(command) = args.next() else { return ExitCode::from(NOT_FOUND) };
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed(&command, &error.into());
    }
    // The parent may have ended before that.
    if parent.is_none() || getppid() != parent {
        return ExitCode::from(NOT_EXECUTABLE);
    }
    if let Err(error) = kill_process(getpid(), Signal::STOP) {
        return failed(&command, &error.into());
    }
    let error = Command::new(&command).args(args).exec();
    failed(&command, &error)
}

fn failed(command: &OsString, error: &std::io::Error) -> ExitCode {
    let command = command.to_string_lossy();
    match error.kind() {
        ErrorKind::NotFound => {
            say(&format!("nestlock: the command `{command}` is not found; check its name, or give its path"));
            ExitCode::from(NOT_FOUND)
        }
        _ => {
            say(&format!("nestlock: the command `{command}` can't be executed: {error}"));
            ExitCode::from(NOT_EXECUTABLE)
        }
    }
}
