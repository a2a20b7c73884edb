//! The command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use crate::duration::{parse, positive};
use crate::status::BUSY;

const STATUSES: &str = "\
Exit status:
  the child's own, and 128+n if signal n ended it
  64   the command line is wrong
  69   the servers can't be reached, or too few of them
  70   the lock was lost while the child ran; the child is dead
  71   the operating system refuses: no process can be started
  75   another has the lock (exec -E sets this status)
  77   a server refuses this user: a wrong password, or a right that is missing
  78   an address, an option or a name can't work
  126  the child can't be executed
  127  the child is not found
  1    show: the lock is free; release: it was free

Environment:
  REDIS_URL            the server, if the command line names none;
                       several, separated by spaces, are a quorum
  NESTLOCK_PASSWORD    the password for addresses that have none
  NESTLOCK_KEY_PREFIX  the same as --key-prefix
";

/// Runs a command while it holds a lock on Redis, and shows who holds which lock.
///
/// The locks are those of the crate nestlock, and of Redisson's RLock.
#[derive(Parser)]
#[command(name = "nestlock", version, after_help = STATUSES, max_term_width = 100)]
pub(crate) struct Options {
    /// Prints results as JSON, one object on each line of standard output, and errors too, on standard error
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) servers: ServerOptions,
    #[command(subcommand)]
    pub(crate) call: Call,
}

#[derive(Subcommand)]
pub(crate) enum Call {
    Exec(ExecOptions),
    Ls(LsOptions),
    /// Shows who holds a lock, and who waits for it
    #[command(
        override_usage = "nestlock show [OPTIONS] NAME",
        long_about = "Shows who holds a lock, for how long if nobody renews it, and who waits for it, in order. Exit status 1: \
        it is free."
    )]
    Show {
        /// The name of the lock
        name: String,
    },
    /// Shows who holds a lock, and each change, until it is interrupted
    #[command(override_usage = "nestlock watch [OPTIONS] NAME")]
    Watch {
        /// The name of the lock
        name: String,
        /// How often to ask; a hold that is shorter may be missed
        #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = positive)]
        interval: Duration,
    },
    /// Frees a lock, whoever holds it
    #[command(
        override_usage = "nestlock release [OPTIONS] --force NAME",
        long_about = "Frees a lock, whoever holds it. For a lock whose holder is known to be gone. A holder that \
        is still alive notices at its next renewal, and its child is ended; on one server it notices at once, if its process has \
        waited for any lock before. Exit status 1: it was free."
    )]
    Release {
        /// The name of the lock
        name: String,
        /// Required: only the holder itself releases otherwise
        #[arg(long, required = true)]
        force: bool,
    },
    /// Prints completions for a shell
    #[command(
        override_usage = "nestlock completions SHELL",
        long_about = "Prints completions for a shell. Put them into the folder from which the shell loads completions."
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Prints a man page
    #[command(
        override_usage = "nestlock man [SUBCOMMAND]",
        long_about = "Prints a man page of `nestlock`, or of a subcommand, in the format of man(7)."
    )]
    Man {
        /// The subcommand
        #[arg(value_parser = ["exec", "ls", "show", "watch", "release", "completions", "man"])]
        subcommand: Option<String>,
    },
}

/// Runs a command while the lock is held.
///
/// The command is run without a shell in between. It gets the standard input, the terminal and the working directory. The lock's lease is
/// renewed for as long as it runs. The signals TERM, HUP, QUIT, INT, USR1 and USR2 are passed on to it.
///
/// If the lock is lost, the command gets TERM, and then KILL: it is dead before the lease of the lock is over, even if `nestlock`
/// itself was stopped or killed.
///
/// A nested `nestlock exec` of the same lock re-enters. The environment of the command has NESTLOCK_NAME, NESTLOCK_HOLD (the field that
/// proves the hold) and, with --fenced, NESTLOCK_TOKEN. With several locks, each variable has a line for each lock.
#[derive(Args)]
#[command(override_usage = "nestlock exec [OPTIONS] NAME [--] COMMAND [ARGUMENT]...\n       nestlock exec [OPTIONS] NAME -c TEXT", after_help = STATUSES)]
pub(crate) struct ExecOptions {
    /// The name of the lock
    pub(crate) name: String,
    /// Another lock that the command needs too; repeat it for more. All locks are taken, or none
    #[arg(long, value_name = "NAME")]
    pub(crate) also: Vec<String>,
    /// How long to wait for the lock. Default: no limit
    #[arg(short = 'w', long, alias = "timeout", value_name = "DURATION", value_parser = parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Does not wait: the status is 75 at once if someone else has the lock
    #[arg(short = 'n', long, visible_alias = "nonblock", alias = "nb")]
    pub(crate) no_wait: bool,
    /// The exit status if someone else has the lock
    #[arg(short = 'E', long, visible_alias = "conflict-exit-code", value_name = "STATUS", default_value_t = BUSY)]
    pub(crate) busy_status: u8,
    /// Does not report what it waits for
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
    /// Takes the lock with this lease, and does not renew it: the command is dead when it is over
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    pub(crate) fixed_lease: Option<Duration>,
    /// Keeps the lock for at least that long, even if the command ends sooner, so that the same job does not run again on another machine
    /// whose clock is late
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    pub(crate) at_least: Option<Duration>,
    /// The time between TERM and KILL: the command gets TERM that long before the end of the lease, or when the lock was taken away.
    /// Default: a sixth of the lease, at most 5s
    #[arg(long, value_name = "DURATION", value_parser = parse)]
    pub(crate) kill_after: Option<Duration>,
    /// Gives the command a fencing token, in NESTLOCK_TOKEN
    #[arg(long)]
    pub(crate) fenced: bool,
    /// The name that others see as the holder. Default: the command and the host
    #[arg(long, value_name = "TEXT")]
    pub(crate) holder_name: Option<String>,
    /// Leaves NESTLOCK_PASSWORD in the environment of the command, if it calls `nestlock` itself
    #[arg(long)]
    pub(crate) keep_password: bool,
    /// A text for the shell ($SHELL, or else /bin/sh) in place of a command
    #[arg(short = 'c', long = "command", value_name = "TEXT", conflicts_with = "command")]
    pub(crate) shell: Option<OsString>,
    /// The command and its arguments
    #[arg(required_unless_present = "shell", trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

impl ExecOptions {
    /// Returns the command and its arguments.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let Some(text) = &self.shell else { return self.command.clone() };
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
        vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), text.clone()]
    }

    /// Returns the names of all locks, each once.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names = vec![&*self.name];
        for name in &self.also {
            if !names.contains(&&**name) {
                names.push(name);
            }
        }
        names
    }
}

