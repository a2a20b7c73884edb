//! The Lua files as typed calls, and their replies.

mod renewals;

use std::num::NonZeroU64;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{RedisError, Value};

use crate::base::{Failure, Lease};
use crate::holder::{Holder, WaitingProcess};
use crate::wire::fence::Fence;
use crate::wire::keys::{Keys, LineKeys};
use crate::wire::line::Line;

pub(crate) use renewals::Renewals;

/// One run of one script on one master.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) keys: Arc<Keys>,
    /// The field of the hold; empty if the call is about the lock, whoever holds it.
    pub(crate) field: Arc<str>,
    pub(crate) action: Action,
    /// What the call does with the fencing counter.
    pub(crate) fence: Option<Arc<Fence>>,
    /// Whether a release is published on a sharded channel, as on a cluster whose clients use such channels.
    pub(crate) sharded: bool,
    /// Whether an acquire or a look that finds the lock busy reports the holder, and whether the hash is a lock at all.
    pub(crate) report_holder: bool,
    /// The field that a move replaces.
    pub(crate) from: Option<Arc<str>>,
    /// What a call does to the end of a key that stays longer.
    pub(crate) end: KeyEnd,
    /// For an acquire: it enters the lock's line if the lock is busy. For an end or a forced release: the lock is handed to the
    /// first waiter of the line. `None` leaves the line alone.
    pub(crate) line: Option<Line>,
}

/// When a key ends whose TTL is longer than the requested one. Each new TTL changes it; a clock that is set does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyEnd {
    /// It is left unchanged.
    #[default]
    Stays,
    /// For a renewal and a re-entry: it is changed, so that a command on its way that shortens the TTL no longer applies.
    Moves,
    /// For a command that shortens a TTL: it applies only if the key ends then, by a number that [`Reply::Longer`] gave.
    Is(NonZeroU64),
}

/// What a call does, with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Make the field a holder with `count` holds, for at least `lease`. With a fence, also give it a token.
    Acquire { count: u32, lease: Lease },
    /// Give the hold of another field to this field, for at least `lease`. The other field ends.
    Move { lease: Lease },
    /// Lower the count of the field to `count`; 0 ends the hold.
    Release { count: u32 },
    /// End the field if the lock was handed to it, and no process has taken it.
    Decline,
    /// End the hold, and keep the lock for `lease` from now as nobody's.
    Keep { lease: Lease },
    /// Let the hold of the field live for at least `lease` from now. With a fence, also raise the counter to its token.
    Renew { lease: Lease },
    /// Set the TTL, if the key ends as [`Call::end`] says.
    Shorten { lease: Lease },
    /// After an unknown outcome, make the count of the field, if it is there, exactly `count`; 0 ends the hold. With a fence, also raise
    /// the counter to its token.
    Settle { count: u32, lease: Lease },
    /// Settle, and also make the hold if the key does not exist: for masters that lack what a majority has.
    Repair { count: u32, lease: Lease },
    /// Free the lock, whoever holds it.
    Force,
    /// Report whether anybody is in the way, and for how long.
    Look,
    /// Report who is in the way, if anybody is.
    Who,
    /// Report which processes wait in the line.
    Waiters,
    /// Do what one of the above does with the fencing counter, if its two keys are on different nodes.
    Count(Count),
}

impl Action {
    /// The end of a hold.
    pub(crate) const END: Action = Action::Release { count: 0 };

    /// Returns the lease that it may give the key.
    pub(crate) fn lease(self) -> Option<Lease> {
        match self {
            Action::Acquire { lease, .. }
            | Action::Move { lease }
            | Action::Keep { lease }
            | Action::Renew { lease }
            | Action::Shorten { lease }
            | Action::Settle { lease, .. }
            | Action::Repair { lease, .. } => Some(lease),
            Action::Release { .. }
            | Action::Decline
            | Action::Force
            | Action::Look
            | Action::Who
            | Action::Waiters
            | Action::Count(_) => None,
        }
    }

