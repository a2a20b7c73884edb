//! Ends the command by `^C` in the way that a shell has to see it.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getpid, kill_process};

use crate::exec::watchdog::this_program;

/// The only argument of the program that ends itself by `INT`.
pub(crate) const INTERRUPTED: &str = "--internal-interrupted";

/// Ends this process by `INT` instead of with a status: otherwise a shell would go on with its loop or script. Returns if that fails.
///
/// The signal has a handler in this program, which no safe call removes. A newly executed program has none.
pub(super) fn by_interrupt() {
    if let Ok(program) = this_program() {
        let _ = Command::new(program).arg0("nestlock").arg(INTERRUPTED).exec();
    }
}

/// Ends the process by `INT`.
pub(crate) fn interrupted() -> ExitCode {
    let _ = kill_process(getpid(), Signal::INT);
    // `INT` is ignored.
    ExitCode::from(130)
}
