//! The Lua files as typed calls, and what they answer.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};

use crate::deadline::Lease;

/// One run of one script: what is asked of one server.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    /// Make `field` a holder with `count` holds, for at least `lease`.
    Acquire { key: Arc<str>, field: Arc<str>, count: u32, lease: Lease },
    /// Lower the count of `field` to `count`; 0 ends the hold.
    Release { key: Arc<str>, channel: Arc<str>, field: Arc<str>, count: u32 },
    /// Let the hold of `field` live for at least `lease` from now.
    Renew { key: Arc<str>, field: Arc<str>, lease: Lease },
    /// After an unknown outcome: make the count of `field`, if it is there, exactly `count`; 0 ends the hold. `create`: also
    /// where the key is not there.
    Settle { key: Arc<str>, channel: Arc<str>, field: Arc<str>, count: u32, lease: Lease, create: bool },
    /// Free the lock, whoever holds it.
    Force { key: Arc<str>, channel: Arc<str> },
    /// Who is in the way, if anybody.
    Look { key: Arc<str> },
}

/// What a server answered to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It is as asked: granted, released, lowered, renewed, settled, freed.
    Done,
    /// The count could not be lowered (a full server): the hold stands, and must be settled later.
    Deferred(String),
    /// Somebody else holds the lock, for that long yet.
    Busy(Duration),
    /// The field is not there.
    Gone,
    /// Nobody holds the lock.
    Free,
    /// The key holds something else: its type, and what is wrong with it.
    NotALock(String),
}

/// One Lua file.
struct Script {
    name: &'static str,
    body: &'static str,
    sha: LazyLock<String>,
}

macro_rules! script {
    ($name:literal) => {
        Script {
            name: $name,
            body: include_str!(concat!("../lua/", $name, ".lua")),
            sha: LazyLock::new(|| {
                redis::Script::new(include_str!(concat!("../lua/", $name, ".lua"))).get_hash().to_owned()
            }),
        }
    };
}

static ACQUIRE: Script = script!("acquire");
static RELEASE: Script = script!("release");
static RENEW: Script = script!("renew");
static SETTLE: Script = script!("settle");
static FORCE: Script = script!("force");
static LOOK: Script = script!("look");

// The integers that the scripts answer with; from 0 on it is the TTL of another's hold in milliseconds.
const DONE: i64 = -1;
const GONE: i64 = -2;
const FREE: i64 = -3;

impl Call {
    /// The command that runs the script where the server knows it already.
    pub(crate) fn evalsha(&self) -> Cmd {
        self.command("EVALSHA", &self.script().sha)
    }

    /// The command for a server that answered NOSCRIPT: one round trip, and no window for another `SCRIPT FLUSH`.
    pub(crate) fn eval(&self) -> Cmd {
        self.command("EVAL", self.script().body)
    }

    /// The lock's key.
    pub(crate) fn key(&self) -> &str {
        match self {
            Call::Acquire { key, .. }
            | Call::Release { key, .. }
            | Call::Renew { key, .. }
            | Call::Settle { key, .. }
            | Call::Force { key, .. }
            | Call::Look { key } => key,
        }
    }

