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
    decide_master(numbered(reports), Instant::now(), sentinels, name, first, &mut ReportHistory::default())
}

/// A client of three sentinels. Each method takes their reports and returns the port of the master; `look`
/// returns it only if it changed.
#[derive(Default)]
struct Client(ReportHistory);

impl Client {
    fn connect(&mut self, reports: Vec<Report>) -> u16 {
        self.in_each_order(reports, |history, named| history.current.insert(named.unwrap()).port)
    }

    fn look(&mut self, reports: Vec<Report>) -> Option<u16> {
        self.in_each_order(reports, |history, named| {
            named.filter(|named| history.is_change(named)).map(|named| named.port)
        })
    }

    /// Decides as if the reports arrived one after the other, in each order: once one decides, those after it
    /// are not awaited. Keeps the history of the given order. `outcome` is given `None` if the decision is
    /// stale.
    fn in_each_order<T: PartialEq + std::fmt::Debug>(
        &mut self,
        reports: Vec<Report>,
        outcome: impl Fn(&mut ReportHistory, Option<ReportedMaster>) -> T,
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
            let named = decide_master(arrived, Instant::now(), 3, "stock", false, history);
            let is_stale = |error: Error| assert!(error.to_string().contains(STALE), "{error}");
            outcome(history, named.map_err(is_stale).ok())
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
    // One of them leads a failover.
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
    // The one that was left out is the only one to answer.
    assert_eq!(client.look(vec![named(1, 2, false), unreachable(), unreachable()]), None);
    let alone =
        decide_master(numbered(vec![named(1, 2, false)]), Instant::now(), 3, "stock", false, &mut client.0)
            .unwrap_err();
    assert!(alone.to_string().contains(STALE), "{alone}");
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
            .being_replaced
    };
    assert!(is_left(&mut client));
    advance(SILENCE - Duration::from_millis(1)).await;
    assert!(is_left(&mut client), "no sentinel has reported that the failover is aborted");
    // The leader may be dead. By now, the others have demoted a replica that it may have promoted.
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
    assert!(decision.being_replaced);
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
    let parts = ["name", "stock", "ip", "h", "port", &port.to_string(), "flags", flags, "config-epoch", "7"];
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

/// Neither server is named by a majority.
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
    assert_eq!(kind(vec![Report::NoSentinel, Report::NoSentinel, unreachable()], true), ErrorKind::Config);
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
        // The replica is already promoted.
        (details(8, "master,failover_in_progress"), (7, false)),
        // RESP3 sends a map.
        ("%2|$5|flags|$6|master|$12|config-epoch|:7|".to_owned(), (7, false)),
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
