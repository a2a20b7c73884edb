//! The server's own load generator, as a second, lower floor: it is in C, without a client library.

use std::process::Stdio;

use redis::Script;
use tokio::process::Command;

use crate::floor::{ACQUIRE, FIELD, Floor, RELEASE};
use crate::server::{Result, url};

/// The generator repeats a single command, so both scripts are put into one: the result takes the key if it
/// is free, and otherwise releases it. The bodies are those of the two scripts, and neither asks the server
/// for more than it does alone.
pub(crate) struct Benchmark {
    program: String,
    port: u16,
    sha: String,
}

impl Benchmark {
    pub(crate) async fn new(floor: &Floor) -> Result<Benchmark> {
        let looks = "local ttl = redis.call('PTTL', KEYS[1])";
        let acquire = ACQUIRE.replacen(looks, "", 1);
        let body = format!(
            "local function release()\nlocal ARGV = {{ARGV[1], '0', ARGV[4]}}\n{RELEASE}\nend\n{looks}\n\
             if ttl ~= -2 then return release() end\n{acquire}"
        );
        let sha = Script::new(&body).prepare_invoke().load_async(&mut floor.connection.clone()).await?;
        let server = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let program = server.strip_suffix("-server").unwrap_or("redis").to_owned() + "-benchmark";
        let port = url().rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(6379);
        Ok(Benchmark { program, port, sha })
    }

    /// Runs that many pairs, on as many keys as one pipeline has commands. Returns the pairs per second, and
    /// twice the median time of one command in microseconds.
    pub(crate) async fn pairs(&self, pipeline: usize, pairs: usize) -> Result<(f64, f64)> {
        let (key, channel) = ("bench:__rand_int__", "redisson_lock__channel:{bench:__rand_int__}");
        let (keys, commands) = (pipeline.to_string(), (2 * pairs).to_string());
        let mut command = Command::new(&self.program);
        command.args(["-p", &self.port.to_string(), "-c", "1", "-P", &keys, "--csv"]);
        command.args(["-r", &keys, "-n", &commands]);
        command.args(["EVALSHA", &self.sha, "1", key, FIELD, "1", "30000", channel]);
        let output = command.stdin(Stdio::null()).output().await;
        let output = output.map_err(|error| format!("{} does not start: {error}", self.program))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        // The last line: the command, what it did in a second, and times in milliseconds: average, lowest, median, more.
        let fields: Vec<&str> = printed.lines().last().unwrap_or_default().split("\",\"").collect();
        let figure = |at: usize| fields.get(at)?.parse::<f64>().ok();
        let (Some(commands), Some(median)) = (figure(1), figure(4)) else {
            return Err(format!("{} prints no rate: {printed}", self.program).into());
        };
        Ok((commands / 2.0, 2.0 * median * 1e3))
    }
}
