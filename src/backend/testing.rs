//! A real server for tests, stopped when it is dropped, and a recorder of the events of a backend.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::backend::connection::{Connection, Link};
use crate::backend::resp;
use crate::backend::server::{RedisServer, Role};
use crate::base::Events;
use crate::config::{AddressMap, Server};
use crate::error::{Error, Result};

/// The role of a lone master, whose age does not matter.
pub(in crate::backend) const ALONE: Role = Role {
    alone: true,
    node_timeout: Duration::from_secs(10),
    needs_age: false,
    uses_backup_thread: false,
    replicas: None,
    one_vote: None,
    login: None,
    address_map: AddressMap::NONE,
};

impl RedisServer {
    /// Returns a server that one attempt was made to connect to.
    pub(crate) async fn connect(
        server: &Server,
        role: Role,
        node_timeout: Duration,
        events: Weak<dyn Events>,
    ) -> Result<(Arc<RedisServer>, Option<Error>)> {
        RedisServer::at(server, Role { node_timeout, ..role }, events)?.connect().await
    }
}

/// Returns a connection over this stream, on which nothing was sent yet.
pub(in crate::backend) async fn commands(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Connection {
    resp::testing::open_silent(stream)
}

/// Returns the connection of this number.
pub(in crate::backend) fn link(connection: Connection, id: u64) -> Link {
    Link { connection, id, status: Arc::default(), paired_with: None, run_id: None, logged_in: None }
}

/// The timeout of each wait. Far more than a busy machine needs: it only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct TestServer {
    child: Option<Child>,
    port: u16,
    options: Vec<String>,
    dir: PathBuf,
}

impl TestServer {
    pub(crate) async fn start(options: &[&str]) -> TestServer {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("nestlock-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let mut server = TestServer { child: None, port: 0, options, dir };
        // Another process may bind the free port before the server does.
        while !server.run(free_port()).await {}
        server
    }

    pub(in crate::backend) async fn restart(&mut self) {
        assert!(self.run(self.port).await, "another process has bound port {}", self.port);
    }

    /// Starts the server on this port and returns whether it did. That is read from its own log: another process's server may answer there.
    async fn run(&mut self, port: u16) -> bool {
        self.kill();
        self.port = port;
        let log = self.dir.join("log");
        let _ = std::fs::remove_file(&log);
        let child = Command::new(std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into()))
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .arg("--dir")
            .arg(&self.dir)
            .arg("--logfile")
            .arg(&log)
            .args(&self.options)
            .stdout(Stdio::null())
            .spawn();
        let child = self.child.insert(child.unwrap());
        let up = async {
            loop {
                if std::fs::read_to_string(&log).is_ok_and(|log| log.contains("Ready to accept connections"))
                {
                    return true;
                }
                if child.try_wait().unwrap().is_some() {
                    return false;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, up).await.unwrap()
    }

    pub(in crate::backend) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends a signal: `STOP` freezes the server, `CONT` resumes it.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
    }

    pub(crate) fn url(&self, credentials: &str) -> String {
        format!("redis://{credentials}127.0.0.1:{}", self.port)
    }

    pub(in crate::backend) async fn admin(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.url("")).unwrap();
        // By default the redis crate gives up after one second, which a busy machine can exceed.
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
    }

    /// Runs a command line as the default user.
    pub(crate) async fn command(&self, command: &str) -> redis::Value {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap());
        cmd.arg(words.collect::<Vec<_>>());
        cmd.query_async(&mut self.admin().await).await.unwrap()
    }

    /// Returns how many commands of that name have run since the last `CONFIG RESETSTAT`.
    pub(in crate::backend) async fn count(&self, command: &str) -> u64 {
        let redis::Value::BulkString(text) = self.command("INFO commandstats").await else { panic!() };
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    }
}

#[cfg(all(feature = "redis-1", any(feature = "tls-rustls", feature = "tls-native-tls")))]
impl TestServer {
    /// Starts a server with a second port, for TLS, and a self-signed certificate for `localhost`.
    pub(in crate::backend) async fn start_tls() -> TestServer {
        let mut server = TestServer::start(&[]).await;
        let (certificate, key) = (server.certificate(), server.dir.join("key.pem"));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
            .args([
                "-addext",
                "subjectAltName=DNS:localhost,IP:127.0.0.1",
                "-addext",
                "basicConstraints=critical,CA:FALSE",
            ])
            .arg("-out")
            .arg(&certificate)
            .arg("-keyout")
            .arg(&key)
            .stderr(Stdio::null())
            .status();
        assert!(made.unwrap().success());
        let port = free_port();
        let path = |path: &PathBuf| path.to_str().unwrap().to_owned();
        server.options = ["--tls-auth-clients", "no", "--tls-port"].map(str::to_owned).into();
        server.options.extend([port.to_string(), "--tls-cert-file".into(), path(&certificate)]);
        server.options.extend(["--tls-key-file".into(), path(&key)]);
        server.options.extend(["--tls-ca-cert-file".into(), path(&certificate)]);
        server.restart().await;
        server
    }

