//! The reports of sentinels, and the decision which server is the master.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, Value};
use tokio::time::Instant;

use crate::backend::connection::redis_error;
use crate::error::{Error, ErrorKind, Result, shown};

/// The master that a sentinel names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReportedMaster {
    pub(super) host: String,
    pub(super) port: u16,
    /// The configuration epoch, which grows with each failover: the larger one is the newer. 0 if the sentinel does not report it.
    pub(super) epoch: u64,
    /// A failover has begun, and this master is about to be replaced: writes there are likely to be lost.
    pub(super) being_replaced: bool,
}

/// The report of one sentinel.
#[derive(Debug)]
pub(super) enum Report {
    Master(ReportedMaster),
    /// It does not know the master's name.
    Unknown,
    /// It is no sentinel.
    NoSentinel,
    /// It rejects the credentials, or the user lacks the right.
    Denied(Error),
    Unreachable(Error),
}

impl ReportedMaster {
    pub(super) fn is_at(&self, other: &ReportedMaster) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }

    pub(super) fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl Report {
    /// Reads the answers to `SENTINEL GET-MASTER-ADDR-BY-NAME` and to `SENTINEL MASTER`.
    pub(super) fn read(address: Value, details: &Value, sentinel: &Arc<str>) -> Report {
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
            let Value::Array(pairs) = details else { return None };
            let text = |value: &Value| redis::from_redis_value_ref::<String>(value).unwrap_or_default();
            pairs.chunks_exact(2).find(|pair| text(&pair[0]) == name).map(|pair| text(&pair[1]))
        };
        let epoch = detail("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
        let failing = detail("flags").is_some_and(|flags| flags.contains("failover_in_progress"));
        // After the promotion the failover continues for a while, and the address is that of the new master already.
        let old = detail("ip").as_ref() == Some(&host) && detail("port") == Some(port.to_string());
        Report::Master(ReportedMaster { host, port, epoch, being_replaced: failing && old })
    }

    /// Returns the report of a sentinel that could not be queried, or that refused.
    pub(super) fn refused(error: RedisError, sentinel: &Arc<str>) -> Report {
        let unknown_command =
            redis_error::answer(&error).is_some_and(|text| text.contains("unknown command"));
        if unknown_command {
            return Report::NoSentinel;
        }
        let error = redis_error::unreachable(error, sentinel);
        match error.kind() {
            ErrorKind::Denied => Report::Denied(error),
            _ => Report::Unreachable(error),
        }
    }
}

/// The reports that one client has received so far. When sentinels are set up again, configuration epochs start over; the order
/// in which reports were first seen does not.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct ReportHistory {
    /// Each report that was ever received, by host, port and epoch, in the order in which they were first seen.
    seen: Vec<(String, u16, u64)>,
    /// The report by which the last connection was made.
    pub(super) current: Option<ReportedMaster>,
    /// The last report of each sentinel, by its index, and when it was asked for.
    last: HashMap<usize, (ReportedMaster, Instant)>,
}

/// How many reports are remembered. Each failover adds one.
const REMEMBERED: usize = 1000;

/// How long the last report of a sentinel that does not answer still counts. It is longer than the other sentinels need to demote a
/// replica that a leader promoted before it died: they read roles every ten seconds, and wait for eight more.
const SILENCE: Duration = Duration::from_secs(30);

/// The master according to all sentinels that answer now.
#[derive(Debug)]
pub(super) struct MasterReport {
    pub(super) named: ReportedMaster,
    /// A majority of the sentinels names it.
    by_majority: bool,
    /// A majority of the sentinels has answered.
    quorate: bool,
}

