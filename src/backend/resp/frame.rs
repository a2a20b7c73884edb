//! Finds where an answer ends in the bytes of a server, and decodes it.

use redis::{RedisError, RedisResult, Value};

/// The most memory that a server's answer may take, in bytes. A larger one is rejected as garbage, so that no server fills the
/// memory of a client.
const LARGEST: usize = 64 << 20;

/// The most bytes of one line, such as an error.
const LONGEST_LINE: usize = 64 << 10;

/// Bytes that were received and not decoded yet.
#[derive(Debug, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    /// Where the next answer begins.
    begin: usize,
    /// Up to where it was looked at, and how many of its elements come after that.
    seen: usize,
    wanted: usize,
    /// The memory that the elements up to there take.
    taken: usize,
}

/// A buffer that has grown beyond this is not kept.
const KEPT: usize = 64 << 10;

impl Input {
    /// Returns the buffer to append received bytes to.
    pub(super) fn room(&mut self, least: usize) -> &mut Vec<u8> {
        if self.begin == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
            (self.begin, self.seen) = (0, 0);
        } else if self.bytes.capacity() - self.bytes.len() < least {
            self.bytes.drain(..self.begin);
            (self.begin, self.seen) = (0, self.seen - self.begin);
        }
        self.bytes.reserve(least);
        &mut self.bytes
    }

    /// Returns the next answer that was received as a whole.
    pub(super) fn next(&mut self) -> RedisResult<Option<Value>> {
        if self.seen == self.begin {
            if let Some((number, length)) = integer(&self.bytes[self.begin..]) {
                self.begin += length;
                self.seen = self.begin;
                return Ok(Some(Value::Int(number)));
            }
            (self.wanted, self.taken) = (1, 0);
        }
        while self.wanted > 0 {
            let Some(element) = element(&self.bytes[self.seen..])? else { return Ok(None) };
            let wanted = (self.wanted - 1).saturating_add(element.children);
            // An element of three bytes takes twenty times as much memory as a `Value`.
            let taken = self.taken.saturating_add(size_of::<Value>()).saturating_add(element.length);
            if taken.saturating_add(wanted.saturating_mul(size_of::<Value>())) > LARGEST {
                return Err(garbled("an answer of an impossible length"));
            }
            if self.bytes.len() - self.seen < element.length {
                return Ok(None);
            }
            self.seen += element.length;
            (self.wanted, self.taken) = (wanted, taken);
        }
        let frame = &self.bytes[self.begin..self.seen];
        self.begin = self.seen;
        match integers(frame) {
            Some(numbers) => Ok(Some(numbers)),
            None => redis::parse_redis_value(frame).map(Some),
        }
    }
}

/// TLS reports an error with this byte: the other side does not understand plain text.
const ALERT: u8 = 21;

/// The first element in these bytes.
struct Element {
    length: usize,
    /// How many elements of it come after this one.
    children: usize,
}

/// Reads the first element, or returns `None` if its first line is incomplete.
fn element(bytes: &[u8]) -> RedisResult<Option<Element>> {
    if bytes.first() == Some(&ALERT) {
        return Err(garbled("it speaks TLS: its URL has to begin with rediss://"));
    }
    let Some(end) = bytes.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n') else {
        return if bytes.len() < LONGEST_LINE { Ok(None) } else { Err(garbled("a line without an end")) };
    };
    let Some((kind, line)) = bytes[..end].strip_suffix(b"\r").and_then(<[u8]>::split_first) else {
        return Err(garbled("a line without a type or a carriage return"));
    };
    let line = || number(line).ok_or_else(|| garbled("a length that is no number"));
    // A length of -1 stands for a missing value.
    let count = || line().map(|length| usize::try_from(length).unwrap_or(0));
    let (text, children) = match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => (0, 0),
        b'$' | b'!' | b'=' => (usize::try_from(line()?).map_or(0, |length| length.saturating_add(2)), 0),
        b'*' | b'~' | b'>' => (0, count()?),
        b'%' => (0, count()?.saturating_mul(2)),
        // The element that an attribute belongs to comes after it.
        b'|' => (0, count()?.saturating_mul(2).saturating_add(1)),
        _ => return Err(garbled("an answer of an unknown type")),
    };
    Ok(Some(Element { length: text.saturating_add(end + 1), children }))
}

/// Reads a complete integer, and its length. Most replies of scripts are integers, so they bypass the parser.
fn integer(bytes: &[u8]) -> Option<(i64, usize)> {
    let (b':', line) = bytes.split_first()? else { return None };
    let end = line.iter().take(DIGITS + 2).position(|byte| *byte == b'\r')?;
    let is_whole = line.get(end + 1) == Some(&b'\n');
    Some((number(&line[..end]).filter(|_| is_whole)?, end + 3))
}

/// Reads an array of only integers, the reply of the script that renews many holds.
fn integers(frame: &[u8]) -> Option<Value> {
    let head = frame.strip_prefix(b"*")?;
    let end = head.iter().position(|byte| *byte == b'\r')?;
    let count = usize::try_from(number(&head[..end])?).ok()?;
    let mut rest = head.get(end + 2..)?;
    // No element is shorter than this, so a count that is too large reserves no memory.
    let mut numbers = Vec::with_capacity(count.min(rest.len() / ":0\r\n".len()));
    while numbers.len() < count {
        let (number, length) = integer(rest)?;
        numbers.push(Value::Int(number));
        rest = &rest[length..];
    }
    rest.is_empty().then_some(Value::Array(numbers))
}

/// A number with this many digits can't overflow.
const DIGITS: usize = 18;

/// Reads a number of at most [`DIGITS`] digits.
fn number(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > DIGITS {
        return None;
    }
    let add = |number, digit: &u8| digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0'));
    let number = digits.iter().try_fold(0, add)?;
    Some(if is_negative { -number } else { number })
}

/// Returns a value as text, if it is one.
pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

pub(super) fn garbled(what: &'static str) -> RedisError {
    (redis::ErrorKind::Parse, "what answers is not a Redis server", what.to_owned()).into()
}

#[cfg(test)]
mod tests;