    /// What is asked, in a word.
    pub(crate) fn name(&self) -> &'static str {
        self.script().name
    }

    fn script(&self) -> &'static Script {
        match self {
            Call::Acquire { .. } => &ACQUIRE,
            Call::Release { .. } => &RELEASE,
            Call::Renew { .. } => &RENEW,
            Call::Settle { .. } => &SETTLE,
            Call::Force { .. } => &FORCE,
            Call::Look { .. } => &LOOK,
        }
    }

    fn command(&self, command: &str, script: &str) -> Cmd {
        // The most arguments that a script has, and the bytes of what is no key, field or channel of unusual length:
        // one allocation each.
        let mut cmd = Cmd::with_capacity(8, 192 + script.len() + 2 * self.key().len());
        cmd.arg(command).arg(script).arg(1).arg(self.key());
        match self {
            Call::Acquire { field, count, lease, .. } => cmd.arg(&**field).arg(*count).arg(lease.millis()),
            Call::Release { channel, field, count, .. } => cmd.arg(&**field).arg(*count).arg(&**channel),
            Call::Renew { field, lease, .. } => cmd.arg(&**field).arg(lease.millis()),
            Call::Settle { channel, field, count, lease, create, .. } => {
                let cmd = cmd.arg(&**field).arg(*count).arg(lease.millis()).arg(&**channel);
                if *create { cmd.arg(1) } else { cmd }
            }
            Call::Force { channel, .. } => cmd.arg(&**channel),
            Call::Look { .. } => &mut cmd,
        };
        cmd
    }

    /// What the script answered. An error is the server's own, or says that no script of ours answers so.
    pub(crate) fn decode(&self, value: Value) -> Result<Reply, RedisError> {
        use Call::{Acquire, Force, Look, Release, Settle};
        Ok(match (self, value) {
            (_, Value::ServerError(refused)) => return Err(refused.into()),
            // A key lives through its last millisecond: one that has none left is still held, not free.
            (Acquire { .. } | Look { .. }, Value::Int(ttl @ 0..)) => {
                Reply::Busy(Duration::from_millis(ttl.max(1).unsigned_abs()))
            }
            (Force { .. } | Look { .. }, Value::Int(FREE)) => Reply::Free,
            (Acquire { .. } | Force { .. } | Look { .. }, Value::SimpleString(kind)) => {
                Reply::NotALock(self.told(&kind))
            }
            (Release { .. } | Settle { .. }, Value::BulkString(why)) => {
                Reply::Deferred(String::from_utf8_lossy(&why).into_owned())
            }
            (Look { .. }, value) => return Err(self.garbled(&value)),
            (_, Value::Int(DONE)) => Reply::Done,
            (Force { .. }, value) => return Err(self.garbled(&value)),
            (_, Value::Int(GONE)) => Reply::Gone,
            (_, value) => return Err(self.garbled(&value)),
        })
    }

    /// What a key of this type is, where it is no lock.
    fn told(&self, kind: &str) -> String {
        match (self, kind) {
            (Call::Force { .. }, "string") => "a string, which is no lock of this kind".to_owned(),
            (_, "string" | "hash") => format!("a {kind} without a TTL"),
            _ => format!("a {kind}"),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline::Drift;

    fn lease() -> Lease {
        let drift = Drift { factor: 0.01, slack: Duration::from_millis(2) };
        Lease::new("lease", Duration::from_secs(30), drift).unwrap()
    }

    fn calls() -> [Call; 6] {
        let (key, channel, field): (Arc<str>, Arc<str>, Arc<str>) = ("k".into(), "ch".into(), "f:1".into());
        [
            Call::Acquire { key: key.clone(), field: field.clone(), count: 2, lease: lease() },
            Call::Release { key: key.clone(), channel: channel.clone(), field: field.clone(), count: 1 },
            Call::Renew { key: key.clone(), field: field.clone(), lease: lease() },
            Call::Settle {
                key: key.clone(),
                channel: channel.clone(),
                field,
                count: 3,
                lease: lease(),
                create: false,
            },
            Call::Force { key: key.clone(), channel },
            Call::Look { key },
        ]
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
        let told = [
            ("acquire", vec!["f:1", "2", "30000"]),
            ("release", vec!["f:1", "1", "ch"]),
            ("renew", vec!["f:1", "30000"]),
            ("settle", vec!["f:1", "3", "30000", "ch"]),
            ("force", vec!["ch"]),
            ("look", vec![]),
        ];
        for (call, (name, args)) in calls().iter().zip(told) {
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
    fn each_file_tells_keys_arguments_and_replies_and_names_keys_literally() {
        for script in calls().map(|call| call.script()) {
            for part in ["-- KEYS[1]", "-- Replies"] {
                assert!(script.body.contains(part), "{}: {part}", script.name);
            }
            assert!(!script.body.replace("KEYS[1]", "").contains("KEYS"), "{}", script.name);
        }
    }

    #[test]
    fn each_reply_is_understood_by_the_calls_that_give_it_and_by_no_other() {
        use Reply::{Busy, Deferred, Done, Free, Gone, NotALock};
        let text = |kind: &str| Value::SimpleString(kind.to_owned());
        let bulk = Value::BulkString(b"OOM full".to_vec());
        let ms = |ms| Some(Busy(Duration::from_millis(ms)));
        let no = |told: &str| Some(NotALock(told.to_owned()));
        let later = Some(Deferred("OOM full".to_owned()));
        let foreign = no("a string, which is no lock of this kind");
        //                        acquire, release, renew, settle, force, look
        let table: [(Value, [Option<Reply>; 6]); 10] = [
            (Value::Int(-1), [Some(Done), Some(Done), Some(Done), Some(Done), Some(Done), None]),
            (Value::Int(-2), [Some(Gone), Some(Gone), Some(Gone), Some(Gone), None, None]),
            (Value::Int(-3), [None, None, None, None, Some(Free), Some(Free)]),
            (Value::Int(-4), [None, None, None, None, None, None]),
            (Value::Int(0), [ms(1), None, None, None, None, ms(1)]),
            (Value::Int(29_999), [ms(29_999), None, None, None, None, ms(29_999)]),
            (
                text("hash"),
                [
                    no("a hash without a TTL"),
                    None,
                    None,
                    None,
                    no("a hash without a TTL"),
                    no("a hash without a TTL"),
                ],
            ),
            (
                text("string"),
                [no("a string without a TTL"), None, None, None, foreign, no("a string without a TTL")],
            ),
            (text("zset"), [no("a zset"), None, None, None, no("a zset"), no("a zset")]),
            (bulk, [None, later.clone(), None, later, None, None]),
        ];
        for (value, told) in table {
            for (call, told) in calls().iter().zip(told) {
                assert_eq!(call.decode(value.clone()).ok(), told, "{} {value:?}", call.name());
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
            Value::Array(vec![Value::Nil; 10_000]),
        ];
        for call in calls() {
            for value in &garbage {
                let error = call.decode(value.clone()).unwrap_err();
                assert_eq!(error.kind(), redis::ErrorKind::UnexpectedReturnType);
                let told = error.to_string();
                assert!(told.contains(call.name()) && told.len() < 250, "{told}");
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
