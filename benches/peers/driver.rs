//! A driver in Rust: a process that uses one lock library. It reads commands from its standard input, one a line, and answers each with a
//! line of JSON. The drivers in other languages do the same. Times are in nanoseconds, and instants are those of CLOCK_MONOTONIC.
//!
//! | command | does | answers |
//! | --- | --- | --- |
//! | `hello` | | name, versions, abilities, which commands it sends |
//! | `pair COUNT` | one task locks and releases a free lock | `nanos`, of each |
//! | `nested COUNT` | one task locks a free lock three deep and releases it | `nanos`, of each three |
//! | `load NAME TASKS START MILLIS` | tasks lock and release for a time; `-`: a lock each | `grants`, `late`, `longest`, `errors` |
//! | `hold NAME` | takes a lock | |
//! | `wait NAME` | takes a lock that another process holds | `at`, when it was granted |
//! | `free NAME` | releases it | `at`, right before |
//! | `take COUNT` | holds that many locks, and renews them if it can | `live`, memory in use if known |
//! | `leave` | releases them | `errors` |
//!
//! Its arguments are the number of workers and a lease in milliseconds. It uses the server in REDIS_URL, and ends when its input ends.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How many tasks take the locks that are held at rest.
const TAKING: usize = 64;
const DEPTH: usize = 3;

/// A library with its connections.
pub(crate) trait Peer: Clone + Send + Sync + 'static {
    type Lock: Lock;
    type Kept: Send + 'static;
    /// Whether a holder can take its lock again.
    const NESTS: bool;
    /// Whether it renews a hold by itself.
    const RENEWS: bool;
    /// Whether a request waits while the lock is held: that of a floor does not.
    const WAITS: bool = true;
    /// The commands that it sends itself, by their names in the server's statistics. Its scripts run the others there.
    const SENDS: &'static [&'static str];

    fn lock(&self, name: &str) -> Self::Lock;

    /// Holds a lock until `end`.
    fn keep(&self, name: String) -> impl Future<Output = Result<Self::Kept>> + Send;

    fn end(kept: Self::Kept) -> impl Future<Output = Result<()>> + Send;
}

/// A lock of one task, with what the task holds of it.
pub(crate) trait Lock: Send + 'static {
    fn acquire(&mut self) -> impl Future<Output = Result<()>> + Send;

    fn release(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Takes the lock, as in a hand-off to another process.
    fn hold(&mut self) -> impl Future<Output = Result<()>> + Send {
        self.acquire()
    }

    fn wait(&mut self) -> impl Future<Output = Result<()>> + Send {
        self.acquire()
    }

    fn free(&mut self) -> impl Future<Output = Result<()>> + Send {
        self.release()
    }
}

/// The arguments that a driver is started with.
pub(crate) struct Setting {
    pub(crate) workers: usize,
    pub(crate) lease: Duration,
}

impl Setting {
    /// Reads them from the last two arguments.
    pub(crate) fn read() -> Result<Setting> {
        let mut arguments = std::env::args().rev();
        let mut next = || arguments.next().ok_or("a driver takes its workers and a lease in ms");
        let lease = Duration::from_millis(next()?.parse()?);
        Ok(Setting { workers: next()?.parse()?, lease })
    }

    /// Serves commands for the library that `connect` returns, until the input ends.
    pub(crate) fn serve<P: Peer>(
        &self,
        about: About,
        connect: impl Future<Output = Result<P>> + Send + 'static,
    ) -> Result<()> {
        let mut builder = match self.workers {
            1 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        };
        let runtime = builder.worker_threads(self.workers).enable_all().build()?;
        // Run as a task: if there are workers, the future that blocks on a runtime runs on none of them.
        runtime.block_on(async { tokio::spawn(async { serve(about, connect.await?).await }).await? })?;
        runtime.shutdown_background();
        Ok(())
    }
}

/// The name of a library, and versions from a Cargo.lock.
pub(crate) struct About {
    pub(crate) name: &'static str,
    pub(crate) packages: &'static [&'static str],
    pub(crate) locked: &'static str,
}

impl About {
    fn version(&self, package: &str) -> Option<&str> {
        let head = format!("name = \"{package}\"\nversion = \"");
        self.locked.split(&head).nth(1)?.split('"').next()
    }

    fn hello<P: Peer>(&self) -> String {
        let list = |of: Vec<String>| of.join(", ");
        let versions = self.packages.iter().map(|package| {
            let version = self.version(package).unwrap_or("unknown");
            format!("[\"{package}\", \"{version}\"]")
        });
        let sends = P::SENDS.iter().map(|name| format!("\"{name}\""));
        format!(
            r#"{{"name": "{}", "versions": [{}], "sends": [{}], "nests": {}, "renews": {}, "waits": {}}}"#,
            self.name,
            list(versions.collect()),
            list(sends.collect()),
            P::NESTS,
            P::RENEWS,
            P::WAITS
        )
    }
}

async fn serve<P: Peer>(about: About, peer: P) -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut driver = Driver { about, peer, locks: HashMap::new(), kept: Vec::new() };
    while let Some(line) = lines.next_line().await? {
        let answer = driver.answer(&line).await;
        println!("{}", answer.unwrap_or_else(|error| format!("{{\"error\": {:?}}}", error.to_string())));
    }
    Ok(())
}

struct Driver<P: Peer> {
    about: About,
    peer: P,
    /// Locks that a command has named, for the next commands.
    locks: HashMap<String, P::Lock>,
    kept: Vec<P::Kept>,
}

