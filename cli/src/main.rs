//! The command `nestlock`: runs a command while it holds a lock on Redis, and shows who holds which lock.
//!
//! `docs/cli.md` describes it for its users. It uses only the public API of the crate.

mod duration;
mod exec;
mod force;
mod ls;
mod manual;
mod options;
mod output;
mod servers;
mod show;
mod status;
mod watch;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::options::{Call, Options};
use crate::status::{Failure, USAGE};

fn main() -> ExitCode {
    // The helper processes of `exec` are this program too, and so is the one that ends itself by `INT`. They need no runtime.
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(first) if first == exec::START => exec::start(args),
        Some(first) if first == exec::WATCHDOG => exec::watch_over(),
        Some(first) if first == exec::INTERRUPTED => exec::interrupted(),
        _ => run(),
    }
}

fn run() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            let message = error.to_string();
            let json = !is_answer && std::env::args_os().any(|arg| arg == "--json");
            // The message repeats what stands in a wrong place, and an address may have a password.
            if !is_answer && message.contains("://") {
                let message = "an address stands in a wrong place: give it by --url or in REDIS_URL; `nestlock --help` shows how";
                return ExitCode::from(Failure::usage(message).report(json));
            }
            if json {
                return ExitCode::from(Failure::usage(message.trim_end()).report(true));
            }
            // There is nothing left to do if its output is closed.
            let _ = error.print();
            return if is_answer { ExitCode::SUCCESS } else { ExitCode::from(USAGE) };
        }
    };
    let json = options.json;
    // One thread: the kernel ends the child when the thread that started it ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(call(options)),
        Err(error) => Err(Failure::system("nothing can be run", &error)),
    };
    ExitCode::from(outcome.unwrap_or_else(|failure| failure.report(json)))
}

/// Runs the call. Returns the exit status.
async fn call(options: Options) -> Result<u8, Failure> {
    let Options { servers, json, call } = options;
    match call {
        Call::Exec(options) => exec::run(options, servers, json).await,
        Call::Ls(options) => ls::run(options, servers, json).await,
        Call::Show { name } => show::run(&name, servers, json).await,
        Call::Watch { name, interval } => watch::run(&name, interval, servers, json).await,
        Call::Completions { shell } => manual::completions(shell),
        Call::Man { subcommand } => manual::page(subcommand.as_deref()),
        Call::Release { name, force: _ } => force::run(&name, servers, json).await,
    }
}
