//! A bad network between a client and a server, command by command.

mod fault;
mod front;
mod link;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use fault::Rule;
pub use fault::{Fault, On};
use front::{Bound, Listener};
pub use front::{Front, Opening, Stream};
use link::{End, Link};

use super::resp::Command;
use super::sentinel::Sentinel;
use super::server::{Server, free_port};
use super::{log, soon};

/// A proxy on 127.0.0.1 that forwards all data until a fault is set. A drop closes all connections.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    door: mpsc::UnboundedSender<Door>,
    accepting: AbortHandle,
}

struct Shared {
    front: Front,
    server: Mutex<SocketAddr>,
    rules: Mutex<Vec<Arc<Rule>>>,
    links: Mutex<HashMap<u64, Arc<Link>>>,
    count: AtomicU64,
    half_open: Mutex<Option<Which>>,
}

/// Selects connections. A connection that has not subscribed yet counts as one for commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    All,
    Commands,
    Subscribers,
}

impl Which {
    fn covers(self, subscriber: bool) -> bool {
        match self {
            Which::All => true,
            Which::Commands => !subscriber,
            Which::Subscribers => subscriber,
        }
    }
}

enum Door {
    Shut(oneshot::Sender<()>),
    Open(Bound),
}

impl Proxy {
    /// Starts a proxy in front of this server. It finds the server again after a restart.
    pub async fn to(server: &Server) -> Proxy {
        Proxy::over(Front::Tcp, server)
    }

    /// Starts a proxy in front of a sentinel.
    pub async fn to_sentinel(sentinel: &Sentinel) -> Proxy {
        Proxy::before(Front::Tcp, sentinel.port())
    }

    /// Starts a proxy in front of this server. Its clients connect over TLS or a Unix socket.
    pub fn over(front: Front, server: &Server) -> Proxy {
        Proxy::before(front, server.port())
    }

    fn before(front: Front, server: u16) -> Proxy {
        log::capture();
        let (port, listener) = loop {
            let port = free_port();
            if let Ok(listener) = front.listen(port) {
                break (port, listener);
            }
        };
        let shared = Arc::new(Shared {
            front,
            server: Mutex::new(at(server)),
            rules: Mutex::default(),
            links: Mutex::default(),
            count: AtomicU64::new(0),
            half_open: Mutex::default(),
        });
        let (door, orders) = mpsc::unbounded_channel();
        let accepting = tokio::spawn(accept(shared.clone(), listener, orders)).abort_handle();
        Proxy { shared, port, door, accepting }
    }

    /// Returns `redis://127.0.0.1:port`, or the URL for another kind of stream.
    pub fn url(&self) -> String {
        match &self.shared.front {
            Front::Tcp => format!("redis://127.0.0.1:{}", self.port),
            Front::Tls(_) => format!("rediss://localhost:{}", self.port),
            Front::Unix(path) => format!("unix://{}", path.display()),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Selects the commands that a fault hits. If several faults match a command, the oldest one hits it; faults that only
    /// [`watch`](On::watch) still see it.
    pub fn on(&self, matches: impl Fn(&Command) -> bool + Send + Sync + 'static) -> On<'_> {
        On { shared: &self.shared, matches: Box::new(matches), skip: 0, times: usize::MAX }
    }

    /// Resets connections (RST), and returns how many. Data that they had sent and that is not held has reached the server.
    pub async fn reset(&self, which: Which) -> usize {
        self.end(which, End::Reset).await
    }

    /// Closes connections in order (FIN), and returns how many.
    pub async fn close(&self, which: Which) -> usize {
        self.end(which, End::Close).await
    }

    async fn end(&self, which: Which, how: End) -> usize {
        let links = self.links(which);
        for link in &links {
            link.end(how);
        }
        for link in &links {
            soon("the end of a connection", link.ended()).await;
        }
        links.len()
    }

    /// Silently drops all data of these connections in both directions, and of those that are made while the fault is active. They are
    /// never closed, and stay dead after the fault.
    pub fn half_open(&self, which: Which) -> HalfOpen {
        *self.shared.half_open.lock().unwrap() = Some(which);
        for link in self.links(which) {
            link.mute();
        }
        HalfOpen { shared: self.shared.clone() }
    }

    /// Refuses new connections, like a port without a listener. Open connections stay open.
    pub async fn refuse(&self) -> Refusing {
        let (shut, is_shut) = oneshot::channel();
        let _ = self.door.send(Door::Shut(shut));
        soon("the closed door", is_shut).await.unwrap();
        Refusing { door: self.door.clone(), shared: self.shared.clone(), port: self.port }
    }

    /// Leads new connections to that server from now on, as if the address were given to another machine. Open connections stay open.
    pub fn lead_to(&self, server: &Server) {
        *self.shared.server.lock().unwrap() = at(server.port());
    }

    /// Returns how many connections are open.
    pub fn connections(&self, which: Which) -> usize {
        self.links(which).len()
    }

    fn links(&self, which: Which) -> Vec<Arc<Link>> {
        let links = self.shared.links.lock().unwrap();
        links.values().filter(|link| which.covers(link.is_subscriber())).cloned().collect()
    }
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        for link in self.links(Which::All) {
            link.end(End::Close);
        }
    }
}

/// New connections are half open until this is dropped.
#[must_use = "dropping it ends the fault"]
pub struct HalfOpen {
    shared: Arc<Shared>,
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        *self.shared.half_open.lock().unwrap() = None;
    }
}

/// New connections are refused until this is dropped.
#[must_use = "dropping it ends the fault"]
pub struct Refusing {
    door: mpsc::UnboundedSender<Door>,
    shared: Arc<Shared>,
    port: u16,
}

impl Drop for Refusing {
    fn drop(&mut self) {
        // The socket is bound here, not in the proxy's task: after the drop the kernel accepts connections.
        for _ in 0..100 {
            if let Ok(listener) = self.shared.front.listen(self.port) {
                let _ = self.door.send(Door::Open(listener));
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("the proxy's port {} was taken by somebody else", self.port);
    }
}

async fn accept(shared: Arc<Shared>, first: Bound, mut orders: mpsc::UnboundedReceiver<Door>) {
    let mut listener = Some(Listener::new(first));
    loop {
        let next = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = orders.recv() => match order {
                Some(Door::Shut(shut)) => {
                    listener = None;
                    let _ = shut.send(());
                }
                Some(Door::Open(new)) => listener = Some(Listener::new(new)),
                None => return,
            },
            accepted = next => if let Ok(client) = accepted {
                let id = shared.count.fetch_add(1, Ordering::SeqCst) + 1;
                let link = Arc::new(Link::new(id));
                shared.links.lock().unwrap().insert(id, link.clone());
                if *shared.half_open.lock().unwrap() == Some(Which::All) {
                    link.mute();
                }
                tokio::spawn(link::serve(shared.clone(), link, client));
            },
        }
    }
}
