//! A part of a test that runs as its own operating system process.
//!
//! The parts are in `tests/it/workers.rs`, each as an ignored test; the test binary runs itself with the one that is needed. Both sides
//! exchange lines.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{ExitStatus, Stdio};
use std::sync::LazyLock;

use tempfile::TempDir;
use tokio::sync::{Mutex, mpsc};

use super::child::Child;
use super::soon;

/// Marks the lines in the test harness's output that are meant for the test.
const MARK: &str = "@nestlock@ ";
/// Set only in a worker's environment.
const WORKER: &str = "NESTLOCK_WORKER";

/// A worker as the test sees it. A drop kills it.
pub struct Worker {
    child: Child,
    name: String,
    _dir: TempDir,
}

impl Worker {
    /// Runs `workers::<name>` with these parameters, which the worker reads with [`param`].
    pub fn start(name: &str, params: &[(&str, &str)]) -> Worker {
        Worker::with_env(name, params, &[])
    }

    /// Runs a worker, with environment variables for libraries, such as `SSL_CERT_FILE`.
    pub fn with_env(name: &str, params: &[(&str, &str)], env: &[(&str, &str)]) -> Worker {
        let dir = tempfile::Builder::new().prefix("nestlock-worker-").tempdir().unwrap();
        let mut all: BTreeMap<String, String> =
            params.iter().map(|(name, value)| (format!("{WORKER}_{name}"), value.to_string())).collect();
        all.extend(env.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        all.insert(WORKER.to_owned(), name.to_owned());
        let args = ["--exact", &format!("workers::{name}"), "--ignored", "--nocapture", "--test-threads=1"];
        let args = args.map(str::to_owned);
        let all: Vec<_> = all.into_iter().collect();
        let program = std::env::current_exe().unwrap();
        let child = Child::start(dir.path(), &program, &args, &all, Stdio::inherit()).unwrap();
        Worker { child, name: name.to_owned(), _dir: dir }
    }

    /// Returns the next line of the worker's output. Fails the test if the worker has ended.
    pub async fn line(&self) -> String {
        self.next_line().await.unwrap_or_else(|| panic!("the worker {} ended without output", self.name))
    }

    /// Returns the next line of the worker's output, `None` once it has ended.
    pub async fn next_line(&self) -> Option<String> {
        soon("a line of the worker", async {
            loop {
                let line = self.child.line().await?;
                if let Some((_, text)) = line.split_once(MARK) {
                    return Some(text.to_owned());
                }
            }
        })
        .await
    }

    /// Waits for the next line, which must be this one.
    pub async fn expect(&self, line: &str) {
        assert_eq!(self.line().await, line, "from the worker {}", self.name);
    }

    /// Writes a line to the worker, which reads it with [`next_command`].
    pub fn say(&mut self, line: &str) {
        self.child.say(line).expect("the worker listens");
    }

    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Sends SIGSTOP.
    pub fn freeze(&self) {
        self.child.freeze();
    }

    /// Sends SIGINT.
    pub fn interrupt(&self) {
        self.child.interrupt();
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.child.thaw();
    }

    /// Sends SIGKILL. The worker is gone when this returns.
    pub fn kill(&mut self) -> ExitStatus {
        self.child.kill()
    }

    /// Waits until the worker exits. A killed worker has the code 137.
    pub async fn wait(mut self) -> ExitStatus {
        soon("the worker's end", self.child.wait()).await
    }
}

/// In a worker: returns whether this process was started as one. A worker begins with `if !process::is_worker() { return; }`, since `cargo
/// test -- --include-ignored` runs it too.
pub fn is_worker() -> bool {
    std::env::var_os(WORKER).is_some()
}

/// In a worker: returns a parameter.
pub fn param(name: &str) -> String {
    std::env::var(format!("{WORKER}_{name}")).unwrap_or_else(|_| panic!("the parameter {name} is missing"))
}

/// In a worker: writes a line for the test.
pub fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{line}").unwrap();
    out.flush().unwrap();
}

/// In a worker: returns the next line that the test wrote. Cancel safe.
pub async fn next_command() -> Option<String> {
    // The reads are on their own thread, since an unfinished read must not keep the worker's runtime from ending.
    static LINES: LazyLock<Mutex<mpsc::UnboundedReceiver<String>>> = LazyLock::new(|| {
        let (said, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                let _ = said.send(line);
            }
        });
        Mutex::new(lines)
    });
    LINES.lock().await.recv().await
}
