//! A process that never outlives the test.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{mpsc, watch};

/// Runs the command given as its arguments, and kills it when the keeper's standard input ends. That input ends however the test's process
/// dies, even by SIGKILL, so no process is ever left behind. Until then the input goes to the command through a fifo. The command begins
/// when the keeper opens the fifo, after the line with its number, so it prints nothing before that line. The keeper opens the fifo for
/// both directions: opened for writing only, it would block for ever if the command ended before it read. The kernel sends SIGHUP to a
/// process group without a parent if a process in it is stopped: the keeper of a frozen child must survive that signal.
const KEEPER: &str = r#"
trap '' HUP
rm -f "$0/stdin" "$0/ended" && mkfifo "$0/stdin" || exit 125
"$@" <"$0/stdin" &
pid=$!
echo "$pid"
exec >/dev/null 2>&1
exec 3<>"$0/stdin"
cat >&3
kill -9 "$pid"
wait "$pid"
status=$?
[ -e "$0/ended" ] || rm -rf "$0"
exit $status
"#;

/// A child process under a keeper. A drop kills the child, and waits until it is gone.
pub struct Child {
    dir: PathBuf,
    keeper: std::process::Child,
    pid: Pid,
    lines: tokio::sync::Mutex<mpsc::UnboundedReceiver<String>>,
    ended: watch::Receiver<bool>,
    status: Mutex<Option<ExitStatus>>,
}

impl Child {
    /// Starts `program` in `dir`, which nothing else may use.
    pub fn start(
        dir: &Path,
        program: &Path,
        args: &[String],
        env: &[(String, String)],
        stderr: Stdio,
    ) -> std::io::Result<Child> {
        let mut keeper = Command::new("/bin/sh")
            .arg("-c")
            .arg(KEEPER)
            .arg(dir)
            .arg(program)
            .args(args)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // Ctrl-C must reach only the test. Otherwise the keeper would die before its child does.
            .process_group(0)
            .spawn()?;
        let mut output = BufReader::new(keeper.stdout.take().unwrap());
        let mut first = String::new();
        output.read_line(&mut first)?;
        let pid = first.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| std::io::Error::other(format!("no process was started: {first:?}")))?;
        let (sender, lines) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(false);
        std::thread::spawn(move || {
            // Only the child has the other end, so the output ends when the child does.
            for line in output.split(b'\n').map_while(Result::ok) {
                let _ = sender.send(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            let _ = end.send(true);
        });
        let lines = tokio::sync::Mutex::new(lines);
        let dir = dir.to_owned();
        Ok(Child { dir, keeper, pid, lines, ended, status: Mutex::new(None) })
    }

    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Sends SIGSTOP: the child does nothing, its connections stay open, and the kernel still receives for it.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Sends SIGINT, as ^C does.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGKILL. The child is gone when this returns.
    pub fn kill(&mut self) -> ExitStatus {
        if let Some(status) = *self.status.lock().unwrap() {
            return status;
        }
        self.signal(Signal::KILL);
        // Without this file the keeper would assume that the test is dead, and would clean up after it.
        let _ = std::fs::File::create(self.dir.join("ended"));
        drop(self.keeper.stdin.take());
        let status = self.keeper.wait().expect("the keeper is our own child");
        *self.status.lock().unwrap() = Some(status);
        status
    }

    /// Waits until the child exits. The status is the shell's: 137 stands for SIGKILL.
    pub async fn wait(&mut self) -> ExitStatus {
        let _ = self.ended.wait_for(|ended| *ended).await;
        self.kill()
    }

    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Returns the next line of the child's output, `None` after the last one.
    pub async fn line(&self) -> Option<String> {
        self.lines.lock().await.recv().await
    }

    /// Returns the lines that the child has written so far.
    pub fn lines_so_far(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Ok(mut queue) = self.lines.try_lock() {
            while let Ok(line) = queue.try_recv() {
                lines.push(line);
            }
        }
        lines
    }

    /// Writes one line to the child's standard input.
    pub fn say(&mut self, line: &str) -> std::io::Result<()> {
        let stdin = self.keeper.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        writeln!(stdin, "{line}")
    }

    fn signal(&self, signal: Signal) {
        // The number of a child that has ended is free again: another process may have it by now.
        if !self.has_ended() {
            let _ = kill_process(self.pid, signal);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns whether a process with this number exists and is not a zombie.
pub fn is_running(pid: i32) -> bool {
    let there = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap();
    let stat = String::from_utf8_lossy(&there.stdout).trim().to_owned();
    !stat.is_empty() && !stat.starts_with('Z')
}
