//! The state of a lock, as text and as JSON.

use std::io::{ErrorKind, Write};

use nestlock::{Holder, WaitingProcess};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use crate::duration::shown;
use crate::status::Failure;

/// Writes one line, and returns whether the output is still read: `nestlock ls | head` is no error.
pub(crate) fn line(text: &str) -> Result<bool, Failure> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::system("the output can't be written", &error)),
    }
}

/// Returns whether the output is no longer read, as far as that can be seen without writing.
pub(crate) fn is_closed() -> bool {
    let out = std::io::stdout();
    let mut output = [PollFd::new(&out, PollFlags::empty())];
    let seen = poll(&mut output, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    seen.is_ok() && output[0].revents().contains(PollFlags::ERR)
}

/// Returns the state of a lock. `held` is true if the lock has a holder that can be named.
pub(crate) fn as_json(name: &str, holder: Option<&Holder>) -> Value {
    match holder {
        Some(holder) => json!({
            "name": name,
            "held": true,
            "holder": holder.name(),
            "hold": holder.hold_id(),
            "count": holder.count(),
            "lease_ms": u64::try_from(holder.remaining_lease().as_millis()).unwrap_or(u64::MAX),
        }),
        None => json!({ "name": name, "held": false }),
    }
}

pub(crate) fn as_text(name: &str, holder: Option<&Holder>) -> String {
    let name = name.escape_debug();
    let Some(holder) = holder else { return format!("{name}: free") };
    let mut text = format!("{name}: held by {holder}");
    if holder.name().is_some() {
        text += &format!(", hold {}", holder.hold_id().escape_debug());
    }
    if holder.count() != 1 {
        text += &format!(", count {}", holder.count());
    }
    text
}

pub(crate) fn waiter_as_json(waiter: &WaitingProcess) -> Value {
    json!({
        "holder": waiter.name(),
        "hold": waiter.hold_id(),
        "waiting_ms": u64::try_from(waiter.waiting_for().as_millis()).unwrap_or(u64::MAX),
    })
}

pub(crate) fn waiter_as_text(waiter: &WaitingProcess) -> String {
    let field = waiter.name().map(|_| format!(", hold {}", waiter.hold_id().escape_debug()));
    format!("{waiter}{}", field.unwrap_or_default())
}

/// Returns the columns of a list.
pub(crate) fn row(name: &str, holder: &Holder, waiters: usize) -> [String; 5] {
    let by = holder.name().unwrap_or(holder.hold_id());
    let left = shown(holder.remaining_lease());
    let (name, by) = (name.escape_debug().to_string(), by.escape_debug().to_string());
    [name, by, holder.count().to_string(), left, waiters.to_string()]
}
