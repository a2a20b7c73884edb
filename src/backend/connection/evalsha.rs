//! Runs calls over a connection: by the text of their script the first time, then by its hash, and by its text again if the server does
//! not know it.

use std::future::Future;
use std::io;
use std::ops::Range;

use redis::{RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::Instant;

use crate::backend::connection::commands::{By, Commands};
use crate::backend::connection::connection::Link;
use crate::backend::resp::why_unsent;
use crate::wire::{Call, Renewals};

/// The size of a pipeline: large enough to save round trips, small enough that another caller's command does not wait long.
pub(crate) const CHUNK: usize = 500;

/// Runs a call. One retry is enough if the server does not know the hash of its script: with the text the script can't be unknown,
/// even after another `SCRIPT FLUSH`.
///
/// Sends nothing from the deadline on. If no script ran by then, fails with an [unsent](crate::backend::resp::why_unsent) error.
pub(crate) async fn ask(
    connection: &Commands,
    call: &Call,
    asking: bool,
    deadline: Instant,
) -> RedisResult<Value> {
    if asking {
        return Ok(Box::pin(ask_in_pipeline(connection, call, true, false, deadline)).await?.0);
    }
    let answer = connection.run(call, connection.by(call.script_number()), deadline).await?;
    // The rare case is boxed: otherwise the future of each call would be as large as both cases together.
    if is_unknown_script(&answer) {
        Box::pin(connection.run(call, By::Text, deadline)).await
    } else {
        Ok(answer)
    }
}

/// Like [`ask`], but sends the first command here, if no other one is under way. The returned future does the rest.
pub(crate) fn begin(
    connection: &Commands,
    call: &Call,
    deadline: Instant,
) -> impl Future<Output = RedisResult<Value>> + Send + use<> {
    let (answer, connection, call) = (connection.begin(call, deadline), connection.clone(), call.clone());
    async move {
        let answer = answer.await?;
        if is_unknown_script(&answer) {
            Box::pin(connection.run(&call, By::Text, deadline)).await
        } else {
            Ok(answer)
        }
    }
}

/// Returns the first command for a call: by the text if its script was not sent over this connection yet, otherwise by the hash.
fn first(connection: &Commands, call: &Call) -> redis::Cmd {
    match connection.by(call.script_number()) {
        By::Hash => call.evalsha(),
        By::Text => call.eval(),
    }
}

/// Like [`ask`]. Also returns the answer to an `INFO replication` that ran after the call, unless
/// [`DataWatch`](crate::backend::connection::data_watch::DataWatch) shows without it that the server has the same data.
pub(crate) async fn ask_about_data(
    link: &Link,
    call: &Call,
    asking: bool,
    deadline: Instant,
) -> RedisResult<(Value, Option<Value>)> {
    let connection = &link.connection;
    if !link.status.data.spares_look(Instant::now()) {
        return ask_in_pipeline(connection, call, asking, true, deadline).await;
    }
    let answer = ask(connection, call, asking, deadline).await?;
    // Checked after the answer: a report that was sent before the answer was received before it.
    if link.status.data.is_same(Instant::now()) {
        return Ok((answer, None));
    }
    let info = connection.send(&info_replication(), None).await;
    Ok((answer, Some(info.map_err(behind_a_call)?)))
}

/// Returns the error of a command that is part of a call that has run: even if the command was not sent, the call does not count as
/// unsent.
fn behind_a_call(error: RedisError) -> RedisError {
    why_unsent(&error).map_or(error, |why| io::Error::new(io::ErrorKind::BrokenPipe, why).into())
}

/// Like [`ask`], in one pipeline with an `ASKING` before the call, with `INFO replication` after it, or both. Also returns the answer
/// to the latter.
async fn ask_in_pipeline(
    connection: &Commands,
    call: &Call,
    asking: bool,
    info: bool,
    deadline: Instant,
) -> RedisResult<(Value, Option<Value>)> {
    let answers = send_in_pipeline(connection, first(connection, call), asking, info, deadline).await?;
    if !is_unknown_script(&answers.0) {
        return Ok(answers);
    }
    Box::pin(send_in_pipeline(connection, call.eval(), asking, info, deadline)).await
}

async fn send_in_pipeline(
    connection: &Commands,
    command: redis::Cmd,
    asking: bool,
    info: bool,
    deadline: Instant,
) -> RedisResult<(Value, Option<Value>)> {
    let mut pipeline = redis::Pipeline::with_capacity(3);
    if asking {
        pipeline.cmd("ASKING");
    }
    pipeline.add_command(command);
    if info {
        pipeline.add_command(info_replication());
    }
    let mut answers = connection.send_all(&pipeline, Some(deadline)).await?.into_iter();
    let before = if asking { answers.next() } else { None };
    let answer = after_asking(before, answers.next());
    Ok((answer, info.then(|| answers.next().unwrap_or(Value::Nil))))
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

/// Returns the command whose answer names the server's data.
pub(crate) fn info_replication() -> redis::Cmd {
    let mut command = redis::cmd("INFO");
    command.arg("replication");
    command
}

/// Like [`ask`], for many calls in one pipeline. `asking` returns which of them are sent after an `ASKING`. The answers are written to
/// `answers`, so that those that have arrived are kept if the future is dropped.
pub(crate) async fn ask_all(
    connection: &Commands,
    calls: &[Call],
    asking: impl Fn(usize) -> bool,
    answers: &mut [Option<RedisResult<Value>>],
    deadline: Instant,
) {
    let all: Vec<usize> = (0..calls.len()).collect();
    send_all(connection, &all, &asking, answers, deadline, |at| first(connection, &calls[at])).await;
    let unknown: Vec<usize> = all
        .into_iter()
        .filter(|&at| matches!(&answers[at], Some(Ok(answer)) if is_unknown_script(answer)))
        .collect();
    if unknown.is_empty() {
        return;
    }
    // They are sent by their text now, so "unknown script" is no longer their answer.
    unknown.iter().for_each(|&at| answers[at] = None);
    send_all(connection, &unknown, &asking, answers, deadline, |at| calls[at].eval()).await;
}

/// Like [`ask_all`]. If `renews_together`, the locks are all on one node, and one run of a script makes several renewals.
pub(crate) async fn ask_many(
    connection: &Commands,
    calls: &[Call],
    renews_together: bool,
    answers: &mut [Option<RedisResult<Value>>],
    deadline: Instant,
) {
    let parts = if renews_together { Renewals::divide(calls) } else { Vec::new() };
    if !renews_together || parts.len() == calls.len() {
        return ask_all(connection, calls, |_| false, answers, deadline).await;
    }
    let mut apart = Vec::new();
    let unknown = send_parts(connection, calls, &parts, false, answers, &mut apart, deadline).await;
    if !unknown.is_empty() {
        send_parts(connection, calls, &unknown, true, answers, &mut apart, deadline).await;
    }
    if !apart.is_empty() {
        let alone: Vec<Call> = apart.iter().map(|at| calls[*at].clone()).collect();
        let mut theirs: Vec<_> = alone.iter().map(|_| None).collect();
        ask_all(connection, &alone, |_| false, &mut theirs, deadline).await;
        apart.into_iter().zip(theirs).for_each(|(at, answer)| answers[at] = answer);
    }
}

/// Sends each part in one command. Returns the parts whose script is unknown; with `again`, which sends texts, there are none. Adds
/// the calls to send alone to `apart`: those of a part that was refused before its script began, since the right to one of its keys
/// may be missing, or a proxy does not accept keys of several shards, and those whose hold is reported as gone.
async fn send_parts(
    connection: &Commands,
    calls: &[Call],
    parts: &[Range<usize>],
    again: bool,
    answers: &mut [Option<RedisResult<Value>>],
    apart: &mut Vec<usize>,
    deadline: Instant,
) -> Vec<Range<usize>> {
    let mut pipeline = redis::Pipeline::with_capacity(parts.len());
    for part in parts {
        pipeline.add_command(match Renewals::of(&calls[part.clone()]) {
            Some(renewals) if again || connection.by(Renewals::script_number()) == By::Text => {
                renewals.eval()
            }
            Some(renewals) => renewals.evalsha(),
            None if again => calls[part.start].eval(),
            None => first(connection, &calls[part.start]),
        });
    }
    let mut unknown = Vec::new();
    let values = match connection.send_all(&pipeline, Some(deadline)).await {
        Ok(values) => values,
        Err(error) => {
            let all = parts.iter().cloned().flatten();
            all.for_each(|at| answers[at] = Some(Err(error.clone())));
            return unknown;
        }
    };
    for (part, value) in parts.iter().zip(values) {
        if is_unknown_script(&value) && !again {
            unknown.push(part.clone());
            continue;
        }
        let Some(renewals) = Renewals::of(&calls[part.clone()]) else {
            answers[part.start] = Some(Ok(value));
            continue;
        };
        match renewals.answers(value) {
            Ok(values) => {
                part.clone().zip(values).for_each(|(at, value)| match Renewals::is_in_doubt(&value) {
                    true => apart.push(at),
                    false => answers[at] = Some(Ok(value)),
                })
            }
            Err(value) if is_refused(&value) => apart.extend(part.clone()),
            Err(value) => part.clone().for_each(|at| answers[at] = Some(Ok(value.clone()))),
        }
    }
    unknown
}

async fn send_all(
    connection: &Commands,
    indexes: &[usize],
    asking: impl Fn(usize) -> bool,
    answers: &mut [Option<RedisResult<Value>>],
    deadline: Instant,
    command: impl Fn(usize) -> redis::Cmd,
) {
    let mut pipeline = redis::Pipeline::with_capacity(indexes.len());
    for &at in indexes {
        if asking(at) {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(command(at));
    }
    match connection.send_all(&pipeline, Some(deadline)).await {
        Ok(values) => {
            let mut values = values.into_iter();
            for &at in indexes {
                let before = if asking(at) { values.next() } else { None };
                answers[at] = Some(Ok(after_asking(before, values.next())));
            }
        }
        Err(error) => indexes.iter().for_each(|&at| answers[at] = Some(Err(error.clone()))),
    }
}

/// Returns whether a script with several keys did not begin, although one with a single one of them may.
fn is_refused(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if matches!(error.code(), "NOPERM" | "CROSSSLOT" | "ERR")
        && !error.details().is_some_and(|text| text.contains("user_script")))
}

fn is_unknown_script(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

#[cfg(test)]
mod tests;
