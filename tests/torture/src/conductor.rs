//! One run: servers and processes are started, faults happen, everything ends, and the logs are checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::crew::Crew;
use crate::deployment::Deployment;
use crate::faults::{Fault, Plan, Step};
use crate::job::{LEASE, Setting};
use crate::journal::{Event, Journal};
use crate::login::Login;
use crate::options::{Run, Shape};
use crate::support::eventually;
use crate::{Result, clock, probe, report};

/// After this many seconds with faults there are some without faults, in which a slow grant has no excuse.
const STORM: Duration = Duration::from_secs(30);
const CALM: Duration = Duration::from_secs(9);

/// How long processes may take to end their operations, once everything works again.
const PATIENCE: Duration = Duration::from_secs(40);

/// Runs once. Returns whether everything was correct. The logs are kept only if it was not.
pub(crate) async fn run(options: Run) -> Result<bool> {
    let shape = options.shape();
    let seed = options.seed.unwrap_or_else(|| rand::random_range(0..1_000_000_000));
    let folder = folder(seed)?;
    let setting = Setting { shape, seed, seconds: options.seconds };
    std::fs::write(folder.join(report::SETTING), serde_json::to_string(&setting)?)?;
    println!("torture: {shape} for {} s, seed {seed}; logs in {}", options.seconds, folder.display());
    let journal = Arc::new(Journal::create(&folder.join("faults.log"))?);
    // Everything that the processes send passes through proxies in this process.
    journal.clone().note_stalls();
    let deployment = Deployment::start(shape, Login::of(seed)).await;
    deployment.set_counters_apart().await;
    let mut crew = Crew::start(&deployment, &folder, seed)?;
    let probes = probe::start(&deployment, &journal);
    warm_up(&folder).await?;
    let mut plan = Plan::new(shape, seed, &options.only);
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let mut calm_at = Instant::now() + STORM;
    sleep(Duration::from_secs(2)).await;
    let mut roles = Roles::of(&deployment).await;
    while Instant::now() < end {
        roles.compare(&deployment, &journal).await;
        if Instant::now() > calm_at {
            sleep(CALM).await;
            calm_at = Instant::now() + STORM;
            continue;
        }
        let (step, pause) = plan.next();
        strike(&step, &deployment, &mut crew, &journal, shape).await?;
        roles = Roles::of(&deployment).await;
        sleep(pause).await;
    }
    roles.compare(&deployment, &journal).await;
    for what in finish(&deployment, &mut crew).await {
        journal.write(Event::Left { what });
    }
    drop((probes, crew, deployment));
    let good = report::judge(&folder)?;
    if good && !options.keep {
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(good)
}

fn folder(seed: u64) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let folder = target.join("torture").join(format!("{seed}-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    Ok(folder.canonicalize()?)
}

/// Waits until locks are granted: masters that have just been started have no vote for a while.
async fn warm_up(folder: &Path) -> Result<()> {
    let patience = Instant::now() + PATIENCE;
    while !report::is_granted(folder)? {
        if Instant::now() > patience {
            return Err(format!("no lock was granted within {PATIENCE:?}").into());
        }
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn strike(
    step: &Step,
    on: &Deployment,
    crew: &mut Crew,
    journal: &Journal,
    shape: Shape,
) -> Result<()> {
    let record = |fault: &Fault, from: u64, loses: bool| {
        let (kind, what) = (fault.kind.name().to_owned(), format!("{fault:?}"));
        let (forgets, revives) = (fault.forgets(shape), loses && fault.revives(shape));
        journal.write(Event::Fault { kind, what, from, loses, forgets, revives });
    };
    let on_servers = async |fault: &Option<Fault>| -> Result<()> {
        let Some(fault) = fault else { return Ok(()) };
        let from = clock::now();
        let before = Roles::of(on).await;
        fault.strike(on).await?;
        // If a server was slow without a fault, another one may have taken over.
        let changed = before.masters != Roles::of(on).await.masters && !fault.is_coordinated(shape);
        record(fault, from, fault.loses(shape) || changed);
        Ok(())
    };
    let on_process = async {
        let Some(fault) = &step.process else { return Ok(()) };
        let from = clock::now();
        fault.strike_process(crew).await?;
        record(fault, from, false);
        Ok(())
    };
    let (servers, network, process) =
        tokio::join!(on_servers(&step.servers), on_servers(&step.network), on_process);
    servers.and(network).and(process)
}

/// The servers that were masters at one moment.
struct Roles {
    at: u64,
    masters: Vec<bool>,
}

impl Roles {
    async fn of(deployment: &Deployment) -> Roles {
        let at = clock::now();
        let mut masters = Vec::new();
        for server in deployment.all() {
            // A fault may have closed the connection of this command.
            let mut role = String::new();
            eventually("a server that answers", async || {
                role = server.try_ask(&["INFO", "replication"]).await.unwrap_or_default();
                !role.is_empty()
            })
            .await;
            masters.push(role.contains("role:master"));
        }
        Roles { at, masters }
    }

    /// Compares the masters with the earlier ones. On a busy machine a live server may be taken for dead, and then another one takes over.
    async fn compare(&mut self, deployment: &Deployment, journal: &Journal) {
        let now = Roles::of(deployment).await;
        if now.masters != self.masters {
            let what = format!("masters {:?}, then {:?}", self.masters, now.masters);
            journal.write(Event::Fault {
                kind: "taken over unasked".into(),
                what,
                from: self.at,
                loses: true,
                forgets: true,
                revives: true,
            });
        }
        *self = now;
    }
}

/// Lets all processes rest and then end. Returns what should not be left after that.
async fn finish(deployment: &Deployment, crew: &mut Crew) -> Vec<String> {
    let mut wrong = crew.rest(PATIENCE).await;
    if !wrong.is_empty() {
        return wrong;
    }
    // This is one lease, and the time for which an unused subscription is kept.
    sleep(LEASE + Duration::from_secs(2)).await;
    let mut remains = deployment.remains().await;
    // A busy machine may be late. But what is renewed, or never released, stays.
    for _ in 0..8 {
        if remains.is_empty() {
            break;
        }
        sleep(Duration::from_secs(1)).await;
        remains = deployment.remains().await;
    }
    wrong.extend(remains);
    wrong.extend(crew.end(PATIENCE).await);
    wrong
}
