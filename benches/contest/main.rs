//! Processes that contend for one lock, with the line and without it: how many scripts a grant takes, how the grants are shared, and how
//! long the longest wait is. `scripts/lab/bench --contest` runs it on a server of its own, and it prints a table. If `CLUSTER` is set, it
//! runs on the Cluster whose nodes are listed there, separated by spaces. Shares and longest waits of processes that may not subscribe, or
//! are far away, are listed separately.

mod distance;
#[path = "../shared/server.rs"]
mod server;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use nestlock::Master;
use redis::InfoDict;
use redis::aio::MultiplexedConnection;

use crate::server::{Result, connection_to, patient, patient_with, url};

/// For each contest: the number of processes, the tasks of each, the work under the lock in µs, the work between two turns in µs, how many
/// more processes may not subscribe, and how many more are far away.
const CONTESTS: [[u64; 6]; 12] = [
    [2, 1, 1000, 0, 0, 0],
    [8, 1, 1000, 0, 0, 0],
    [32, 1, 1000, 0, 0, 0],
    [64, 1, 1000, 0, 0, 0],
    [8, 1, 0, 0, 0, 0],
    [2, 1, 1000, 3000, 0, 0],
    [8, 1, 1000, 3000, 0, 0],
    [8, 10, 1000, 0, 0, 0],
    [8, 1, 1000, 0, 1, 0],
    [0, 1, 1000, 0, 8, 0],
    [1, 1, 1000, 0, 0, 1],
    [4, 1, 1000, 0, 0, 4],
];

/// How long a message takes each way between the server and a process that is far away.
const WAY: Duration = Duration::from_millis(10);

/// A user that may not subscribe.
const MUTE: &str = "bench-mute";

/// Contests of processes for one lock, on the server in REDIS_URL.
#[derive(Parser)]
struct Options {
    /// How long each of them lasts.
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// `PROCESSES,TASKS,WORK,BETWEEN,MUTE,FAR`, with times in µs. The last two may be left out: how many more processes may not subscribe,
    /// and how many more are far away. Without any: the contests of the page.
    contests: Vec<String>,
    /// Runs as one of the processes: whether it is fair, its tasks, their work, the work between two turns, when they begin and when they
    /// end, and whether it may not subscribe.
    #[arg(long, hide = true, num_args = 7)]
    process: Vec<u64>,
}

/// The grants and the longest wait of one process.
#[derive(Clone, Copy)]
struct Share {
    grants: u64,
    longest: Duration,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let [fair, tasks, work, between, begin, end, mute] = options.process[..] {
        let share = runtime.block_on(process([fair > 0, mute > 0], tasks, [work, between], [begin, end]))?;
        println!("{} {}", share.grants, share.longest.as_micros());
        return Ok(());
    }
    println!(
        "| processes × tasks, work, between | fair | grants | scripts a grant | shares of the processes | longest wait |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    let asked = options.contests.iter().map(|text| numbers(text)).collect::<Result<Vec<_>>>()?;
    for contest in if asked.is_empty() { CONTESTS.to_vec() } else { asked } {
        for fair in [true, false] {
            runtime.block_on(contend(contest, fair, options.seconds))?;
        }
    }
    Ok(())
}

fn numbers(text: &str) -> Result<[u64; 6]> {
    let mut numbers = text.split(',').map(str::parse).collect::<std::result::Result<Vec<u64>, _>>()?;
    if numbers.len() >= 4 {
        numbers.resize(numbers.len().max(6), 0);
    }
    Ok(numbers.try_into().map_err(|_| format!("{text} has not four to six numbers"))?)
}

/// Returns the time in milliseconds, by a clock that all processes share.
fn clock() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64)
}

/// Returns the nodes of the Cluster, if there is one.
fn nodes() -> Vec<String> {
    let nodes = std::env::var("CLUSTER").unwrap_or_default();
    nodes.split_whitespace().map(str::to_owned).collect()
}

/// Returns how many scripts the servers have run.
async fn scripts(servers: &mut [MultiplexedConnection]) -> Result<u64> {
    let mut sum = 0;
    for server in servers {
        sum += scripts_of(server).await?;
    }
    Ok(sum)
}

async fn scripts_of(server: &mut MultiplexedConnection) -> Result<u64> {
    let info: InfoDict = redis::cmd("INFO").arg("commandstats").query_async(server).await?;
    let calls = |name: &str| -> Option<u64> {
        let line: String = info.get(&format!("cmdstat_{name}"))?;
        line.strip_prefix("calls=")?.split(',').next()?.parse().ok()
    };
    Ok(["evalsha", "eval"].into_iter().filter_map(calls).sum())
}