/// Lists the locks that are held.
///
/// Goes through all keys of the servers by SCAN, which blocks no other client, and takes a while if there are many. Hashes that are not
/// locks are left out.
#[derive(Args)]
#[command(override_usage = "nestlock ls [OPTIONS]")]
pub(crate) struct LsOptions {
    /// Lists only locks whose names begin with this
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Lists all locks of the server; required if neither --prefix nor --key-prefix is given
    #[arg(long)]
    pub(crate) all: bool,
}

/// The servers that keep the locks, and how they are used.
#[derive(Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct ServerOptions {
    /// A server: redis://[user[:password]@]host[:port][/database], rediss://… for TLS, unix:///path. Repeat it for the masters of a quorum
    #[arg(long, value_name = "URL", global = true, conflicts_with_all = ["sentinel", "cluster"])]
    pub(crate) url: Vec<String>,
    /// A sentinel of the master, in place of --url. Repeat it for the others
    #[arg(long, value_name = "URL", global = true, conflicts_with = "cluster")]
    pub(crate) sentinel: Vec<String>,
    /// The name by which the sentinels know the master
    #[arg(long, value_name = "NAME", global = true, default_value = "mymaster")]
    pub(crate) master: String,
    /// A node of a Redis Cluster, in place of --url. Repeat it for others
    #[arg(long, value_name = "URL", global = true)]
    pub(crate) cluster: Vec<String>,
    /// The text before the name in every key: the `prefix` of the programs that share the locks
    #[arg(long, value_name = "TEXT", global = true)]
    pub(crate) key_prefix: Option<String>,
    /// How long Redis keeps the lock if it is not renewed, and so how long others wait after a crash
    #[arg(long, value_name = "DURATION", global = true, default_value = "30s", value_parser = positive)]
    pub(crate) lease: Duration,
    /// How long a server of a quorum has no vote after its start: the longest lease of any client. Default: the lease
    #[arg(long, value_name = "DURATION", global = true, value_parser = parse)]
    pub(crate) restart_delay: Option<Duration>,
    /// How long to wait for the answer of a server
    #[arg(long, value_name = "DURATION", global = true, default_value = "500ms", value_parser = positive)]
    pub(crate) node_timeout: Duration,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    fn kind(line: &str) -> Option<clap::error::ErrorKind> {
        Options::try_parse_from(line.split(' ')).err().map(|error| error.kind())
    }

    /// Options after the command's name belong to the command.
    #[test]
    fn a_command_needs_no_dashes_before_it() {
        for (line, command, no_wait) in [
            ("exec a git checkout -- file", "git checkout -- file", false),
            ("exec a -- git checkout -- file", "git checkout -- file", false),
            ("exec -n a ls -n --also b", "ls -n --also b", true),
            ("exec a -n ls", "ls", true),
            ("exec a -n -- -n", "-n", true),
        ] {
            let options = Options::try_parse_from(format!("nestlock {line}").split(' ')).unwrap();
            let Call::Exec(exec) = options.call else { panic!("{line}") };
            let words: Vec<_> = exec.command.iter().map(|word| word.to_str().unwrap()).collect();
            assert_eq!((words.join(" ").as_str(), exec.no_wait, exec.names()), (command, no_wait, vec!["a"]));
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        use clap::error::ErrorKind::{ArgumentConflict, MissingRequiredArgument, UnknownArgument};
        assert_eq!(kind("nestlock exec -n a -- true"), None);
        assert_eq!(kind("nestlock exec a -- true --no-wait -n"), None);
        assert_eq!(kind("nestlock exec a -c true"), None);
        assert_eq!(kind("nestlock exec a -c true true"), Some(ArgumentConflict));
        assert_eq!(kind("nestlock exec -w 0.5 --nb --conflict-exit-code 1 a true"), Some(ArgumentConflict));
        assert_eq!(kind("nestlock exec -n --wait 1s a -- true"), Some(ArgumentConflict));
        assert_eq!(kind("nestlock --url a --cluster b show c"), Some(ArgumentConflict));
        assert_eq!(kind("nestlock --sentinel a --cluster b show c"), Some(ArgumentConflict));
        assert_eq!(kind("nestlock exec a --such true"), Some(UnknownArgument));
        assert_eq!(kind("nestlock exec a"), Some(MissingRequiredArgument));
        assert_eq!(kind("nestlock release a"), Some(MissingRequiredArgument));
    }
}
