//! `Claim`: a hold on its way from one process to another.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// A hold on its way to another process. [`Guard::into_claim`](crate::Guard::into_claim) creates it, and
/// [`Mutex::resume`](crate::Mutex::resume) turns it into a guard again.
///
/// It is for a lock that is taken in one process and released in another: a request handler takes it, and a worker frees it.
/// `Display` and `FromStr` are its text form, to be sent along with the job: as a `String`, or with serde through any helper that
/// uses these two traits. The text is at most 200 bytes longer than the lock's name.
///
/// Anyone who has the text and may write to the same Redis can resume the hold, once. So send it along with the job, and nowhere
/// else. It is no secret to those who can read this Redis: `HGETALL` of the lock's key shows the same. `Debug` shows it too.
///
/// Nothing in it is trusted: the masters are asked whether the hold still stands. A claim that nobody resumes ends with the hold's
/// lease.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// use nestlock::{Claim, ErrorKind, Locks, Memory};
/// let redis = Memory::new(); // in place of a server
/// let (web, worker) = (
///     Locks::builder(&redis).connect().await?,
///     Locks::builder(&redis).connect().await?,
/// );
/// let guard = web.mutex("order:7").lock().await?;
/// let message: String = guard.into_claim().await?.to_string(); // still locked
///
/// let claim: Claim = message.parse()?;
/// let guard = worker.mutex(claim.name()).resume(&claim).await?;
/// let again = worker.mutex("order:7").resume(&claim).await;
/// assert_eq!(again.unwrap_err().kind(), ErrorKind::Lost); // once
/// guard.release().await
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    field: Arc<str>,
    name: Arc<str>,
}

/// The beginning of each text: the name and the version of its format.
const HEAD: &str = "nestlock-claim:1:";

/// The longest field that is accepted, longer than any that this crate writes.
const LONGEST_FIELD: usize = 512;

impl Claim {
    pub(super) fn new(field: Arc<str>, name: Arc<str>) -> Claim {
        Claim { field, name }
    }

    /// Returns the lock's name, without the prefix.
    ///
    /// See the example of [`Claim`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the id that the hold has until it is resumed: see [`Guard::hold_id`](crate::Guard::hold_id).
    #[must_use]
    pub fn hold_id(&self) -> &str {
        &self.field
    }
}

/// Writes the text form: `nestlock-claim:1:<length of the field>:<field>:<name>`.
impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HEAD}{}:{}:{}", self.field.len(), self.field, self.name)
    }
}

/// Parses what `Display` wrote. Anything else is an error of kind [`InvalidInput`](ErrorKind::InvalidInput).
impl FromStr for Claim {
    type Err = Error;

    fn from_str(text: &str) -> Result<Claim> {
        parts(text).map(|(field, name)| Claim::new(field.into(), name.into())).ok_or_else(|| {
            let message = "the text is not a claim: it has to be exactly what the `Display` of a `Claim` writes, from its first byte to its last";
            Error::new(ErrorKind::InvalidInput, message)
        })
    }
}

fn parts(text: &str) -> Option<(&str, &str)> {
    let (length, rest) = text.strip_prefix(HEAD)?.split_once(':')?;
    let is_number = !length.starts_with('0') && length.bytes().all(|byte| byte.is_ascii_digit());
    let length: usize = length.parse().ok().filter(|length| is_number && *length <= LONGEST_FIELD)?;
    let (field, rest) = rest.split_at_checked(length)?;
    let name = rest.strip_prefix(':').filter(|name| !name.is_empty())?;
    Some((field, name))
}

#[cfg(test)]
mod tests;
