//! `Renewals`: several holds that one run of a script renews.

use std::ops::Range;

use redis::{Cmd, Value};

use super::{Action, Call, GONE, RENEW_ALL};
use crate::base::Lease;

/// So many at most: a server runs nothing else meanwhile.
const MOST: usize = 100;

/// Renewals of holds without a token, of one lease.
#[derive(Clone, Copy)]
pub(crate) struct Renewals<'a>(&'a [Call]);

impl<'a> Renewals<'a> {
    /// Divides calls into those that go alone, and those next to each other that one run may renew. Keeps their order.
    pub(crate) fn divide(calls: &[Call]) -> Vec<Range<usize>> {
        let mut parts: Vec<Range<usize>> = Vec::new();
        let mut last = None;
        for (at, call) in calls.iter().enumerate() {
            let lease = lease_of(call);
            match parts.last_mut() {
                Some(part) if lease.is_some() && lease == last && part.len() < MOST => part.end = at + 1,
                _ => parts.push(at..at + 1),
            }
            last = lease;
        }
        parts
    }

    /// `None`: it is one call, which goes alone.
    pub(crate) fn of(part: &'a [Call]) -> Option<Renewals<'a>> {
        (part.len() > 1).then_some(Renewals(part))
    }

    /// As of a [`Call`]: the command that runs the script where the server knows it already.
    pub(crate) fn evalsha(self) -> Cmd {
        self.command("EVALSHA", &RENEW_ALL.sha)
    }

    /// As of a [`Call`]: the number of the script.
    pub(crate) fn script_number() -> u32 {
        RENEW_ALL.number
    }

    /// As of a [`Call`]: the command for a server that may not know the script.
    pub(crate) fn eval(self) -> Cmd {
        self.command("EVAL", RENEW_ALL.body)
    }

    fn command(self, command: &str, script: &str) -> Cmd {
        let bytes: usize = self.0.iter().map(|call| call.key().len() + call.field.len()).sum();
        let mut cmd = Cmd::with_capacity(4 + 2 * self.0.len(), 64 + script.len() + bytes);
        cmd.arg(command).arg(script).arg(self.0.len());
        for call in self.0 {
            cmd.arg(call.key());
        }
        for call in self.0 {
            cmd.arg(&*call.field);
        }
        if let Some(lease) = self.0.first().and_then(lease_of) {
            cmd.arg(lease.millis());
        }
        cmd
    }

    /// What each of them was answered. The value again, where it is no such list.
    pub(crate) fn answers(self, value: Value) -> Result<Vec<Value>, Value> {
        match value {
            Value::Array(values) if values.len() == self.0.len() => Ok(values),
            value => Err(value),
        }
    }

    /// Whether one of these answers reports that a hold is gone, which only an answer to this hold alone shows. 1. A proxy before several
    /// servers sends the script to that of its first key. 2. This one lacks the locks of the others.
    pub(crate) fn is_in_doubt(answer: &Value) -> bool {
        *answer == Value::Int(GONE)
    }
}

fn lease_of(call: &Call) -> Option<Lease> {
    match (call.action, &call.fence) {
        (Action::Renew { lease }, None) if call.limit.is_none() => Some(lease),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
