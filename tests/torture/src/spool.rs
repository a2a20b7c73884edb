//! Claims that go from one process to others, as text in files. Each claim is given to two processes, one of which may get the hold.

use std::fs;
use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};

use nestlock::Claim;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::Result;

/// The folder of all claims of a run.
#[derive(Clone)]
pub(crate) struct Spool(PathBuf);

/// The extensions of files: one for a claim that nobody has taken, and one for a claim that was taken once.
const FRESH: &str = "fresh";
const AGAIN: &str = "again";

impl Spool {
    pub(crate) fn of(folder: &Path) -> Result<Spool> {
        let spool = folder.join("claims");
        fs::create_dir_all(&spool)?;
        Ok(Spool(spool))
    }

    /// Stores a claim. `number`: unique within this process.
    pub(crate) fn put(&self, claim: &Claim, number: u64) -> Result<()> {
        let file = self.0.join(format!("{}-{number}", std::process::id()));
        // The rename comes last, so that a reader finds the whole text.
        fs::write(&file, claim.to_string())?;
        Ok(fs::rename(&file, file.with_extension(FRESH))?)
    }

    /// Takes one of the claims, if there is any.
    pub(crate) fn take(&self, random: &mut StdRng) -> Result<Option<Claim>> {
        let mut files = Vec::new();
        for file in fs::read_dir(&self.0)? {
            files.push(file?.path());
        }
        files.shuffle(random);
        for file in files {
            let extension = file.extension().and_then(|end| end.to_str());
            let taken = match extension {
                Some(FRESH) => fs::read_to_string(&file)
                    .and_then(|text| fs::rename(&file, file.with_extension(AGAIN)).map(|()| text)),
                Some(AGAIN) => {
                    fs::read_to_string(&file).and_then(|text| fs::remove_file(&file).map(|()| text))
                }
                _ => continue,
            };
            match taken {
                Ok(text) => return Ok(Some(text.parse()?)),
                // Another process was faster.
                Err(error) if error.kind() == NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_claim_is_taken_twice_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::of(folder.path()).unwrap();
        let mut random = StdRng::seed_from_u64(7);
        let claim: Claim = "nestlock-claim:1:4:me:7:stock".parse().unwrap();
        assert_eq!(spool.take(&mut random).unwrap(), None);
        spool.put(&claim, 1).unwrap();
        for _ in 0..2 {
            assert_eq!(Spool::of(folder.path()).unwrap().take(&mut random).unwrap(), Some(claim.clone()));
        }
        assert_eq!(spool.take(&mut random).unwrap(), None);
    }
}
