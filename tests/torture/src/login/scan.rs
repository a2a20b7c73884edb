//! The search for a password.

use std::path::Path;

use super::Login;
use crate::Result;

/// Replaces a word of the password when a line is shown.
const MASK: &str = "<password>";

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Finds each word of a password separately, in upper or lower case, as it is and in other forms: as the numbers of its bytes, in
/// hexadecimal, or as part of a text in base64. The words have no character that a URL encodes.
pub(crate) struct Scan {
    /// The texts to search for, in lower case.
    needles: Vec<String>,
}

/// A place where a word of the password was written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leak {
    pub(crate) output: String,
    pub(crate) line: usize,
    /// The line, with the password masked.
    pub(crate) text: String,
}

/// How much was searched, and what was found.
#[derive(Default)]
pub(crate) struct Searched {
    pub(crate) outputs: usize,
    pub(crate) bytes: u64,
    pub(crate) leaks: Vec<Leak>,
}

impl Scan {
    pub(crate) fn of(login: &Login) -> Scan {
        let mut needles: Vec<String> = login.words.iter().flat_map(|word| forms(word.as_bytes())).collect();
        needles.iter_mut().for_each(|needle| needle.make_ascii_lowercase());
        needles.sort();
        needles.dedup();
        Scan { needles }
    }

    /// Searches all files below a folder.
    pub(crate) fn search_folder(&self, folder: &Path, searched: &mut Searched) -> Result<()> {
        let mut files = Vec::new();
        for file in std::fs::read_dir(folder)? {
            files.push(file?.path());
        }
        files.sort();
        for file in files {
            if file.is_dir() {
                self.search_folder(&file, searched)?;
                continue;
            }
            let bytes = std::fs::read(&file)?;
            // The name of the file is searched too.
            let text = format!("{}\n{}", file.display(), String::from_utf8_lossy(&bytes));
            self.search(&file.display().to_string(), &text, searched);
        }
        Ok(())
    }

    pub(crate) fn search(&self, output: &str, text: &str, searched: &mut Searched) {
        searched.outputs += 1;
        searched.bytes += text.len() as u64;
        let lower = text.to_ascii_lowercase();
        if !self.needles.iter().any(|needle| lower.contains(needle)) {
            return;
        }
        let leaks = text.lines().enumerate().filter_map(|(at, line)| {
            let masked = self.mask(line);
            (masked != line).then(|| Leak { output: self.mask(output), line: at, text: masked })
        });
        searched.leaks.extend(leaks);
    }

    /// Returns the text with the password masked.
    pub(crate) fn mask(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for needle in &self.needles {
            while let Some(at) = text.to_ascii_lowercase().find(needle) {
                text.replace_range(at..at + needle.len(), MASK);
            }
        }
        text
    }
}

/// Returns the forms in which a word may be written.
fn forms(word: &[u8]) -> Vec<String> {
    let numbers: Vec<String> = word.iter().map(u8::to_string).collect();
    let hex = word.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut forms =
        vec![String::from_utf8_lossy(word).into_owned(), numbers.join(", "), numbers.join(","), hex];
    // In base64, the bytes before the word decide how its bits are divided.
    for before in 0..3 {
        let text = inner_base64(before, word);
        forms.push(text.replace('+', "-").replace('/', "_"));
        forms.push(text);
    }
    forms
}

/// Returns the characters whose bits all belong to the word, in any base64 text in which this many bytes, modulo 3, precede the word.
fn inner_base64(before: usize, word: &[u8]) -> String {
    let bits: Vec<u8> = word.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    let skipped = [0, 4, 2][before % 3];
    let whole = bits[skipped..].chunks_exact(6);
    whole.map(|six| char::from(BASE64[six.iter().fold(0, |sum, bit| sum << 1 | usize::from(*bit))])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how often the password is found in this text.
    fn found(text: &str) -> usize {
        let mut searched = Searched::default();
        Scan::of(&Login::of(7)).search("a log", text, &mut searched);
        assert_eq!(searched.outputs, 1);
        for leak in &searched.leaks {
            assert!(!Login::of(7).words.iter().any(|word| leak.text.contains(word)), "{leak:?}");
        }
        searched.leaks.len()
    }

    #[test]
    fn each_word_is_found_in_all_that_it_may_be_written_as() {
        let login = Login::of(7);
        let (password, words) = (login.password(), &login.words);
        assert_eq!(found(&format!("connecting with {password}")), 1);
        assert_eq!(found(&format!("connecting to redis://{}127.0.0.1:7000", login.in_url())), 1);
        for word in words {
            assert_eq!(found(&format!("invalid port: {word}")), 1);
            // A host name is in lower case.
            assert_eq!(found(&word.to_lowercase()), 1);
            assert_eq!(found(&word.to_uppercase()), 1);
            assert_eq!(found(&format!("{:?}", word.as_bytes())), 1);
            assert_eq!(found(&serde_json::to_string(word.as_bytes()).unwrap()), 1);
            assert_eq!(found(&format!("{:x?}", word.as_bytes()).replace(", ", "")), 1);
        }
        assert_eq!(found(&format!("no\n{}\nno\n{} and {}\n", words[0], words[1], words[2])), 2);
    }

    #[test]
    fn it_is_found_in_base64_whatever_stands_before_and_after_it() {
        // Made with `base64` from "s3cret-w0rd" alone, and with one, two and three characters on each side.
        let word = b"s3cret-w0rd";
        for (before, text) in
            ["czNjcmV0LXcwcmQ=", "YXMzY3JldC13MHJkYQ==", "YWFzM2NyZXQtdzByZGFh", "YWFhczNjcmV0LXcwcmRhYWE="]
                .into_iter()
                .enumerate()
        {
            let inner = inner_base64(before, word);
            assert!(inner.len() >= 13 && text.contains(&inner), "{inner} is not in {text}");
        }
        // `user:password`, as in the header of a request.
        assert_eq!(found("a3V0b3J0dXJlcjo="), 0);
    }

    #[test]
    fn what_is_no_password_is_not_found() {
        let other = Login::of(8);
        let [one, two, three] = &Login::of(7).words;
        for text in ["", "torturer", &other.password(), &one[1..], &two[..two.len() - 1], &three[2..]] {
            assert_eq!(found(text), 0, "{text}");
        }
    }

    #[test]
    fn all_files_of_a_run_are_searched_and_shown_without_the_password() {
        let login = Login::of(7);
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("claims")).unwrap();
        std::fs::write(folder.path().join("a.log"), "nothing\n").unwrap();
        // Not all bytes of this are text.
        let text = [b"\xff\xfe\nuser ".as_slice(), login.words[1].as_bytes(), b" left"].concat();
        std::fs::write(folder.path().join("claims/b"), text).unwrap();
        let mut searched = Searched::default();
        Scan::of(&login).search_folder(folder.path(), &mut searched).unwrap();
        assert_eq!(searched.outputs, 2);
        let [Leak { output, line: 2, text }] = &searched.leaks[..] else { panic!("{:?}", searched.leaks) };
        assert!(output.ends_with("claims/b"), "{output}");
        assert_eq!(text, "user <password> left");
        std::fs::write(folder.path().join(&login.words[2]), "").unwrap();
        Scan::of(&login).search_folder(folder.path(), &mut searched).unwrap();
        assert_eq!(searched.leaks.len(), 3);
    }

    #[test]
    fn a_seed_decides_the_password() {
        assert_eq!(Login::of(7).password(), Login::of(7).password());
        assert_ne!(Login::of(7).password(), Login::of(8).password());
    }
}