impl<P: Peer> Driver<P> {
    async fn answer(&mut self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["hello"] => Ok(self.about.hello::<P>()),
            ["pair", count] => self.pairs(1, count.parse()?).await,
            ["nested", count] => self.pairs(DEPTH, count.parse()?).await,
            ["load", name, tasks, start, millis] => {
                let tasks = if P::WAITS || name == "-" { tasks.parse()? } else { 1 };
                self.load(name, tasks, Window::new(start.parse()?, millis.parse()?)).await
            }
            ["hold", name] => {
                self.lock(name).hold().await?;
                Ok("{}".to_owned())
            }
            ["wait", name] => {
                self.lock(name).wait().await?;
                Ok(format!("{{\"at\": {}}}", now()))
            }
            ["free", name] => {
                let lock = self.lock(name);
                let at = now();
                lock.free().await?;
                Ok(format!("{{\"at\": {at}}}"))
            }
            ["take", count] => self.take(count.parse()?).await,
            ["leave"] => self.leave().await,
            _ => Err(format!("knows no `{line}`").into()),
        }
    }

    fn lock(&mut self, name: &str) -> &mut P::Lock {
        let peer = &self.peer;
        self.locks.entry(name.to_owned()).or_insert_with(|| peer.lock(name))
    }

    async fn pairs(&mut self, depth: usize, count: usize) -> Result<String> {
        let lock = self.lock(&format!("peers:free:{}", std::process::id()));
        let mut nanos = Vec::with_capacity(count);
        for _ in 0..count {
            let began = now();
            for _ in 0..depth {
                lock.acquire().await?;
            }
            for _ in 0..depth {
                lock.release().await?;
            }
            nanos.push(now() - began);
        }
        Ok(format!("{{\"nanos\": {nanos:?}}}"))
    }

    async fn load(&mut self, name: &str, tasks: usize, window: Window) -> Result<String> {
        let mut running = JoinSet::new();
        for at in 0..tasks {
            let own = || format!("peers:own:{}:{at}", std::process::id());
            let lock = if name == "-" { self.peer.lock(&own()) } else { self.peer.lock(name) };
            running.spawn(seen(lock, window));
        }
        let (mut grants, mut late, mut longest, mut errors) = (String::new(), 0, 0, 0);
        while let Some(seen) = running.join_next().await {
            let seen = seen?;
            write!(grants, "{}{}", if grants.is_empty() { "" } else { ", " }, seen.grants)?;
            late += seen.late;
            longest = longest.max(seen.longest);
            errors += seen.errors;
        }
        let rest = format!("\"late\": {late}, \"longest\": {longest}, \"errors\": {errors}");
        Ok(format!("{{\"grants\": [{grants}], {rest}}}"))
    }

    async fn take(&mut self, count: usize) -> Result<String> {
        let mut taking = JoinSet::new();
        for first in 0..TAKING {
            let peer = self.peer.clone();
            taking.spawn(async move {
                let mut kept = Vec::new();
                for at in (first..count).step_by(TAKING) {
                    kept.push(peer.keep(format!("peers:kept:{at}")).await?);
                }
                Result::Ok(kept)
            });
        }
        while let Some(kept) = taking.join_next().await {
            self.kept.extend(kept??);
        }
        Ok("{\"live\": null}".to_owned())
    }

    async fn leave(&mut self) -> Result<String> {
        let mut leaving = JoinSet::new();
        let mut parts: Vec<Vec<P::Kept>> = (0..TAKING).map(|_| Vec::new()).collect();
        for (at, kept) in self.kept.drain(..).enumerate() {
            parts[at % TAKING].push(kept);
        }
        for part in parts {
            leaving.spawn(async move {
                let mut errors = Vec::new();
                for kept in part {
                    errors.extend(P::end(kept).await.err());
                }
                errors
            });
        }
        let mut errors = Vec::new();
        while let Some(seen) = leaving.join_next().await {
            errors.extend(seen?);
        }
        self.kept.shrink_to_fit();
        if let Some(first) = errors.first() {
            eprintln!("{} holds of {} were lost: {first}", errors.len(), self.about.name);
        }
        Ok(format!("{{\"errors\": {}}}", errors.len()))
    }
}

/// When a load begins and ends.
#[derive(Clone, Copy)]
struct Window {
    start: u64,
    end: u64,
}

impl Window {
    fn new(start: u64, millis: u64) -> Window {
        Window { start, end: start + millis * 1_000_000 }
    }
}

#[derive(Default)]
struct Seen {
    grants: u64,
    /// Grants after the end.
    late: u64,
    longest: u64,
    errors: u64,
}

/// A wait that is not over at the end counts as if it ended there. The task still waits until it is over: in
/// some libraries, a request that is dropped would leave the lock taken until its lease ends.
async fn seen(mut lock: impl Lock, window: Window) -> Seen {
    tokio::time::sleep(Duration::from_nanos(window.start.saturating_sub(now()))).await;
    let mut seen = Seen::default();
    loop {
        let asked = now();
        if asked >= window.end {
            return seen;
        }
        let acquired = lock.acquire().await;
        let granted = now();
        seen.longest = seen.longest.max(granted.min(window.end) - asked);
        if acquired.is_err() {
            seen.errors += 1;
            continue;
        }
        if granted < window.end {
            seen.grants += 1;
        } else {
            seen.late += 1;
        }
        seen.errors += u64::from(lock.release().await.is_err());
    }
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
