//! `nestlock exec`: runs a command while the lock is held.
//!
//! Three processes of this program take part. The command itself holds the lock, and is the parent of the others. The *child* becomes
//! the user's command once everything is prepared ([`start`]). The *watchdog* kills the child at the end of the lease if the command is
//! stopped or killed ([`watchdog`]).

mod end;
mod hold;
mod nest;
mod signals;
mod start;
mod targets;
mod terminal;
mod waiting;
mod watchdog;
mod work;

use std::path::Path;
use std::time::Duration;

use nestlock::{ErrorKind, Locks, Mutexes};
use rustix::process::Signal;

use crate::exec::hold::{Hold, Own};
use crate::exec::nest::{Entry, Nest};
use crate::exec::signals::Signals;
use crate::exec::terminal::Terminal;
use crate::exec::work::Work;
use crate::options::{ExecOptions, ServerOptions};
use crate::servers::Servers;
use crate::status::{Failure, say, warn};

pub(crate) use crate::exec::end::{INTERRUPTED, interrupted};
pub(crate) use crate::exec::start::{START, start};
pub(crate) use crate::exec::watchdog::{WATCHDOG, watch_over};

/// The longest default for the time between TERM and KILL.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// Runs `nestlock exec`. Returns the exit status.
pub(crate) async fn run(options: ExecOptions, servers: ServerOptions, json: bool) -> Result<u8, Failure> {
    let servers = Servers::new(servers)?;
    let kill_after = kill_after(&options, servers.lease)?;
    if let (Some(time), Some(lease)) = (options.at_least, options.fixed_lease)
        && time > lease
    {
        return Err(Failure::config(format!(
            "--at-least {time:?} is more than the --fixed-lease of {lease:?}, which ends the hold; give a longer lease"
        )));
    }
    let mut signals = Signals::new()?;
    let name = options.holder_name.clone().unwrap_or_else(|| holder_name(&options));
    let builder = servers.builder().holder_name(name);
    let locks = tokio::select! {
        locks = builder.connect() => locks?,
        signal = signals.end() => return Ok(ended_by(signal)),
    };
    let nest = Nest::from_env();
    let entered = tokio::select! {
        entered = enter(&nest, &locks, &options, &servers.key_prefix, json) => entered.map(Ok),
        signal = signals.end() => Ok(Err(signal)),
    };
    let outcome = match entered {
        Ok(Ok(hold)) => {
            let work = Work {
                options: &options,
                key_prefix: &servers.key_prefix,
                kill_after,
                lease: servers.lease,
                json,
            };
            work::run(work, nest, hold, &mut signals).await
        }
        Ok(Err(signal)) => {
            warn(json, &format!("ended by {} before the lock was taken", signals::name(signal)));
            Ok(ended_by(signal))
        }
        Err(failure) => Err(failure),
    };
    // Open requests and holds are undone or released; `close` waits for that for two node timeouts.
    let _ = locks.close().await;
    if outcome.as_ref().is_ok_and(|status| *status == ended_by(Signal::INT)) && Terminal::open().is_some() {
        end::by_interrupt();
    }
    outcome
}

