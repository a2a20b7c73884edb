//! A simulated distance to the server: all bytes arrive later, in order.

use std::net::{SocketAddr, TcpListener as Listener};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::server::Result;

/// Returns a URL at which the server of `near` is reached with a delay of `way` in each direction. A thread passes the bytes on for as long
/// as the program runs.
pub(crate) fn url(near: &str, way: Duration) -> Result<String> {
    let server = near.strip_prefix("redis://").ok_or("the server is not one over TCP")?;
    let server = server.split(['/', '?']).next().unwrap_or(server).to_owned();
    let listener = Listener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
    let address: SocketAddr = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        runtime.block_on(async move {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            while let Ok((client, _)) = listener.accept().await {
                let server = server.clone();
                tokio::spawn(async move { connect(client, &server, way).await.ok() });
            }
        });
    });
    Ok(format!("redis://{address}"))
}

async fn connect(client: TcpStream, server: &str, way: Duration) -> Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::spawn(pass(from_client, to_server, way));
    tokio::spawn(pass(from_server, to_client, way));
    Ok(())
}

async fn pass(
    mut from: impl AsyncReadExt + Unpin + Send + 'static,
    mut to: impl AsyncWriteExt + Unpin + Send + 'static,
    way: Duration,
) {
    let (sender, mut arriving) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((due, bytes)) = arriving.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if sender.send((Instant::now() + way, bytes[..count].to_vec())).is_err() {
            return;
        }
    }
}
