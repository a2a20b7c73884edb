//! The processes that take locks, as seen by their parent.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout_at};

use crate::Result;
use crate::deployment::Deployment;
use crate::job::{Job, PROCESSES};
use crate::login::{Login, Scan};
use crate::support::child::Child;
use crate::worker::{END, REST, RESTING};

/// The names of the files for a process's outputs: what it unexpectedly prints, and its errors.
const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";

/// The processes. A drop kills them.
pub(crate) struct Crew {
    members: Vec<Member>,
}

struct Member {
    job: Job,
    child: Child,
    /// The directory of the process that watches this one.
    _dir: TempDir,
}

impl Crew {
    pub(crate) fn start(deployment: &Deployment, folder: &Path, seed: u64) -> Result<Crew> {
        let jobs = (0..PROCESSES).map(|process| Job {
            process,
            life: 0,
            seed,
            folder: PathBuf::from(folder),
            target: deployment.target(process),
        });
        Ok(Crew { members: jobs.map(Member::start).collect::<Result<_>>()? })
    }

    /// Sends SIGKILL, and starts another process in its place.
    pub(crate) fn kill(&mut self, process: usize) -> Result<()> {
        let member = self.members.remove(process);
        let job = Job { life: member.job.life + 1, ..member.job.clone() };
        drop(member);
        self.members.insert(process, Member::start(job)?);
        Ok(())
    }

    /// Sends SIGSTOP for this time.
    pub(crate) async fn freeze(&self, process: usize, time: Duration) {
        self.members[process].child.freeze();
        sleep(time).await;
        self.members[process].child.thaw();
    }

    /// Makes all processes end their operations. Names those that have not done so within this time.
    pub(crate) async fn rest(&mut self, patience: Duration) -> Vec<String> {
        let mut late = Vec::new();
        for member in &mut self.members {
            if member.child.say(REST).is_err() {
                late.push(format!("process {} has ended by itself", member.job.process));
            }
        }
        let end = Instant::now() + patience;
        for member in &self.members {
            match timeout_at(end, member.child.line()).await {
                Ok(Some(line)) if line == RESTING => {}
                line => late.push(format!("process {} did not come to rest: {line:?}", member.job.process)),
            }
        }
        late
    }

    /// Makes all processes close their `Locks` and end. Names those that have not done so within this time.
    pub(crate) async fn end(&mut self, patience: Duration) -> Vec<String> {
        let mut late = Vec::new();
        let end = Instant::now() + patience;
        for member in &mut self.members {
            let _ = member.child.say(END);
            let status = timeout_at(end, member.child.wait()).await;
            if !status.as_ref().is_ok_and(|status| status.success()) {
                late.push(format!("process {} did not end in order: {status:?}", member.job.process));
            }
        }
        late
    }
}

impl Member {
    fn start(job: Job) -> Result<Member> {
        let dir = tempfile::Builder::new().prefix("nestlock-torture-").tempdir()?;
        let args = ["worker".to_owned(), serde_json::to_string(&job)?];
        let errors = File::create_new(job.file(STDERR))?;
        let child = Child::start(dir.path(), &std::env::current_exe()?, &args, &[], Stdio::from(errors))?;
        Ok(Member { job, child, _dir: dir })
    }

    /// Keeps the outputs of a process in the folder of the run, and prints them to the errors of this process.
    fn pass_on(&self) -> Result<()> {
        let printed = self.child.lines_so_far().join("\n");
        std::fs::write(self.job.file(STDOUT), &printed)?;
        let errors = std::fs::read(self.job.file(STDERR))?;
        let all = format!("{printed}{}", String::from_utf8_lossy(&errors));
        eprint!("{}", Scan::of(&Login::of(self.job.seed)).mask(&all));
        Ok(())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.child.kill();
        if let Err(error) = self.pass_on() {
            eprintln!("torture: the outputs of process {}: {error}", self.job.process);
        }
    }
}
