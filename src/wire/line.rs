//! `Line`: the processes that wait for a lock, in order, as the server keeps them beside it; and the messages that they are sent.

use std::time::Duration;

use crate::base::Lease;

/// What a script needs to know of a lock's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// For so long the lock is kept for the field that it is handed to.
    pub(crate) term: Lease,
    /// For so long the line stays where nobody asks. Of an acquire alone.
    pub(crate) stays: Lease,
    /// The field has asked before: it may be in the line, and a free lock goes to the first there. Of an acquire alone.
    pub(crate) again: bool,
}

/// A message to one process. It decides nothing: the process asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint<'a> {
    /// Of the field in the line, which is this process's.
    pub(crate) number: u64,
    /// When to ask: at once where the lock was handed to the field; else, where it is the first now, once the lock may have expired.
    pub(crate) wait: Option<Duration>,
    /// The lock's.
    pub(crate) key: &'a str,
}

impl Hint<'_> {
    /// `None`: the message is none of ours.
    pub(crate) fn read(text: &str) -> Option<Hint<'_>> {
        let (number, rest) = text.split_once(' ')?;
        let (wait, key) = rest.split_once(' ')?;
        let wait = match wait {
            "-" => None,
            millis => Some(Duration::from_millis(millis.parse().ok()?)),
        };
        Some(Hint { number: number.parse().ok()?, wait, key })
    }

    /// As the scripts write it.
    pub(crate) fn write(&self) -> String {
        let wait = self.wait.map_or("-".to_owned(), |wait| wait.as_millis().to_string());
        format!("{} {wait} {}", self.number, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_read_as_it_is_written() {
        for wait in [None, Some(Duration::ZERO), Some(Duration::from_millis(1500))] {
            let hint = Hint { number: 7, wait, key: "a lock: with spaces" };
            assert_eq!(Hint::read(&hint.write()), Some(hint));
        }
        for text in ["", "0", "7", "7 -", "x - key", "7 soon key", "-7 - key"] {
            assert_eq!(Hint::read(text), None, "{text}");
        }
    }
}