impl ReportHistory {
    /// Returns the last reports of sentinels that did not answer now. For a while, only the leader of a failover knows of it:
    ///
    /// 1. The leader reports that the master is about to be replaced, and all clients disconnect.
    /// 2. It promotes a replica, and does not answer for a second.
    /// 3. The others name the old master, which accepts writes.
    ///
    /// Without the leader's last report a lock would be granted there and lost with it, and two owners would hold the lock.
    ///
    /// Two queries may overlap: 1. One waits for a sentinel that hangs, and has an answer of the leader from before the failover. 2. The
    /// other gets the leader's report of the failover. 3. The first one ends. It must not replace what was asked for later.
    fn last_of_silent(&mut self, reports: &[(usize, Report)], asked: Instant) -> Vec<ReportedMaster> {
        for (sentinel, report) in reports {
            let is_older = self.last.get(sentinel).is_some_and(|(_, at)| *at > asked);
            match report {
                _ if is_older => {}
                Report::Master(named) => drop(self.last.insert(*sentinel, (named.clone(), asked))),
                Report::Unreachable(_) => {}
                Report::Unknown | Report::NoSentinel | Report::Denied(_) => drop(self.last.remove(sentinel)),
            }
        }
        let now = Instant::now();
        self.last.retain(|_, (_, at)| now.saturating_duration_since(*at) < SILENCE);
        let is_silent = |sentinel: &usize| {
            !reports
                .iter()
                .any(|(answered, report)| answered == sentinel && matches!(report, Report::Master(_)))
        };
        let silent = self.last.iter().filter(|(sentinel, _)| is_silent(sentinel));
        silent.map(|(_, (named, _))| named.clone()).collect()
    }

    /// Returns whether this report decides without the sentinels that have not answered yet. Once connected, the first report that the
    /// master is about to be replaced does, and so does the first one that names a new master. The promotion follows the former within a
    /// tenth of a second.
    pub(super) fn is_decided_by(&self, named: &ReportedMaster) -> bool {
        let known = self.last.values().map(|(known, _)| known).chain(&self.current);
        let is_newest = known.map(|known| known.epoch).max().is_some_and(|known| named.epoch > known);
        is_newest || self.is_end_of_current(named)
    }

    fn record(&mut self, named: &[ReportedMaster]) {
        let mut named: Vec<&ReportedMaster> = named.iter().collect();
        named.sort_by_key(|named| named.epoch);
        for named in named {
            if self.first_seen(named).is_none() {
                self.seen.push((named.host.clone(), named.port, named.epoch));
            }
        }
        let excess = self.seen.len().saturating_sub(REMEMBERED);
        self.seen.drain(..excess);
    }

    /// Returns when the report was first seen: a greater value is later.
    fn first_seen(&self, named: &ReportedMaster) -> Option<usize> {
        self.seen
            .iter()
            .rposition(|(host, port, epoch)| (host, *port, *epoch) == (&named.host, named.port, named.epoch))
    }

    /// Returns whether it reports that the master of the last connection is about to be replaced.
    fn is_end_of_current(&self, named: &ReportedMaster) -> bool {
        named.being_replaced && self.current.as_ref().is_some_and(|current| named.is_at(current))
    }

    /// Returns whether the decision counts less than earlier reports. 1. All sentinels name A in epoch 2. 2. They are set up again, except
    /// one that is cut off. 3. They name B in epoch 1. 4. Only the one that was left out answers. Likewise a single sentinel that is set up
    /// again may name any server.
    ///
    /// A report that the current master is about to be replaced is never stale, since it moves no client to another server:
    ///
    /// 1. The sentinels are set up again while a client is connected to A. Their epochs are smaller than the one it knows.
    /// 2. One leads a failover. Its report arrives first and [decides](Self::is_decided_by): it is the only one, with the smaller epoch.
    /// 3. If it were stale, the client would stay connected, and what A grants it until the promotion is noticed would be lost.
    pub(super) fn is_stale(&self, decision: &MasterReport) -> bool {
        self.current.as_ref().is_some_and(|current| {
            let named = &decision.named;
            let older = self.first_seen(named) < self.first_seen(current);
            let lower = named.epoch < current.epoch && !decision.quorate;
            !decision.by_majority && (older || lower) && !self.is_end_of_current(named)
        })
    }

