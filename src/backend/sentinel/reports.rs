//! What sentinels say, and who is the master by that.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, Value};
use tokio::time::Instant;

use crate::backend::connection::redis_error;
use crate::error::{Error, ErrorKind, Result, shown};

/// Who is the master, by the account of a sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Grows with each failover: of two accounts the one with the larger is the newer. 0 where it is not told.
    pub(crate) epoch: u64,
    /// A failover has begun, and this one is to be replaced: what is written there is likely to be lost.
    pub(crate) leaves: bool,
}

/// What one sentinel said.
#[derive(Debug)]
pub(crate) enum Report {
    Named(Named),
    /// It does not know the master's name.
    Unknown,
    /// It is no sentinel.
    NoSentinel,
    /// It wants other credentials, or the user has not the right to ask.
    Denied(Error),
    Away(Error),
}

impl Named {
    pub(crate) fn is_at(&self, other: &Named) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }

    pub(crate) fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl Report {
    /// By the answers to `SENTINEL GET-MASTER-ADDR-BY-NAME` and to `SENTINEL MASTER`.
    pub(crate) fn read(address: Value, details: &Value, sentinel: &Arc<str>) -> Report {
        let address = match address.extract_error() {
            Ok(address) => address,
            Err(error) => return Report::refused(error, sentinel),
        };
        if address == Value::Nil {
            return Report::Unknown;
        }
        let Ok((host, port)) = redis::from_redis_value::<(String, u16)>(address) else {
            return Report::NoSentinel;
        };
        let detail = |name: &str| {
            let Value::Array(told) = details else { return None };
            let text = |value: &Value| redis::from_redis_value_ref::<String>(value).unwrap_or_default();
            told.chunks_exact(2).find(|pair| text(&pair[0]) == name).map(|pair| text(&pair[1]))
        };
        let epoch = detail("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
        let failing = detail("flags").is_some_and(|flags| flags.contains("failover_in_progress"));
        // Once the new one is promoted the failover goes on for a while, and the address is the new one's already.
        let old = detail("ip").as_ref() == Some(&host) && detail("port") == Some(port.to_string());
        Report::Named(Named { host, port, epoch, leaves: failing && old })
    }

    /// It could not be asked, or did not want to be.
    pub(crate) fn refused(error: RedisError, sentinel: &Arc<str>) -> Report {
        let unknown_command =
            redis_error::answer(&error).is_some_and(|text| text.contains("unknown command"));
        if unknown_command {
            return Report::NoSentinel;
        }
        let error = redis_error::unreachable(error, sentinel);
        match error.kind() {
            ErrorKind::Denied => Report::Denied(error),
            _ => Report::Away(error),
        }
    }
}

/// What one client was told so far. Configuration epochs grow only until the sentinels are set up anew; the order in which
/// accounts were first heard has no such end.
#[derive(Debug, Default)]
pub(crate) struct ReportHistory {
    /// Each account that was ever given, by host, port and epoch, in the order of its first hearing.
    accounts: Vec<(String, u16, u64)>,
    /// By whom a connection was made last.
    pub(crate) current: Option<Named>,
    /// The last account of each sentinel, by its place among them, and when it was given.
    last: HashMap<usize, (Named, Instant)>,
}

/// So many accounts are remembered: one more with each failover.
const REMEMBERED: usize = 1000;

/// So long the last account of a sentinel that does not answer restrains what the others say. It is longer than the others need to
/// make a replica again of what a leader that died had promoted: they read roles each ten seconds, and wait for eight more.
const SILENCE: Duration = Duration::from_secs(30);

/// Who is the master, by all that answer now.
#[derive(Debug)]
pub(crate) struct MasterReport {
    pub(crate) named: Named,
    /// Most of the sentinels name it.
    backed: bool,
    /// Most of the sentinels have answered.
    quorate: bool,
}

impl ReportHistory {
    /// The last accounts of sentinels that did not answer now. Who leads a failover is for a while the only one to know of it: 1. It
    /// reports that the master is to be replaced, and all clients leave. 2. It promotes a replica, and does not answer for a second.
    /// 3. The others name the old master, which takes writes. What is granted there would be lost, and two would hold a lock.
    fn silent(&mut self, said: &[(usize, Report)], now: Instant) -> Vec<Named> {
        for (sentinel, said) in said {
            match said {
                Report::Named(named) => drop(self.last.insert(*sentinel, (named.clone(), now))),
                Report::Away(_) => {}
                Report::Unknown | Report::NoSentinel | Report::Denied(_) => drop(self.last.remove(sentinel)),
            }
        }
        self.last.retain(|_, (_, at)| now.saturating_duration_since(*at) < SILENCE);
        let is_silent = |sentinel: &usize| {
            !said.iter().any(|(answered, said)| answered == sentinel && matches!(said, Report::Named(_)))
        };
        let silent = self.last.iter().filter(|(sentinel, _)| is_silent(sentinel));
        silent.map(|(_, (named, _))| named.clone()).collect()
    }

    /// Whether this account decides whatever the sentinels say that have not answered yet: once connected, the first report that the
    /// master is to be replaced, and the first of a new one. The promotion follows the former by a tenth of a second.
    pub(crate) fn is_decided_by(&self, named: &Named) -> bool {
        let known = self.last.values().map(|(known, _)| known).chain(&self.current);
        let is_newest = known.map(|known| known.epoch).max().is_some_and(|known| named.epoch > known);
        is_newest || named.leaves && self.current.as_ref().is_some_and(|current| named.is_at(current))
    }

    fn note(&mut self, named: &[Named]) {
        let mut named: Vec<&Named> = named.iter().collect();
        named.sort_by_key(|named| named.epoch);
        for named in named {
            if self.age(named).is_none() {
                self.accounts.push((named.host.clone(), named.port, named.epoch));
            }
        }
        let many = self.accounts.len().saturating_sub(REMEMBERED);
        self.accounts.drain(..many);
    }

    /// Greater where an account was first heard later.
    fn age(&self, named: &Named) -> Option<usize> {
        self.accounts
            .iter()
            .rposition(|(host, port, epoch)| (host, *port, *epoch) == (&named.host, named.port, named.epoch))
    }

    /// Whether it is worth no more than what was heard before: 1. All sentinels name A in epoch 2. 2. They are set up anew, but for
    /// one that is cut off. 3. They name B in epoch 1. 4. The one that is left over is the only one to answer. And a single
    /// sentinel that is set up anew may name whom it likes.
    pub(crate) fn is_stale(&self, opinion: &MasterReport) -> bool {
        self.current.as_ref().is_some_and(|current| {
            let named = &opinion.named;
            let older = self.age(named) < self.age(current);
            let lower = named.epoch < current.epoch && !opinion.quorate;
            !opinion.backed && (older || lower)
        })
    }

    /// Whether another master is named than to whoever connected last, or it is about to be replaced.
    pub(crate) fn is_news(&self, opinion: &MasterReport) -> bool {
        let named = &opinion.named;
        self.current.as_ref().is_some_and(|current| {
            let other = !named.is_at(current) || named.leaves && !current.leaves;
            other && !self.is_stale(opinion)
        })
    }
}

/// Who is the master, by what the sentinels say now. `first`: nobody was connected yet, so that what looks like a mistake is
/// told as one; later it may be that the sentinels are set up anew.
///
/// The account with the largest epoch counts: who leads a failover knows of the new master first, and counts for a while after it fell
/// silent. With one exception: an account that was heard before is outdone by one that was first heard later and that most sentinels
/// agree with, be its epoch smaller.
///
/// `said`: what each sentinel answered, by its place among those that were `asked`.
pub(crate) fn judged(
    said: Vec<(usize, Report)>,
    asked: usize,
    name: &str,
    first: bool,
    heard: &mut ReportHistory,
) -> Result<MasterReport> {
    let silent = heard.silent(&said, Instant::now());
    let mistake = if first { ErrorKind::Config } else { ErrorKind::Unavailable };
    let (mut named, mut unknown, mut others, mut denied, mut away): (Vec<Named>, _, _, _, _) =
        (Vec::new(), 0, 0, None, None);
    for (_, said) in said {
        match said {
            Report::Named(one) => named.push(one),
            Report::Unknown => unknown += 1,
            Report::NoSentinel => others += 1,
            Report::Denied(error) => denied = denied.or(Some(error)),
            Report::Away(error) => away = away.or(Some(error)),
        }
    }
    heard.note(&named);
    let all = named.clone();
    let votes = |one: &Named| all.iter().filter(|other| other.is_at(one)).count();
    let is_most = |votes: usize| votes > asked / 2;
    // Nobody is followed to a master that no sentinel speaks for now.
    if !named.is_empty() {
        named.extend(silent);
    }
    let leaving: Vec<Named> = named.iter().filter(|named| named.leaves).cloned().collect();
    let newest = named.iter().map(|named| named.epoch).max().unwrap_or_default();
    named.retain(|named| named.epoch == newest);
    // One that takes part in a failover knows more than one that does not yet. Else most decide, and never whoever answers first:
    // where one is set up with a name and another with an address, the same master would be left for itself again and again.
    let most =
        |one: &Named| named.iter().filter(|other| (&other.host, other.port) == (&one.host, one.port)).count();
    let order = |one: &Named| (!one.leaves, Reverse(most(one)), one.host.clone(), one.port);
    if let Some(at) = (0..named.len()).min_by_key(|at| order(&named[*at])) {
        let mut named = named.swap_remove(at);
        let backed = all.iter().filter(|one| is_most(votes(one)));
        if let Some(backed) = backed.max_by_key(|one| (one.epoch, one.leaves))
            && !backed.is_at(&named)
            && heard.age(backed) > heard.age(&named)
        {
            named = backed.clone();
        }
        // Where the sentinels were set up anew, but for one, whose epoch is larger, the smaller epoch leads the failover.
        named.leaves |= leaving.iter().any(|one| one.is_at(&named));
        let (backed, quorate) = (is_most(votes(&named)), is_most(all.len()));
        return Ok(MasterReport { named, backed, quorate });
    }
    if let Some(error) = denied {
        return Err(error);
    }
    let name = shown(name);
    if unknown + others > asked / 2 {
        let told = match unknown {
            0 => "what answers is no sentinel; give `sentinel` the addresses of the sentinels, whose port is 26379 unless \
                  they are told otherwise"
                .to_owned(),
            _ => format!(
                "the sentinels know no master `{name}`; give the name that `SENTINEL MASTERS` tells, by which they monitor it"
            ),
        };
        return Err(Error::new(mistake, told));
    }
    let told = format!("no sentinel tells where the master `{name}` is");
    Err(match away {
        Some(error) => Error::new(ErrorKind::Unavailable, format!("{told}: {error}")).because(error),
        None => {
            Error::new(ErrorKind::Unavailable, format!("{told}; check that they run, and their addresses"))
        }
    })
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn named(port: u16, epoch: u64, leaves: bool) -> Report {
        Report::Named(Named { host: "host".into(), port, epoch, leaves })
    }

    fn away() -> Report {
        Report::Away(Error::new(ErrorKind::Unavailable, "away"))
    }

    fn placed(said: Vec<Report>) -> Vec<(usize, Report)> {
        said.into_iter().enumerate().collect()
    }

    fn judged(said: Vec<Report>, asked: usize, name: &str, first: bool) -> Result<Named> {
        super::judged(placed(said), asked, name, first, &mut ReportHistory::default())
            .map(|opinion| opinion.named)
    }

    /// What a client of three sentinels makes of what they say, look by look: the master's port, where it is news.
    #[derive(Default)]
    struct Client(ReportHistory);

    impl Client {
        fn connect(&mut self, said: Vec<Report>) -> u16 {
            let opinion = super::judged(placed(said), 3, "stock", false, &mut self.0).unwrap();
            assert!(!self.0.is_stale(&opinion));
            self.0.current = Some(opinion.named.clone());
            opinion.named.port
        }

        fn look(&mut self, said: Vec<Report>) -> Option<u16> {
            let opinion = super::judged(placed(said), 3, "stock", false, &mut self.0).unwrap();
            self.0.is_news(&opinion).then_some(opinion.named.port)
        }
    }

    #[test]
    fn sentinels_that_were_set_up_anew_are_followed_though_their_epochs_are_smaller() {
        let mut client = Client::default();
        assert_eq!(client.connect(vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)]), 1);
        assert_eq!(client.look(vec![named(1, 0, false), named(1, 0, false), named(1, 0, false)]), None);
        // One leads a failover.
        assert_eq!(
            client.look(vec![named(1, 0, true), named(1, 0, false), named(1, 0, false)]),
            Some(1),
            "it is left"
        );
        let promoted = || vec![named(2, 1, false), named(1, 0, false), named(1, 0, false)];
        assert_eq!(client.look(promoted()), Some(2));
        assert_eq!(client.connect(promoted()), 2);
        assert_eq!(client.look(promoted()), None, "those who do not know yet move nobody back");
        assert_eq!(client.look(vec![named(2, 1, false), away(), named(2, 1, false)]), None);
    }

    #[test]
    fn one_that_was_left_out_when_the_others_were_set_up_anew_moves_nobody_back() {
        let mut client = Client::default();
        client.connect(vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)]);
        let anew = || vec![named(1, 2, false), named(2, 1, false), named(2, 1, false)];
        assert_eq!(client.look(anew()), Some(2));
        assert_eq!(client.connect(anew()), 2);
        assert_eq!(client.look(anew()), None);
        // It answers alone.
        assert_eq!(client.look(vec![named(1, 2, false), away(), away()]), None);
        let alone =
            super::judged(placed(vec![named(1, 2, false)]), 3, "stock", false, &mut client.0).unwrap();
        assert!(client.0.is_stale(&alone));
    }

    #[test]
    fn a_minority_that_was_set_up_anew_moves_nobody() {
        let mut client = Client::default();
        client.connect(vec![named(2, 3, false), named(2, 3, false), named(2, 3, false)]);
        assert_eq!(client.look(vec![named(1, 0, false), away(), away()]), None);
        assert_eq!(client.look(vec![named(1, 0, false), named(2, 3, false), away()]), None);
        assert_eq!(client.look(vec![named(1, 0, false), named(1, 0, false), away()]), Some(1));
    }

    #[test]
    fn a_failover_that_one_leads_is_followed_before_the_others_know() {
        let mut client = Client::default();
        client.connect(vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)]);
        assert_eq!(client.look(vec![named(1, 2, true), away(), away()]), Some(1));
        let promoted = || vec![named(2, 3, false), named(1, 2, false), named(1, 2, false)];
        assert_eq!(client.connect(promoted()), 2);
        assert_eq!(client.look(promoted()), None);
        assert_eq!(client.look(vec![named(1, 2, false), away(), away()]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_leads_a_failover_and_falls_silent_is_waited_for_before_the_old_master_is_one_again() {
        let mut client = Client::default();
        client.connect(vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)]);
        assert_eq!(client.look(vec![named(1, 2, true), named(1, 2, false), named(1, 2, false)]), Some(1));
        let silent = || vec![away(), named(1, 2, false), named(1, 2, false)];
        let is_left = |client: &mut Client| {
            super::judged(placed(silent()), 3, "stock", false, &mut client.0).unwrap().named.leaves
        };
        assert!(is_left(&mut client));
        advance(SILENCE - Duration::from_millis(1)).await;
        assert!(is_left(&mut client), "nobody has said that the failover is given up");
        // It may be dead. By now the others have made a replica of what it may have promoted.
        advance(Duration::from_millis(1)).await;
        assert!(!is_left(&mut client));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failover_that_its_leader_gives_up_ends_at_once() {
        let mut client = Client::default();
        let calm = || vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)];
        client.connect(calm());
        assert_eq!(client.look(vec![named(1, 2, true), named(1, 2, false), away()]), Some(1));
        assert!(!super::judged(placed(calm()), 3, "stock", false, &mut client.0).unwrap().named.leaves);
    }

    #[tokio::test(start_paused = true)]
    async fn who_promoted_a_master_and_falls_silent_is_not_outvoted_by_those_who_do_not_know_yet() {
        let mut client = Client::default();
        client.connect(vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)]);
        assert_eq!(client.connect(vec![named(2, 3, false), named(1, 2, false), named(1, 2, false)]), 2);
        let silent = || vec![away(), named(1, 2, false), named(1, 2, false)];
        assert_eq!(client.look(silent()), None);
        assert_eq!(client.connect(silent()), 2);
        advance(SILENCE).await;
        // They have never learned of it, so the promotion was undone.
        assert_eq!(client.look(silent()), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failover_is_noticed_though_a_sentinel_that_was_left_over_names_a_larger_epoch() {
        let mut client = Client::default();
        client.connect(vec![named(1, 5, false), named(1, 0, false), named(1, 0, false)]);
        assert_eq!(client.look(vec![named(1, 5, false), named(1, 0, false), named(1, 0, true)]), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_report_of_a_failover_decides() {
        let mut client = Client::default();
        let account = |said| match said {
            Report::Named(named) => named,
            _ => unreachable!(),
        };
        let decides = |client: &Client, said| client.0.is_decided_by(&account(said));
        assert!(!decides(&client, named(1, 2, false)), "the others may know more");
        client.connect(vec![named(1, 2, false), named(1, 2, false), away()]);
        assert!(!decides(&client, named(1, 2, false)));
        assert!(!decides(&client, named(2, 1, false)));
        assert!(!decides(&client, named(2, 1, true)), "another one is left");
        assert!(decides(&client, named(1, 2, true)));
        assert!(decides(&client, named(2, 3, false)));
    }

    fn kind(said: Vec<Report>, first: bool) -> ErrorKind {
        judged(said, 3, "stock", first).unwrap_err().kind()
    }

    fn value(wire: &str) -> Value {
        redis::parse_redis_value(wire.replace('|', "\r\n").as_bytes()).unwrap()
    }

    fn read(address: &str, details: &str) -> Report {
        Report::read(value(address), &value(details), &"sentinel:1".into())
    }

    fn details(port: u16, flags: &str) -> String {
        let words =
            ["name", "stock", "ip", "h", "port", &port.to_string(), "flags", flags, "config-epoch", "7"];
        let words = words.map(|word| format!("${}|{word}|", word.len()));
        format!("*{}|{}", words.len(), words.concat())
    }

    #[test]
    fn the_newest_account_counts_whoever_gave_it_first() {
        for said in [
            vec![named(1, 3, false), named(2, 4, false), away()],
            vec![named(2, 4, false), named(1, 3, true)],
        ] {
            assert_eq!(judged(said, 3, "stock", true).unwrap().port, 2);
        }
    }

    #[test]
    fn who_takes_part_in_a_failover_is_heard_before_who_does_not_yet() {
        let said = vec![named(1, 3, false), named(1, 3, true), named(1, 3, false)];
        assert!(judged(said, 3, "stock", true).unwrap().leaves);
    }

    #[test]
    fn whom_most_name_is_taken_though_a_stale_one_comes_first() {
        let said = [1, 2, 2].map(|port| named(port, 0, false)).into();
        assert_eq!(judged(said, 3, "stock", true).unwrap().port, 2);
    }

    #[test]
    fn of_two_names_for_one_master_the_same_is_taken_whoever_answers_first() {
        let said = |ports: [u16; 2]| ports.map(|port| named(port, 3, false)).into();
        assert_eq!(
            judged(said([1, 2]), 2, "stock", true).unwrap(),
            judged(said([2, 1]), 2, "stock", true).unwrap()
        );
    }

    #[test]
    fn a_name_that_most_do_not_know_is_a_mistake_at_first() {
        let unknown = || vec![Report::Unknown, away(), Report::Unknown];
        assert_eq!(kind(unknown(), true), ErrorKind::Config);
        assert_eq!(kind(unknown(), false), ErrorKind::Unavailable);
        assert_eq!(kind(vec![Report::Unknown, away(), away()], true), ErrorKind::Unavailable);
        assert_eq!(kind(vec![Report::NoSentinel, Report::NoSentinel, away()], true), ErrorKind::Config);
        let told = judged(unknown(), 3, "st\nock", true).unwrap_err().to_string();
        assert!(told.contains(r"no master `st\nock`"), "{told}");
        assert_eq!(judged(vec![Report::Unknown, named(1, 0, false)], 2, "stock", true).unwrap().port, 1);
    }

    #[test]
    fn nobody_there_is_unavailable_and_a_refusal_is_denied() {
        assert_eq!(kind(vec![away(), away()], true), ErrorKind::Unavailable);
        assert_eq!(kind(vec![], true), ErrorKind::Unavailable);
        let denied = || Report::Denied(Error::new(ErrorKind::Denied, "denied"));
        assert_eq!(kind(vec![away(), denied(), Report::Unknown], true), ErrorKind::Denied);
        assert!(judged(vec![denied(), named(1, 0, false)], 3, "stock", true).is_ok());
    }

    #[test]
    fn an_address_is_read_with_its_epoch_and_a_failover_that_is_not_through() {
        let at_seven = "*2|$1|h|$1|7|";
        for (details, expected) in [
            (details(7, "master"), (7, false)),
            (details(7, "s_down,master,failover_in_progress"), (7, true)),
            // Promoted already.
            (details(8, "master,failover_in_progress"), (7, false)),
            ("-NOPERM no right|".to_owned(), (0, false)),
        ] {
            let Report::Named(named) = read(at_seven, &details) else { panic!("{details}") };
            assert_eq!((named.epoch, named.leaves), expected, "{details}");
            assert_eq!(named.address(), "h:7");
        }
    }

    #[test]
    fn what_is_no_answer_of_a_sentinel_is_told_as_what_it_is() {
        assert!(matches!(read("*-1|", "-ERR No such master with that name|"), Report::Unknown));
        assert!(matches!(read("-ERR unknown command 'SENTINEL'|", ":1|"), Report::NoSentinel));
        assert!(matches!(read(":1|", ":1|"), Report::NoSentinel));
        assert!(matches!(read("-NOAUTH Authentication required.|", ":1|"), Report::Denied(_)));
        assert!(matches!(read("-NOPERM no permissions|", ":1|"), Report::Denied(_)));
        assert!(matches!(read("-LOADING it|", ":1|"), Report::Away(_)));
        let named = Named { host: "::1".into(), port: 7, epoch: 0, leaves: false };
        assert_eq!(named.address(), "[::1]:7");
    }
}
