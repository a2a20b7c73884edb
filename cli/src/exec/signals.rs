//! The signals that reach the command while it runs.

use std::future::poll_fn;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

use crate::status::Failure;

/// The signals that are passed on to the child; `INT` only if the terminal does not send it to the child itself.
const PASSED_ON: [Signal; 6] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Receives all of these signals from now on, so that none of them ends the command by itself.
pub(super) struct Signals {
    passed_on: Vec<(Signal, unix::Signal)>,
    /// `SIGCHLD`. It is received because the kernel keeps no status of a child while this signal is ignored, and some programs start others
    /// with it ignored.
    _child: unix::Signal,
}

impl Signals {
    /// Starts to receive signals. A signal that is ignored stays ignored, for the child too: `nohup`, or a shell's `&`.
    pub(super) fn new() -> Result<Signals, Failure> {
        let ignored = ignored();
        let listened = PASSED_ON.into_iter().filter(|one| ignored & (1 << (one.as_raw() - 1)) == 0);
        let streams = listened.map(|one| Ok((one, signal(SignalKind::from_raw(one.as_raw()))?)));
        let signals: std::io::Result<_> = streams
            .collect::<std::io::Result<_>>()
            .and_then(|passed_on| Ok(Signals { passed_on, _child: signal(SignalKind::child())? }));
        signals.map_err(|error| Failure::system("signals can't be received", &error))
    }

    /// Waits for the next signal. Cancel safe.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.passed_on {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for the next signal that ends a command that has no child yet. Cancel safe.
    pub(super) async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ends(signal) {
                return signal;
            }
        }
    }
}

/// Returns whether a signal means that the command has to end.
pub(super) fn ends(signal: Signal) -> bool {
    !matches!(signal, Signal::USR1 | Signal::USR2)
}

/// Returns the name of one of these signals.
pub(super) fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::INT => "INT",
        Signal::TERM => "TERM",
        Signal::HUP => "HUP",
        Signal::QUIT => "QUIT",
        Signal::USR1 => "USR1",
        _ => "USR2",
    }
}

/// Returns one bit for each signal that was ignored when this process was started. Works on Linux only; elsewhere none is known.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