fn ended_by(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

/// Enters the holds of commands around this one, and waits for the other locks.
async fn enter(
    nest: &Nest,
    locks: &Locks,
    options: &ExecOptions,
    key_prefix: &str,
    json: bool,
) -> Result<Hold, Failure> {
    let mut hold = Hold { entered: Vec::new(), own: None };
    let mut others = Vec::new();
    for name in options.names() {
        let shown = name.escape_debug();
        match nest.enter(&locks.mutex(name), &format!("{key_prefix}{name}")).await? {
            Entry::Entered(entered) if options.fenced && entered.token().is_none() => {
                return Err(Failure::config(format!(
                    "lock `{shown}`: the `nestlock exec` around this one holds it without a fencing token; give that one --fenced too"
                )));
            }
            Entry::Entered(entered) => {
                hold.entered.push(entered);
                continue;
            }
            // The wait may last forever.
            Entry::LockedOut if !options.no_wait => warn(
                json,
                &format!(
                    "lock `{shown}`: the `nestlock exec` around this one holds it, and can't be entered by another user or from \
                     another container; this one waits for its release"
                ),
            ),
            Entry::LockedOut | Entry::Free => {}
        }
        others.push(name);
    }
    if others.is_empty() {
        return Ok(hold);
    }
    let request = acquire(locks.mutexes(&others), options);
    let request = async {
        match options.quiet {
            true => request.await,
            false => waiting::reported(request, locks, json, say).await,
        }
    };
    let own = tokio::select! {
        biased;
        end = hold.lost(), if !hold.entered.is_empty() => {
            return Err(Failure::lost(format!(
                "the lock of the `nestlock exec` around this one was lost before this one had all of its own: {}",
                end.why
            )));
        }
        own = request => own?,
    };
    hold.own = Some(own);
    Ok(hold)
}

/// Takes the locks, according to the options.
async fn acquire(mutexes: Mutexes, options: &ExecOptions) -> Result<Own, Failure> {
    // `try_lock` would not report who holds the lock.
    let within = if options.no_wait { Some(Duration::ZERO) } else { options.wait };
    macro_rules! granted {
        ($request:expr) => {{
            let mut request = $request;
            if let Some(within) = within {
                request = request.within(within);
            }
            if let Some(lease) = options.fixed_lease {
                request = request.fixed_lease(lease);
            }
            if let Some(time) = options.at_least {
                request = request.at_least(time);
            }
            request.await
        }};
    }
    let granted = match options.fenced {
        true => granted!(mutexes.fenced().lock()).map(Own::fenced),
        false => granted!(mutexes.lock()).map(Own::plain),
    };
    granted.map_err(|error| match error.kind() {
        ErrorKind::Timeout => {
            Failure::busy(options.busy_status, error.lock().unwrap_or(&options.name), Some(&error))
        }
        _ => error.into(),
    })
}

/// Returns how long before the end of the lease the child gets TERM. A third of the lease passes between two renewals.
fn kill_after(options: &ExecOptions, lease: Duration) -> Result<Duration, Failure> {
    let (what, lease, most) = match options.fixed_lease {
        Some(fixed) => ("--fixed-lease", fixed, fixed / 2),
        None => ("--lease", lease, lease / 3),
    };
    match options.kill_after {
        Some(asked) if asked > most => Err(Failure::config(format!(
            "--kill-after {asked:?} leaves too little of the {what} of {lease:?}; give {most:?} at most, or a longer lease"
        ))),
        Some(asked) => Ok(asked),
        None => Ok(KILL_AFTER.min(lease / 6)),
    }
}

/// Returns the name under which others see the holder, such as `backup.sh@web-7`.
fn holder_name(options: &ExecOptions) -> String {
    let command = match &options.shell {
        // The first part usually tells what it is. But it may set a variable, such as a password, which others must not see. Its
        // value may be quoted, so the words that follow are not shown either.
        Some(text) => {
            let ends = |char: char| char.is_whitespace() || ";|&()<>".contains(char);
            let text = text.to_string_lossy();
            let first = text.split(ends).find(|word| !word.is_empty()).unwrap_or_default();
            if first.contains(['=', '"', '\'', '$', '`']) { "sh".into() } else { first.into() }
        }
        None => options.command.first().cloned().unwrap_or_default(),
    };
    let name = Path::new(&command).file_name().unwrap_or_default();
    let host = rustix::system::uname();
    let part = |text: &str, most: usize| -> String {
        let plain =
            |char: char| if char.is_ascii_alphanumeric() || "._-+".contains(char) { char } else { '_' };
        text.chars().take(most).map(plain).collect()
    };
    format!("{}@{}", part(&name.to_string_lossy(), 24), part(&host.nodename().to_string_lossy(), 38))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::{Call, Options};

    fn name_of(words: &[&str]) -> String {
        let options = Options::try_parse_from([&["nestlock", "exec", "a"], words].concat()).unwrap();
        let Call::Exec(options) = options.call else { panic!("{words:?}") };
        holder_name(&options)
    }

    #[test]
    fn a_name_is_short_and_plain() {
        let name = name_of(&["/usr/bin/a b:c\u{fc}-a-very-long-name-of-a-command"]);
        assert!(name.starts_with("a_b_c_-a-very-long-name-@"), "{name}");
        assert!(name.len() <= 64 && !name.contains(':'), "{name}");
        assert!(name_of(&["-c", "(/usr/bin/pg_dump;date) | gzip"]).starts_with("pg_dump@"));
        for text in ["PGPASSWORD=hunter2 pg_dump shop", "A='b hunter2' pg_dump shop", "\"$HOME/hunter2\""] {
            assert!(name_of(&["-c", text]).starts_with("sh@"), "{text}");
        }
    }
}
