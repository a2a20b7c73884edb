//! The Lua files as typed calls, and what they answer.

mod renewals;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};

use crate::base::Lease;
use crate::holder::Holder;
use crate::wire::fence::Fence;
use crate::wire::keys::Keys;

pub(crate) use renewals::Renewals;

/// One run of one script: what is asked of one master.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) keys: Arc<Keys>,
    /// Whose hold; empty where it is about the lock, whoever holds it.
    pub(crate) field: Arc<str>,
    pub(crate) action: Action,
    /// What is to be done with the fencing counter.
    pub(crate) fence: Option<Arc<Fence>>,
    /// Whether a release is published on a sharded channel: on a cluster whose clients use them.
    pub(crate) sharded: bool,
    /// Whether an acquire or a look that finds the lock busy answers whose it is, and whether the hash is a lock at all.
    pub(crate) names: bool,
    /// Whose place the field takes, where it is moved.
    pub(crate) from: Option<Arc<str>>,
    /// Of a renewal and a re-entry: what no lease of the hold explains.
    pub(crate) limit: Option<Arc<Limit>>,
}

/// A TTL of a key that no lease of its hold explains, and what it is set to.
///
/// A key is known by the time of its end, which each new TTL changes. So once a command with a limit has run, no earlier or repeated one
/// finds what it names, however late it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// The longest lease that the hold has asked for.
    pub(crate) lease: Lease,
    /// When such keys would end, as their masters have answered it.
    pub(crate) ends: Vec<u64>,
}

impl Limit {
    fn put(&self, to: &mut impl Arguments) {
        to.number(self.lease.millis());
        let ends: Vec<String> = self.ends.iter().map(u64::to_string).collect();
        to.text(&ends.join(" "));
    }
}

/// What is asked, with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Make the field a holder with `count` holds, for at least `lease`. With a fence: and give it a token.
    Acquire { count: u32, lease: Lease },
    /// Let the field go on with the hold of another one, which ends, for at least `lease`.
    Move { lease: Lease },
    /// Lower the count of the field to `count`; 0 ends the hold.
    Release { count: u32 },
    /// End the hold, and keep the lock standing for `lease` from now, as nobody's.
    Keep { lease: Lease },
    /// Let the hold of the field live for at least `lease` from now. With a fence: and raise the counter to its token.
    Renew { lease: Lease },
    /// After an unknown outcome: make the count of the field, if it is there, exactly `count`; 0 ends the hold. With a fence: and
    /// raise the counter to its token.
    Settle { count: u32, lease: Lease },
    /// A settle that also makes the hold where the key is not there: for masters that lack what stands on a majority.
    Repair { count: u32, lease: Lease },
    /// Free the lock, whoever holds it.
    Force,
    /// Whether anybody is in the way, and for how long.
    Look,
    /// Who is in the way, if anybody.
    Who,
    /// What one of the above does with the fencing counter, where its two keys are on different nodes.
    Count(Count),
}

impl Action {
    /// The end of a hold.
    pub(crate) const END: Action = Action::Release { count: 0 };

    /// The lease that it may give the key.
    pub(crate) fn lease(self) -> Option<Lease> {
        match self {
            Action::Acquire { lease, .. }
            | Action::Move { lease }
            | Action::Keep { lease }
            | Action::Renew { lease }
            | Action::Settle { lease, .. }
            | Action::Repair { lease, .. } => Some(lease),
            Action::Release { .. } | Action::Force | Action::Look | Action::Who | Action::Count(_) => None,
        }
    }

    /// Whether it ends its hold.
    pub(crate) fn is_end(self) -> bool {
        matches!(self, Action::END | Action::Keep { .. })
    }

    /// Whether it may end a hold, and then publishes that.
    pub(crate) fn publishes(self) -> bool {
        self.is_end() || matches!(self, Action::Settle { count: 0, .. } | Action::Force)
    }

    /// Whether a hold of this process begins with it.
    pub(crate) fn begins(self) -> bool {
        matches!(self, Action::Acquire { count: 1, .. } | Action::Move { .. })
    }

    /// Whether it may be answered by a grant, which counts only of a master with the right data and enough replicas: an old master may
    /// give what a new one has given to another.
    pub(crate) fn grants(self) -> bool {
        matches!(self, Action::Acquire { .. } | Action::Move { .. })
    }

    /// Whether it makes a field where there is none.
    pub(crate) fn creates(self) -> bool {
        self.begins() || matches!(self, Action::Repair { .. })
    }

    /// Whether the hold's fencing counter is dealt with too. `again`: it was put off before, maybe for the counter's sake, which
    /// is left to the renewals then.
    pub(crate) fn is_counted(self, again: bool) -> bool {
        match self {
            Action::Acquire { count, .. } => count == 1,
            Action::Settle { .. } => !again,
            Action::Renew { .. } | Action::Repair { .. } | Action::Count(_) => true,
            Action::Release { .. }
            | Action::Move { .. }
            | Action::Keep { .. }
            | Action::Force
            | Action::Look
            | Action::Who => false,
        }
    }
}

/// What is asked of a fencing counter alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Whether a token can be made.
    Look,
    /// The next token, for whoever has the lock.
    Next,
    /// That it is no less than a token.
    Raise,
}

