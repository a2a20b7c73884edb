use proptest::sample::select;

use super::*;
use crate::backend::connection::channels::Channels;
use crate::base::testing::{answers, fuzz, is_bounded, text};

const CODES: [&str; 12] = [
    "ERR ",
    "MOVED ",
    "ASK ",
    "NOSCRIPT ",
    "NOPERM ",
    "NOAUTH ",
    "WRONGPASS ",
    "OOM ",
    "LOADING ",
    "CLUSTERDOWN ",
    "BUSY ",
    "",
];

/// A refusal that the script itself raised may follow a write.
#[test]
fn whatever_error_a_server_answers_is_reported_with_its_outcome() {
    let ends = select(&["", " script: 7, on @user_script:1.", "\u{0}"][..]);
    fuzz((select(&CODES[..]), text(), ends), |(code, text, end)| {
        let wire = format!("-{code}{}{end}\r\n", text.replace(['\r', '\n'], " "));
        let Ok(redis::Value::ServerError(error)) = redis::parse_redis_value(wire.as_bytes()) else { return };
        let call = Call::of("stock", "me:1", Action::END);
        let failure = failed(error.into(), &call, &"host:1".into());
        is_bounded(&failure, &wire);
        is_bounded(&failure.error.to_string(), &wire);
        let _ = redirect(&failure);
        if end.contains("user_script") {
            assert_eq!(failure.outcome, Outcome::Unknown, "{failure:?}");
        }
    });
}

const MESSAGES: [&str; 4] = [
    "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n1\r\n",
    ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n1\r\n",
    "*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\nc\r\n$1\r\n1\r\n",
    "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
];

/// Only the channel of a message decides whether it counts.
#[test]
fn whatever_comes_as_a_message_is_one_of_a_wanted_channel_or_ignored() {
    let mut channels = Channels::default();
    channels.want(&"c".into());
    fuzz(answers(&MESSAGES), |value| {
        if let Some(message) = redis::Msg::from_value(&value) {
            let channel = message.get_channel_name();
            assert_eq!(channels.wants(channel), channel == "c");
        }
    });
}