    /// Returns whether it ends its hold.
    pub(crate) fn is_end(self) -> bool {
        matches!(self, Action::END | Action::Keep { .. })
    }

    /// Returns whether it may end a hold, and publishes that if it does.
    pub(crate) fn publishes(self) -> bool {
        self.is_end() || matches!(self, Action::Settle { count: 0, .. } | Action::Decline | Action::Force)
    }

    /// Returns whether it begins a hold of this process.
    pub(crate) fn begins(self) -> bool {
        matches!(self, Action::Acquire { count: 1, .. } | Action::Move { .. })
    }

    /// Returns whether its reply may be a grant. A grant counts only from a master with the right data and enough replicas, since
    /// an old master may grant what a new one has granted to somebody else.
    pub(crate) fn grants(self) -> bool {
        matches!(self, Action::Acquire { .. } | Action::Move { .. })
    }

    /// Returns whether it makes a field if there is none.
    pub(crate) fn creates(self) -> bool {
        self.begins() || matches!(self, Action::Repair { .. })
    }

    /// Returns whether it also acts on the hold's fencing counter. `again`: it was deferred before, maybe because of the counter,
    /// which is then left to the renewals.
    pub(crate) fn is_counted(self, again: bool) -> bool {
        match self {
            Action::Acquire { count, .. } => count == 1,
            Action::Settle { .. } => !again,
            Action::Renew { .. } | Action::Repair { .. } | Action::Count(_) => true,
            Action::Release { .. }
            | Action::Decline
            | Action::Move { .. }
            | Action::Keep { .. }
            | Action::Shorten { .. }
            | Action::Force
            | Action::Look
            | Action::Who
            | Action::Waiters => false,
        }
    }
}

/// A command about a fencing counter alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Report whether a token can be made.
    Look,
    /// Make the next token, for the holder of the lock.
    Next,
    /// Raise the counter to at least a token.
    Raise,
}

/// Whom the end of a hold was reported to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// This many clients were subscribed to the lock's channel. Zero if the lock was handed to the first process in the line.
    Sent(u64),
    /// The lock is left to clients that do not know the line for this long.
    LeftToOthers(Duration),
    /// Nobody: the user may not publish.
    Denied,
}

/// What a server answered to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It was done: granted, released, lowered, renewed, settled or freed.
    Done,
    /// Renewed, and the key stays for that long, which is more than the lease; and when it ends, by a number that each new TTL changes.
    Longer(Duration, NonZeroU64),
    /// The hold has ended, and its release was published in this way.
    Ended(Notice),
    /// The lock is granted with this fencing token, or a counter has this value.
    Token(u64),
    /// The count could not be lowered, or the counter could not be raised (the server is full): the hold stands, and must be settled
    /// later.
    Deferred(String),
    /// Somebody else holds the lock for this long. It names the holder if the call wanted that and the user may read it.
    Busy(Duration, Option<Box<Holder>>),
    /// Somebody else holds the lock for this long, and the field is now in the line, as one of this many.
    InLine(Duration, Box<Holder>, u32),
    /// These processes wait in the line.
    Waiters(Vec<WaitingProcess>),
    /// Somebody else holds the lock for this long, and the user may not read who it is.
    Nameless(Duration),
    /// The field is not there.
    Gone,
    /// Nobody holds the lock.
    Free,
    /// The key holds something else: its type, and what is wrong with it.
    NotALock(String),
    /// The fencing counter's key holds something else: its type, and what is wrong with it.
    NotACounter(String),
}

/// The reply to a call, or why there is none.
pub(crate) type CallResult = Result<Reply, Failure>;

impl Reply {
    /// Returns the reply that somebody holds the lock, whoever it is.
    pub(crate) fn busy(left: Duration) -> Reply {
        Reply::Busy(left, None)
    }

    /// Returns the reply that this holder has the lock.
    pub(crate) fn held_by(holder: Holder) -> Reply {
        Reply::Busy(holder.remaining_lease(), Some(Box::new(holder)))
    }