/// What a server answered to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It is as asked: granted, released, lowered, renewed, settled, freed.
    Done,
    /// Renewed, and the key stays for that long, which is more than the lease. Beyond a limit also when it ends, by a number that each new
    /// TTL changes.
    Longer(Duration, Option<u64>),
    /// The hold has ended, and so many clients were subscribed to the channel of its release.
    Ended(u64),
    /// Granted, with this fencing token; or a counter stands at it.
    Token(u64),
    /// The count could not be lowered, or the counter raised (a full server): the hold stands, and must be settled later.
    Deferred(String),
    /// Somebody else holds the lock, for that long yet. Who, if that was asked for and has an answer.
    Busy(Duration, Option<Box<Holder>>),
    /// The same, where the user may not read who it is.
    Nameless(Duration),
    /// The field is not there.
    Gone,
    /// Nobody holds the lock.
    Free,
    /// The key holds something else: its type, and what is wrong with it.
    NotALock(String),
    /// The same of the fencing counter's key.
    NotACounter(String),
}

impl Reply {
    /// Somebody holds the lock, and who does not matter.
    pub(crate) fn busy(left: Duration) -> Reply {
        Reply::Busy(left, None)
    }

    /// This one holds the lock.
    pub(crate) fn held_by(holder: Holder) -> Reply {
        Reply::Busy(holder.remaining_lease(), Some(Box::new(holder)))
    }

    /// Whether it grants what an acquire asked for.
    pub(crate) fn is_grant(&self) -> bool {
        matches!(self, Reply::Done | Reply::Token(_))
    }
}

/// What takes the arguments of a command.
trait Arguments {
    fn text(&mut self, text: &str);

    fn number(&mut self, number: u64);
}

impl Arguments for Cmd {
    fn text(&mut self, text: &str) {
        self.arg(text);
    }

    fn number(&mut self, number: u64) {
        self.arg(number);
    }
}

/// Only counts them.
struct ArgumentCount(u64);

impl Arguments for ArgumentCount {
    fn text(&mut self, _: &str) {
        self.0 += 1;
    }

    fn number(&mut self, _: u64) {
        self.0 += 1;
    }
}

/// As they are sent.
impl Arguments for Vec<u8> {
    fn text(&mut self, text: &str) {
        put_head(b'$', text.len() as u64, self);
        self.extend_from_slice(text.as_bytes());
        self.extend_from_slice(b"\r\n");
    }

    fn number(&mut self, number: u64) {
        if number < 10 {
            return self.extend_from_slice(&[b'$', b'1', b'\r', b'\n', b'0' + number as u8, b'\r', b'\n']);
        }
        let mut digits = [0; DIGITS];
        let digits = decimal(number, &mut digits);
        put_head(b'$', digits.len() as u64, self);
        self.extend_from_slice(digits);
        self.extend_from_slice(b"\r\n");
    }
}

/// A line of RESP with a length.
#[inline]
fn put_head(kind: u8, length: u64, to: &mut Vec<u8>) {
    match length {
        // Most are as short.
        0..10 => to.extend_from_slice(&[kind, b'0' + length as u8, b'\r', b'\n']),
        10..100 => {
            let (ten, one) = (b'0' + (length / 10) as u8, b'0' + (length % 10) as u8);
            to.extend_from_slice(&[kind, ten, one, b'\r', b'\n']);
        }
        _ => {
            to.push(kind);
            to.extend_from_slice(decimal(length, &mut [0; DIGITS]));
            to.extend_from_slice(b"\r\n");
        }
    }
}

/// The most digits of a number.
const DIGITS: usize = 20;

fn decimal(mut number: u64, digits: &mut [u8; DIGITS]) -> &[u8] {
    let mut begin = DIGITS;
    loop {
        begin -= 1;
        digits[begin] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[begin..];
        }
    }
}

/// The field of a hold: what is given to all holds of a session, and the hold's number. Made for each pair, so in one allocation.
pub(crate) fn field(uuid: &str, no: u64) -> Arc<str> {
    field_within::<64>(uuid, no).unwrap_or_else(|| long_field(uuid, no))
}

/// The field that stands in the place of a hold that has ended, for as long as its lock is kept. No hold has the number 0.
pub(crate) fn kept_field(field: &str) -> String {
    let session = field.rsplit_once(':').map_or(field, |(session, _)| session);
    format!("{session}:0")
}

/// With a label it may be as long.
#[inline(never)]
fn long_field(uuid: &str, no: u64) -> Arc<str> {
    field_within::<128>(uuid, no).unwrap_or_else(|| format!("{uuid}:{no}").into())
}

/// `None`: it takes more room.
fn field_within<const ROOM: usize>(uuid: &str, no: u64) -> Option<Arc<str>> {
    let (mut digits, mut bytes) = ([0; DIGITS], [0; ROOM]);
    let (head, digits) = (uuid.as_bytes(), decimal(no, &mut digits));
    let length = head.len() + 1 + digits.len();
    let (to_head, rest) = bytes.split_at_mut_checked(head.len())?;
    let (colon, rest) = rest.split_first_mut()?;
    let to_digits = rest.get_mut(..digits.len())?;
    to_head.copy_from_slice(head);
    *colon = b':';
    to_digits.copy_from_slice(digits);
    str::from_utf8(&bytes[..length]).ok().map(Arc::from)
}

