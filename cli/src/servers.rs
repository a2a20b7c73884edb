//! Turns addresses into masters: for the locks, and for a look at all keys.

use std::time::Duration;

use nestlock::{Builder, Locks, Master, Server};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, Value,
};

use crate::options::ServerOptions;
use crate::status::Failure;

/// The time limit for a page of `SCAN`: none takes this long unless the server is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// The servers that keep the locks, and the options of all calls.
pub(crate) struct Servers {
    deployment: Deployment,
    /// The prefix of each name.
    pub(crate) key_prefix: String,
    pub(crate) lease: Duration,
    restart_delay: Option<Duration>,
    node_timeout: Duration,
}

enum Deployment {
    Masters(Vec<Address>),
    Sentinel(Vec<Address>, String),
    Cluster(Vec<Address>),
}

/// The address of a server, with its credentials.
struct Address {
    server: Server,
    /// `None` if it can't be read.
    info: Option<ConnectionInfo>,
}

impl Address {
    fn new(url: &str, password: Option<&str>) -> Address {
        let url =
            password.and_then(|password| with_password(url, password)).unwrap_or_else(|| url.to_owned());
        // The crate refuses what it does not know of, such as `?tls=true`, and reports what is wrong without any part of the address.
        Address { server: Server::from(&url), info: url.into_connection_info().ok() }
    }

    fn server(&self) -> Server {
        self.server.clone()
    }

    fn info(&self) -> Option<&ConnectionInfo> {
        self.info.as_ref()
    }
}

/// Returns the URL with this password, or `None` if it has one, or can't be read.
fn with_password(url: &str, password: &str) -> Option<String> {
    let mut parsed = redis::parse_redis_url(url)?;
    if url.into_connection_info().ok()?.redis_settings().password().is_some() {
        return None;
    }
    // A `%` stays as it is there, and would be read as the beginning of a code.
    if parsed.set_password(Some(&password.replace('%', "%25"))).is_err() {
        // A socket has no host, so it has its credentials elsewhere.
        parsed.query_pairs_mut().append_pair("pass", password);
    }
    Some(parsed.into())
}

impl Servers {
    /// Reads the options. The command line takes precedence over the environment.
    pub(crate) fn new(options: ServerOptions) -> Result<Servers, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let password = variable("NESTLOCK_PASSWORD");
        let addresses = |urls: Vec<String>| -> Vec<Address> {
            urls.iter().map(|url| Address::new(url, password.as_deref())).collect()
        };
        let deployment = if !options.sentinel.is_empty() {
            Deployment::Sentinel(addresses(options.sentinel), options.master)
        } else if !options.cluster.is_empty() {
            Deployment::Cluster(addresses(options.cluster))
        } else if !options.url.is_empty() {
            Deployment::Masters(addresses(options.url))
        } else {
            let urls = variable("REDIS_URL").unwrap_or_default();
            Deployment::Masters(addresses(urls.split_whitespace().map(str::to_owned).collect()))
        };
        if matches!(&deployment, Deployment::Masters(masters) if masters.is_empty()) {
            return Err(Failure::config(
                "no server is named; give --url redis://host:6379, --sentinel or --cluster, or set REDIS_URL",
            ));
        }
        Ok(Servers {
            deployment,
            key_prefix: options.key_prefix.or_else(|| variable("NESTLOCK_KEY_PREFIX")).unwrap_or_default(),
            lease: options.lease,
            restart_delay: options.restart_delay,
            node_timeout: options.node_timeout,
        })
    }

    pub(crate) fn builder(&self) -> Builder {
        let builder = match &self.deployment {
            Deployment::Masters(masters) => Locks::quorum(masters.iter().map(Address::server)),
            Deployment::Sentinel(sentinels, name) => {
                Locks::builder(Master::sentinel(sentinels.iter().map(Address::server), name))
            }
            Deployment::Cluster(nodes) => Locks::builder(Master::cluster(nodes.iter().map(Address::server))),
        };
        let builder = builder.prefix(&self.key_prefix).lease(self.lease).node_timeout(self.node_timeout);
        match self.restart_delay {
            Some(longest) => builder.restart_delay(longest),
            None => builder,
        }
    }

    /// Returns connections that together see each lock that is held: all nodes of a cluster, a majority of several masters.
    pub(crate) async fn all_keys(&self) -> Result<Vec<MultiplexedConnection>, Failure> {
        match &self.deployment {
            Deployment::Masters(masters) => {
                let mut connections = Vec::new();
                let mut trouble = None;
                for master in masters.iter().filter_map(Address::info) {
                    match connect(master).await {
                        Ok(connection) => connections.push(connection),
                        Err(error) => trouble = Some(failure(master, &error)),
                    }
                }
                match trouble {
                    Some(trouble) if connections.len() < masters.len() / 2 + 1 => Err(trouble),
                    _ => Ok(connections),
                }
            }
            Deployment::Sentinel(sentinels, name) => {
                let mut trouble = Failure::config("no sentinel is named; give --sentinel");
                let first = sentinels.iter().find_map(Address::info);
                for sentinel in sentinels.iter().filter_map(Address::info) {
                    match master_by(sentinel, name).await {
                        Ok((host, port)) => {
                            let master = at(first.unwrap_or(sentinel), host, port);
                            return Ok(vec![
                                connect(&master).await.map_err(|error| failure(&master, &error))?,
                            ]);
                        }
                        Err(error) => trouble = failure(sentinel, &error),
                    }
                }
                Err(trouble)
            }
            Deployment::Cluster(nodes) => {
                let mut trouble = Failure::config("no node is named; give --cluster");
                for seed in nodes.iter().filter_map(Address::info) {
                    match masters_of(seed).await {
                        Ok(masters) => {
                            let mut connections = Vec::new();
                            for (host, port) in masters {
                                let node = at(seed, host, port);
                                connections
                                    .push(connect(&node).await.map_err(|error| failure(&node, &error))?);
                            }
                            return Ok(connections);
                        }
                        Err(error) => trouble = failure(seed, &error),
                    }
                }
                Err(trouble)
            }
        }
    }
}

