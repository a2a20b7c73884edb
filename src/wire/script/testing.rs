//! Calls as a server reads and answers them.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::*;
use crate::base::Drift;

static ALL: [&Script; 14] = [
    &ACQUIRE,
    &MOVE,
    &RELEASE,
    &KEEP,
    &RENEW,
    &SETTLE,
    &FORCE,
    &LOOK,
    &WHO,
    &ACQUIRE_FENCED,
    &RENEW_FENCED,
    &SETTLE_FENCED,
    &SHORTEN,
    &WAITERS,
];

fn lease(millis: &str) -> Option<Lease> {
    let drift = Drift { factor: 0.0, slack: Duration::ZERO };
    Lease::new("lease", Duration::from_millis(millis.parse().ok()?), drift).ok()
}

/// Parses the parameters of a line.
fn read_line(told: &str, again: bool) -> Option<Line> {
    let mut words = told.splitn(3, ' ');
    let mut time = || lease(words.next()?);
    Some(Line { term: time()?, stays: time()?, again, polls: false, sharded: false })
}

impl Script {
    /// Returns the hash, which is the last argument in `by_hash`.
    pub(super) fn sha(&self) -> &str {
        let (_, sha) = self.by_hash.trim_ascii_end().split_last_chunk::<40>().unwrap();
        str::from_utf8(sha).unwrap()
    }
}

/// Reads the command that was encoded.
fn command(encode: impl FnOnce(&mut Vec<u8>)) -> Cmd {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    let Ok(Value::Array(words)) = redis::parse_redis_value(&bytes) else { panic!("{bytes:?}") };
    let mut cmd = Cmd::new();
    for word in words {
        let Value::BulkString(word) = word else { panic!("{bytes:?}") };
        cmd.arg(word);
    }
    cmd
}

impl Call {
    pub(super) fn evalsha(&self) -> Cmd {
        command(|bytes| self.encode(false, bytes))
    }

    pub(super) fn eval(&self) -> Cmd {
        command(|bytes| self.encode(true, bytes))
    }
}

impl Renewals<'_> {
    pub(super) fn evalsha(self) -> Cmd {
        command(|bytes| self.encode(false, bytes))
    }

    pub(super) fn eval(self) -> Cmd {
        command(|bytes| self.encode(true, bytes))
    }
}

impl Call {
    /// Parses what follows `EVALSHA` or `EVAL`. Returns the hash of the script and the call. Returns `None` if the call is not one
    /// of ours, or is one for a cluster.
    pub(crate) fn read(words: &[&str]) -> Option<(&'static str, Call)> {
        let (script, count, rest) = (*words.first()?, words.get(1)?, words.get(2..)?);
        let script = ALL.into_iter().find(|one| one.sha() == script || one.body == script)?;
        let (keys, args) = rest.split_at_checked(count.parse().ok()?)?;
        let (mut args, mut report_holder, mut line) = (args, false, None);
        let mut keys = keys;
        match *args {
            [ref before @ .., WHOSE] => (args, report_holder) = (before, true),
            [ref before @ .., told, AGAIN] => (args, line) = (before, Some(read_line(told, true)?)),
            [ref before @ .., told] if keys.last()?.starts_with("nestlock_line:") => {
                (args, line) = (before, Some(read_line(told, false)?));
            }
            _ => {}
        }
        if line.is_some() {
            keys = keys.split_last()?.1;
        }
        let (args, fence) = match *keys {
            [_] => (args, None),
            [_, counter] => {
                let (args, [least, stays]) = args.split_last_chunk()?;
                let stays = if stays.is_empty() { None } else { Some(lease(stays)?) };
                let least = if least.is_empty() { None } else { Some(least.parse().ok()?) };
                (args, Some(Arc::new(Fence { counter: counter.into(), least, stays })))
            }
            _ => return None,
        };
        let keys = Arc::new(Keys::new("", keys[0]));
        let (mut sharded, mut from, mut end) = (false, None, KeyEnd::Stays);
        let (action, channel) = match (script.name, args) {
            ("acquire", [_, count, millis, rest @ ..]) => {
                end = if rest == [MOVES] { KeyEnd::Moves } else { KeyEnd::Stays };
                (Action::Acquire { count: count.parse().ok()?, lease: lease(millis)? }, None)
            }
            ("release", [_, DECLINE, channel, publish @ ..]) => {
                sharded = publish == ["SPUBLISH"];
                (Action::Decline, Some(channel))
            }
            ("release", [_, count, channel, publish @ ..]) => {
                sharded = publish == ["SPUBLISH"];
                (Action::Release { count: count.parse().ok()? }, Some(channel))
            }
            ("keep", [field, kept, channel, publish, millis]) if *kept == kept_field(field) => {
                sharded = *publish == "SPUBLISH";
                (Action::Keep { lease: lease(millis)? }, Some(channel))
            }
            ("move", [_, of, millis]) => {
                from = Some(Arc::from(*of));
                (Action::Move { lease: lease(millis)? }, None)
            }
            ("renew", [_, millis, rest @ ..]) => {
                end = if rest == [MOVES] { KeyEnd::Moves } else { KeyEnd::Stays };
                (Action::Renew { lease: lease(millis)? }, None)
            }
            ("shorten", [_, millis, ends]) => {
                end = KeyEnd::Is(ends.parse().ok()?);
                (Action::Shorten { lease: lease(millis)? }, None)
            }
            ("settle", [_, count, channel, publish, millis, creates @ ..]) => {
                sharded = *publish == "SPUBLISH";
                let (count, lease) = (count.parse().ok()?, lease(millis)?);
                let action = match creates {
                    ["1"] => Action::Repair { count, lease },
                    _ => Action::Settle { count, lease },
                };
                (action, Some(channel))
            }
            ("force", [channel, publish @ ..]) => {
                sharded = publish == ["SPUBLISH"];
                (Action::Force, Some(channel))
            }
            ("look", []) => (Action::Look, None),
            ("who", []) => (Action::Who, None),
            ("waiters", []) => (Action::Waiters, None),
            _ => return None,
        };
        let field = if action == Action::Force { "" } else { args.first().copied().unwrap_or_default() };
        let fits = channel.is_none_or(|channel| **channel == **keys.channel());
        let call = Call { keys, field: field.into(), action, fence, sharded, report_holder, from, end, line };
        fits.then(|| (script.sha(), call))
    }
}