/// One Lua file, or several that make one script.
struct Script {
    /// Its place among all scripts.
    number: u32,
    name: &'static str,
    body: &'static str,
    sha: LazyLock<String>,
    /// The two arguments that run it by its hash, as they are sent.
    by_hash: LazyLock<Vec<u8>>,
}

/// The two arguments that run a script.
fn encoded(command: &str, script: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32 + script.len());
    bytes.text(command);
    bytes.text(script);
    bytes
}

macro_rules! script {
    ($number:literal, $name:literal, $body:expr) => {
        Script {
            number: $number,
            name: $name,
            body: $body,
            sha: LazyLock::new(|| redis::Script::new($body).get_hash().to_owned()),
            by_hash: LazyLock::new(|| encoded("EVALSHA", redis::Script::new($body).get_hash())),
        }
    };
}

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("../../lua/", $name, ".lua"))
    };
}

/// The script of a lock within one that deals with its fencing counter too. Holds without a token cost nothing more.
macro_rules! fenced {
    ($number:literal, $name:literal, $plain:expr, $around:literal) => {
        script!(
            $number,
            $name,
            concat!("local function plain()\n", $plain, "end\n", lua!("fence"), lua!($around))
        )
    };
}

/// What only looks at a lock that another holds, and the last part of what does so where it is busy.
macro_rules! naming {
    ($name:literal) => {
        concat!(lua!($name), lua!("fields"), lua!("whose"))
    };
}

static ACQUIRE: Script = script!(0, "acquire", naming!("acquire"));
static MOVE: Script = script!(1, "move", lua!("move"));
static RELEASE: Script = script!(2, "release", concat!(lua!("hold"), lua!("release")));
static KEEP: Script = script!(3, "keep", lua!("keep"));
static RENEW: Script = script!(4, "renew", lua!("renew"));
static RENEW_ALL: Script = script!(5, "renew_all", lua!("renew_all"));
static SETTLE: Script = script!(6, "settle", concat!(lua!("hold"), lua!("settle")));
static FORCE: Script = script!(7, "force", concat!(lua!("who"), lua!("fields"), lua!("force")));
static LOOK: Script = script!(8, "look", naming!("look"));
static WHO: Script = script!(9, "who", naming!("who"));
static ACQUIRE_FENCED: Script = fenced!(10, "acquire", naming!("acquire"), "token");
static RENEW_FENCED: Script = fenced!(11, "renew", lua!("renew"), "raise");
static SETTLE_FENCED: Script = fenced!(12, "settle", concat!(lua!("hold"), lua!("settle")), "raise");
static COUNT: Script = script!(13, "count", concat!(lua!("fence"), lua!("count")));

// The integers that the scripts answer with; from 0 on it is the TTL of another's hold in milliseconds.
const DONE: i64 = -1;
const GONE: i64 = -2;
const FREE: i64 = -3;
/// Less how many clients are subscribed.
const ENDED: i64 = -4;

const SPUBLISH: &str = "SPUBLISH";

/// The last argument of an acquire or a look that asks whose a busy lock is.
const WHOSE: &str = "whose";

impl Call {
    /// One about a lock, whoever holds it.
    pub(crate) fn of_lock(keys: &Arc<Keys>, action: Action) -> Call {
        Call {
            keys: keys.clone(),
            field: Arc::default(),
            action,
            fence: None,
            sharded: false,
            names: false,
            from: None,
            limit: None,
        }
    }

    /// The command that runs the script where the server knows it already.
    pub(crate) fn evalsha(&self) -> Cmd {
        self.command("EVALSHA", &self.script().sha)
    }

    /// The command for a server that may not know the script: one round trip, and no window for a `SCRIPT FLUSH`.
    pub(crate) fn eval(&self) -> Cmd {
        self.command("EVAL", self.script().body)
    }

    /// The number of its script.
    pub(crate) fn script_number(&self) -> u32 {
        self.script().number
    }

    /// The key that decides where it is sent.
    pub(crate) fn key(&self) -> &str {
        match (self.action, &self.fence) {
            (Action::Count(_), Some(fence)) => &fence.counter,
            _ => &self.keys.key,
        }
    }

