//! The terminal that the command and its child share, if there is one.

use std::fs::File;

use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;

/// A controlling terminal. The child has to stay in the process group of the command, since only that may read from it.
pub(super) struct Terminal(File);

impl Terminal {
    pub(super) fn open() -> Option<Terminal> {
        File::open("/dev/tty").ok().map(Terminal)
    }

    /// Returns whether input from the terminal reaches the child. If so, the terminal sends it `INT` and `QUIT` itself.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|group| group == getpgrp())
    }
}
