//! The servers: the shop's books are on one Redis, and its locks are on the same server or on several masters
//! of their own.

use rustix::process::{Pid, Signal, kill_process};

use crate::Result;

#[derive(Clone)]
pub(crate) struct Places {
    /// The server with stock and journal.
    pub(crate) books: String,
    /// The masters of the locks.
    pub(crate) masters: Vec<String>,
}

impl Places {
    /// `REDIS_URL` has the books, and also the locks unless `REDIS_URLS` names masters for them.
    pub(crate) fn from_env() -> Places {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let masters = split(&set("REDIS_URLS").unwrap_or_default());
        let local = || "redis://127.0.0.1:6379".to_owned();
        // Only the last masters are killed, so the books are on the first one.
        let books = set("REDIS_URL").or_else(|| masters.first().cloned()).unwrap_or_else(local);
        let masters = if masters.is_empty() { vec![books.clone()] } else { masters };
        Places { books, masters }
    }

    pub(crate) fn is_quorum(&self) -> bool {
        self.masters.len() > 1
    }
}

/// Returns the parts of a list that is separated by commas or spaces.
pub(crate) fn split(list: &str) -> Vec<String> {
    let parts = list.split([',', ' ', '\n', '\t']).filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

/// Masters that may be killed: those whose process ids are in `REDIS_PIDS`.
#[derive(Default)]
pub(crate) struct Doomed(Vec<Pid>);

impl Doomed {
    /// Returns the last masters, as many as a minority has. All the others are needed then.
    pub(crate) fn from_env(places: &Places) -> Result<Doomed> {
        let listed = split(&std::env::var("REDIS_PIDS").unwrap_or_default());
        if listed.is_empty() {
            return Ok(Doomed(Vec::new()));
        }
        if listed.len() != places.masters.len() {
            return Err("REDIS_PIDS has to name one process for each of REDIS_URLS, in their order".into());
        }
        let pid = |text: &String| text.parse().ok().and_then(Pid::from_raw).ok_or("REDIS_PIDS: not a number");
        let pids = listed.iter().map(pid).collect::<Result<Vec<Pid>, _>>()?;
        let most = (places.masters.len() - 1) / 2;
        Ok(Doomed(pids[pids.len() - most..].to_vec()))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Sends SIGKILL to them, and returns their number.
    pub(crate) fn kill(&mut self) -> Result<usize> {
        let killed =
            self.0.drain(..).map(|pid| kill_process(pid, Signal::KILL)).collect::<Result<Vec<()>, _>>()?;
        Ok(killed.len())
    }
}
