//! The simulated connections between one process and one master, as streams of bytes to a small server. They
//! can be cut after any byte, hold bytes back, and deliver bytes whose client is already gone.

mod connection;
mod requests;
mod server;

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::backend::BoxFuture;
use crate::backend::dialing::{self, Stream};
use crate::base::lock;
use crate::sim::dice::Key;
use crate::sim::gate;
use crate::sim::network::{Between, Network};
use crate::sim::stream::connection::{Connection, Socket};
use crate::sim::stream::server::Server;

/// The longest time for which a restarted master refuses connections.
const STARTING: Duration = Duration::from_millis(500);

thread_local! {
    /// For each process, its cables to each master.
    static CABLES: RefCell<Vec<Vec<Arc<Cable>>>> = const { RefCell::new(Vec::new()) };
}

/// All connections of one process to one master.
pub(super) struct Cable {
    network: Arc<Network>,
    server: Arc<Server>,
    process: usize,
    master: usize,
    sealed: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    made: u64,
    resets: u64,
    connections: Vec<Arc<Connection>>,
    /// Whether the process is gone.
    ended: bool,
}

/// Makes all cables of a run. From now on this thread connects over them.
/// `sealed`: what is written passes through the layer above a socket for TLS.
pub(super) fn plug(network: &Arc<Network>, processes: usize, sealed: bool) -> Vec<Vec<Arc<Cable>>> {
    let servers: Vec<Arc<Server>> =
        (0..network.masters.len()).map(|master| Arc::new(Server::new(network.clone(), master))).collect();
    let cables = (0..processes).map(|process| {
        let cables = servers.iter().enumerate().map(|(master, server)| {
            let (network, server) = (network.clone(), server.clone());
            Arc::new(Cable { network, server, process, master, sealed, state: Mutex::default() })
        });
        cables.collect()
    });
    let cables: Vec<Vec<Arc<Cable>>> = cables.collect();
    CABLES.set(cables.clone());
    dialing::simulate(Some(dial), sealed);
    cables
}

pub(super) fn unplug() {
    dialing::simulate(None, false);
    CABLES.take();
}

/// Returns the host name of a master.
pub(super) fn host(master: usize) -> String {
    format!("m{master}")
}

fn dial(host: &str) -> BoxFuture<io::Result<Stream>> {
    let master = host.strip_prefix('m').and_then(|number| number.parse::<usize>().ok());
    let cable = gate::current().zip(master).and_then(|(process, master)| {
        CABLES.with_borrow(|cables| cables.get(process.id)?.get(master).cloned())
    });
    Box::pin(async move {
        let cable = cable.ok_or(io::ErrorKind::AddrNotAvailable)?;
        cable.connect().await
    })
}

impl Cable {
    fn key(&self, number: u64) -> Key {
        self.network.key.with(300).with(self.process as u64).with(self.master as u64).with(number)
    }

    /// Returns until when a restarted master refuses connections.
    fn refused_until(&self) -> Option<Instant> {
        let run = self.server.run();
        let key = self.network.key.with(301).with(self.master as u64).with(run.number);
        run.started.map(|started| started + key.time(STARTING)).filter(|until| Instant::now() < *until)
    }

    async fn connect(&self) -> io::Result<Stream> {
        let (network, number) = (&self.network, {
            let mut state = lock(&self.state);
            state.made += 1;
            state.made
        });
        let key = self.key(number);
        sleep(key.with(1).time(network.latency)).await;
        while let Some(until) = network.cut_until(self.process, self.master) {
            sleep_until(until).await;
        }
        if let Some(until) = self.refused_until() {
            network.history.trouble_until(until);
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        sleep(key.with(2).time(network.latency)).await;
        let mut state = lock(&self.state);
        if state.ended {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let connection =
            Connection::new(network, &self.server, (self.process, self.master), number, key.with(3));
        state.connections.retain(|connection| !connection.is_over());
        state.connections.push(connection.clone());
        Ok(Box::pin(Socket { connection, may_be_full: self.sealed }))
    }

    fn connections(&self) -> Vec<Arc<Connection>> {
        lock(&self.state).connections.clone()
    }
}

impl Between for Cable {
    fn reset(&self) {
        let mut state = lock(&self.state);
        state.resets += 1;
        let key = self.key(state.resets).with(4);
        drop(state);
        self.connections().iter().for_each(|connection| connection.is_reset(key));
    }

    fn end(&self) {
        lock(&self.state).ended = true;
        self.connections().iter().for_each(|connection| connection.is_left());
    }

    fn subscriptions(&self) -> usize {
        self.connections().iter().map(|connection| connection.subscriptions()).sum()
    }
}
