//! A master with replicas, and the sentinels that monitor it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use redis::{AsyncConnectionConfig, RedisResult};
use tempfile::TempDir;

use super::child::Child;
use super::proxy::Proxy;
use super::server::{Server, client, free_port};
use super::tls::Certificates;
use super::{PATIENCE, eventually};

/// The name by which the sentinels know the master.
pub const NAME: &str = "stockroom";

/// One sentinel. A drop ends it.
pub struct Sentinel {
    child: Mutex<Option<Child>>,
    dir: TempDir,
    port: u16,
    tls_port: Option<u16>,
    password: Option<String>,
}

/// One master, its replicas, and three sentinels.
pub struct Group {
    pub sentinels: Vec<Sentinel>,
    /// The servers. The first one begins as the master.
    pub servers: Vec<Server>,
}

/// The options of a group.
#[derive(Clone, Copy, Default)]
pub struct Setup<'a> {
    /// The password of master and replicas.
    pub password: Option<&'a str>,
    /// The password of the sentinels.
    pub sentinel_password: Option<&'a str>,
    /// Another user of the master, the replicas and the sentinels, as the words of a rule: `["bob", "on", ">secret", "~*", "&*", "+@all"]`.
    pub user: &'a [&'a str],
    /// The certificates of all: clients connect to sentinels and servers over TLS, and so do these among themselves.
    pub tls: Option<&'a Certificates>,
    /// Whether a live old master is not demoted. Outside tests the demotion takes ten seconds.
    pub silent: bool,
}

impl Group {
    pub async fn start() -> Group {
        Group::with(Setup::default()).await
    }

    pub async fn with(setup: Setup<'_>) -> Group {
        let mut servers = vec![server(None, setup).await];
        for _ in 0..2 {
            servers.push(server(Some(&servers[0]), setup).await);
        }
        let group = Group::watched(servers, setup).await;
        if setup.silent {
            group.be_silent().await;
        }
        group
    }

