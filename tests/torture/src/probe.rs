//! How fast a server answers a command that does not concern locks, through the first process's proxies.
//!
//! On a busy machine the servers or the proxies may not run for a while, and then no lock is granted.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::clock;
use crate::deployment::Deployment;
use crate::journal::{Event, Journal};
use crate::login::Login;

/// An answer that takes longer, in nanoseconds, is written to the journal.
const LATE: u64 = 200_000_000;
const PATIENCE: Duration = Duration::from_secs(1);

/// Sends commands to all servers until the result is dropped.
pub(crate) fn start(deployment: &Deployment, journal: &Arc<Journal>) -> JoinSet<()> {
    let mut probes = JoinSet::new();
    for server in 0..deployment.all().len() {
        for proxy in deployment.before(server, Some(0)) {
            probes.spawn(ask(proxy.port(), deployment.login().clone(), journal.clone()));
        }
    }
    probes
}

async fn ask(port: u16, login: Login, journal: Arc<Journal>) {
    let mut connection = None;
    loop {
        let from = clock::now();
        let answer = ping(port, &login, &mut connection).await;
        if answer.is_err() {
            connection = None;
        }
        if answer.is_err() || clock::now() - from > LATE {
            journal.write(Event::Late { from });
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn ping(port: u16, login: &Login, connection: &mut Option<MultiplexedConnection>) -> RedisResult<()> {
    let open = match connection {
        Some(open) => open,
        None => {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(PATIENCE))
                .set_response_timeout(Some(PATIENCE));
            connection
                .insert(login.client(port)?.get_multiplexed_async_connection_with_config(&config).await?)
        }
    };
    redis::cmd("PING").exec_async(open).await
}