/// Runs one contest, and returns a row of the table.
async fn contend(contest: [u64; 6], fair: bool, seconds: u64) -> Result<()> {
    let [processes, tasks, work, between, mute, far] = contest;
    if far > 0 && !nodes().is_empty() {
        return Err("far processes reach one server only, not a Cluster".into());
    }
    let mut servers = Vec::new();
    for url in if nodes().is_empty() { vec![url()] } else { nodes() } {
        let mut server = connection_to(&url).await?;
        let rules = ["on", "nopass", "~*", "+@all", "resetchannels"];
        redis::cmd("ACL").arg("SETUSER").arg(MUTE).arg(&rules).exec_async(&mut server).await?;
        servers.push(server);
    }
    let before = scripts(&mut servers).await?;
    // By then, all processes have connected.
    let begin = clock()? + 1500 + 20 * (processes + mute + far);
    let end = begin + 1000 * seconds;
    let mut running = Vec::new();
    let distant = if far > 0 { Some(distance::url(&url(), WAY)?) } else { None };
    for number in 0..processes + mute + far {
        let is_mute = (processes..processes + mute).contains(&number);
        let arguments = [u64::from(fair), tasks, work, between, begin, end, u64::from(is_mute)]
            .map(|number| number.to_string());
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(distant) = distant.as_ref().filter(|_| number >= processes + mute) {
            command.env("REDIS_URL", distant);
        }
        running.push(command.arg("--process").args(&arguments).stdout(Stdio::piped()).spawn()?);
    }
    let mut shares = Vec::new();
    for one in running {
        let output = one.wait_with_output()?;
        let text = String::from_utf8(output.stdout)?;
        let (grants, longest) = text.trim().split_once(' ').ok_or("a process has failed")?;
        shares.push(Share { grants: grants.parse()?, longest: Duration::from_micros(longest.parse()?) });
    }
    let scripts = scripts(&mut servers).await? - before;
    let grants = shares.iter().map(|share| share.grants).sum::<u64>();
    let (others, muted) = shares.split_at(processes as usize);
    let (muted, distant) = muted.split_at(mute as usize);
    let all = [others, muted, distant].into_iter().filter(|shares| !shares.is_empty()).map(spread);
    let (shares, longest): (Vec<_>, Vec<_>) = all.unzip();
    let time = |micros: u64| if micros == 0 { "none".to_owned() } else { format!("{} ms", micros / 1000) };
    let beside = match (mute, far) {
        (0, 0) => String::new(),
        (mute, 0) => format!(" and {mute} mute"),
        (0, far) => format!(" and {far} far"),
        (mute, far) => format!(" and {mute} mute and {far} far"),
    };
    println!(
        "| {processes}{beside} × {tasks}, {}, {} | {} | {grants} | {:.2} | {} | {} |",
        time(work),
        time(between),
        if fair { "yes" } else { "no" },
        scripts as f64 / grants.max(1) as f64,
        shares.join("; "),
        longest.join("; "),
    );
    Ok(())
}

/// Returns the least and the most grants of such processes, and their longest wait.
fn spread(shares: &[Share]) -> (String, String) {
    let each = || shares.iter().map(|share| share.grants);
    let (least, most) = (each().min().unwrap_or(0), each().max().unwrap_or(0));
    let longest = shares.iter().map(|share| share.longest).max().unwrap_or_default();
    (format!("{least}–{most}"), format!("{} ms", longest.as_millis()))
}

/// Runs one process, whose tasks take the lock again and again.
async fn process(
    [fair, mute]: [bool; 2],
    tasks: u64,
    times: [u64; 2],
    [begin, end]: [u64; 2],
) -> Result<Share> {
    let [work, between] = times.map(Duration::from_micros);
    let as_user = |url: String| if mute { url.replace("://", &format!("://{MUTE}:any@")) } else { url };
    let options = match nodes() {
        nodes if nodes.is_empty() && !mute => patient(),
        nodes if nodes.is_empty() => patient_with(as_user(url())),
        nodes => patient_with(Master::cluster(nodes.into_iter().map(as_user))),
    };
    let locks = options.fair(fair).connect().await?;
    tokio::time::sleep(Duration::from_millis(begin.saturating_sub(clock()?))).await;
    let end = Instant::now() + Duration::from_millis(end.saturating_sub(clock()?));
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let hot = locks.mutex("bench:contest:hot");
        running.spawn(async move {
            let mut share = Share { grants: 0, longest: Duration::ZERO };
            while Instant::now() < end {
                let asked = Instant::now();
                // A task that starves waits until the others have ended, and that wait counts.
                let guard = hot.lock().await?;
                share = Share { grants: share.grants + 1, longest: share.longest.max(asked.elapsed()) };
                pause(work).await;
                guard.release().await?;
                pause(between).await;
            }
            Ok::<_, nestlock::Error>(share)
        });
    }
    let mut sum = Share { grants: 0, longest: Duration::ZERO };
    while let Some(done) = running.join_next().await {
        let share = done??;
        sum = Share { grants: sum.grants + share.grants, longest: sum.longest.max(share.longest) };
    }
    locks.close().await?;
    Ok(sum)
}

async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}
