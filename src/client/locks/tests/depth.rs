//! How deep a call is: what a reader steps through from `Mutex::lock` to the socket.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;

use tokio::net::TcpStream;

use crate::Locks;
use crate::backend::BoxFuture;
use crate::backend::dialing::{self, Stream};
use crate::backend::testing::TestServer;

/// The most functions between the request's poll and the write to the socket, and the most files that they stand in.
const MOST: (usize, usize) = (21, 10);

thread_local! {
    static PORT: Cell<u16> = const { Cell::new(0) };
}

fn dial(_: &str) -> BoxFuture<io::Result<Stream>> {
    let port = PORT.get();
    Box::pin(async move { Ok(Box::pin(TcpStream::connect(("127.0.0.1", port)).await?) as Stream) })
}

/// Returns the lines of this crate on a stack, the innermost first, from the write to the poll of the request that made it.
fn lines(stack: &str) -> Option<Vec<&str>> {
    let ours = stack.lines().filter_map(|line| line.trim_start().strip_prefix("at ./src/"));
    let ours: Vec<_> = ours.filter(|line| !line.contains("testing.rs")).collect();
    let request = ours.iter().position(|line| line.starts_with("client/request.rs"))?;
    Some(ours[..=request].to_vec())
}

/// Shown by `scripts/lab/house`.
#[tokio::test]
async fn a_call_is_no_deeper_than_it_was() {
    let server = TestServer::start(&[]).await;
    let url = server.url("");
    let port = url.rsplit_once(':').and_then(|(_, port)| port.trim_end_matches('/').parse().ok());
    PORT.set(port.expect("the address of the server has a port"));
    dialing::simulate(Some(dial), false);
    let locks = Locks::builder(&*url).connect().await.unwrap();
    let mutex = locks.mutex("stock");
    mutex.lock().await.unwrap().release().await.unwrap();
    dialing::writes();
    let guard = mutex.lock().await.unwrap();
    let writes: Vec<_> = dialing::writes().iter().map(ToString::to_string).collect();
    guard.release().await.unwrap();
    locks.close().await.unwrap();
    dialing::simulate(None, false);

    let call = writes.iter().find_map(|stack| lines(stack)).expect("a request writes its command itself");
    let files: BTreeSet<_> = call.iter().filter_map(|line| line.split(':').next()).collect();
    println!("functions: {}, files: {}", call.len(), files.len());
    assert!(call.len() <= MOST.0 && files.len() <= MOST.1, "{}", call.join("\n"));
}