    /// Returns whether it grants an acquire.
    pub(crate) fn is_grant(&self) -> bool {
        matches!(self, Reply::Done | Reply::Token(_))
    }
}

/// Writes the arguments of a command as they are sent, and counts them.
struct Arguments<'a> {
    bytes: &'a mut Vec<u8>,
    count: u64,
}

impl Arguments<'_> {
    fn text(&mut self, text: &str) {
        self.count += 1;
        put_head(b'$', text.len() as u64, self.bytes);
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn number(&mut self, number: u64) {
        self.count += 1;
        if number < 10 {
            let digit = b'0' + number as u8;
            return self.bytes.extend_from_slice(&[b'$', b'1', b'\r', b'\n', digit, b'\r', b'\n']);
        }
        let mut digits = [0; DIGITS];
        let digits = decimal(number, &mut digits);
        put_head(b'$', digits.len() as u64, self.bytes);
        self.bytes.extend_from_slice(digits);
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// Writes a line of RESP that has a length.
#[inline]
fn put_head(kind: u8, length: u64, to: &mut Vec<u8>) {
    match length {
        // Most lengths have one or two digits.
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

/// The maximal number of digits of a number.
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

/// Returns the field of a hold: the session's prefix, and the hold's number. It is made for each lock and release, so it takes one
/// allocation only.
pub(crate) fn field(uuid: &str, no: u64) -> Arc<str> {
    short_field(uuid, no).unwrap_or_else(|| format!("{uuid}:{no}").into())
}

/// Returns the field of a hold whose process gets no hints, or may not publish. Its number is negative, so that the lock is handed to
/// it, and from it, without a message.
pub(crate) fn polling_field(uuid: &str, no: u64) -> Arc<str> {
    format!("{uuid}:-{no}").into()
}

/// Returns whether it is such a field.
pub(crate) fn polls(field: &str) -> bool {
    field.rsplit_once(':').is_some_and(|(_, number)| number.starts_with('-'))
}

/// Returns the field that takes the place of an ended hold while its lock is kept. No hold has the number 0.
pub(crate) fn kept_field(field: &str) -> String {
    let session = field.rsplit_once(':').map_or(field, |(session, _)| session);
    format!("{session}:0")
}

/// Returns the field, or `None` if it takes more room than that of the longest holder name.
fn short_field(uuid: &str, no: u64) -> Option<Arc<str>> {
    let (mut digits, mut bytes) = ([0; DIGITS], [0; 128]);
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

/// One Lua file, or several files that make up one script.
struct Script {
    /// The number of the script among all scripts.
    number: u32,
    name: &'static str,
    body: &'static str,
    /// The two arguments that run it by its hash, encoded.
    by_hash: LazyLock<Vec<u8>>,
}

impl Script {
    /// Appends the command that runs it with the arguments that `put` writes. A run by text takes one round trip, with no window for a
    /// `SCRIPT FLUSH`. For a run by hash the server has to know the script already.
    fn encode(&self, by_text: bool, bytes: &mut Vec<u8>, put: impl FnOnce(&mut Arguments<'_>)) {
        let begin = bytes.len();
        // The number of arguments is known later.
        put_head(b'*', 0, bytes);
        match by_text {
            true => put_script("EVAL", self.body, bytes),
            false => bytes.extend_from_slice(&self.by_hash),
        }
        let mut arguments = Arguments { bytes, count: 2 };
        put(&mut arguments);
        let (number, count) = (begin + 1..begin + 2, arguments.count);
        match count {
            0..10 => bytes[number.start] = b'0' + count as u8,
            _ => drop(bytes.splice(number, decimal(count, &mut [0; DIGITS]).iter().copied())),
        }
    }
}

/// Appends the two arguments that run a script.
fn put_script(command: &str, script: &str, bytes: &mut Vec<u8>) {
    let mut arguments = Arguments { bytes, count: 0 };
    arguments.text(command);
    arguments.text(script);
}

macro_rules! script {
    ($number:literal, $name:literal, $body:expr) => {
        Script {
            number: $number,
            name: $name,
            body: $body,
            by_hash: LazyLock::new(|| {
                let mut bytes = Vec::new();
                put_script("EVALSHA", redis::Script::new($body).get_hash(), &mut bytes);
                bytes
            }),
        }
    };
}

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("../../lua/", $name, ".lua"))
    };
}

/// Wraps the script of a lock in one that also acts on its fencing counter. Holds without a token cost nothing more.
macro_rules! fenced {
    ($number:literal, $name:literal, $plain:expr, $around:literal) => {
        script!(
            $number,
            $name,
            concat!("local function plain()\n", $plain, "end\n", lua!("fence"), lua!($around))
        )
    };
}

/// A script that only looks at a lock that somebody else holds.
macro_rules! naming {
    ($name:literal) => {
        concat!(lua!($name), lua!("fields"), lua!("whose"))
    };
}

macro_rules! acquire {
    () => {
        concat!(lua!("serve"), lua!("acquire"), lua!("fields"), lua!("enter"), lua!("whose"))
    };
}

/// A settle has no line: hold.lua finds `serve` undefined.
macro_rules! settle {
    () => {
        concat!("local serve\n", lua!("hold"), lua!("settle"))
    };
}

static ACQUIRE: Script = script!(0, "acquire", acquire!());
static MOVE: Script = script!(1, "move", lua!("move"));
static RELEASE: Script = script!(2, "release", concat!(lua!("serve"), lua!("hold"), lua!("release")));
static KEEP: Script = script!(3, "keep", lua!("keep"));
static RENEW: Script = script!(4, "renew", lua!("renew"));
static RENEW_ALL: Script = script!(5, "renew_all", lua!("renew_all"));
static SETTLE: Script = script!(6, "settle", settle!());
static FORCE: Script =
    script!(7, "force", concat!(lua!("serve"), lua!("who"), lua!("fields"), lua!("force")));
static LOOK: Script = script!(8, "look", naming!("look"));
static WHO: Script = script!(9, "who", naming!("who"));
/// The counter is the second key, and the line the third. Keys are named literally, since some servers refuse the script otherwise.
static ACQUIRE_FENCED: Script =
    fenced!(10, "acquire", concat!("local KEYS = {KEYS[1], KEYS[3]}\n", acquire!()), "token");
static RENEW_FENCED: Script = fenced!(11, "renew", lua!("renew"), "raise");
static SETTLE_FENCED: Script = fenced!(12, "settle", settle!(), "raise");
static COUNT: Script = script!(13, "count", concat!(lua!("fence"), lua!("count")));
static SHORTEN: Script = script!(14, "shorten", lua!("shorten"));
static WAITERS: Script = script!(15, "waiters", lua!("waiters"));

// The integers that the scripts reply with. From 0 on, the integer is the TTL of somebody else's hold in milliseconds.
const DONE: i64 = -1;
const GONE: i64 = -2;
const FREE: i64 = -3;
/// The reply is this minus the number of subscribed clients.
const ENDED: i64 = -4;

/// The longest time that a lock is left to others, in milliseconds.
const LONGEST_TURN: i64 = 1000;

const PUBLISH: &str = "PUBLISH";
const SPUBLISH: &str = "SPUBLISH";

/// The argument of a renewal and of a re-entry that give the key another end.
const MOVES: &str = "moves";

/// The argument of a decline, in place of a count.
const DECLINE: &str = "decline";

/// The last argument of an acquire or a look that wants to know who holds a busy lock.
const WHOSE: &str = "whose";

/// The last argument of an acquire that may already be in the line.
const AGAIN: &str = "again";

impl Call {
    /// Returns a call about a lock, whoever holds it.
    pub(crate) fn of_lock(keys: &Arc<Keys>, action: Action) -> Call {
        Call {
            keys: keys.clone(),
            field: Arc::default(),
            action,
            fence: None,
            sharded: false,
            report_holder: false,
            from: None,
            end: KeyEnd::Stays,
            line: None,
        }
    }

    /// Returns the number of its script.
    pub(crate) fn script_number(&self) -> u32 {
        self.script().number
    }

    /// Returns the key that decides where the call is sent.
    pub(crate) fn key(&self) -> &str {
        match (self.action, &self.fence) {
            (Action::Count(_), Some(fence)) => &fence.counter,
            _ => &self.keys.key,
        }
    }

    /// Returns the name of the action in a word.
    pub(crate) fn name(&self) -> &'static str {
        self.script().name
    }

    fn script(&self) -> &'static Script {
        match (self.action, &self.fence) {
            (Action::Acquire { .. }, None) => &ACQUIRE,
            (Action::Acquire { .. }, Some(_)) => &ACQUIRE_FENCED,
            (Action::Move { .. }, _) => &MOVE,
            (Action::Release { .. } | Action::Decline, _) => &RELEASE,
            (Action::Keep { .. }, _) => &KEEP,
            (Action::Renew { .. }, None) => &RENEW,
            (Action::Renew { .. }, Some(_)) => &RENEW_FENCED,
            (Action::Shorten { .. }, _) => &SHORTEN,
            (Action::Settle { .. } | Action::Repair { .. }, None) => &SETTLE,
            (Action::Settle { .. } | Action::Repair { .. }, Some(_)) => &SETTLE_FENCED,
            (Action::Force, _) => &FORCE,
            (Action::Look, _) => &LOOK,
            (Action::Who, _) => &WHO,
            (Action::Waiters, _) => &WAITERS,
            (Action::Count(_), _) => &COUNT,
        }
    }

    /// Splits the call into one for the lock alone and the counter. Returns `None` if it has a single key.
    pub(crate) fn alone(&self) -> Option<(Call, Arc<Fence>)> {
        let fence = self.fence.clone().filter(|_| !matches!(self.action, Action::Count(_)))?;
        Some((Call { fence: None, ..self.clone() }, fence))
    }

    /// Appends the command that runs the script: by its text, or by its hash.
    pub(crate) fn encode(&self, by_text: bool, bytes: &mut Vec<u8>) {
        // Reserves at once the room that most calls need.
        bytes.reserve(224 + 2 * self.key().len() + self.field.len());
        self.script().encode(by_text, bytes, |arguments| self.put(arguments));
    }

    /// Returns the parameters of the lock's line for the script.
    fn line(&self) -> Option<(&LineKeys, Line)> {
        let gets_line = matches!(
            self.action,
            Action::Acquire { count: 1, .. }
                | Action::END
                | Action::Decline
                | Action::Force
                | Action::Waiters
        );
        let line = self.line.filter(|_| gets_line)?;
        let keys = if line.sharded { self.keys.sharded_line()? } else { self.keys.line() };
        Some((keys, line))
    }

    /// Returns whether the line is one of its keys.
    pub(crate) fn has_line(&self) -> bool {
        self.line().is_some()
    }

    /// Writes all arguments after the script.
    fn put(&self, to: &mut Arguments<'_>) {
        let (fence, line) = (self.fence.as_deref(), self.line());
        to.number(1 + u64::from(fence.is_some()) + u64::from(line.is_some()));
        to.text(self.key());
        if let Some(fence) = fence {
            to.text(&fence.counter);
        }
        if let Some((keys, _)) = line {
            to.text(&keys.line);
        }
        let field = &*self.field;
        match self.action {
            Action::Acquire { count, lease } => {
                to.text(field);
                to.number(count.into());
                to.number(lease.millis());
                self.put_moves(to);
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
            Action::Decline => {
                to.text(field);
                to.text(DECLINE);
                to.text(self.keys.channel());
                self.put_sharded(to);
            }
            Action::Keep { lease } => {
                to.text(field);
                to.text(&kept_field(field));
                to.text(self.keys.channel());
                to.text(if self.sharded { SPUBLISH } else { PUBLISH });
                to.number(lease.millis());
            }
            Action::Renew { lease } => {
                to.text(field);
                to.number(lease.millis());
                self.put_moves(to);
            }
            Action::Shorten { lease } => {
                to.text(field);
                to.number(lease.millis());
                to.number(if let KeyEnd::Is(ends) = self.end { ends.get() } else { 0 });
            }
            Action::Settle { count, lease } | Action::Repair { count, lease } => {
                let creates = matches!(self.action, Action::Repair { .. });
                to.text(field);
                to.number(count.into());
                to.text(self.keys.channel());
                to.text(if self.sharded { SPUBLISH } else { PUBLISH });
                to.number(lease.millis());
                if creates || fence.is_some() {
                    to.number(creates.into());
                }
            }
            Action::Force => {
                to.text(self.keys.channel());
                self.put_sharded(to);
            }
            Action::Look | Action::Who | Action::Waiters => {}
            Action::Count(Count::Look) => to.text("look"),
            Action::Count(Count::Next) => to.text("next"),
            Action::Count(Count::Raise) => to.text("raise"),
        }
        if let Some(Fence { least, stays, .. }) = fence {
            // An empty argument means the server's time, or for ever.
            for number in [*least, stays.map(|stays| stays.millis())] {
                match number {
                    Some(number) => to.number(number),
                    None => to.text(""),
                }
            }
        }
        if let Some((keys, line)) = line {
            to.text(keys.args(line));
            if line.again && matches!(self.action, Action::Acquire { .. }) {
                to.text(AGAIN);
            }
        } else if self.report_holder && matches!(self.action, Action::Acquire { .. } | Action::Look) {
            to.text(WHOSE);
        }
    }

    fn put_moves(&self, to: &mut Arguments<'_>) {
        if self.end == KeyEnd::Moves {
            to.text(MOVES);
        }
    }

    /// Writes the publishing command, unless the script's default is right, so that a release on a single server is no longer than needed.
    fn put_sharded(&self, to: &mut Arguments<'_>) {
        if self.sharded {
            to.text(SPUBLISH);
        }
    }

    /// Decodes the script's reply. An error is the server's own, or reports a reply that no script of ours gives.
    pub(crate) fn decode(&self, value: Value) -> Result<Reply, RedisError> {
        match value {
            Value::ServerError(refused) => Err(refused.into()),
            value => self.reply(&value).ok_or_else(|| self.garbled(&value)),
        }
    }

    /// Returns what this value means as the script's reply, or `None` if no script of ours gives it.
    fn reply(&self, value: &Value) -> Option<Reply> {
        use Action::{Acquire, Count, Decline, Force, Look, Release, Renew, Repair, Settle, Waiters, Who};
        let fenced = self.fence.is_some();
        let counts = matches!(self.action, Acquire { .. } | Count(_));
        Some(match (self.action, value) {
            // A key lives through its last millisecond: with a TTL of 0 it is still held, not free.
            (Acquire { .. } | Look, Value::Int(ttl @ 0..)) => Reply::busy(left(*ttl)),
            (Action::END | Decline, Value::Array(parts)) if self.line().is_some() => match parts[..] {
                [Value::Int(0)] => Reply::Ended(Notice::Denied),
                [Value::Int(millis @ 1..=LONGEST_TURN)] => Reply::Ended(Notice::LeftToOthers(left(millis))),
                _ => return None,
            },
            (Acquire { .. } | Look | Who, Value::Array(parts)) => {
                whose(parts).filter(|reply| self.line().is_some() || !matches!(reply, Reply::InLine(..)))?
            }
            (Force | Look | Who, Value::Int(FREE)) => Reply::Free,
            (action, Value::SimpleString(kind)) if counts || matches!(action, Force | Look | Who) => {
                match kind.strip_prefix("counter ") {
                    Some(kind) if fenced => Reply::NotACounter(no_counter(kind)),
                    _ => Reply::NotALock(no_lock(action, kind)),
                }
            }
            (_, Value::BulkString(token)) if counts && fenced => {
                Reply::Token(str::from_utf8(token).ok()?.parse().ok()?)
            }
            (Release { .. } | Settle { .. } | Repair { .. }, Value::BulkString(why)) => deferred(why),
            (Renew { .. }, Value::BulkString(why)) if fenced => deferred(why),
            (Renew { .. }, Value::Array(parts)) => match parts[..] {
                [Value::Int(ttl @ 0..), Value::Int(ends @ 1..)] => {
                    Reply::Longer(left(ttl), NonZeroU64::new(ends.unsigned_abs())?)
                }
                _ => return None,
            },
            (Waiters, Value::Array(parts)) => Reply::Waiters(waiters(parts)?),
            (Look | Who | Waiters | Count(_), _) => return None,
            (Acquire { .. }, Value::Int(DONE)) if fenced => return None,
            (_, Value::Int(DONE)) => Reply::Done,
            (Action::END | Decline, Value::Int(ended @ ..=ENDED)) => {
                Reply::Ended(Notice::Sent(ENDED.abs_diff(*ended)))
            }
            (Force, _) => return None,
            (_, Value::Int(GONE)) => Reply::Gone,
            _ => return None,
        })
    }

    fn garbled(&self, value: &Value) -> RedisError {
        // Cut, since a proxy may reply with anything.
        let seen: String = format!("{value:?}").chars().take(100).collect();
        (
            redis::ErrorKind::UnexpectedReturnType,
            "no script gives this answer",
            format!("{} got {seen}", self.name()),
        )
            .into()
    }
}

fn left(ttl: i64) -> Duration {
    Duration::from_millis(ttl.max(1).unsigned_abs())
}

/// Returns whose hold is in the way, and for how long.
fn whose(parts: &[Value]) -> Option<Reply> {
    match parts {
        [Value::Int(ttl @ 0..)] => Some(Reply::Nameless(left(*ttl))),
        [Value::Int(ttl @ 0..), Value::BulkString(field), Value::BulkString(count), rest @ ..] => {
            let (left, field) = (left(*ttl), String::from_utf8_lossy(field));
            let count = str::from_utf8(count).ok().and_then(|count| count.parse().ok()).unwrap_or(0);
            let holder = Holder::new(&*field, count, left);
            match rest {
                [] => Some(Reply::held_by(holder)),
                [Value::Int(length @ 1..)] => {
                    let length = u32::try_from(*length).unwrap_or(u32::MAX);
                    Some(Reply::InLine(left, Box::new(holder), length))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns who waits in a line.
fn waiters(parts: &[Value]) -> Option<Vec<WaitingProcess>> {
    let (pairs, []) = parts.as_chunks() else { return None };
    let waiters = pairs.iter().map(|pair| match pair {
        [Value::BulkString(field), Value::Int(seconds @ 0..)] => {
            let waiting_for = Duration::from_secs(seconds.unsigned_abs());
            Some(WaitingProcess::new(&*String::from_utf8_lossy(field), waiting_for))
        }
        _ => None,
    });
    waiters.collect()
}

fn deferred(why: &[u8]) -> Reply {
    Reply::Deferred(String::from_utf8_lossy(why).into_owned())
}

/// Returns a description of a key of this type that is no lock.
fn no_lock(action: Action, kind: &str) -> String {
    match (action, kind) {
        (Action::Force | Action::Who, "string") => "a string, which is no lock of this kind".to_owned(),
        (_, "hash") => {
            "a hash without a TTL (if somebody removed the TTL of a lock, its holder's next renewal restores it)".to_owned()
        }
        (_, "string") => "a string without a TTL".to_owned(),
        (_, "fields") => "a hash whose fields are not those of a lock".to_owned(),
        (_, "rwlock") => "a read-write lock of Redisson".to_owned(),
        _ => format!("a {kind}"),
    }
}

/// Describes a counter that can't give out another token.
pub(crate) const AT_ITS_END: &str = "the highest number that a counter can have";

/// Returns a description of a key that should be a fencing counter.
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
        Call { field: field.into(), ..Call::of_lock(&Arc::new(Keys::new("", key)), action) }
    }
}

#[cfg(test)]
mod tests;