    /// What is asked, in a word.
    pub(crate) fn name(&self) -> &'static str {
        self.script().name
    }

    fn script(&self) -> &'static Script {
        match (self.action, &self.fence) {
            (Action::Acquire { .. }, None) => &ACQUIRE,
            (Action::Acquire { .. }, Some(_)) => &ACQUIRE_FENCED,
            (Action::Move { .. }, _) => &MOVE,
            (Action::Release { .. }, _) => &RELEASE,
            (Action::Keep { .. }, _) => &KEEP,
            (Action::Renew { .. }, None) => &RENEW,
            (Action::Renew { .. }, Some(_)) => &RENEW_FENCED,
            (Action::Settle { .. } | Action::Repair { .. }, None) => &SETTLE,
            (Action::Settle { .. } | Action::Repair { .. }, Some(_)) => &SETTLE_FENCED,
            (Action::Force, _) => &FORCE,
            (Action::Look, _) => &LOOK,
            (Action::Who, _) => &WHO,
            (Action::Count(_), _) => &COUNT,
        }
    }

    /// The same for the lock alone, and the counter that it leaves out. `None`: it has one key.
    pub(crate) fn alone(&self) -> Option<(Call, Arc<Fence>)> {
        let fence = self.fence.clone().filter(|_| !matches!(self.action, Action::Count(_)))?;
        Some((Call { fence: None, ..self.clone() }, fence))
    }

    fn command(&self, command: &str, script: &str) -> Cmd {
        let counter = self.fence.as_deref().map_or(0, |fence| fence.counter.len() + 64);
        // The most arguments that a script has, and the bytes of what is no key, field or channel of unusual length:
        // one allocation each.
        let mut cmd = Cmd::with_capacity(12, 192 + script.len() + 2 * self.key().len() + counter);
        cmd.arg(command).arg(script);
        self.put(&mut cmd);
        cmd
    }

    /// The same as [`evalsha`](Call::evalsha), behind what is there.
    pub(crate) fn encode_evalsha(&self, bytes: &mut Vec<u8>) {
        self.encode(&self.script().by_hash, bytes);
    }

    /// The same as [`eval`](Call::eval), behind what is there.
    pub(crate) fn encode_eval(&self, bytes: &mut Vec<u8>) {
        self.encode(&encoded("EVAL", self.script().body), bytes);
    }

    fn encode(&self, script: &[u8], bytes: &mut Vec<u8>) {
        let mut count = ArgumentCount(2);
        self.put(&mut count);
        // At once what most calls take.
        bytes.reserve(160 + script.len() + 2 * self.key().len() + self.field.len());
        put_head(b'*', count.0, bytes);
        bytes.extend_from_slice(script);
        self.put(bytes);
    }

    /// All arguments behind the script.
    fn put(&self, to: &mut impl Arguments) {
        let fence = self.fence.as_deref();
        to.number(if fence.is_some() { 2 } else { 1 });
        to.text(self.key());
        if let Some(fence) = fence {
            to.text(&fence.counter);
        }
        let field = &*self.field;
        match self.action {
            Action::Acquire { count, lease } => {
                to.text(field);
                to.number(count.into());
                to.number(lease.millis());
                if let Some(limit) = &self.limit {
                    limit.put(to);
                }
            }
            Action::Move { lease } => {
                to.text(field);
                to.text(self.from.as_deref().unwrap_or_default());
                to.number(lease.millis());
            }
            Action::Release { count } => {
                to.text(field);
                to.number(count.into());
                to.text(self.keys.channel());
                self.put_sharded(to);
            }
            Action::Keep { lease } => {
                to.text(field);
                to.text(&kept_field(field));
                to.text(self.keys.channel());
                to.text(if self.sharded { SPUBLISH } else { "PUBLISH" });
                to.number(lease.millis());
            }
            Action::Renew { lease } => {
                to.text(field);
                to.number(lease.millis());
                if let Some(limit) = &self.limit {
                    limit.put(to);
                } else if fence.is_some() {
                    to.text("");
                    to.text("");
                }
            }
            Action::Settle { count, lease } | Action::Repair { count, lease } => {
                let creates = matches!(self.action, Action::Repair { .. });
                to.text(field);
                to.number(count.into());
                to.text(self.keys.channel());
                to.text(if self.sharded { SPUBLISH } else { "PUBLISH" });
                to.number(lease.millis());
                if creates || fence.is_some() {
                    to.number(creates.into());
                }
            }
            Action::Force => {
                to.text(self.keys.channel());
                self.put_sharded(to);
            }
            Action::Look | Action::Who => {}
            Action::Count(Count::Look) => to.text("look"),
            Action::Count(Count::Next) => to.text("next"),
            Action::Count(Count::Raise) => to.text("raise"),
        }
        if let Some(Fence { least, stays, .. }) = fence {
            // Nothing stands for the server's time, and for ever.
            for number in [*least, stays.map(|stays| stays.millis())] {
                match number {
                    Some(number) => to.number(number),
                    None => to.text(""),
                }
            }
        }
        if self.names && matches!(self.action, Action::Acquire { .. } | Action::Look) {
            to.text(WHOSE);
        }
    }

    /// Left out where the script's default is right, so that a release on a single server is no longer for it.
    fn put_sharded(&self, to: &mut impl Arguments) {
        if self.sharded {
            to.text(SPUBLISH);
        }
    }

    /// What the script answered. An error is the server's own, or reports that no script of ours answers so.
    pub(crate) fn decode(&self, value: Value) -> Result<Reply, RedisError> {
        use Action::{Acquire, Count, Force, Look, Release, Renew, Repair, Settle, Who};
        let fenced = self.fence.is_some();
        let counts = matches!(self.action, Acquire { .. } | Count(_));
        Ok(match (self.action, value) {
            (_, Value::ServerError(refused)) => return Err(refused.into()),
            // A key lives through its last millisecond: one that has none left is still held, not free.
            (Acquire { .. } | Look, Value::Int(ttl @ 0..)) => Reply::busy(left(ttl)),
            (Acquire { .. } | Look | Who, Value::Array(parts)) => match whose(&parts) {
                Some(reply) => reply,
                None => return Err(self.garbled(&Value::Array(parts))),
            },
            (Force | Look | Who, Value::Int(FREE)) => Reply::Free,
            (action, Value::SimpleString(kind)) if counts || matches!(action, Force | Look | Who) => {
                match kind.strip_prefix("counter ") {
                    Some(kind) if fenced => Reply::NotACounter(no_counter(kind)),
                    _ => Reply::NotALock(no_lock(action, &kind)),
                }
            }
            (_, Value::BulkString(token)) if counts && fenced => {
                let text = str::from_utf8(&token).ok();
                match text.and_then(|text| text.parse().ok()) {
                    Some(token) => Reply::Token(token),
                    None => return Err(self.garbled(&Value::BulkString(token))),
                }
            }
            (Release { .. } | Settle { .. } | Repair { .. }, Value::BulkString(why)) => deferred(&why),
            (Renew { .. }, Value::BulkString(why)) if fenced => deferred(&why),
            (Renew { .. }, Value::Int(ttl @ 0..)) => Reply::Longer(left(ttl), None),
            (Renew { .. }, Value::Array(parts)) => match parts[..] {
                [Value::Int(ttl @ 0..), Value::Int(ends @ 0..)] => {
                    Reply::Longer(left(ttl), Some(ends.unsigned_abs()))
                }
                _ => return Err(self.garbled(&Value::Array(parts))),
            },
            (Look | Who | Count(_), value) => return Err(self.garbled(&value)),
            (Acquire { .. }, value @ Value::Int(DONE)) if fenced => return Err(self.garbled(&value)),
            (_, Value::Int(DONE)) => Reply::Done,
            (Action::END, Value::Int(ended @ ..=ENDED)) => Reply::Ended(ENDED.abs_diff(ended)),
            (Force, value) => return Err(self.garbled(&value)),
            (_, Value::Int(GONE)) => Reply::Gone,
            (_, value) => return Err(self.garbled(&value)),
        })
    }

    fn garbled(&self, value: &Value) -> RedisError {
        // Cut: a proxy in the way may answer with anything.
        let seen: String = format!("{value:?}").chars().take(100).collect();
        (
            redis::ErrorKind::UnexpectedReturnType,
            "no script answers so",
            format!("{} got {seen}", self.name()),
        )
            .into()
    }
}

