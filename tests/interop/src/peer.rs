//! A process of another library, which takes one command per line.

use std::collections::HashMap;
use std::process::Stdio;

use tempfile::TempDir;

use crate::support::child::Child;
use crate::support::soon;

pub(crate) struct Peer {
    child: Child,
    /// Answers that nobody has asked for yet.
    answers: HashMap<u64, String>,
    sent: u64,
    _folder: TempDir,
}

#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
impl Peer {
    /// Starts the command in this environment variable, with these arguments. Returns `None` if the variable
    /// is empty or not set.
    pub(crate) async fn start(variable: &str, args: &[String], env: &[(&str, &str)]) -> Option<Peer> {
        let command = std::env::var(variable).ok().filter(|command| !command.is_empty())?;
        let mut words = command.split(' ').map(str::to_owned);
        let program = words.next()?;
        let words: Vec<String> = ["-c".to_owned(), "exec \"$@\"".to_owned(), "sh".to_owned(), program]
            .into_iter()
            .chain(words)
            .chain(args.iter().cloned())
            .collect();
        let env: Vec<_> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let folder = tempfile::tempdir().unwrap();
        let child = Child::start(folder.path(), "/bin/sh".as_ref(), &words, &env, Stdio::inherit()).unwrap();
        let first = soon(variable, child.line()).await;
        assert_eq!(first.as_deref(), Some("ready"), "{variable}");
        Some(Peer { child, answers: HashMap::new(), sent: 0, _folder: folder })
    }

    /// Sends a command for one of its threads, and returns its number.
    pub(crate) fn send(&mut self, thread: &str, command: &str, name: &str) -> u64 {
        self.sent += 1;
        self.child.say(&format!("{} {thread} {command} {name}", self.sent)).unwrap();
        self.sent
    }

    /// Waits for the answer to a command.
    pub(crate) async fn answer(&mut self, number: u64) -> String {
        loop {
            if let Some(answer) = self.answers.remove(&number) {
                return answer;
            }
            let line = soon("an answer", self.child.line()).await.expect("the process has ended");
            let (number, answer) = line.split_once(' ').unwrap_or_else(|| panic!("unexpected {line:?}"));
            self.answers.insert(number.parse().unwrap(), answer.to_owned());
        }
    }

    pub(crate) async fn ask(&mut self, thread: &str, command: &str, name: &str) -> String {
        let number = self.send(thread, command, name);
        self.answer(number).await
    }
}