impl Renewals<'_> {
    /// Parses what follows `EVALSHA` or `EVAL`, like [`Call::read`].
    pub(crate) fn read(words: &[&str]) -> Option<(&'static str, Vec<Call>)> {
        let (script, count, rest) = (*words.first()?, words.get(1)?, words.get(2..)?);
        let known = RENEW_ALL.sha() == script || RENEW_ALL.body == script;
        let (keys, args) = rest.split_at_checked(count.parse().ok()?).filter(|_| known)?;
        let (millis, fields) = args.split_last()?;
        let lease = lease(millis)?;
        let calls = keys.iter().zip(fields).map(|(key, field)| {
            let keys = Arc::new(Keys::new("", key));
            Call { field: (*field).into(), ..Call::of_lock(&keys, Action::Renew { lease }) }
        });
        (keys.len() == fields.len()).then(|| (RENEW_ALL.sha(), calls.collect()))
    }
}

impl Reply {
    /// Returns the reply as the scripts write it.
    pub(crate) fn write(&self) -> String {
        let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        match self {
            Reply::Done => format!(":{DONE}\r\n"),
            Reply::Longer(left, ends) => format!("*2\r\n:{}\r\n:{ends}\r\n", left.as_millis()),
            Reply::Ended(Notice::LeftToOthers(time)) => format!("*1\r\n:{}\r\n", time.as_millis()),
            Reply::Ended(Notice::Denied) => "*1\r\n:0\r\n".to_owned(),
            Reply::Ended(Notice::Sent(listeners)) => format!(":{}\r\n", ENDED - *listeners as i64),
            Reply::Gone => format!(":{GONE}\r\n"),
            Reply::Free => format!(":{FREE}\r\n"),
            Reply::Busy(left, Some(holder)) => {
                let (field, count) = (bulk(holder.hold_id()), bulk(&holder.count().to_string()));
                format!("*3\r\n:{}\r\n{field}{count}", left.as_millis())
            }
            Reply::Waiters(waiters) => {
                let each = |waiter: &WaitingProcess| {
                    format!("{}:{}\r\n", bulk(waiter.hold_id()), waiter.waiting_for().as_secs())
                };
                format!("*{}\r\n{}", 2 * waiters.len(), waiters.iter().map(each).collect::<String>())
            }
            Reply::InLine(left, holder, length) => {
                let (field, count) = (bulk(holder.hold_id()), bulk(&holder.count().to_string()));
                format!("*4\r\n:{}\r\n{field}{count}:{length}\r\n", left.as_millis())
            }
            Reply::Nameless(left) => format!("*1\r\n:{}\r\n", left.as_millis()),
            Reply::Busy(left, None) => format!(":{}\r\n", left.as_millis()),
            Reply::Token(token) => bulk(&token.to_string()),
            Reply::Deferred(why) => bulk(why),
            Reply::NotALock(_) => "+string\r\n".to_owned(),
            Reply::NotACounter(what) if what == AT_ITS_END => "+counter end\r\n".to_owned(),
            Reply::NotACounter(_) => "+counter list\r\n".to_owned(),
        }
    }
}

