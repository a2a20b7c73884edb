use super::*;
use crate::base::testing::{answers, fuzz, is_bounded};

const ANSWERS: [&str; 12] = [
    ":-1\r\n",
    ":-2\r\n",
    ":-3\r\n",
    ":30000\r\n",
    "+list\r\n",
    "+counter end\r\n",
    "$19\r\n9223372036854775807\r\n",
    "$3\r\nOOM\r\n",
    "-NOSCRIPT No matching script\r\n",
    "-OOM command not allowed script: 7, on @user_script:1.\r\n",
    "*1\r\n:-1\r\n",
    "_\r\n",
];

/// A grant is one number or a token, and nothing else.
#[test]
fn whatever_a_script_is_answered_is_decoded_or_reported() {
    fuzz(answers(&ANSWERS), |value| {
        for call in calls().iter().chain(&fenced()) {
            match call.decode(value.clone()) {
                Ok(reply) => {
                    is_bounded(&reply, &value);
                    let token =
                        matches!(&value, Value::BulkString(text) if text.iter().all(u8::is_ascii_digit));
                    let plus = matches!(&value, Value::BulkString(text) if text.starts_with(b"+"));
                    let granted = value == Value::Int(DONE) || token || plus;
                    assert!(!reply.is_grant() || granted, "{reply:?}");
                }
                Err(error) => is_bounded(&error.to_string(), &value),
            }
        }
    });
}
