//! Requests, read from bytes as a server does.

#[derive(Default)]
pub(super) struct Requests {
    bytes: Vec<u8>,
}

impl Requests {
    pub(super) fn arrive(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the words of the next request once all of it has arrived.
    pub(super) fn next(&mut self) -> Option<Vec<String>> {
        let mut at = 0;
        let count = self.number(&mut at, b'*')?;
        let mut words = Vec::with_capacity(count);
        for _ in 0..count {
            let length = self.number(&mut at, b'$')?;
            let word = self.bytes.get(at..at + length + 2)?;
            words.push(String::from_utf8_lossy(&word[..length]).into_owned());
            at += length + 2;
        }
        self.bytes.drain(..at);
        Some(words)
    }

    fn number(&self, at: &mut usize, mark: u8) -> Option<usize> {
        let rest = self.bytes.get(*at..)?;
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        assert_eq!(rest[0], mark, "a request that the redis crate does not write");
        *at += end + 1;
        str::from_utf8(&rest[1..end]).ok()?.trim_end().parse().ok()
    }
}

#[test]
fn a_request_is_read_once_its_last_byte_has_arrived() {
    let bytes = b"*2\r\n$4\r\nINFO\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n";
    for cut in 0..bytes.len() {
        let mut requests = Requests::default();
        let mut read = Vec::new();
        for part in [&bytes[..cut], &bytes[cut..]] {
            requests.arrive(part);
            read.extend(std::iter::from_fn(|| requests.next()));
        }
        assert_eq!(read, [vec!["INFO", ""], vec!["PING"]]);
    }
}
