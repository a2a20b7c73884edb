//! An end by `^C`, as the shell has to see it.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getpid, kill_process};

use crate::exec::watchdog::this_program;

/// Its only argument.
pub(crate) const INTERRUPTED: &str = "--internal-interrupted";

/// Ends this process by `INT`, in place of a status: otherwise a shell goes on with its loop or script. Returns where that fails.
///
/// The signal has a handler here, and no safe call takes it away. In a program that is executed anew it has none.
pub(super) fn by_interrupt() {
    if let Ok(program) = this_program() {
        let _ = Command::new(program).arg0("nestlock").arg(INTERRUPTED).exec();
    }
}

/// Ends the process by `INT`.
pub(crate) fn interrupted() -> ExitCode {
    let _ = kill_process(getpid(), Signal::INT);
    // It is ignored.
    ExitCode::from(130)
}