    /// Starts a group with a proxy in front of each server. The other servers, the sentinels and the clients know the server by the proxy's
    /// port.
    pub async fn behind_proxies(setup: Setup<'_>) -> (Group, Vec<Proxy>) {
        let (mut servers, mut proxies) = (Vec::new(), Vec::<Proxy>::new());
        for _ in 0..3 {
            let mut server = server(None, setup).await;
            let proxy = Proxy::to(&server).await;
            server.announce("replica-announce-port", proxy.port()).await;
            if let Some(master) = proxies.first() {
                server.ask::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).await;
            }
            servers.push(server);
            proxies.push(proxy);
        }
        (Group::watched(servers, setup).await, proxies)
    }

    async fn watched(servers: Vec<Server>, setup: Setup<'_>) -> Group {
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(Sentinel::start(servers[0].known_port(), setup).await);
        }
        let group = Group { sentinels, servers };
        group.settled().await;
        group
    }

    /// Keeps a live old master from being demoted, from now on.
    pub async fn be_silent(&self) {
        // An old master is demoted four of these periods after the sentinels have seen it.
        for sentinel in &self.sentinels {
            sentinel.try_ask::<()>(&["SENTINEL", "DEBUG", "publish-period", "3600000"]).await.unwrap();
        }
    }

    /// Waits until no message of a sentinel that has left can arrive any more.
    ///
    /// Such a message may reach new sentinels and teach them the old epoch: over a server that has not run it yet, or over a replica that
    /// is behind its master.
    async fn is_published(&self, master: &Server) {
        for server in &self.servers {
            eventually("the end of their connections", async || {
                !server.ask::<String>(&["CLIENT", "LIST"]).await.contains("name=sentinel-")
            })
            .await;
        }
        let offset = async |server: &Server| {
            server.info("replication").await["master_repl_offset"].parse::<u64>().unwrap_or_default()
        };
        let last = offset(master).await;
        for server in &self.servers {
            eventually("all that was published", async || offset(server).await >= last).await;
        }
    }

    /// Restarts all sentinels with a new configuration, in which epochs restart.
    pub async fn set_up_again(&self, master: &Server) {
        self.be_silent().await;
        self.sentinels.iter().for_each(Sentinel::kill);
        self.is_published(master).await;
        for sentinel in &self.sentinels {
            sentinel.configure(master.port(), Setup::default());
            eventually("a sentinel", async || sentinel.run().await).await;
        }
        self.settled().await;
    }

    /// Makes all sentinels forget this master and monitor it again. They keep running, and its configuration epoch starts from 0 again.
    pub async fn monitor_again(&self, master: &Server) {
        let port = master.port().to_string();
        let each = async |command: &[&str]| {
            for sentinel in &self.sentinels {
                sentinel.try_ask::<()>(command).await.unwrap();
            }
        };
        // All sentinels forget the master first: a sentinel that still knew the old epoch would teach it to the others.
        each(&["SENTINEL", "REMOVE", NAME]).await;
        self.is_published(master).await;
        each(&["SENTINEL", "MONITOR", NAME, "127.0.0.1", &port, "2"]).await;
        each(&["SENTINEL", "SET", NAME, "down-after-milliseconds", "6000", "failover-timeout", "10000"])
            .await;
        self.settled().await;
        for sentinel in &self.sentinels {
            assert_eq!(sentinel.master().await.unwrap()["config-epoch"], "0");
        }
    }

    /// Waits until all sentinels know everything, and each replica has what its master has.
    pub async fn settled(&self) {
        let missing = scopeguard::guard(RefCell::new(String::new()), |missing| {
            if std::thread::panicking() {
                eprintln!("the last one that was not settled: {}", missing.borrow());
            }
        });
        eventually("a group that is complete", async || {
            for sentinel in &self.sentinels {
                if let Err(why) = sentinel.is_settled().await {
                    *missing.borrow_mut() = format!("sentinel {}: {why}", sentinel.port);
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// Returns the addresses of the sentinels, each with these credentials and this database: `:password@`, `/2`.
    pub fn urls(&self, credentials: &str, database: &str) -> Vec<String> {
        self.sentinels
            .iter()
            .map(|one| format!("redis://{credentials}127.0.0.1:{}{database}", one.port))
            .collect()
    }

    /// Returns options over TLS that trust the authority of these certificates.
    pub fn builder_over_tls(&self, credentials: &str, certificates: &Certificates) -> nestlock::Builder {
        let tls = nestlock::Tls::new().authorities(certificates.authority());
        let url = |one: &Sentinel| format!("rediss://{credentials}localhost:{}", one.tls_port());
        let given = self.sentinels.iter().map(|one| nestlock::Server::from(url(one)).tls(tls.clone()));
        super::options(nestlock::Master::sentinel(given, NAME))
    }

    pub fn builder(&self) -> nestlock::Builder {
        super::options(nestlock::Master::sentinel(self.urls("", ""), NAME))
    }

    pub async fn locks(&self) -> nestlock::Locks {
        self.builder().connect().await.unwrap()
    }

    /// Returns the server that most sentinels name as the master.
    pub async fn master(&self) -> &Server {
        let mut votes = HashMap::<u16, usize>::new();
        for sentinel in &self.sentinels {
            if let Some(port) = sentinel.names().await {
                *votes.entry(port).or_default() += 1;
            }
        }
        let port = votes.into_iter().max_by_key(|(_, votes)| *votes).expect("a sentinel that answers").0;
        self.servers.iter().find(|server| server.known_port() == port).expect("one of the servers")
    }

    /// Waits until most sentinels name another server as the master, and that server reports that it is one. Returns that server.
    ///
    /// On a busy machine the sentinels may give up a failover and then disagree: those that still name the old master are asked for a
    /// failover again.
    pub async fn failed_over(&self, old: &Server) -> &Server {
        let (mut asked, found) = (Instant::now(), Cell::new(None));
        eventually("another master", async || {
            let master = self.master().await;
            if master.port() != old.port() && is_master(master).await {
                found.set(Some(master));
                return true;
            }
            if asked.elapsed() > Duration::from_secs(15) {
                asked = Instant::now();
                for sentinel in &self.sentinels {
                    if sentinel.names().await == Some(old.known_port()) {
                        let _ = sentinel.ask_within::<()>(LIMIT, &["SENTINEL", "FAILOVER", NAME]).await;
                    }
                }
            }
            false
        })
        .await;
        // Not asked for again: if one sentinel does not answer, the votes of the others may be equal.
        found.get().expect("it was found")
    }

    /// Fails over on demand, and again if the failover is aborted. The old master is not demoted before the failover is complete.
    pub async fn fail_over(&self) {
        let (first, old) = (&self.sentinels[0], self.master().await.known_port());
        let has_begun = async || {
            if first.names().await.is_some_and(|port| port != old) {
                return true;
            }
            let _ = first.try_ask::<()>(&["SENTINEL", "FAILOVER", NAME]).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            false
        };
        eventually("a failover", has_begun).await;
    }
}

pub async fn is_master(server: &Server) -> bool {
    server.info("replication").await["role"] == "master"
}

async fn server(master: Option<&Server>, setup: Setup<'_>) -> Server {
    let mut args = vec!["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];
    let port = master.map(|master| master.known_port().to_string());
    if let Some(port) = &port {
        args.extend(["--replicaof", "127.0.0.1", port]);
    }
    if let Some(password) = setup.password {
        args.extend(["--requirepass", password, "--masterauth", password]);
    }
    if !setup.user.is_empty() {
        args.push("--user");
        args.extend(setup.user);
    }
    let Some(certificates) = setup.tls else { return Server::with(&args).await };
    args.extend(["--tls-replication", "yes"]);
    Server::tls_among(certificates, &args).await
}

impl Sentinel {
    /// Checks that the sentinel knows everything; if not, returns what it reports.
    async fn is_settled(&self) -> Result<(), String> {
        let master = self.master().await.map_err(|error| error.to_string())?;
        let is = |name: &str, value: &str| master.get(name).is_some_and(|reported| reported == value);
        if !(is("num-slaves", "2") && is("num-other-sentinels", "2") && is("flags", "master")) {
            return Err(format!("{master:?}"));
        }
        // The sentinels choose among replicas by their last reports.
        let replicas: Vec<HashMap<String, String>> =
            self.try_ask(&["SENTINEL", "REPLICAS", NAME]).await.unwrap_or_default();
        let is_known = |replica: &HashMap<String, String>| {
            // Sentinels that are set up now don't know a replica that still replicates another replica.
            let follows = replica.get("master-port") == master.get("port");
            follows && replica["master-link-status"] == "ok" && replica["flags"] == "slave"
        };
        if replicas.len() >= 2 && replicas.iter().all(is_known) {
            Ok(())
        } else {
            Err(format!("{replicas:?}"))
        }
    }

    pub async fn start(master: u16, setup: Setup<'_>) -> Sentinel {
        let dir = tempfile::Builder::new().prefix("nestlock-sentinel-").tempdir().unwrap();
        let password = setup.sentinel_password.map(str::to_owned);
        let mut sentinel = Sentinel { child: Mutex::default(), dir, port: 0, tls_port: None, password };
        for _ in 0..20 {
            sentinel.port = free_port();
            sentinel.tls_port = setup.tls.map(|_| free_port());
            sentinel.configure(master, setup);
            if sentinel.run().await {
                return sentinel;
            }
        }
        panic!("the sentinel did not start");
    }

    fn configure(&self, master: u16, setup: Setup<'_>) {
        let mut text = format!(
            "port {}\nbind 127.0.0.1\nsentinel monitor {NAME} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {NAME} 6000\nsentinel failover-timeout {NAME} 10000\n",
            self.port
        );
        if let (Some(certificates), Some(port)) = (setup.tls, self.tls_port) {
            text += &format!("tls-port {port}\ntls-replication yes\ntls-auth-clients no\n");
            for (option, file) in certificates.options() {
                text += &format!("{option} {}\n", file.display());
            }
        }
        if let Some(password) = setup.password {
            text += &format!("sentinel auth-pass {NAME} {password}\n");
        }
        if let Some(password) = &self.password {
            text += &format!("requirepass {password}\nsentinel sentinel-pass {password}\n");
        }
        if !setup.user.is_empty() {
            text += &format!("user {}\n", setup.user.join(" "));
        }
        std::fs::write(self.dir.path().join("conf"), text).unwrap();
    }

    async fn run(&self) -> bool {
        let program = super::server::program();
        let args = ["conf", "--sentinel"]
            .map(|arg| arg.replace("conf", self.dir.path().join("conf").to_str().unwrap()));
        let child = Child::start(self.dir.path(), Path::new(&program), &args, &[], Stdio::inherit()).unwrap();
        let (pid, patience) = (child.pid().to_string(), Instant::now() + PATIENCE);
        loop {
            let info: String = self.try_ask(&["INFO", "server"]).await.unwrap_or_default();
            if info.lines().any(|line| line.strip_prefix("process_id:") == Some(&pid)) {
                break;
            }
            if child.has_ended() {
                return false;
            }
            assert!(Instant::now() < patience, "no answer from the sentinel: {:?}", child.lines_so_far());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        *self.child.lock().unwrap() = Some(child);
        // These options are for tests, and older servers don't know all of them.
        for (name, value) in HURRY {
            let _ = self.try_ask::<()>(&["SENTINEL", "DEBUG", name, &value.to_string()]).await;
        }
        true
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("start it with `tls`")
    }

    /// Sends SIGSTOP.
    pub fn freeze(&self) {
        self.child.lock().unwrap().as_ref().expect("the sentinel was killed").freeze();
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.child.lock().unwrap().as_ref().expect("the sentinel was killed").thaw();
    }

    /// Sends SIGKILL.
    pub fn kill(&self) {
        *self.child.lock().unwrap() = None;
    }

    /// Returns what the sentinel has logged since the last call.
    pub fn new_lines(&self) -> Vec<String> {
        self.child.lock().unwrap().as_ref().expect("the sentinel was killed").lines_so_far()
    }

    /// Returns how many connections the sentinel has accepted so far. This call makes one too.
    pub async fn connections(&self) -> usize {
        let info: String = self.try_ask(&["INFO", "stats"]).await.unwrap();
        let count = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        count.expect("a count").parse().unwrap()
    }

    async fn master(&self) -> RedisResult<HashMap<String, String>> {
        self.try_ask(&["SENTINEL", "MASTER", NAME]).await
    }

    /// Returns the port that the sentinel names for the master, `None` if it does not answer.
    async fn names(&self) -> Option<u16> {
        let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
        let named = self.ask_within::<(String, u16)>(LIMIT, &command).await;
        named.ok().map(|(_, port)| port)
    }

    pub async fn try_ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> RedisResult<T> {
        self.ask_within(PATIENCE, command).await
    }

    async fn ask_within<T: redis::FromRedisValue>(&self, time: Duration, command: &[&str]) -> RedisResult<T> {
        let client = client(self.port, self.password.as_deref())?;
        let wait = Some(time);
        let config = AsyncConnectionConfig::new().set_connection_timeout(wait).set_response_timeout(wait);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await
    }
}

/// How long to wait for a sentinel that may be frozen or gone.
const LIMIT: Duration = Duration::from_secs(5);

/// The periods of a sentinel that would keep a test waiting, in milliseconds.
const HURRY: [(&str, u32); 6] = [
    ("publish-period", 200),
    ("info-period", 200),
    ("ping-period", 200),
    ("ask-period", 200),
    ("tilt-trigger", 10_000),
    ("tilt-period", 1_000),
];