async fn connect(info: &ConnectionInfo) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    Client::open(info.clone())?.get_multiplexed_async_connection_with_config(&config).await
}

/// Returns the same server settings at another address.
fn at(info: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let address = match info.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(address)
}

/// Asks a sentinel for its master, with the credentials of its address and, if it refuses them, without.
async fn master_by(sentinel: &ConnectionInfo, name: &str) -> Result<(String, u16), RedisError> {
    let bare = sentinel.redis_settings().clone().set_db(0);
    let mut connection = match connect(&sentinel.clone().set_redis_settings(bare)).await {
        Ok(connection) => connection,
        Err(_) => connect(&sentinel.clone().set_redis_settings(Default::default())).await?,
    };
    redis::cmd("SENTINEL").arg("get-master-addr-by-name").arg(name).query_async(&mut connection).await
}

/// Asks a node of a cluster where the masters are.
async fn masters_of(seed: &ConnectionInfo) -> Result<Vec<(String, u16)>, RedisError> {
    let mut connection = connect(seed).await?;
    let slots: Vec<Vec<Value>> = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await?;
    let mut masters = Vec::new();
    for range in slots {
        let Some(Value::Array(master)) = range.get(2) else { continue };
        let [host, port, ..] = &master[..] else { continue };
        let host: Option<String> = redis::from_redis_value(host.clone()).ok();
        // A node that does not know its own address leaves it out: it is the node that was asked.
        let host = host.filter(|host| !host.is_empty() && host != "?").unwrap_or_else(|| host_of(seed));
        let node = (host, redis::from_redis_value(port.clone())?);
        if !masters.contains(&node) {
            masters.push(node);
        }
    }
    Ok(masters)
}

fn host_of(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        other => other.to_string(),
    }
}

/// Returns the failure if a server refuses a look at its keys. Its text is not shown, since a server may repeat what it was sent.
pub(crate) fn refused(server: &str, error: &RedisError) -> Failure {
    match error.code() {
        Some("NOPERM") => Failure::denied(format!(
            "{server} denies this user SCAN, which this needs; grant +scan, and +cluster|slots on a cluster"
        )),
        Some("NOAUTH" | "WRONGPASS") => Failure::denied(format!(
            "{server} refuses user or password; correct them in the address, or in NESTLOCK_PASSWORD"
        )),
        Some(code) => Failure::unavailable(format!("{server} can't answer now: {code}; try again")),
        None => Failure::unavailable(format!(
            "{server} can't be reached; check that it runs, its address, and the network"
        )),
    }
}

fn failure(info: &ConnectionInfo, error: &RedisError) -> Failure {
    refused(&format!("the server {}", info.addr()), error)
}
