//! Just enough of Redis's wire format to separate whole commands and whole replies.

use super::scripts;

/// A command as a matcher sees it.
#[derive(Clone, Debug)]
pub struct Command {
    /// The name in capitals: `EVALSHA`, `SUBSCRIBE`, …
    pub name: String,
    /// Which of the lock's scripts an `EVALSHA` or `EVAL` runs: `acquire`, `release`, …
    pub script: Option<&'static str>,
    /// Everything after the name.
    pub args: Vec<String>,
    /// The number of the connection through the proxy, from 1.
    pub connection: u64,
}

impl Command {
    /// Returns whether the command runs this script, or has this name. A renewal of several holds counts as `renew`.
    pub fn is(&self, name: &str) -> bool {
        let is_renewal = name == "renew" && self.script == Some("renew_all");
        is_renewal || self.script == Some(name) || self.name.eq_ignore_ascii_case(name)
    }

    /// Returns whether this is one of the arguments: a lock's key, a hold's field, a channel.
    pub fn names(&self, argument: &str) -> bool {
        self.args.iter().any(|arg| arg == argument)
    }

    /// Returns the `KEYS` of a script.
    pub fn keys(&self) -> &[String] {
        &self.args[self.args.len().min(2)..self.keys_end()]
    }

    /// Returns the `ARGV` of a script.
    pub fn argv(&self) -> &[String] {
        &self.args[self.keys_end()..]
    }

    fn keys_end(&self) -> usize {
        let keys = self.args.get(1).and_then(|count| count.parse::<usize>().ok()).unwrap_or(0);
        self.args.len().min(keys.saturating_add(2))
    }

    pub(super) fn parse(frame: &[u8], connection: u64) -> Command {
        let mut words = words(frame).into_iter();
        let name = words.next().unwrap_or_default().to_uppercase();
        let args: Vec<String> = words.collect();
        let script = args.first().and_then(|first| scripts::named_by(&name, first));
        Command { name, script, args, connection }
    }

    pub(super) fn is_handshake(&self) -> bool {
        matches!(&*self.name, "AUTH" | "HELLO" | "SELECT")
    }

    /// Returns how many replies the command has; a subscription has one for each channel.
    pub(super) fn replies(&self) -> usize {
        if self.changes_subscriptions() { self.args.len().max(1) } else { 1 }
    }

    pub(super) fn changes_subscriptions(&self) -> bool {
        is_confirmation(&self.name.to_lowercase())
    }
}

/// Returns the length of the first frame; `None` if it is not complete yet.
pub(super) fn frame_len(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut missing) = (0, 1_usize);
    while missing > 0 {
        let line = line_len(&bytes[at..])?;
        let head = &bytes[at..at + line];
        let count = std::str::from_utf8(&head[1..]).ok().and_then(|text| text.trim_end().parse::<i64>().ok());
        let count = count.unwrap_or(0).max(0) as usize;
        at += line;
        missing -= 1;
        match head[0] {
            // A null, `$-1` or `*-1`, has only its first line.
            b'$' | b'=' | b'!' if head[1] != b'-' => at += count + 2,
            b'*' | b'~' | b'>' => missing += count,
            b'%' => missing += 2 * count,
            // Attributes come before the reply that they belong to.
            b'|' => missing += 2 * count + 1,
            _ => {}
        }
        if at > bytes.len() {
            return None;
        }
    }
    Some(at)
}

fn line_len(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n').map(|end| end + 1)
}

/// Returns the words of a frame in which only the outermost level is an array.
fn words(frame: &[u8]) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let Some(mut at) = line_len(frame) else { return Vec::new() };
    if !matches!(frame[0], b'*' | b'>') {
        return text(frame).split_whitespace().map(str::to_owned).collect();
    }
    let mut words = Vec::new();
    while let Some(len) = frame_len(&frame[at..]).filter(|len| *len > 0) {
        let part = &frame[at..at + len];
        let start = if part[0] == b'$' { line_len(part).unwrap_or(1) } else { 1 };
        words.push(text(part[start..].strip_suffix(b"\r\n").unwrap_or_default()));
        at += len;
        if at >= frame.len() {
            break;
        }
    }
    words
}

/// Returns a frame of one string, with a text replaced by another one.
pub(super) fn replaced(frame: &[u8], text: &str, by: &str) -> Vec<u8> {
    let Some(start) = line_len(frame).filter(|_| matches!(frame[0], b'$' | b'=')) else {
        return frame.to_vec();
    };
    let body = String::from_utf8_lossy(&frame[start..]);
    let body = body.trim_end_matches("\r\n").replace(text, by);
    format!("{}{}\r\n{body}\r\n", char::from(frame[0]), body.len()).into_bytes()
}

/// The kind of a frame from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The answer to the oldest command without one.
    Reply,
    /// The answer to a change of subscriptions.
    Confirmation,
    /// A message that answers no command.
    Push,
}

/// Returns the kind of a frame. `subscribed`: the connection has subscribed, so arrays may be messages.
pub(super) fn kind(frame: &[u8], subscribed: bool) -> Kind {
    if frame[0] != b'>' && !(frame[0] == b'*' && subscribed) {
        return Kind::Reply;
    }
    let first = words(frame).into_iter().next().unwrap_or_default();
    match &*first {
        first if is_confirmation(first) => Kind::Confirmation,
        "message" | "pmessage" | "smessage" => Kind::Push,
        _ if frame[0] == b'>' => Kind::Push,
        _ => Kind::Reply,
    }
}

fn is_confirmation(word: &str) -> bool {
    matches!(
        word,
        "subscribe" | "psubscribe" | "ssubscribe" | "unsubscribe" | "punsubscribe" | "sunsubscribe"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_measured_whole() {
        for frame in [
            "+OK\r\n",
            ":12\r\n",
            "$5\r\nhe\r\no\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*2\r\n*2\r\n:1\r\n$1\r\na\r\n*0\r\n",
            "%1\r\n+a\r\n*1\r\n:1\r\n",
            "|1\r\n+a\r\n:1\r\n*1\r\n:1\r\n",
            "_\r\n",
        ] {
            let two = format!("{frame}:7\r\n");
            assert_eq!(frame_len(two.as_bytes()), Some(frame.len()), "{frame:?}");
            for cut in 0..frame.len() {
                assert_eq!(frame_len(&frame.as_bytes()[..cut]), None, "{frame:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_command_is_read() {
        let frame =
            b"*7\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n2\r\n$1\r\na\r\n$1\r\nb\r\n$0\r\n\r\n$1\r\nc\r\n";
        let command = Command::parse(frame, 3);
        assert!(command.is("eval") && command.names("b") && command.script.is_none());
        assert_eq!(
            (command.keys(), command.argv()),
            (&["a".into(), "b".into()][..], &["".into(), "c".into()][..])
        );
    }

    #[test]
    fn a_text_within_a_string_is_replaced() {
        assert_eq!(replaced(b"$7\r\nup:1\r\n9\r\n", "up:", "up:-36"), b"$10\r\nup:-361\r\n9\r\n");
        assert_eq!(replaced(b"+up:1\r\n", "up:", "up:-36"), b"+up:1\r\n");
    }

    #[test]
    fn messages_are_distinguished_from_replies() {
        let message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n";
        assert_eq!(kind(message, true), Kind::Push);
        assert_eq!(kind(message, false), Kind::Reply);
        assert_eq!(kind(b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", false), Kind::Confirmation);
        assert_eq!(kind(b"+OK\r\n", true), Kind::Reply);
    }
}
