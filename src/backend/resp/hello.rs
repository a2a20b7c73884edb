//! The first commands over a connection: protocol, credentials, database, and the name of this library.

use redis::{
    Cmd, ConnectionAddr, ErrorKind, RedisConnectionInfo, RedisResult, ServerError, ServerErrorKind, Value,
    cmd,
};

use crate::backend::resp::connection::{Connection, OnPush};
use crate::backend::resp::socket::{self, Reader, Writer};
use crate::config::Destination;

/// Connects to a server, and does what is needed before the first command.
pub(crate) async fn open(to: &Destination, on_push: OnPush) -> RedisResult<Connection> {
    let opened = over(socket::open(to).await?, to.redis_settings(), on_push).await;
    match opened {
        // This is how a port for TLS answers a command in plain text.
        Err(error) if error.is_connection_dropped() && matches!(to.addr(), ConnectionAddr::Tcp(..)) => {
            let text = format!("{error}; {ONE_FOR_TLS}");
            Err(std::io::Error::new(std::io::ErrorKind::ConnectionReset, text).into())
        }
        opened => opened,
    }
}

const ONE_FOR_TLS: &str = "if the server's port is one for TLS, its URL has to begin with rediss://";

/// Like [`open`], over this stream.
pub(super) async fn over(
    halves: (Reader, Writer),
    settings: &RedisConnectionInfo,
    on_push: OnPush,
) -> RedisResult<Connection> {
    let commands = commands(settings);
    let encode = |bytes: &mut Vec<u8>| commands.iter().for_each(|cmd| cmd.write_packed_command(bytes));
    let (connection, answers, all) = Connection::start(halves, on_push, commands.len(), encode).await?;
    // A server that takes no more clients, or is in protected mode, sends each new client an error before it hangs up. That error
    // is the first answer.
    if let (Err(_), Some(Value::ServerError(refused))) = (&all, answers.first())
        && !is_unknown(refused)
    {
        return Err(refused.clone().into());
    }
    check(settings, answers)?;
    all.map(|()| connection)
}

/// Returns whether this is the answer to a command that the server does not know. It may repeat the password.
fn is_unknown(refused: &ServerError) -> bool {
    refused.details().is_some_and(|text| text.to_lowercase().starts_with("unknown"))
}

fn commands(settings: &RedisConnectionInfo) -> Vec<Cmd> {
    let mut hello = cmd("HELLO");
    hello.arg(3);
    if let Some(password) = settings.password() {
        hello.arg("AUTH").arg(settings.username().unwrap_or("default")).arg(password);
    }
    let mut commands = vec![hello];
    if settings.db() != 0 {
        commands.push(cmd("SELECT").arg(settings.db()).take());
    }
    if !settings.skip_set_lib_name() {
        // Redis knows these properties since version 7.2.
        for (property, value) in [("LIB-NAME", settings.lib_name()), ("LIB-VER", settings.lib_ver())] {
            commands.push(cmd("CLIENT").arg("SETINFO").arg(property).arg(value.unwrap_or_default()).take());
        }
    }
    commands
}

fn check(settings: &RedisConnectionInfo, answers: Vec<Value>) -> RedisResult<()> {
    let mut answers = answers.into_iter();
    if let Some(Value::ServerError(refused)) = answers.next() {
        let is_unknown = refused.details().is_some_and(|text| text.starts_with("unknown command `HELLO`"));
        return Err(match is_unknown {
            true => (ErrorKind::RESP3NotSupported, "the server does not know HELLO").into(),
            false => refused.into(),
        });
    }
    if settings.db() != 0
        && let Some(Value::ServerError(refused)) = answers.next()
    {
        if refused.code() != "ERR" {
            // A database that can't be selected now, as while a script runs for long, or a right that is missing.
            return Err(refused.into());
        }
        let why = refused.details().unwrap_or_default().to_owned();
        let kind = ServerErrorKind::ResponseError.into();
        return Err((kind, "Redis server refused to switch database", why).into());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
