//! Runs calls over a connection: by the text of their script the first time, then by its hash, and by its text again if the server does
//! not know it.
//!
//! A script is sent before its deadline or never, and in the first poll or never. Otherwise:
//!
//! 1. A future sends a part of its work: the `EVALSHA` of an acquire whose script the server does not know.
//! 2. It is not polled for two node timeouts. The hold is given up, and its end runs.
//! 3. The future is polled again, after its deadline. A timeout around it does not help, since it polls the future first.
//! 4. The future sends the rest, the `EVAL`, which sets a field that is not removed before its lease ends.
//!
//! An answer is read at any time. Otherwise, with a short node timeout, a grant could be given up, undone and requested again
//! without end.

use std::ops::Range;
use std::{io, iter, slice};

use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::Instant;

use crate::backend::connection::slot::Link;
use crate::backend::resp::{Connection, PendingAnswer, why_unsent};
use crate::base::boxed;
use crate::wire::{Call, Renewals};

/// The size of a pipeline: large enough to save round trips, small enough that another caller's command does not wait long.
pub(crate) const CHUNK: usize = 500;

/// Begins a call: does what is possible without waiting. [`finish`] does the rest. Sends nothing from the deadline on: if no script ran by
/// then, the call fails with an [unsent](crate::backend::resp::why_unsent) error.
pub(crate) fn begin(connection: &Connection, call: &Call, deadline: Instant) -> RedisResult<PendingAnswer> {
    let write = |bytes: &mut Vec<u8>| encode(connection, slice::from_ref(call), false, bytes);
    connection.call(Some(deadline), 1, &write, None)
}

/// Waits for the answer to what was [begun](begin). One retry is enough if the server does not know the hash of the script: with the text
/// the script can't be unknown, even after another `SCRIPT FLUSH`.
pub(crate) async fn finish(
    connection: &Connection,
    call: &Call,
    begun: RedisResult<PendingAnswer>,
    deadline: Instant,
) -> RedisResult<Value> {
    let answer = begun?.one().await?;
    if !is_unknown_script(&answer) {
        return Ok(answer);
    }
    // The rare case is boxed, since otherwise it would make the future of each call larger.
    boxed(connection.run(Some(deadline), |bytes| call.encode(true, bytes))).await
}

/// Sends calls whose answers nobody gets, if the runtime of the connection ends or has ended.
pub(crate) fn run_last(connection: &Connection, calls: &[Call]) {
    connection.send_last(|bytes| calls.chunks(1).for_each(|call| encode(connection, call, false, bytes)));
}

/// Runs a call; `asking`: in one write with an `ASKING` before it. Also returns the answer to an `INFO replication` that ran after it,
/// unless [`DataWatch`](crate::backend::connection::data_watch::DataWatch) shows without it that the server has the same data.
pub(crate) async fn ask_about_data(
    link: &Link,
    call: &Call,
    asking: bool,
    deadline: Instant,
) -> RedisResult<(Value, Option<Value>)> {
    let connection = &link.connection;
    if asking || !link.status.data.needs_no_info(Instant::now()) {
        let (calls, parts, mut answers) = (slice::from_ref(call), iter::once(0..1).collect(), [None]);
        let (_, info) = send_parts(connection, calls, parts, &[asking], true, &mut answers, deadline).await;
        let [answer] = answers;
        return Ok((answer.unwrap_or(Ok(Value::Nil))?, info));
    }
    let answer = finish(connection, call, begin(connection, call, deadline), deadline).await?;
    // Checked after the answer: a report that the server sent before the answer has arrived by then.
    if link.status.data.grant_counts(Instant::now()) {
        return Ok((answer, None));
    }
    let info = connection.send(&info_replication(), None).await;
    Ok((answer, Some(info.map_err(after_a_call)?)))
}

/// Returns the error of a later command of a call whose script has run: even if that command was not sent, the call does not count
/// as unsent.
fn after_a_call(error: RedisError) -> RedisError {
    why_unsent(&error).map_or(error, |why| io::Error::new(io::ErrorKind::BrokenPipe, why).into())
}

/// Returns the command whose answer names the server's data.
pub(crate) fn info_replication() -> Cmd {
    redis::cmd("INFO").arg("replication").take()
}

