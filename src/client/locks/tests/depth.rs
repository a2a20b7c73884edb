//! How deep a call is: what a reader steps through from `Mutex::lock` to the socket.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;

use tokio::net::TcpStream;

use crate::Locks;
use crate::backend::BoxFuture;
use crate::backend::dialing::{self, Stream};
use crate::backend::testing::TestServer;

/// The most functions between the request's poll and the write to the socket, and the most files that these
/// are in.
const MOST: (usize, usize) = (21, 10);

thread_local! {
    static PORT: Cell<u16> = const { Cell::new(0) };
}

fn dial(_: &str) -> BoxFuture<io::Result<Stream>> {
    let port = PORT.get();
    Box::pin(async move { Ok(Box::pin(TcpStream::connect(("127.0.0.1", port)).await?) as Stream) })
}

/// Returns the functions of this crate on a stack, the innermost first, from the write to the poll of the
/// request that made it. They are given by their lines or, in a program built without those, by their names.
fn functions(stack: &str) -> Option<Vec<&str>> {
    let by_line = stack.lines().filter_map(|line| line.trim_start().strip_prefix("at ./src/"));
    let by_name = stack.lines().filter(|line| line.contains("nestlock::"));
    let has_lines = by_line.clone().next().is_some();
    let all: Vec<_> = if has_lines { by_line.collect() } else { by_name.collect() };
    let ours: Vec<_> = all.into_iter().filter(|name| !name.contains("testing")).collect();
    let request = if has_lines { "client/request.rs" } else { "client::request::" };
    let request = ours.iter().position(|name| name.contains(request))?;
    Some(ours[..=request].to_vec())
}

/// Returns the file of a function: the part before the line number or, in a name, before the type or the
/// function itself.
fn file(function: &str) -> String {
    let Some((_, path)) = function.split_once("nestlock::") else {
        return function.split(':').next().unwrap_or(function).to_owned();
    };
    let is_folder = |part: &&str| part.starts_with(|char: char| char.is_ascii_lowercase());
    let mut parts: Vec<&str> = path.split("::").take_while(is_folder).collect();
    if path.split("::").nth(parts.len()).is_none_or(|next| next.starts_with('{')) {
        parts.pop();
    }
    parts.join("/")
}

/// `scripts/lab/house` shows the result.
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

    let call = writes.iter().find_map(|stack| functions(stack)).expect("a request writes its command itself");
    let files: BTreeSet<_> = call.iter().map(|function| file(function)).collect();
    println!("functions: {}, files: {}", call.len(), files.len());
    assert!(call.len() <= MOST.0 && files.len() <= MOST.1, "{}", call.join("\n"));
}