fn left(ttl: i64) -> Duration {
    Duration::from_millis(ttl.max(1).unsigned_abs())
}

/// Whose hold is in the way, and for how long yet.
fn whose(parts: &[Value]) -> Option<Reply> {
    match parts {
        [Value::Int(ttl @ 0..)] => Some(Reply::Nameless(left(*ttl))),
        [Value::Int(ttl @ 0..), Value::BulkString(field), Value::BulkString(count)] => {
            let (left, field) = (left(*ttl), String::from_utf8_lossy(field));
            let count = str::from_utf8(count).ok().and_then(|count| count.parse().ok()).unwrap_or(0);
            Some(Reply::held_by(Holder::new(&*field, count, left)))
        }
        _ => None,
    }
}

fn deferred(why: &[u8]) -> Reply {
    Reply::Deferred(String::from_utf8_lossy(why).into_owned())
}

/// What a key of this type is, where it is no lock.
fn no_lock(action: Action, kind: &str) -> String {
    match (action, kind) {
        (Action::Force | Action::Who, "string") => "a string, which is no lock of this kind".to_owned(),
        (_, "string" | "hash") => format!("a {kind} without a TTL"),
        (_, "fields") => "a hash whose fields are not those of a lock".to_owned(),
        (_, "rwlock") => "a read-write lock of Redisson".to_owned(),
        _ => format!("a {kind}"),
    }
}

/// What a counter is that can give out no more.
pub(crate) const AT_ITS_END: &str = "the highest number that a counter can have";

/// What a key is that should be a fencing counter.
fn no_counter(kind: &str) -> String {
    match kind {
        "end" => AT_ITS_END.to_owned(),
        "string" => "a string that is no number".to_owned(),
        _ => format!("a {kind}"),
    }
}

#[cfg(test)]
mod testing;

