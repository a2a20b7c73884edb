//! A number in a file that refuses late writers: it is what a fenced lock guards.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::Result;

/// The content of the file, in this order, each as 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    /// The highest token seen so far.
    token: u64,
    value: u64,
    /// How many writes were accepted. Each adds one to the value, so the two are equal as long as no update is lost.
    writes: u64,
}

/// A register for one name, which all processes share.
#[derive(Clone)]
pub(crate) struct Register(PathBuf);

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Taken,
    /// A greater token was seen before, so the write was refused.
    Refused,
    /// The write was accepted, but overwrote a value that its writer had not read.
    LostUpdate,
}

impl Register {
    pub(crate) fn of(folder: &Path, name: &str) -> Register {
        Register(folder.join(format!("register-{name}")))
    }

    /// Returns the value, and refuses all smaller tokens from now on. Returns `None` if this token is refused.
    pub(crate) async fn read(&self, token: u64) -> Result<Option<u64>> {
        self.change(move |record| {
            (token >= record.token).then(|| {
                record.token = token;
                record.value
            })
        })
        .await
    }

    pub(crate) async fn write(&self, token: u64, value: u64) -> Result<Written> {
        self.change(move |record| {
            if token < record.token {
                return Written::Refused;
            }
            *record = Record { token, value, writes: record.writes + 1 };
            if value == record.writes { Written::Taken } else { Written::LostUpdate }
        })
        .await
    }

    /// Changes the record on its own thread, since another process may be frozen while it has locked the file.
    async fn change<T: Send + 'static>(
        &self,
        how: impl FnOnce(&mut Record) -> T + Send + 'static,
    ) -> Result<T> {
        let path = self.0.clone();
        tokio::task::spawn_blocking(move || {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            let before = load(&file)?;
            let mut record = before;
            let output = how(&mut record);
            if record != before {
                store(&file, record)?;
            }
            // The lock on the file ends when the file is closed.
            Ok(output)
        })
        .await?
    }
}

fn load(mut file: &File) -> Result<Record> {
    let mut bytes = [0; 24];
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    if text.is_empty() {
        return Ok(Record::default());
    }
    bytes.copy_from_slice(text.get(..24).ok_or("a register is cut off")?);
    let word = |at: usize| bytes[at..at + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    Ok(Record { token: word(0), value: word(8), writes: word(16) })
}

/// Stores the record with one write, so that a process that is killed leaves either the old record or the new one.
fn store(mut file: &File, record: Record) -> Result<()> {
    file.rewind()?;
    let words = [record.token, record.value, record.writes];
    Ok(file.write_all(&words.map(u64::to_le_bytes).concat())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lesser_token_is_refused_and_an_update_that_overwrites_another_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let register = Register::of(folder.path(), "stock");
        assert_eq!(register.read(5).await.unwrap(), Some(0));
        assert_eq!(register.write(5, 1).await.unwrap(), Written::Taken);
        assert_eq!(register.read(7).await.unwrap(), Some(1));
        assert_eq!(register.write(5, 2).await.unwrap(), Written::Refused);
        assert_eq!(register.read(6).await.unwrap(), None);
        assert_eq!(register.write(7, 2).await.unwrap(), Written::Taken);
        assert_eq!(register.write(8, 2).await.unwrap(), Written::LostUpdate);
    }
}
