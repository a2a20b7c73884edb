//! A real `redis-server` for one test.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, RedisConnectionInfo, RedisResult};
use tempfile::TempDir;

use super::child::Child;
use super::tls::Certificates;
use super::{PATIENCE, log, scripts, tls};

/// Distinguishes the tests' own connections from those under test.
const ADMIN: &str = "nestlock-test-admin";

/// Returns the program that tests start as their servers.
pub fn program() -> String {
    std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into())
}

/// Returns whether the servers have what came with this version of Redis. Valkey began with 7.2.
pub fn is_at_least(major: u32, minor: u32) -> bool {
    static VERSION: LazyLock<(u32, u32)> = LazyLock::new(|| {
        let output = std::process::Command::new(program()).arg("--version").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let version = text.split_once("v=").unwrap_or_else(|| panic!("it has no version: {text}")).1;
        let mut numbers = version.split(['.', ' ']).map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    });
    (major, minor) <= *VERSION
}

/// Grants the right that a connection needs to set the name of its library; not all servers know the rule for it.
pub async fn allow_its_name(server: &Server, user: &str) {
    if is_at_least(7, 2) {
        server.ask::<()>(&["ACL", "SETUSER", user, "+client|setinfo"]).await;
    }
}

/// A `redis-server` on 127.0.0.1. A drop ends it, however the test ends.
///
/// It starts with the lock's scripts loaded and its command counts at zero, so that faults hit the commands and not the loading of scripts;
/// `SCRIPT FLUSH` unloads them.
pub struct Server {
    // This is declared before its directory, so it is dropped before it.
    child: Mutex<Option<Child>>,
    dir: TempDir,
    port: u16,
    tls_port: Option<u16>,
    args: Vec<String>,
    /// The port that others of its group use for it.
    known_port: Option<u16>,
}

impl Server {
    /// Starts an empty server without persistence.
    pub async fn start() -> Server {
        Server::with(&[]).await
    }

    /// Starts a server with more options, such as `["--maxmemory", "1mb"]`. Whatever number follows `--cluster-port`, it is replaced by that
    /// of a free port.
    pub async fn with(args: &[&str]) -> Server {
        Server::launch(args, None).await
    }

    /// Starts a server with a TLS port and a plain one. Its certificate is for `localhost`, signed by [`ca_file`](Server::ca_file).
    pub async fn tls() -> Server {
        Server::launch(&[], Some(&Certificates::new())).await
    }

    /// Starts a server with TLS and more options, such as `["--tls-auth-clients", "yes"]`.
    pub async fn tls_with(args: &[&str]) -> Server {
        Server::launch(args, Some(&Certificates::new())).await
    }

    /// Starts one of several servers that trust each other, since all have these certificates. The others use its TLS port.
    pub async fn tls_among(certificates: &Certificates, args: &[&str]) -> Server {
        let mut server = Server::launch(args, Some(certificates)).await;
        server.known_port = server.tls_port;
        server
    }

    async fn launch(args: &[&str], certificates: Option<&Certificates>) -> Server {
        log::capture();
        let dir = tempfile::Builder::new().prefix("nestlock-redis-").tempdir().unwrap();
        if let Some(certificates) = certificates {
            certificates.copy_to(dir.path());
        }
        let args = args.iter().map(|arg| arg.to_string()).collect();
        let mut server =
            Server { dir, port: 0, tls_port: None, args, known_port: None, child: Mutex::new(None) };
        let mut trouble = String::new();
        // Another process may take a port after this look and before the server does: then the next port is tried.
        for _ in 0..20 {
            server.port = free_port();
            server.tls_port = certificates.map(|_| free_port());
            if let Some(at) = server.args.iter().position(|arg| arg == "--cluster-port") {
                server.args[at + 1] = free_port().to_string();
            }
            match server.run().await {
                Ok(()) => return server,
                Err(error) => trouble = error,
            }
            assert!(trouble.contains("in use"), "redis-server did not start:\n{trouble}");
        }
        panic!("redis-server found no free port:\n{trouble}");
    }

    /// Returns `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the port at which a node of a Cluster talks to the others.
    pub fn bus_port(&self) -> String {
        let at = self.args.iter().position(|arg| arg == "--cluster-port").expect("start it as a node");
        self.args[at + 1].clone()
    }

    /// Returns the port that others of its group use for it, and name to clients.
    pub fn known_port(&self) -> u16 {
        self.known_port.unwrap_or(self.port)
    }

    /// Makes others of its group use this port for it, which is that of a proxy in front of it, from now on and after a restart. The option
    /// is `replica-announce-port` or `cluster-announce-port`.
    pub async fn announce(&mut self, option: &str, port: u16) {
        self.set(option, port).await;
        self.args.extend([format!("--{option}"), port.to_string()]);
        self.known_port = Some(port);
    }