/// Runs many calls, which are all sent before the first answer is waited for. Calls whose script the server does not know are sent once
/// more, and so are calls that have to be [sent alone](send_parts). `asking`: which calls are sent after an `ASKING`; none beyond its end.
/// If `renews_together`, all locks are on one node, and one run of a script makes several renewals. The answers are written to `answers`, so
/// that those that have arrived survive a drop of the future.
pub(crate) async fn ask_all(
    connection: &Connection,
    calls: &[Call],
    asking: &[bool],
    renews_together: bool,
    answers: &mut [Option<RedisResult<Value>>],
    deadline: Instant,
) {
    let parts = match renews_together {
        true => Renewals::divide(calls),
        false => (0..calls.len()).map(|at| at..at + 1).collect(),
    };
    let (alone, _) = send_parts(connection, calls, parts, asking, false, answers, deadline).await;
    send_parts(connection, calls, alone, asking, false, answers, deadline).await;
}

/// Sends each part of the calls in one command, all in one write, and parts whose script is unknown in another write by their text.
/// Returns the calls to send alone. These are the calls of a part that was refused before its script began, since the right to one of
/// its keys may be missing, or a proxy does not accept keys of several shards; and the calls whose hold is reported as gone. With
/// `info`, also returns the answer to an `INFO replication` after the last part.
async fn send_parts(
    connection: &Connection,
    calls: &[Call],
    mut parts: Vec<Range<usize>>,
    asking: &[bool],
    info: bool,
    answers: &mut [Option<RedisResult<Value>>],
    deadline: Instant,
) -> (Vec<Range<usize>>, Option<Value>) {
    let (mut alone, mut about_data, mut by_text) = (Vec::new(), None, false);
    let asking = |part: &Range<usize>| asking.get(part.start) == Some(&true);
    while !parts.is_empty() {
        let askings = parts.iter().filter(|part| asking(part)).count();
        let write = |bytes: &mut Vec<u8>| {
            for part in &parts {
                if asking(part) {
                    redis::cmd("ASKING").write_packed_command(bytes);
                }
                encode(connection, &calls[part.clone()], by_text, bytes);
            }
            if info {
                info_replication().write_packed_command(bytes);
            }
        };
        let count = parts.len() + askings + usize::from(info);
        let mut values = match connection.run_all(Some(deadline), count, write).await {
            Ok(values) => values.into_iter(),
            Err(error) => {
                parts.into_iter().flatten().for_each(|at| answers[at] = Some(Err(error.clone())));
                break;
            }
        };
        let mut unknown = Vec::new();
        for part in parts {
            let before = if asking(&part) { values.next() } else { None };
            let value = after_asking(before, values.next());
            if is_unknown_script(&value) && !by_text {
                unknown.push(part);
                continue;
            }
            let Some(renewals) = Renewals::of(&calls[part.clone()]) else {
                answers[part.start] = Some(Ok(value));
                continue;
            };
            match renewals.answers(value) {
                Ok(values) => part.zip(values).for_each(|(at, value)| match Renewals::is_in_doubt(&value) {
                    true => alone.push(at..at + 1),
                    false => answers[at] = Some(Ok(value)),
                }),
                Err(value) if is_refused(&value) => alone.extend(part.map(|at| at..at + 1)),
                Err(value) => part.for_each(|at| answers[at] = Some(Ok(value.clone()))),
            }
        }
        about_data = values.next();
        (parts, by_text) = (unknown, true);
    }
    (alone, about_data)
}

/// Writes the command of a part: by the text if `by_text` is set or the script was not sent over this connection yet, otherwise by the hash.
fn encode(connection: &Connection, part: &[Call], by_text: bool, bytes: &mut Vec<u8>) {
    let sends_text = |script| by_text || connection.sends_text(script);
    match Renewals::of(part) {
        Some(renewals) => renewals.encode(sends_text(Renewals::script_number()), bytes),
        None => part.iter().for_each(|call| call.encode(sends_text(call.script_number()), bytes)),
    }
}

/// Returns the answer to a command that was sent after `ASKING`, given both answers.
fn after_asking(asking: Option<Value>, answer: Option<Value>) -> Value {
    match (asking, answer) {
        // Without `ASKING` the node redirects the command back. The reason why it refused `ASKING` is the more useful error.
        (Some(refused @ Value::ServerError(_)), Some(Value::ServerError(error)))
            if error.kind() == Some(ServerErrorKind::Moved) =>
        {
            refused
        }
        (_, answer) => answer.unwrap_or(Value::Nil),
    }
}

/// Returns whether a script with several keys was refused before it began, although scripts with one of these keys may be accepted.
fn is_refused(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if matches!(error.code(), "NOPERM" | "CROSSSLOT" | "ERR")
        && !error.details().is_some_and(|text| text.contains("user_script")))
}

fn is_unknown_script(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

#[cfg(test)]
mod tests;
