//! Where an answer ends in the bytes of a server, and its value.

use redis::{RedisError, RedisResult, Value};

/// No answer of a server takes as much memory, in bytes. More is taken for garbage, so that no server fills the memory of a client.
const LARGEST: usize = 64 << 20;

/// The same of one line, which errors have.
const LONGEST_LINE: usize = 64 << 10;

/// What was received and not decoded.
#[derive(Debug, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    /// Where the next answer begins.
    begin: usize,
    /// Up to where it was looked at, and how many elements of it are to come behind that.
    seen: usize,
    wanted: usize,
    /// The memory that the elements take up to there.
    taken: usize,
}

/// A buffer that has become larger is not kept.
const KEPT: usize = 64 << 10;

impl Input {
    /// Where to put what is received, behind what is there.
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

    /// The next answer that was received as a whole.
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
            // An element of three bytes takes twenty times as much as a value.
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

/// With this byte TLS reports an error: what answers does not understand plain text.
const ALERT: u8 = 21;

/// The first element in these bytes.
struct Element {
    length: usize,
    /// How many elements of it come behind it.
    children: usize,
}

/// `None`: its first line has not come as a whole.
fn element(bytes: &[u8]) -> RedisResult<Option<Element>> {
    if bytes.first() == Some(&ALERT) {
        return Err(garbled("it speaks TLS: its URL has to begin with rediss://"));
    }
    let Some(end) = bytes.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n') else {
        return if bytes.len() < LONGEST_LINE { Ok(None) } else { Err(garbled("a line without an end")) };
    };
    let Some((kind, line)) = bytes[..end].strip_suffix(b"\r").and_then(<[u8]>::split_first) else {
        return Err(garbled("a line that is none"));
    };
    let line = || number(line).ok_or_else(|| garbled("a length that is none"));
    // Nothing is as long as -1.
    let count = || line().map(|length| usize::try_from(length).unwrap_or(0));
    let (text, children) = match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => (0, 0),
        b'$' | b'!' | b'=' => (usize::try_from(line()?).map_or(0, |length| length.saturating_add(2)), 0),
        b'*' | b'~' | b'>' => (0, count()?),
        b'%' => (0, count()?.saturating_mul(2)),
        // Behind it comes what it belongs to.
        b'|' => (0, count()?.saturating_mul(2).saturating_add(1)),
        _ => return Err(garbled("an answer of an unknown type")),
    };
    Ok(Some(Element { length: text.saturating_add(end + 1), children }))
}

/// An integer that has come as a whole, and its length. Integers are most of what scripts answer: they take no parser.
fn integer(bytes: &[u8]) -> Option<(i64, usize)> {
    let (b':', line) = bytes.split_first()? else { return None };
    let end = line.iter().take(DIGITS + 2).position(|byte| *byte == b'\r')?;
    let is_whole = line.get(end + 1) == Some(&b'\n');
    Some((number(&line[..end]).filter(|_| is_whole)?, end + 3))
}

/// An array of nothing but integers: what the script answers that renews many holds.
fn integers(frame: &[u8]) -> Option<Value> {
    let head = frame.strip_prefix(b"*")?;
    let end = head.iter().position(|byte| *byte == b'\r')?;
    let count = usize::try_from(number(&head[..end])?).ok()?;
    let mut rest = head.get(end + 2..)?;
    // No element is shorter: of a count that is too large nothing is reserved.
    let mut numbers = Vec::with_capacity(count.min(rest.len() / ":0\r\n".len()));
    while numbers.len() < count {
        let (number, length) = integer(rest)?;
        numbers.push(Value::Int(number));
        rest = &rest[length..];
    }
    rest.is_empty().then_some(Value::Array(numbers))
}

/// So many digits can't overflow.
const DIGITS: usize = 18;

/// At most so many digits.
fn number(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
    Some(if is_negative { -number } else { number })
}

pub(super) fn garbled(what: &'static str) -> RedisError {
    (redis::ErrorKind::Parse, "what answers is no Redis server", what.to_owned()).into()
}

#[cfg(test)]
mod tests;
