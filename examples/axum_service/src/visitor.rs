//! A client that sends all its requests over one connection, which the server keeps alive.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;
use tokio::time::timeout;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Far longer than an answer takes.
const TOO_LONG: Duration = Duration::from_secs(20);

pub(crate) struct Visitor {
    stream: BufStream<TcpStream>,
    prints: bool,
}

impl Visitor {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Visitor> {
        Ok(Visitor { stream: BufStream::new(TcpStream::connect(address).await?), prints: false })
    }

    pub(crate) fn print_requests(&mut self) {
        self.prints = true;
    }

    /// Sends a request, and fails if the answer has another status.
    pub(crate) async fn expect(&mut self, method: &str, path: &str, body: &str, status: u16) -> Result<()> {
        self.send(method, path, body).await?;
        let (answered, text) = self.receive().await?;
        if self.prints {
            println!("{method:6} {path:26} {body:1} -> {answered} {text}");
        }
        if answered != status {
            return Err(
                format!("{method} {path} must be answered by {status}, not by {answered} {text}").into()
            );
        }
        Ok(())
    }

    /// Sends a request, and does not wait for its answer: several may be on their way at once.
    pub(crate) async fn send(&mut self, method: &str, path: &str, body: &str) -> Result<()> {
        let length = body.len();
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}");
        self.stream.write_all(request.as_bytes()).await?;
        Ok(self.stream.flush().await?)
    }

    /// Returns the status and the body of the next answer.
    pub(crate) async fn receive(&mut self) -> Result<(u16, String)> {
        timeout(TOO_LONG, self.answer()).await.map_err(|_| "the server does not answer")?
    }

    async fn answer(&mut self) -> Result<(u16, String)> {
        let status = self.line().await?;
        let status = status.split(' ').nth(1).ok_or("the answer has no status")?.parse()?;
        let mut length = 0;
        loop {
            let header = self.line().await?.to_ascii_lowercase();
            match header.split_once(": ") {
                Some(("content-length", value)) => length = value.parse()?,
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok((status, String::from_utf8(body)?))
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            return Err("the server closed the connection".into());
        }
        Ok(line.trim_end().to_owned())
    }
}