    pub(in crate::backend) fn certificate(&self) -> PathBuf {
        self.dir.join("cert.pem")
    }

    pub(in crate::backend) fn tls_port(&self) -> &str {
        &self.options[3]
    }
}

impl TestServer {
    /// Returns the number of connected clients, including the one that this call makes.
    pub(in crate::backend) async fn clients(&self) -> usize {
        let redis::Value::BulkString(text) = self.command("CLIENT LIST").await else { panic!() };
        String::from_utf8(text).unwrap().lines().count()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Polls until the condition holds. For conditions that no event reports.
pub(in crate::backend) async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let polling = async {
        while !condition().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, polling).await.unwrap();
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend) enum Event {
    Reconnected,
    /// Slots have moved: whether those of the keys "a" and "b" have.
    Moved([bool; 2]),
    Subscribed(String),
    Message(String),
    /// A message on a process's channel, with this text.
    Hint(String, String),
    NotSubscribed(String),
    SubscriptionsLost,
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

struct EventSender(mpsc::UnboundedSender<Event>);

/// Records the events of a backend, in order. It keeps the [`Events`] alive, which the backend references only weakly.
pub(in crate::backend) struct EventRecorder {
    sender: Arc<dyn Events>,
    events: mpsc::UnboundedReceiver<Event>,
}

impl EventRecorder {
    pub(in crate::backend) fn new() -> EventRecorder {
        let (sender, events) = mpsc::unbounded_channel();
        EventRecorder { sender: Arc::new(EventSender(sender)), events }
    }

    pub(in crate::backend) fn sender(&self) -> std::sync::Weak<dyn Events> {
        Arc::downgrade(&self.sender)
    }

    pub(in crate::backend) async fn next(&mut self) -> Event {
        timeout(PATIENCE, self.events.recv()).await.unwrap().unwrap()
    }

    /// Returns an event that has arrived by now.
    pub(in crate::backend) fn try_next(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    pub(in crate::backend) fn expect_none(&mut self) {
        assert_eq!(self.try_next(), None);
    }
}

impl Events for EventSender {
    fn reconnected(&self) {
        let _ = self.0.send(Event::Reconnected);
    }
    fn moved(&self, is_concerned: &dyn Fn(&str) -> bool) {
        let _ = self.0.send(Event::Moved(["a", "b"].map(is_concerned)));
    }
    fn subscribed(&self, channel: &str) {
        let _ = self.0.send(Event::Subscribed(channel.into()));
    }
    fn message(&self, channel: &str, text: &str) {
        let _ = self.0.send(match text {
            "0" => Event::Message(channel.into()),
            _ => Event::Hint(channel.into(), text.into()),
        });
    }
    fn not_subscribed(&self, channel: &str) {
        let _ = self.0.send(Event::NotSubscribed(channel.into()));
    }
    fn subscriptions_lost(&self) {
        let _ = self.0.send(Event::SubscriptionsLost);
    }
}
/// Servers in memory, by host. Over real sockets a paused clock would go on while bytes are in flight.
pub(in crate::backend) mod fakes {
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::io;
    use std::sync::{Arc, Mutex};

    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex, split};
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tokio::task::AbortHandle;

    use crate::backend::BoxFuture;
    use crate::backend::dialing::{self, Stream};
    use crate::base::lock;

    thread_local! {
        static SERVERS: RefCell<HashMap<String, FakeServer>> = RefCell::default();
    }

    type Answer = Box<dyn FnMut(&[&str]) -> Option<String> + Send>;

    /// A server in memory. Cheap to clone.
    #[derive(Clone)]
    pub(in crate::backend) struct FakeServer(Arc<Mutex<Fake>>);

    struct Fake {
        answer: Answer,
        requests: Vec<String>,
        connections: Vec<Connection>,
    }

    struct Connection {
        sender: UnboundedSender<String>,
        tasks: [AbortHandle; 2],
    }

    impl FakeServer {
        /// Makes this thread connect to it under this host name, at any port, instead of over the network. `answer` returns what the
        /// server answers to the words of a request; after `None` it never answers that request.
        pub(in crate::backend) fn start(
            host: &str,
            answer: impl FnMut(&[&str]) -> Option<String> + Send + 'static,
        ) -> FakeServer {
            let fake = Fake { answer: Box::new(answer), requests: Vec::new(), connections: Vec::new() };
            let server = FakeServer(Arc::new(Mutex::new(fake)));
            SERVERS.with_borrow_mut(|servers| servers.insert(host.to_owned(), server.clone()));
            dialing::simulate(Some(dial), false);
            server
        }

        /// Replaces `answer`.
        pub(in crate::backend) fn answers(
            &self,
            answer: impl FnMut(&[&str]) -> Option<String> + Send + 'static,
        ) {
            lock(&*self.0).answer = Box::new(answer);
        }

        /// Sends a message over all of its connections.
        pub(in crate::backend) fn publish(&self, channel: &str, text: &str) {
            self.send(&array(&["message", channel, text]).replacen('*', ">", 1));
        }

        /// Sends these bytes over all of its connections, such as an answer that was held back.
        pub(in crate::backend) fn send(&self, bytes: &str) {
            lock(&*self.0).connections.iter().for_each(|connection| {
                let _ = connection.sender.send(bytes.to_owned());
            });
        }

        /// Closes its connections.
        pub(in crate::backend) fn hang_up(&self) {
            let connections = std::mem::take(&mut lock(&*self.0).connections);
            connections.iter().flat_map(|connection| &connection.tasks).for_each(AbortHandle::abort);
        }

        /// Returns how many requests began with these words.
        pub(in crate::backend) fn count(&self, words: &str) -> usize {
            lock(&*self.0).requests.iter().filter(|request| request.starts_with(words)).count()
        }

        fn accept(&self, stream: DuplexStream) {
            let (reader, mut writer) = split(stream);
            let (sender, mut answers) = unbounded_channel::<String>();
            let (me, sends) = (self.clone(), sender.clone());
            let reading = tokio::spawn(async move {
                let mut reader = BufReader::new(reader);
                while let Ok(words) = request(&mut reader).await {
                    let words: Vec<&str> = words.iter().map(String::as_str).collect();
                    let mut fake = lock(&*me.0);
                    fake.requests.push(words.join(" "));
                    if let Some(answer) = (fake.answer)(&words) {
                        let _ = sends.send(answer);
                    }
                }
            });
            let writing = tokio::spawn(async move {
                while let Some(answer) = answers.recv().await {
                    if writer.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
            let tasks = [reading.abort_handle(), writing.abort_handle()];
            lock(&*self.0).connections.push(Connection { sender, tasks });
        }
    }

    fn dial(host: &str) -> BoxFuture<io::Result<Stream>> {
        let server = SERVERS.with_borrow(|servers| servers.get(host).cloned());
        Box::pin(async move {
            let server = server.ok_or(io::ErrorKind::ConnectionRefused)?;
            let (ours, theirs) = duplex(1 << 16);
            server.accept(theirs);
            Ok(Box::pin(ours) as Stream)
        })
    }

    async fn request(reader: &mut (impl AsyncBufReadExt + Unpin)) -> io::Result<Vec<String>> {
        let mut words = Vec::new();
        for _ in 0..number(reader).await? {
            let mut word = vec![0; number(reader).await? + 2];
            reader.read_exact(&mut word).await?;
            word.truncate(word.len() - 2);
            words.push(String::from_utf8(word).unwrap());
        }
        Ok(words)
    }

    /// Reads a line and returns the number after its type byte.
    async fn number(reader: &mut (impl AsyncBufReadExt + Unpin)) -> io::Result<usize> {
        let mut line = String::new();
        reader.read_line(&mut line).await?;
        line.get(1..).and_then(|text| text.trim_end().parse().ok()).ok_or(io::ErrorKind::UnexpectedEof.into())
    }

    /// Answers like a server that grants every request.
    pub(in crate::backend) fn usual(words: &[&str]) -> Option<String> {
        Some(match words {
            ["HELLO", ..] => "%1\r\n+role\r\n+master\r\n".to_owned(),
            ["SUBSCRIBE" | "UNSUBSCRIBE", channel] => {
                let head = array(&[&words[0].to_lowercase(), channel]);
                head.replacen("*2", ">3", 1) + ":1\r\n"
            }
            ["PING"] => "+PONG\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        })
    }

    /// Returns a list of texts as it is sent.
    pub(in crate::backend) fn array(texts: &[&str]) -> String {
        let texts = texts.iter().map(|text| format!("${}\r\n{text}\r\n", text.len()));
        format!("*{}\r\n{}", texts.len(), texts.collect::<String>())
    }
}