    /// Returns whether the decision names another master than that of the last connection, or says that that one is about to be replaced.
    pub(super) fn is_change(&self, decision: &MasterReport) -> bool {
        let named = &decision.named;
        self.current.as_ref().is_some_and(|current| {
            let other = !named.is_at(current) || named.being_replaced && !current.being_replaced;
            other && !self.is_stale(decision)
        })
    }
}

/// Decides from the reports of the sentinels which server is the master. `first` means before the first connection: an apparent
/// mistake in an option is then reported as one, while later the sentinels may just be being set up again.
///
/// The report with the largest epoch counts: the leader of a failover is the first to know the new master, and its last report
/// counts for a while after it stopped answering. One exception: a report that was seen before counts less than one that was first
/// seen later and that a majority of the sentinels agrees with, even if the epoch of that one is smaller.
///
/// `reports` has one report per sentinel that answered, with its index; they were asked for at `asked`. `sentinels` is how many there are.
pub(super) fn decide_master(
    reports: Vec<(usize, Report)>,
    asked: Instant,
    sentinels: usize,
    name: &str,
    first: bool,
    history: &mut ReportHistory,
) -> Result<MasterReport> {
    let silent = history.last_of_silent(&reports, asked);
    let mistake = if first { ErrorKind::Config } else { ErrorKind::Unavailable };
    let (mut named, mut unknown, mut others, mut denied, mut unreachable): (Vec<ReportedMaster>, _, _, _, _) =
        (Vec::new(), 0, 0, None, None);
    for (_, report) in reports {
        match report {
            Report::Master(one) => named.push(one),
            Report::Unknown => unknown += 1,
            Report::NoSentinel => others += 1,
            Report::Denied(error) => denied = denied.or(Some(error)),
            Report::Unreachable(error) => unreachable = unreachable.or(Some(error)),
        }
    }
    history.record(&named);
    let all = named.clone();
    let votes = |one: &ReportedMaster| all.iter().filter(|other| other.is_at(one)).count();
    let is_majority = |votes: usize| votes > sentinels / 2;
    // Never connect to a master that no sentinel names now.
    if !named.is_empty() {
        named.extend(silent);
    }
    let replaced: Vec<ReportedMaster> = named.iter().filter(|named| named.being_replaced).cloned().collect();
    let newest = named.iter().map(|named| named.epoch).max().unwrap_or_default();
    named.retain(|named| named.epoch == newest);
    // A sentinel that takes part in a failover knows more than one that does not yet. Otherwise the number of sentinels decides, and
    // never the order of the answers: if one sentinel knows the master by its name and another by its address, the client would
    // leave the master for itself again and again.
    let count = |one: &ReportedMaster| {
        named.iter().filter(|other| (&other.host, other.port) == (&one.host, one.port)).count()
    };
    let order = |one: &ReportedMaster| (!one.being_replaced, Reverse(count(one)), one.host.clone(), one.port);
    if let Some(at) = (0..named.len()).min_by_key(|at| order(&named[*at])) {
        let mut named = named.swap_remove(at);
        let preferred = all.iter().filter(|one| is_majority(votes(one)));
        if let Some(preferred) = preferred.max_by_key(|one| (one.epoch, one.being_replaced))
            && !preferred.is_at(&named)
            && history.first_seen(preferred) > history.first_seen(&named)
        {
            named = preferred.clone();
        }
        // If all sentinels but one were set up again, and that one's epoch is larger, the failover is reported with the smaller epoch.
        named.being_replaced |= replaced.iter().any(|one| one.is_at(&named));
        let (by_majority, quorate) = (is_majority(votes(&named)), is_majority(all.len()));
        let mut decision = MasterReport { named, by_majority, quorate };
        // The newest report may come from a sentinel that was left out and is silent, because the leader of a failover answered first.
        if history.is_stale(&decision)
            && let Some(end) = replaced.into_iter().find(|one| history.is_end_of_current(one))
        {
            decision.named = end;
        }
        return Ok(decision);
    }
    if let Some(error) = denied {
        return Err(error);
    }
    let name = shown(name);
    if unknown + others > sentinels / 2 {
        let message = match unknown {
            0 => "the servers that answer are no sentinels; give `Master::sentinel` the addresses of the sentinels, whose default port \
                  is 26379"
                .to_owned(),
            _ => format!(
                "the sentinels know no master `{name}`; give the name by which they monitor it, as `SENTINEL MASTERS` reports it"
            ),
        };
        return Err(Error::new(mistake, message));
    }
    let message = format!("no sentinel reports where the master `{name}` is");
    Err(match unreachable {
        Some(error) => Error::new(ErrorKind::Unavailable, format!("{message}: {error}")).because(error),
        None => {
            Error::new(ErrorKind::Unavailable, format!("{message}; check that they run, and their addresses"))
        }
    })
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    mod fuzz;

    fn named(port: u16, epoch: u64, being_replaced: bool) -> Report {
        Report::Master(ReportedMaster { host: "host".into(), port, epoch, being_replaced })
    }

    fn unreachable() -> Report {
        Report::Unreachable(Error::new(ErrorKind::Unavailable, "away"))
    }

    fn numbered(reports: Vec<Report>) -> Vec<(usize, Report)> {
        reports.into_iter().enumerate().collect()
    }

    fn decide(reports: Vec<Report>, sentinels: usize, name: &str, first: bool) -> Result<ReportedMaster> {
        decide_master(
            numbered(reports),
            Instant::now(),
            sentinels,
            name,
            first,
            &mut ReportHistory::default(),
        )
        .map(|decision| decision.named)
    }

    /// A client of three sentinels. Each method takes their reports and returns the port of the master; `look` only if it changed.
    #[derive(Default)]
    struct Client(ReportHistory);

    impl Client {
        fn connect(&mut self, reports: Vec<Report>) -> u16 {
            self.in_each_order(reports, |history, decision| {
                assert!(!history.is_stale(decision));
                history.current = Some(decision.named.clone());
                decision.named.port
            })
        }

        fn look(&mut self, reports: Vec<Report>) -> Option<u16> {
            self.in_each_order(reports, |history, decision| {
                history.is_change(decision).then_some(decision.named.port)
            })
        }

        /// Decides as if the reports arrived in each order, one after the other: once one decides, those after it are not awaited.
        /// Keeps the history of the given order.
        fn in_each_order<T: PartialEq + std::fmt::Debug>(
            &mut self,
            reports: Vec<Report>,
            outcome: impl Fn(&mut ReportHistory, &MasterReport) -> T,
        ) -> T {
            let reports = numbered(reports);
            let again = |at: usize| match &reports[at].1 {
                Report::Master(named) => (at, Report::Master(named.clone())),
                _ => (at, unreachable()),
            };
            let decide = |history: &mut ReportHistory, order: &[usize]| {
                let decides = |at: &usize| match &reports[*at].1 {
                    Report::Master(named) => history.is_decided_by(named),
                    _ => false,
                };
                let count = order.iter().position(decides).map_or(order.len(), |at| at + 1);
                let arrived = order[..count].iter().map(|at| again(*at)).collect();
                let decision = decide_master(arrived, Instant::now(), 3, "stock", false, history).unwrap();
                outcome(history, &decision)
            };
            let before = self.0.clone();
            let expected = decide(&mut self.0, &[0, 1, 2]);
            for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                assert_eq!(decide(&mut before.clone(), &order), expected, "in the order {order:?}");
            }
            expected
        }
    }

    #[test]
    fn sentinels_that_were_set_up_again_are_followed_although_their_epochs_are_smaller() {
        let mut client = Client::default();
        assert_eq!(client.connect(vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)]), 1);
        assert_eq!(client.look(vec![named(1, 0, false), named(1, 0, false), named(1, 0, false)]), None);
        // One leads a failover.
        assert_eq!(
            client.look(vec![named(1, 0, true), named(1, 0, false), named(1, 0, false)]),
            Some(1),
            "the client disconnects from it"
        );
        let promoted = || vec![named(2, 1, false), named(1, 0, false), named(1, 0, false)];
        assert_eq!(client.look(promoted()), Some(2));
        assert_eq!(client.connect(promoted()), 2);
        assert_eq!(client.look(promoted()), None, "sentinels that do not know yet move no client back");
        assert_eq!(client.look(vec![named(2, 1, false), unreachable(), named(2, 1, false)]), None);
    }

    #[test]
    fn a_sentinel_that_was_left_out_when_the_others_were_set_up_again_moves_no_client_back() {
        let mut client = Client::default();
        client.connect(vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)]);
        let anew = || vec![named(1, 2, false), named(2, 1, false), named(2, 1, false)];
        assert_eq!(client.look(anew()), Some(2));
        assert_eq!(client.connect(anew()), 2);
        assert_eq!(client.look(anew()), None);
        // The one that was left out answers alone.
        assert_eq!(client.look(vec![named(1, 2, false), unreachable(), unreachable()]), None);
        let alone = decide_master(
            numbered(vec![named(1, 2, false)]),
            Instant::now(),
            3,
            "stock",
            false,
            &mut client.0,
        )
        .unwrap();
        assert!(client.0.is_stale(&alone));
    }

    #[test]
    fn a_minority_that_was_set_up_again_moves_no_client() {
        let mut client = Client::default();
        client.connect(vec![named(2, 3, false), named(2, 3, false), named(2, 3, false)]);
        assert_eq!(client.look(vec![named(1, 0, false), unreachable(), unreachable()]), None);
        assert_eq!(client.look(vec![named(1, 0, false), named(2, 3, false), unreachable()]), None);
        assert_eq!(client.look(vec![named(1, 0, false), named(1, 0, false), unreachable()]), Some(1));
    }

    /// The reports of the others count only for a while, and the others may be silent for longer.
    #[tokio::test(start_paused = true)]
    async fn a_minority_that_was_set_up_again_moves_no_client_however_long_the_others_are_silent() {
        let mut client = Client::default();
        client.connect(vec![named(2, 3, false), named(2, 3, false), named(2, 3, false)]);
        advance(2 * SILENCE).await;
        assert_eq!(client.look(vec![named(1, 0, false), unreachable(), unreachable()]), None);
        assert_eq!(client.look(vec![named(2, 3, false), unreachable(), unreachable()]), None);
        assert_eq!(client.look(vec![named(1, 4, false), unreachable(), unreachable()]), Some(1));
    }

    #[test]
    fn reports_are_remembered_in_the_order_in_which_they_were_first_seen() {
        let mut history = ReportHistory::default();
        let of = |port, epoch| ReportedMaster { host: "host".into(), port, epoch, being_replaced: false };
        assert_eq!(history.first_seen(&of(1, 2)), None);
        history.record(&[of(2, 3), of(1, 2)]);
        history.record(&[of(1, 0), of(1, 2), of(2, 3)]);
        let seen = [(1, 2), (2, 3), (1, 0), (2, 0)].map(|(port, epoch)| history.first_seen(&of(port, epoch)));
        assert_eq!(seen, [Some(0), Some(1), Some(2), None]);
        history.record(&(0..1000).map(|epoch| of(9, epoch)).collect::<Vec<_>>());
        assert_eq!(history.seen.len(), REMEMBERED);
        assert_eq!([of(1, 2), of(9, 999)].map(|known| history.first_seen(&known)), [None, Some(999)]);
    }

    #[test]
    fn a_failover_is_followed_before_the_sentinels_beside_its_leader_know_of_it() {
        let mut client = Client::default();
        client.connect(vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)]);
        assert_eq!(client.look(vec![named(1, 2, true), unreachable(), unreachable()]), Some(1));
        let promoted = || vec![named(2, 3, false), named(1, 2, false), named(1, 2, false)];
        assert_eq!(client.connect(promoted()), 2);
        assert_eq!(client.look(promoted()), None);
        assert_eq!(client.look(vec![named(1, 2, false), unreachable(), unreachable()]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_stops_answering_is_waited_for_before_the_old_master_counts_again() {
        let mut client = Client::default();
        client.connect(vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)]);
        assert_eq!(client.look(vec![named(1, 2, true), named(1, 2, false), named(1, 2, false)]), Some(1));
        let silent = || vec![unreachable(), named(1, 2, false), named(1, 2, false)];
        let is_left = |client: &mut Client| {
            decide_master(numbered(silent()), Instant::now(), 3, "stock", false, &mut client.0)
                .unwrap()
                .named
                .being_replaced
        };
        assert!(is_left(&mut client));
        advance(SILENCE - Duration::from_millis(1)).await;
        assert!(is_left(&mut client), "no sentinel has reported that the failover is aborted");
        // The leader may be dead. By now the others have demoted a replica that it may have promoted.
        advance(Duration::from_millis(1)).await;
        assert!(!is_left(&mut client));
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_that_was_asked_for_earlier_does_not_replace_the_leaders_last_one() {
        let mut client = Client::default();
        let calm = || vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)];
        client.connect(calm());
        let early = Instant::now();
        advance(Duration::from_millis(1)).await;
        assert_eq!(client.look(vec![named(1, 2, true), named(1, 2, false), unreachable()]), Some(1));
        decide_master(numbered(calm()), early, 3, "stock", false, &mut client.0).unwrap();
        let silent = numbered(vec![unreachable(), named(1, 2, false), named(1, 2, false)]);
        let decision = decide_master(silent, Instant::now(), 3, "stock", false, &mut client.0).unwrap();
        assert!(decision.named.being_replaced);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failover_that_its_leader_aborts_ends_at_once() {
        let mut client = Client::default();
        let calm = || vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)];
        client.connect(calm());
        assert_eq!(client.look(vec![named(1, 2, true), named(1, 2, false), unreachable()]), Some(1));
        assert!(
            !decide_master(numbered(calm()), Instant::now(), 3, "stock", false, &mut client.0)
                .unwrap()
                .named
                .being_replaced
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_promoted_a_master_and_stops_answering_is_not_outvoted_by_sentinels_that_do_not_know_yet()
     {
        let mut client = Client::default();
        client.connect(vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)]);
        assert_eq!(client.connect(vec![named(2, 3, false), named(1, 2, false), named(1, 2, false)]), 2);
        let silent = || vec![unreachable(), named(1, 2, false), named(1, 2, false)];
        assert_eq!(client.look(silent()), None);
        assert_eq!(client.connect(silent()), 2);
        advance(SILENCE).await;
        // The others still do not report the promotion, so it was undone.
        assert_eq!(client.look(silent()), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failover_is_noticed_although_a_sentinel_that_was_left_out_reports_a_larger_epoch() {
        let mut client = Client::default();
        client.connect(vec![named(1, 5, false), named(1, 0, false), named(1, 0, false)]);
        assert_eq!(client.look(vec![named(1, 5, false), named(1, 0, false), named(1, 0, true)]), Some(1));
    }

    /// The sentinels were set up again: epochs are smaller, and the server was the master before.
    #[test]
    fn a_single_report_that_the_master_is_about_to_be_replaced_is_never_stale() {
        let mut client = Client::default();
        for (port, epoch) in [(1, 0), (2, 1), (1, 2)] {
            assert_eq!(client.connect([(); 3].map(|()| named(port, epoch, false)).into()), port);
        }
        assert_eq!(client.look(vec![named(1, 0, false), named(1, 0, false), named(1, 0, false)]), None);
        let alone = || vec![named(1, 0, true), unreachable(), unreachable()];
        assert_eq!(client.look(alone()), Some(1), "the client disconnects from it");
        assert_eq!(client.connect(alone()), 1);
        assert_eq!(client.look(alone()), None);
        assert_eq!(client.look(vec![named(2, 1, false), unreachable(), unreachable()]), Some(2));
    }

    #[test]
    fn a_single_report_of_a_failover_counts_beside_a_silent_sentinel_that_was_left_out_and_names_another() {
        let mut client = Client::default();
        client.connect(vec![named(1, 2, false), named(1, 2, false), named(1, 2, false)]);
        assert_eq!(client.connect(vec![named(1, 2, false), named(2, 1, false), named(2, 1, false)]), 2);
        assert_eq!(client.look(vec![named(1, 2, false), named(2, 1, true), named(2, 1, false)]), Some(2));
        assert_eq!(client.look(vec![named(1, 2, true), named(2, 1, false), named(2, 1, false)]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_report_of_a_failover_decides() {
        let mut client = Client::default();
        let content = |report| match report {
            Report::Master(named) => named,
            _ => unreachable!(),
        };
        let decides = |client: &Client, report| client.0.is_decided_by(&content(report));
        assert!(!decides(&client, named(1, 2, false)), "the others may know more");
        client.connect(vec![named(1, 2, false), named(1, 2, false), unreachable()]);
        assert!(!decides(&client, named(1, 2, false)));
        assert!(!decides(&client, named(2, 1, false)));
        assert!(!decides(&client, named(2, 1, true)), "another master is about to be replaced");
        assert!(decides(&client, named(1, 2, true)));
        assert!(decides(&client, named(2, 3, false)));
    }

    fn kind(reports: Vec<Report>, first: bool) -> ErrorKind {
        decide(reports, 3, "stock", first).unwrap_err().kind()
    }

    fn value(wire: &str) -> Value {
        redis::parse_redis_value(wire.replace('|', "\r\n").as_bytes()).unwrap()
    }

    fn read(address: &str, details: &str) -> Report {
        Report::read(value(address), &value(details), &"sentinel:1".into())
    }

    fn details(port: u16, flags: &str) -> String {
        let parts =
            ["name", "stock", "ip", "h", "port", &port.to_string(), "flags", flags, "config-epoch", "7"];
        let parts = parts.map(|part| format!("${}|{part}|", part.len()));
        format!("*{}|{}", parts.len(), parts.concat())
    }

    #[test]
    fn the_newest_report_counts_in_any_order_of_the_answers() {
        for reports in [
            vec![named(1, 3, false), named(2, 4, false), unreachable()],
            vec![named(2, 4, false), named(1, 3, true)],
        ] {
            assert_eq!(decide(reports, 3, "stock", true).unwrap().port, 2);
        }
    }

    #[test]
    fn a_sentinel_that_takes_part_in_a_failover_counts_more_than_one_that_does_not_yet() {
        let reports = vec![named(1, 3, false), named(1, 3, true), named(1, 3, false)];
        assert!(decide(reports, 3, "stock", true).unwrap().being_replaced);
    }

    #[test]
    fn the_master_that_most_sentinels_name_is_chosen_although_a_stale_report_comes_first() {
        let reports = [1, 2, 2].map(|port| named(port, 0, false)).into();
        assert_eq!(decide(reports, 3, "stock", true).unwrap().port, 2);
    }

    /// No majority names either of them.
    #[test]
    fn of_reports_of_one_epoch_that_of_a_failover_counts_and_then_that_of_most_sentinels() {
        for (reports, expected) in [
            (vec![named(1, 3, false), named(2, 3, true)], (2, true)),
            (vec![named(2, 3, false), named(1, 3, true)], (1, true)),
            (vec![named(1, 3, false), named(2, 3, false), named(2, 3, false)], (2, false)),
            (vec![named(2, 3, false), named(1, 3, false), named(1, 3, false)], (1, false)),
        ] {
            let decided = decide(reports, 7, "stock", true).unwrap();
            assert_eq!((decided.port, decided.being_replaced), expected);
        }
    }

    #[test]
    fn of_two_names_for_one_master_the_same_is_chosen_in_any_order_of_the_answers() {
        let reports = |ports: [u16; 2]| ports.map(|port| named(port, 3, false)).into();
        assert_eq!(
            decide(reports([1, 2]), 2, "stock", true).unwrap(),
            decide(reports([2, 1]), 2, "stock", true).unwrap()
        );
    }

    #[test]
    fn a_name_that_most_sentinels_do_not_know_is_a_wrong_option_at_first() {
        let unknown = || vec![Report::Unknown, unreachable(), Report::Unknown];
        assert_eq!(kind(unknown(), true), ErrorKind::Config);
        assert_eq!(kind(unknown(), false), ErrorKind::Unavailable);
        assert_eq!(kind(vec![Report::Unknown, unreachable(), unreachable()], true), ErrorKind::Unavailable);
        assert_eq!(
            kind(vec![Report::NoSentinel, Report::NoSentinel, unreachable()], true),
            ErrorKind::Config
        );
        let text = decide(unknown(), 3, "st\nock", true).unwrap_err().to_string();
        assert!(text.contains(r"no master `st\nock`"), "{text}");
        let text = decide(vec![Report::NoSentinel], 1, "stock", true).unwrap_err().to_string();
        assert!(text.contains("are no sentinels"), "{text}");
        // Two of five are not a majority.
        assert_eq!(
            decide(vec![Report::Unknown, Report::NoSentinel], 5, "stock", true).unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        assert_eq!(decide(vec![Report::Unknown, named(1, 0, false)], 2, "stock", true).unwrap().port, 1);
    }

    #[test]
    fn without_a_reachable_sentinel_the_master_is_unavailable_and_a_refusal_is_denied() {
        assert_eq!(kind(vec![unreachable(), unreachable()], true), ErrorKind::Unavailable);
        assert_eq!(kind(vec![], true), ErrorKind::Unavailable);
        let denied = || Report::Denied(Error::new(ErrorKind::Denied, "denied"));
        assert_eq!(kind(vec![unreachable(), denied(), Report::Unknown], true), ErrorKind::Denied);
        assert!(decide(vec![denied(), named(1, 0, false)], 3, "stock", true).is_ok());
    }

    #[test]
    fn an_address_is_read_with_its_epoch_and_a_failover_in_progress() {
        let at_seven = "*2|$1|h|$1|7|";
        for (details, expected) in [
            (details(7, "master"), (7, false)),
            (details(7, "s_down,master,failover_in_progress"), (7, true)),
            // The replica is promoted already.
            (details(8, "master,failover_in_progress"), (7, false)),
            ("-NOPERM no right|".to_owned(), (0, false)),
        ] {
            let Report::Master(named) = read(at_seven, &details) else { panic!("{details}") };
            assert_eq!((named.epoch, named.being_replaced), expected, "{details}");
            assert_eq!(named.address(), "h:7");
        }
    }

    #[test]
    fn answers_without_an_address_are_classified() {
        assert!(matches!(read("*-1|", "-ERR No such master with that name|"), Report::Unknown));
        assert!(matches!(read("-ERR unknown command 'SENTINEL'|", ":1|"), Report::NoSentinel));
        assert!(matches!(read(":1|", ":1|"), Report::NoSentinel));
        assert!(matches!(read("-NOAUTH Authentication required.|", ":1|"), Report::Denied(_)));
        assert!(matches!(read("-NOPERM no permissions|", ":1|"), Report::Denied(_)));
        assert!(matches!(read("-LOADING it|", ":1|"), Report::Unreachable(_)));
        let named = ReportedMaster { host: "::1".into(), port: 7, epoch: 0, being_replaced: false };
        assert_eq!(named.address(), "[::1]:7");
    }
}
