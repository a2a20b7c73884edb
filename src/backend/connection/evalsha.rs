//! Calls on a connection: their scripts by hash, or by text where the server does not know them.

use redis::{RedisResult, ServerErrorKind, Value};
use tokio::time::Instant;

use crate::backend::connection::connection::{Link, let_in};
use crate::wire::Call;

/// Runs a call by the hash of its script, or by its text where the server does not know it. Only once: with the text
/// there is no second "unknown", and so no window for another SCRIPT FLUSH.
///
/// Nothing is sent from the deadline on. Where nothing ran by then, the error [says so](super::redis_error::is_unsent).
pub(crate) async fn ask(link: &mut Link, call: &Call, asking: bool, deadline: Instant) -> RedisResult<Value> {
    if asking {
        return Box::pin(ask_before_move(link, call, deadline)).await;
    }
    let answer = link.send(&call.evalsha(), deadline).await?;
    // What is rare has a place of its own: the future of each call would be as large as both.
    if is_unknown_script(&answer) { Box::pin(link.send(&call.eval(), deadline)).await } else { Ok(answer) }
}

async fn ask_before_move(link: &mut Link, call: &Call, deadline: Instant) -> RedisResult<Value> {
    let answer = link.send_asking(call.evalsha(), deadline).await?;
    if is_unknown_script(&answer) { link.send_asking(call.eval(), deadline).await } else { Ok(answer) }
}

/// The same for many, in one pipeline. `asking`: which of them go behind an `ASKING`. `answers` has what was answered, however far
/// it got.
pub(crate) async fn ask_all(
    link: &mut Link,
    calls: &[Call],
    asking: impl Fn(usize) -> bool,
    answers: &mut [Option<RedisResult<Value>>],
    deadline: Instant,
) {
    let all: Vec<usize> = (0..calls.len()).collect();
    send_all(link, &all, &asking, answers, deadline, |at| calls[at].evalsha()).await;
    let unknown: Vec<usize> = all
        .into_iter()
        .filter(|&at| matches!(&answers[at], Some(Ok(answer)) if is_unknown_script(answer)))
        .collect();
    if unknown.is_empty() {
        return;
    }
    // Sent by its text now, so "unknown script" is no longer what became of it.
    unknown.iter().for_each(|&at| answers[at] = None);
    send_all(link, &unknown, &asking, answers, deadline, |at| calls[at].eval()).await;
}

async fn send_all(
    link: &mut Link,
    places: &[usize],
    asking: impl Fn(usize) -> bool,
    answers: &mut [Option<RedisResult<Value>>],
    deadline: Instant,
    command: impl Fn(usize) -> redis::Cmd,
) {
    let mut pipeline = redis::Pipeline::with_capacity(places.len());
    for &at in places {
        if asking(at) {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(command(at));
    }
    match link.send_all(&pipeline, deadline).await {
        Ok(values) => {
            let mut values = values.into_iter();
            for &at in places {
                let before = if asking(at) { values.next() } else { None };
                answers[at] = Some(Ok(let_in(before, values.next())));
            }
        }
        Err(error) => places.iter().for_each(|&at| answers[at] = Some(Err(error.clone()))),
    }
}

fn is_unknown_script(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

#[cfg(test)]
mod tests;
