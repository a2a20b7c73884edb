//! The processes that take locks, as their parent sees them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout_at};

use crate::Result;
use crate::deployment::Deployment;
use crate::job::{Job, PROCESSES};
use crate::support::child::Child;
use crate::worker::{END, REST, RESTING};

/// Dropping it kills them.
pub(crate) struct Crew {
    members: Vec<Member>,
}

struct Member {
    job: Job,
    child: Child,
    /// Of the process that watches it.
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

    /// SIGKILL, and another one in its place.
    pub(crate) fn kill(&mut self, process: usize) -> Result<()> {
        let mut member = self.members.remove(process);
        member.child.kill();
        let job = Job { life: member.job.life + 1, ..member.job };
        self.members.insert(process, Member::start(job)?);
        Ok(())
    }

    /// SIGSTOP for that time.
    pub(crate) async fn freeze(&self, process: usize, time: Duration) {
        self.members[process].child.freeze();
        sleep(time).await;
        self.members[process].child.thaw();
    }

    /// All end what they do. Names those that have not within this time.
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

    /// All close their `Locks` and end. Names those that did not within this time.
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
        let child = Child::start(dir.path(), &std::env::current_exe()?, &args, &[], Stdio::inherit())?;
        Ok(Member { job, child, _dir: dir })
    }
}