    /// Returns `rediss://localhost:port`, for a server with TLS.
    pub fn tls_url(&self) -> String {
        format!("rediss://localhost:{}", self.tls_port())
    }

    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("start it by Server::tls()")
    }

    /// Returns the server's certificate, its key, and the certificate of its authority, each with the name of its option.
    pub fn tls_files(&self) -> [(&'static str, PathBuf); 3] {
        tls::options(self.dir.path())
    }

    /// Returns the files of a client's certificate and its key, signed by the server's authority or by one that nobody trusts.
    pub fn client_files(&self, trusted: bool) -> [PathBuf; 2] {
        [if trusted { tls::CLIENT } else { tls::STRANGER }, tls::KEY].map(|file| self.dir.path().join(file))
    }

    /// Returns the certificate of the authority that signed the server's certificate: a subprocess takes it as `SSL_CERT_FILE`.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.path().join(tls::CA)
    }

    /// Restarts the server with a certificate that has expired, or with its first one.
    pub async fn restart_expired(&self, expired: bool) {
        self.restart_as(if expired { tls::EXPIRED } else { tls::FRESH }).await;
    }

    /// Restarts the server with a certificate for another name.
    pub async fn restart_as_another(&self) {
        self.restart_as(tls::ANOTHER).await;
    }

    async fn restart_as(&self, certificate: &str) {
        std::fs::copy(self.dir.path().join(certificate), self.dir.path().join(tls::CERT)).unwrap();
        self.restart().await;
    }

    /// Returns a client's certificate and its key, signed by the server's authority or by one that nobody trusts.
    pub fn client_certificate(&self, trusted: bool) -> (Vec<u8>, Vec<u8>) {
        let [certificate, key] = self.client_files(trusted).map(|file| std::fs::read(file).unwrap());
        (certificate, key)
    }

    /// Returns the server's own directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn pid(&self) -> i32 {
        self.child.lock().unwrap().as_ref().expect("the server was killed").pid()
    }

    /// Sends SIGKILL. Connections break, and new ones are refused.
    pub fn kill(&self) {
        *self.child.lock().unwrap() = None;
    }

    /// Kills the server if it runs, and starts it again on the same port with the same options and files. It keeps its data if it was
    /// started with `--appendonly yes --appendfsync always`.
    pub async fn restart(&self) {
        self.kill();
        let patience = Instant::now() + PATIENCE;
        while let Err(error) = self.run().await {
            assert!(error.contains("in use") && Instant::now() < patience, "no restart:\n{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Restarts the server without any data.
    pub async fn restart_empty(&self) {
        self.kill();
        let _ = std::fs::remove_dir_all(self.dir.path().join("appendonlydir"));
        let _ = std::fs::remove_file(self.dir.path().join("dump.rdb"));
        self.restart().await;
    }

    /// Restarts a node of a cluster without any data, as a node that no cluster knows.
    pub async fn restart_as_new_node(&self) {
        self.kill();
        let _ = std::fs::remove_file(self.dir.path().join("nodes.conf"));
        self.restart_empty().await;
    }

    /// Sends SIGSTOP: the server answers nothing, but its connections stay open, and the kernel even accepts new ones.
    pub fn freeze(&self) {
        self.child.lock().unwrap().as_ref().expect("the server was killed").freeze();
    }

    /// Sends SIGCONT: the commands that have arrived run now.
    pub fn thaw(&self) {
        self.child.lock().unwrap().as_ref().expect("the server was killed").thaw();
    }

    async fn run(&self) -> Result<(), String> {
        let child = self.spawn().map_err(|error| error.to_string())?;
        let pid = child.pid();
        let patience = Instant::now() + PATIENCE;
        loop {
            // The answer must come from this very process, since another server may have the port.
            if let Ok(info) = self.try_info("all").await {
                let of = |name: &str| info.get(name).map(String::as_str);
                if of("process_id") == Some(&pid.to_string()) && of("loading") == Some("0") {
                    break;
                }
            }
            if child.has_ended() {
                let errors = std::fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default();
                return Err(format!("{errors}\n{}", child.lines_so_far().join("\n")));
            }
            assert!(Instant::now() < patience, "no answer from redis-server: {:?}", child.lines_so_far());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        *self.child.lock().unwrap() = Some(child);
        self.load_scripts().await;
        let _ = self.try_ask::<()>(&["CONFIG", "RESETSTAT"]).await;
        Ok(())
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let dir = self.dir.path();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let mut args: Vec<String> =
            "--bind 127.0.0.1 --save  --appendonly no --daemonize no".split(' ').map(str::to_owned).collect();
        if is_at_least(7, 0) {
            args.extend(["--enable-debug-command".into(), "yes".into()]);
        }
        args.extend(["--port".into(), self.port.to_string(), "--dir".into(), text(dir)]);
        if let Some(port) = self.tls_port {
            args.extend(["--tls-port".into(), port.to_string(), "--tls-auth-clients".into(), "no".into()]);
            for (option, file) in self.tls_files() {
                args.extend([format!("--{option}"), text(&file)]);
            }
        }
        args.extend(self.args.iter().cloned());
        let program = program();
        let stderr = std::fs::File::create(dir.join("stderr"))?;
        Child::start(dir, Path::new(&program), &args, &[], Stdio::from(stderr))
    }

    /// Loads the lock's scripts, as if they had run before.
    pub async fn load_scripts(&self) {
        for script in scripts::all() {
            let _ = self.try_ask::<()>(&["SCRIPT", "LOAD", &script.body]).await;
        }
    }

    /// Returns a connection for the test's own commands. After the server has closed it, get a new one.
    pub async fn admin(&self) -> MultiplexedConnection {
        self.try_admin().await.expect("the server answers")
    }

    async fn try_admin(&self) -> RedisResult<MultiplexedConnection> {
        let password = self.args.iter().position(|arg| arg == "--requirepass");
        let client = client(self.port, password.map(|at| &*self.args[at + 1]))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let mut admin = client.get_multiplexed_async_connection_with_config(&config).await?;
        redis::cmd("CLIENT").arg("SETNAME").arg(ADMIN).exec_async(&mut admin).await?;
        Ok(admin)
    }

    /// Runs one of the test's own commands, such as `server.ask::<String>(&["HGET", "name", "field"]).await`.
    pub async fn ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_ask(command).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Runs one of the test's own commands. Returns its error if it fails.
    pub async fn try_ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> RedisResult<T> {
        let mut admin = self.try_admin().await?;
        let mut cmd = redis::cmd(command[0]);
        cmd.arg(&command[1..]).query_async(&mut admin).await
    }

    /// Returns `INFO section` as a map.
    pub async fn info(&self, section: &str) -> HashMap<String, String> {
        self.try_info(section).await.expect("the server answers")
    }

    async fn try_info(&self, section: &str) -> RedisResult<HashMap<String, String>> {
        let text: String = self.try_ask(&["INFO", section]).await?;
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Returns how often each command ran since the start or [`reset_commands_run`](Server::reset_commands_run). That includes commands
    /// inside scripts and the test's own (`info`, `client|setname`).
    pub async fn commands_run(&self) -> HashMap<String, u64> {
        let stats = self.info("commandstats").await;
        let calls = stats.iter().filter_map(|(name, value)| {
            let calls = value.strip_prefix("calls=")?.split(',').next()?.parse().ok()?;
            Some((name.strip_prefix("cmdstat_")?.to_owned(), calls))
        });
        calls.collect()
    }

    /// Returns how often a script ran, or was refused because the server did not know it.
    pub async fn scripts_run(&self) -> u64 {
        let run = self.commands_run().await;
        ["evalsha", "eval"].iter().filter_map(|command| run.get(*command)).sum()
    }

    pub async fn reset_commands_run(&self) {
        self.ask::<()>(&["CONFIG", "RESETSTAT"]).await;
    }

    /// Returns the channels of releases that have a subscriber, sorted. The channels of hints are left out, since they stay once a process
    /// has waited.
    pub async fn channels(&self) -> Vec<String> {
        let mut channels = self.all_channels().await;
        channels.retain(|channel| !channel.contains("nestlock_wake:"));
        channels
    }

    /// Returns the channels that have a subscriber, plain and sharded ones, sorted.
    pub async fn all_channels(&self) -> Vec<String> {
        let mut channels: Vec<String> = self.ask(&["PUBSUB", "CHANNELS"]).await;
        channels.extend(self.sharded_channels().await);
        channels.sort();
        channels
    }

    /// Returns the sharded channels that have a subscriber.
    pub async fn sharded_channels(&self) -> Vec<String> {
        self.try_ask(&["PUBSUB", "SHARDCHANNELS"]).await.unwrap_or_default()
    }

    /// Returns how many connections there are in addition to the test's own.
    pub async fn clients(&self) -> usize {
        self.client_ids().await.len()
    }

    /// Returns the ids of the connections that `clients` counts, for `CLIENT KILL ID`.
    pub async fn client_ids(&self) -> HashSet<u64> {
        let list: String = self.ask(&["CLIENT", "LIST"]).await;
        let others = list.lines().filter(|line| !line.contains(&format!(" name={ADMIN} ")));
        others.filter_map(|line| line.strip_prefix("id=")?.split(' ').next()?.parse().ok()).collect()
    }

    /// Returns all keys except those of lines, sorted.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys = self.all_keys().await;
        keys.retain(|key| !key.contains("nestlock_line:"));
        keys
    }

    /// Returns all keys, sorted.
    pub async fn all_keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.ask(&["KEYS", "*"]).await;
        keys.sort();
        keys
    }

    /// Runs `CONFIG SET`.
    pub async fn set(&self, option: &str, value: impl Display) {
        self.ask::<()>(&["CONFIG", "SET", option, &value.to_string()]).await;
    }
}

/// Returns a client for the tests' own connections to this port. The password is passed unchanged, since a URL would have to encode some
/// characters.
pub(super) fn client(port: u16, password: Option<&str>) -> RedisResult<redis::Client> {
    let settings = RedisConnectionInfo::default();
    let settings = match password {
        Some(password) => settings.set_password(password),
        None => settings,
    };
    redis::Client::open(("127.0.0.1", port).into_connection_info()?.set_redis_settings(settings))
}

/// Returns a port that nobody listens on. It is below the ports that systems give to outgoing connections: an outgoing connection could
/// otherwise take the port while its server is down.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id().wrapping_mul(97) % 11_000) as u16;
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + first.wrapping_add(step) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