#[cfg(test)]
impl Call {
    pub(crate) fn of(key: &str, field: &str, action: Action) -> Call {
        Call {
            keys: Arc::new(Keys::new("", key)),
            field: field.into(),
            action,
            fence: None,
            sharded: false,
            names: false,
            from: None,
            limit: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Drift;

    mod fuzz;

    #[test]
    fn a_field_is_its_sessions_part_and_its_number() {
        let longest = "u".repeat(100);
        for (uuid, no) in [
            ("me", 0),
            ("me", 10),
            ("", u64::MAX),
            ("ü", 7),
            (&*longest, 12),
            (&longest[..62], 1),
            (&longest[..62], 12),
            (&longest, u64::MAX),
            (&"l".repeat(126), 1),
            (&"l".repeat(126), 12),
            (&"l".repeat(200), 1),
        ] {
            assert_eq!(&*field(uuid, no), format!("{uuid}:{no}"));
        }
    }

    fn lease() -> Lease {
        let drift = Drift { factor: 0.01, slack: Duration::from_millis(2) };
        Lease::new("lease", Duration::from_secs(30), drift).unwrap()
    }

    fn keys() -> Arc<Keys> {
        Arc::new(Keys { channel: Arc::<str>::from("ch").into(), ..Keys::new("", "k") })
    }

    fn calls() -> [Call; 9] {
        [
            Action::Acquire { count: 2, lease: lease() },
            Action::Release { count: 1 },
            Action::Renew { lease: lease() },
            Action::Settle { count: 3, lease: lease() },
            Action::Force,
            Action::Look,
            Action::Who,
            Action::Keep { lease: lease() },
            Action::Move { lease: lease() },
        ]
        .map(|action| Call {
            keys: keys(),
            field: "f:1".into(),
            action,
            fence: None,
            sharded: false,
            names: false,
            from: matches!(action, Action::Move { .. }).then(|| "f:9".into()),
            limit: None,
        })
    }

    #[test]
    fn an_acquire_and_a_move_give_a_lock_and_nothing_else_does() {
        for Call { action, .. } in calls() {
            let gives = matches!(action, Action::Acquire { .. } | Action::Move { .. });
            assert_eq!(action.grants(), gives, "{action:?}");
        }
    }

    #[test]
    fn what_takes_a_holds_place_has_the_number_that_no_hold_has() {
        for (field, kept) in [("me:7", "me:0"), ("web-7:me:12", "web-7:me:0"), ("foreign", "foreign:0")] {
            assert_eq!(kept_field(field), kept);
        }
    }

    #[test]
    fn an_acquire_says_last_that_it_asks_for_a_name() {
        for call in calls().into_iter().chain(fenced()) {
            let (plain, naming) = (words(&call.evalsha()), Call { names: true, ..call.clone() });
            let asks = matches!(call.action, Action::Acquire { .. } | Action::Look);
            let last: &[&str] = if asks { &["whose"] } else { &[] };
            assert_eq!(words(&naming.evalsha()).strip_prefix(&*plain).unwrap(), last);
            let mut bytes = Vec::new();
            naming.encode_evalsha(&mut bytes);
            assert_eq!(bytes, naming.evalsha().get_packed_command());
        }
    }

    fn words(cmd: &Cmd) -> Vec<String> {
        let text = |arg: redis::Arg<&[u8]>| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            _ => panic!("a cursor"),
        };
        cmd.args_iter().map(text).collect()
    }

    #[test]
    fn commands_carry_key_and_decimal_arguments_in_the_order_of_the_lua_headers() {
        let expected = [
            ("acquire", vec!["f:1", "2", "30000"]),
            ("release", vec!["f:1", "1", "ch"]),
            ("renew", vec!["f:1", "30000"]),
            ("settle", vec!["f:1", "3", "ch", "PUBLISH", "30000"]),
            ("force", vec!["ch"]),
            ("look", vec![]),
            ("who", vec![]),
            ("keep", vec!["f:1", "f:0", "ch", "PUBLISH", "30000"]),
            ("move", vec!["f:1", "f:9", "30000"]),
        ];
        for (call, (name, args)) in calls().iter().zip(expected) {
            let script = redis::Script::new(call.script().body);
            for (cmd, head) in [
                (call.evalsha(), ["EVALSHA", script.get_hash()]),
                (call.eval(), ["EVAL", call.script().body]),
            ] {
                let wanted: Vec<&str> =
                    head.into_iter().chain(["1", "k"]).chain(args.iter().copied()).collect();
                assert_eq!(words(&cmd), wanted);
            }
            assert_eq!((call.name(), call.key()), (name, "k"));
        }
    }

    #[test]
    fn a_release_on_a_cluster_names_the_command_for_sharded_channels() {
        let expected = [
            (Action::END, vec!["f:1", "0", "ch", "SPUBLISH"]),
            (Action::Settle { count: 0, lease: lease() }, vec!["f:1", "0", "ch", "SPUBLISH", "30000"]),
            (Action::Keep { lease: lease() }, vec!["f:1", "f:0", "ch", "SPUBLISH", "30000"]),
            (Action::Force, vec!["ch", "SPUBLISH"]),
            (Action::Look, vec![]),
        ];
        for (action, args) in expected {
            let [call, ..] = calls();
            let call = Call { action, sharded: true, ..call };
            assert_eq!(words(&call.evalsha())[4..], args);
        }
    }

    #[test]
    fn a_call_is_sent_as_its_command() {
        let lengths = [0, 1, 9, 10, 99, 100, 999, 1000, 1024];
        for mut call in calls().into_iter().chain(fenced()) {
            for length in lengths {
                call.field = "f".repeat(length).into();
                for number in [0, 9, 10, 99, 100, 12_345, u32::MAX] {
                    if let Action::Release { count } = &mut call.action {
                        *count = number;
                    }
                    let (mut hash, mut text) = (b"before".to_vec(), Vec::new());
                    call.encode_evalsha(&mut hash);
                    call.encode_eval(&mut text);
                    assert_eq!(hash.strip_prefix(b"before"), Some(&*call.evalsha().get_packed_command()));
                    assert_eq!(text, call.eval().get_packed_command());
                }
            }
        }
    }

    fn fenced() -> [Call; 4] {
        let (count, lease) = (1, lease());
        [
            (Action::Acquire { count, lease }, None, Some(Lease::DAY)),
            (Action::Acquire { count, lease }, Some(u64::MAX), None),
            (Action::Renew { lease }, Some(7), Some(Lease::DAY)),
            (Action::Settle { count, lease }, Some(7), None),
        ]
        .map(|(action, least, stays)| {
            let fence = Some(Arc::new(Fence { counter: "token".into(), least, stays }));
            Call {
                keys: keys(),
                field: "f:1".into(),
                action,
                fence,
                sharded: false,
                names: false,
                from: None,
                limit: None,
            }
        })
    }

    #[test]
    fn a_renewal_carries_its_limit_behind_the_lease() {
        let [plain, fenced] = [calls()[2].clone(), fenced()[2].clone()];
        for (call, args) in [
            (plain, &["1", "k", "f:1", "30000", "30000", "7 8"][..]),
            (fenced, &["2", "k", "token", "f:1", "30000", "30000", "7 8", "7", "86400000"]),
            (calls()[0].clone(), &["1", "k", "f:1", "2", "30000", "30000", "7 8"]),
        ] {
            let call = Call { limit: Some(Arc::new(Limit { lease: lease(), ends: vec![7, 8] })), ..call };
            assert_eq!(words(&call.evalsha())[2..], *args);
        }
    }

    #[test]
    fn those_with_a_fence_carry_the_counter_and_what_is_asked_of_it() {
        let expected = [
            vec!["2", "k", "token", "f:1", "1", "30000", "", "86400000"],
            vec!["2", "k", "token", "f:1", "1", "30000", "18446744073709551615", ""],
            vec!["2", "k", "token", "f:1", "30000", "", "", "7", "86400000"],
            vec!["2", "k", "token", "f:1", "1", "ch", "PUBLISH", "30000", "0", "7", ""],
        ];
        for (call, args) in fenced().iter().zip(expected) {
            assert_eq!(words(&call.evalsha())[2..], args);
            assert_eq!(words(&call.eval())[1], call.script().body);
        }
    }

    #[test]
    fn a_fenced_call_is_one_for_its_lock_alone_and_one_for_its_counter_which_is_given_twice() {
        for (call, plain) in fenced().iter().zip(["acquire", "acquire", "renew", "settle"]) {
            let (alone, fence) = call.alone().unwrap();
            assert_eq!((alone.name(), &alone.fence), (plain, &None));
            assert_eq!(alone.script().sha.len(), 40);
            assert!(alone.alone().is_none());
            for (ask, word) in [(Count::Look, "look"), (Count::Next, "next"), (Count::Raise, "raise")] {
                let count = Call { action: Action::Count(ask), fence: Some(fence.clone()), ..call.clone() };
                assert_eq!(words(&count.evalsha())[2..6], ["2", "token", "token", word]);
                assert!(count.alone().is_none() && count.name() == "count");
                let expected = count.decode(Value::BulkString(b"7".to_vec())).unwrap();
                assert_eq!(expected, Reply::Token(7));
                let wrong = count.decode(Value::SimpleString("counter list".to_owned())).unwrap();
                assert_eq!(wrong, Reply::NotACounter("a list".into()));
                assert!(count.decode(Value::Int(DONE)).is_err());
            }
        }
    }

    #[test]
    fn a_grant_with_a_fence_is_its_token_alone() {
        let [acquire, _, renew, settle] = fenced();
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let status = |text: &str| Value::SimpleString(text.to_owned());
        assert_eq!(acquire.decode(bulk("9223372036854775807")).unwrap(), Reply::Token(i64::MAX as u64));
        assert_eq!(acquire.decode(Value::Int(-2)).unwrap(), Reply::Gone);
        assert_eq!(acquire.decode(status("list")).unwrap(), Reply::NotALock("a list".into()));
        for (kind, expected) in
            [("list", "a list"), ("string", "a string that is no number"), ("end", AT_ITS_END)]
        {
            let found = acquire.decode(status(&format!("counter {kind}"))).unwrap();
            assert_eq!(found, Reply::NotACounter(expected.into()));
        }
        for garbage in [Value::Int(-1), bulk(""), bulk("-5"), bulk("7x")] {
            acquire.decode(garbage).unwrap_err();
        }
        for call in [renew, settle] {
            assert_eq!(call.decode(bulk("OOM")).unwrap(), Reply::Deferred("OOM".into()));
            assert_eq!(call.decode(Value::Int(-1)).unwrap(), Reply::Done);
            call.decode(status("counter list")).unwrap_err();
        }
    }

    #[test]
    fn an_end_is_answered_by_how_many_are_subscribed() {
        for action in [Action::END, Action::Release { count: 1 }, Action::Keep { lease: lease() }] {
            for (answer, listeners) in [(-4, 0), (-5, 1), (i64::MIN, i64::MAX as u64 - 3)] {
                let reply = Call::of("k", "f:1", action).decode(Value::Int(answer));
                let expected = (action == Action::END).then_some(Reply::Ended(listeners));
                assert_eq!(reply.ok(), expected, "{action:?} {answer}");
            }
        }
    }

    #[test]
    fn only_a_grant_is_taken_for_one() {
        assert!(Reply::Done.is_grant() && Reply::Token(7).is_grant());
        let others = [
            Reply::Ended(0),
            Reply::Gone,
            Reply::Free,
            Reply::busy(Duration::ZERO),
            Reply::Deferred("full".into()),
        ];
        assert!(!others.iter().any(Reply::is_grant));
    }

    #[test]
    fn each_file_lists_keys_arguments_and_replies_and_names_keys_literally() {
        for script in calls().map(|call| call.script()) {
            for part in ["-- KEYS[1]", "-- Replies"] {
                assert!(script.body.contains(part), "{}: {part}", script.name);
            }
            assert!(!script.body.replace("KEYS[1]", "").contains("KEYS"), "{}", script.name);
        }
    }

    /// An error that the server raises out of a script ends with ` script: SHA, on @user_script:LINE.`, so that it is known not to
    /// be a refusal before the script began. One that a script catches and returns lacks that, and is given it.
    #[test]
    fn an_error_that_a_script_catches_is_returned_with_the_mark_of_a_script_alone() {
        let all = calls().into_iter().chain(fenced());
        for body in all.map(|call| call.script().body) {
            let caught = body.lines().filter_map(|line| {
                let (name, _) = line.trim().strip_prefix("local ")?.split_once(" = redis.pcall(")?;
                // The counter, which is returned as text alone.
                (name != "text").then_some(name)
            });
            for name in caught {
                assert!(!body.lines().any(|line| line.trim() == format!("return {name}")), "{name}: {body}");
            }
            let marked = |line: &&str| line.contains("error_reply(");
            assert!(body.lines().filter(marked).all(|line| line.contains(".. ' script: user_script')")));
        }
    }

    #[test]
    fn each_reply_is_understood_by_the_calls_that_give_it_and_by_no_other() {
        use Reply::{Deferred, Done, Free, Gone, NotALock};
        let text = |kind: &str| Value::SimpleString(kind.to_owned());
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let full = bulk("OOM full");
        let list = |field: &str, count: &str| Value::Array(vec![Value::Int(0), bulk(field), bulk(count)]);
        let ms = |ms| Some(Reply::busy(Duration::from_millis(ms)));
        let longer = |ms| Some(Reply::Longer(Duration::from_millis(ms), None));
        let no = |expected: &str| Some(NotALock(expected.to_owned()));
        let by =
            |field: &str, count| Some(Reply::held_by(Holder::new(field, count, Duration::from_millis(1))));
        let later = Some(Deferred("OOM full".to_owned()));
        let hidden = Some(Reply::Nameless(Duration::from_millis(7)));
        let foreign = no("a string, which is no lock of this kind");
        let (hash, string) = (no("a hash without a TTL"), no("a string without a TTL"));
        let (fields, rwlock) =
            (no("a hash whose fields are not those of a lock"), no("a read-write lock of Redisson"));
        let (zset, counter) = (no("a zset"), no("a counter list"));
        let (named, odd) = (by("a:f:7", 3), by("f", 0));
        //                        acquire, release, renew, settle, force, look, who
        let table: [(Value, [Option<Reply>; 7]); 16] = [
            (Value::Int(-1), [Some(Done), Some(Done), Some(Done), Some(Done), Some(Done), None, None]),
            (Value::Int(-2), [Some(Gone), Some(Gone), Some(Gone), Some(Gone), None, None, None]),
            (Value::Int(-3), [None, None, None, None, Some(Free), Some(Free), Some(Free)]),
            (Value::Int(-4), [None, None, None, None, None, None, None]),
            (Value::Int(0), [ms(1), None, longer(1), None, None, ms(1), None]),
            (Value::Int(29_999), [ms(29_999), None, longer(29_999), None, None, ms(29_999), None]),
            (list("a:f:7", "3"), [named.clone(), None, None, None, None, named.clone(), named]),
            (list("f", "no number"), [odd.clone(), None, None, None, None, odd.clone(), odd]),
            (
                Value::Array(vec![Value::Int(7)]),
                [hidden.clone(), None, None, None, None, hidden.clone(), hidden],
            ),
            (text("hash"), [hash.clone(), None, None, None, hash.clone(), hash.clone(), hash]),
            (text("string"), [string.clone(), None, None, None, foreign.clone(), string, foreign]),
            (text("fields"), [fields.clone(), None, None, None, fields.clone(), fields.clone(), fields]),
            (text("rwlock"), [rwlock.clone(), None, None, None, rwlock.clone(), rwlock.clone(), rwlock]),
            (text("zset"), [zset.clone(), None, None, None, zset.clone(), zset.clone(), zset]),
            (
                text("counter list"),
                [counter.clone(), None, None, None, counter.clone(), counter.clone(), counter],
            ),
            (full, [None, later.clone(), None, later, None, None, None]),
        ];
        for (value, expected) in table {
            for (call, expected) in calls().iter().zip(expected) {
                assert_eq!(call.decode(value.clone()).ok(), expected, "{} {value:?}", call.name());
            }
        }
    }

    #[test]
    fn garbage_is_an_error_that_names_the_call() {
        let garbage = [
            Value::Nil,
            Value::Okay,
            Value::Int(i64::MIN),
            Value::Boolean(true),
            Value::Double(1.0),
            Value::Array(vec![Value::Int(-1)]),
            Value::Array(vec![Value::Int(1), Value::BulkString(b"f".to_vec())]),
            Value::Array(vec![
                Value::Int(-1),
                Value::BulkString(b"f".to_vec()),
                Value::BulkString(b"1".to_vec()),
            ]),
            Value::Array(vec![Value::Nil; 10_000]),
        ];
        for call in calls() {
            for value in &garbage {
                let error = call.decode(value.clone()).unwrap_err();
                assert_eq!(error.kind(), redis::ErrorKind::UnexpectedReturnType);
                let text = error.to_string();
                assert!(text.contains(call.name()) && text.len() < 250, "{text}");
            }
        }
    }

    #[test]
    fn the_servers_refusal_stays_the_servers_error() {
        let refused = redis::parse_redis_value(b"-OOM command not allowed\r\n").unwrap();
        for call in calls() {
            assert_eq!(call.decode(refused.clone()).unwrap_err().code(), Some("OOM"));
        }
    }
}
