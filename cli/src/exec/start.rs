//! The process that becomes the child.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getpid, getppid, kill_process};

use crate::status::{Failure, NOT_EXECUTABLE, NOT_FOUND};

/// The first argument of that process. The second is the process id of its parent, the third how it reports an error.
pub(crate) const START: &str = "--internal-start";
pub(super) const JSON: &str = "json";
pub(super) const TEXT: &str = "text";

/// Stops itself until the watchdog knows its process id, and then becomes the user's command.
///
/// On Linux the kernel kills it when the command ends; the program that it becomes inherits that.
pub(crate) fn start(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = args.next().and_then(|pid| Pid::from_raw(pid.to_str()?.parse().ok()?));
    let json = args.next().is_some_and(|how| how == JSON);
    let Some(command) = args.next() else { return ExitCode::from(NOT_FOUND) };
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed(&command, &error.into(), json);
    }
    // The parent may have ended before that.
    if parent.is_none() || getppid() != parent {
        return ExitCode::from(NOT_EXECUTABLE);
    }
    if let Err(error) = kill_process(getpid(), Signal::STOP) {
        return failed(&command, &error.into(), json);
    }
    let error = Command::new(&command).args(args).exec();
    failed(&command, &error, json)
}

fn failed(command: &OsString, error: &std::io::Error, json: bool) -> ExitCode {
    let command = command.to_string_lossy();
    let failure = match error.kind() {
        ErrorKind::NotFound => Failure::not_found(format!(
            "the command `{command}` is not found; check its name, or give its path"
        )),
        _ => Failure::not_executable(format!("the command `{command}` can't be executed: {error}")),
    };
    ExitCode::from(failure.report(json))
}
