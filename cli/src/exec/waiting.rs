//! The reports of `exec` while it waits: for which lock, and who has it.

use std::convert::Infallible;
use std::future::Future;
use std::time::{Duration, SystemTime};

use nestlock::{Holder, Locks, WaitingProcess};
use tokio::time::{Instant, sleep};

use crate::duration::{point, shown};
use crate::output::as_json;

/// How long `exec` waits before the first report.
const FIRST: Duration = Duration::from_secs(1);

/// The pause between two reports.
const AGAIN: Duration = Duration::from_secs(30);

/// Waits for the request, and passes a report to `say` from time to time. If this future is dropped, so is the request.
pub(super) async fn reported<T>(
    request: impl Future<Output = T>,
    locks: &Locks,
    json: bool,
    say: impl FnMut(&str),
) -> T {
    tokio::select! {
        // If both are ready, the grant goes first.
        biased;
        answer = request => answer,
        never = report(locks, json, say) => match never {},
    }
}

async fn report(locks: &Locks, json: bool, mut say: impl FnMut(&str)) -> Infallible {
    let began = Instant::now();
    let mut seen: Option<(String, SystemTime)> = None;
    let mut pause = FIRST;
    loop {
        sleep(pause).await;
        pause = AGAIN;
        // A request for several names waits for one at a time.
        let Some(status) = locks.status().into_iter().find(|status| status.waiting() > 0) else { continue };
        // What the request itself knows may be old. Without an answer, or without the right to ask, it is better than nothing.
        let mutex = locks.mutex(status.name());
        let asked = mutex.holder().await;
        // Without the right to ask, or without a line, the list is empty.
        let line = Line::of(&mutex.waiters().await.unwrap_or_default());
        let holder = asked.unwrap_or_else(|_| status.holder().cloned());
        let known =
            seen.take().filter(|(field, _)| holder.as_ref().is_some_and(|one| one.hold_id() == field));
        let since = known.as_ref().map(|(_, since)| *since);
        seen = known.or_else(|| Some((holder.as_ref()?.hold_id().to_owned(), SystemTime::now())));
        say(&text(status.name(), began.elapsed(), (holder.as_ref(), since), line, json));
    }
}

/// The processes that wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    length: usize,
    /// This process's place among them, from 1 on, if it is in the line.
    place: Option<usize>,
}

impl Line {
    fn of(waiters: &[WaitingProcess]) -> Option<Line> {
        let place = waiters.iter().position(WaitingProcess::is_here).map(|before| before + 1);
        (!waiters.is_empty()).then_some(Line { length: waiters.len(), place })
    }
}

/// Returns the report. The holder has had the lock since this time or longer: the servers don't keep when it was granted.
fn text(
    name: &str,
    waited: Duration,
    (holder, since): (Option<&Holder>, Option<SystemTime>),
    line: Option<Line>,
    json: bool,
) -> String {
    if json {
        let mut report = as_json(name, holder);
        report["waiting"] = true.into();
        report["waited_ms"] = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX).into();
        if let Some(since) = since {
            report["held_since_or_before"] = point(since).into();
        }
        if let Some(Line { length, place }) = line {
            report["in_line"] = length.into();
            report["place"] = place.into();
        }
        return report.to_string();
    }
    let shown_name = name.escape_debug();
    let mut text = match waited < AGAIN {
        true => format!("nestlock: waiting for `{shown_name}`"),
        false => format!("nestlock: still waiting for `{shown_name}` after {}", shown(waited)),
    };
    if let Some(holder) = holder {
        text += &format!(", held by {}", holder.name().unwrap_or(holder.hold_id()).escape_debug());
        if let Some(since) = since {
            text += &format!(" since {} or before", point(since));
        }
        text += &format!(", lease {}", shown(holder.remaining_lease()));
    }
    match line {
        Some(Line { length, place: Some(place) }) => text += &format!(", place {place} of {length} in line"),
        Some(Line { length, place: None }) => text += &format!(", {length} in line"),
        None => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use std::future::IntoFuture;

    use nestlock::Memory;

    use super::*;

    async fn locks(memory: &Memory, name: &str) -> Locks {
        Locks::builder(memory).holder_name(name).connect().await.unwrap()
    }

    /// Returns the reports of a wait of that many seconds.
    async fn said(memory: &Memory, json: bool, seconds: u64) -> Vec<String> {
        let locks = locks(memory, "waiter").await;
        let mutex = locks.mutex("deploy");
        let request = mutex.lock().within(Duration::from_secs(seconds));
        let mut said = Vec::new();
        let granted = reported(request, &locks, json, |text| said.push(text.to_owned())).await;
        assert!(granted.is_err());
        said
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_reported_after_a_second_and_then_every_half_minute() {
        let memory = Memory::new();
        let holder = locks(&memory, "backup@web-7").await;
        let _guard = holder.mutex("deploy").lock().await.unwrap();
        assert!(said(&memory, false, 1).await.is_empty());
        let said = said(&memory, false, 65).await;
        assert!(
            said[0].starts_with("nestlock: waiting for `deploy`, held by backup@web-7, lease 2")
                && said[0].ends_with(" s, place 1 of 1 in line"),
            "{said:?}"
        );
        for (text, after) in [(&said[1], 31), (&said[2], 61)] {
            let start =
                format!("nestlock: still waiting for `deploy` after {after} s, held by backup@web-7 since 2");
            let has = |part| text.contains(part);
            assert!(text.starts_with(&start) && has("Z or before, lease 2") && has("place 1 of 1"), "{text}");
        }
        assert_eq!(said.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_another_holder_is_not_taken_for_that_of_this_one() {
        let memory = Memory::new();
        let (one, two) = (locks(&memory, "one").await, locks(&memory, "two").await);
        let first = one.mutex("deploy").lock().await.unwrap();
        // The holder stands before the waiter in the line.
        let second = tokio::spawn(two.mutex("deploy").lock().into_future());
        sleep(Duration::from_millis(100)).await;
        let (said, ()) = tokio::join!(said(&memory, true, 65), async {
            sleep(Duration::from_secs(10)).await;
            first.release().await.unwrap();
            let _second = second.await.unwrap().unwrap();
            sleep(Duration::from_secs(60)).await;
        });
        let said: Vec<serde_json::Value> =
            said.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
        assert_eq!((&said[0]["holder"], &said[1]["holder"]), (&"one".into(), &"two".into()));
        let since: Vec<_> = said.iter().map(|one| one["held_since_or_before"].is_string()).collect();
        assert_eq!(since, [false, false, true], "{said:?}");
        assert_eq!((&said[1]["name"], &said[1]["waiting"]), (&"deploy".into(), &true.into()));
        let line: Vec<_> = said.iter().map(|one| (&one["place"], &one["in_line"])).collect();
        assert_eq!(
            line,
            [(&2.into(), &2.into()), (&1.into(), &1.into()), (&1.into(), &1.into())],
            "{said:?}"
        );
    }
}