#[test]
fn each_call_is_read_as_it_was_written() {
    let keys = Arc::new(Keys::new("", "stock"));
    let lease = lease("30000").unwrap();
    let actions = [
        Action::Acquire { count: 1, lease },
        Action::Acquire { count: 2, lease },
        Action::Release { count: 1 },
        Action::END,
        Action::Decline,
        Action::Keep { lease },
        Action::Move { lease },
        Action::Renew { lease },
        Action::Shorten { lease },
        Action::Settle { count: 3, lease },
        Action::Repair { count: 3, lease },
        Action::Force,
        Action::Look,
        Action::Who,
        Action::Waiters,
    ];
    let fences = [(None, Some(lease)), (Some(7), None)].map(|(least, stays)| Fence {
        counter: "token".into(),
        least,
        stays,
    });
    for action in actions {
        let counted = |fence: &Fence| action.is_counted(false).then(|| Arc::new(fence.clone()));
        for (fence, sharded) in
            fences.iter().map(counted).chain([None]).flat_map(|one| [(one.clone(), false), (one, true)])
        {
            let plain = matches!(
                action,
                Action::Acquire { .. }
                    | Action::Move { .. }
                    | Action::Renew { .. }
                    | Action::Shorten { .. }
                    | Action::Look
                    | Action::Who
                    | Action::Waiters
            );
            let renews = matches!(action, Action::Renew { .. } | Action::Acquire { count: 2.., .. });
            let end = match action {
                Action::Shorten { .. } => KeyEnd::Is(NonZeroU64::MAX),
                _ if sharded && renews => KeyEnd::Moves,
                _ => KeyEnd::Stays,
            };
            let from = matches!(action, Action::Move { .. }).then(|| "f:9".into());
            let report_holder = sharded && matches!(action, Action::Acquire { .. } | Action::Look);
            let (sharded, fields) = (
                sharded && !plain,
                !matches!(action, Action::Force | Action::Look | Action::Who | Action::Waiters),
            );
            let field = if fields { "f:1" } else { "" };
            let call = Call {
                keys: keys.clone(),
                field: field.into(),
                action,
                fence,
                sharded,
                report_holder,
                from,
                end,
                line: None,
            };
            let told = !sharded
                && (matches!(action, Action::Force | Action::Waiters)
                    || matches!(action, Action::END | Action::Decline)
                    || matches!(action, Action::Acquire { count: 1, .. }));
            let lines = [None, Some(false), Some(true)].map(|again| again.filter(|_| told));
            let again = |again| Line { term: lease, stays: lease, again, polls: false, sharded: false };
            let calls = lines.map(|line| Call { line: line.map(again), ..call.clone() });
            for command in calls.iter().flat_map(|call| [(call, call.evalsha()), (call, call.eval())]) {
                let (call, command) = command;
                let words = command.args_iter().map(|word| match word {
                    redis::Arg::Simple(bytes) => str::from_utf8(bytes).unwrap(),
                    _ => panic!("a cursor"),
                });
                let words: Vec<&str> = words.collect();
                let (script, read) = Call::read(&words[1..]).unwrap();
                assert_eq!(script, call.script().sha());
                assert_eq!((&read.field, read.action, &read.fence), (&call.field, call.action, &call.fence));
                assert_eq!((read.sharded, &read.from), (call.sharded, &call.from));
                assert_eq!(read.end, call.end);
                assert_eq!(read.report_holder, call.report_holder && call.line.is_none());
                let again = matches!(action, Action::Acquire { .. });
                let line = call.line.map(|line| Line { again: again && line.again, ..line });
                assert_eq!(read.line, line);
                assert_eq!((&read.keys.key, read.keys.channel()), (&keys.key, keys.channel()));
            }
        }
    }
}
