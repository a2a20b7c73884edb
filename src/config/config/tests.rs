use super::*;
use crate::error::ErrorKind;

mod fuzz;

fn good() -> Builder {
    one("redis://user:secret@127.0.0.1:6379")
}

fn one(master: impl Into<Master>) -> Builder {
    Builder::over([master])
}

fn quorum(masters: impl IntoIterator<Item = impl Into<Master>>) -> Builder {
    Builder::over(masters)
}

/// Checks that these options are rejected with a message that has all of `words`, and no password.
fn rejects(builder: Builder, words: &[&str]) {
    assert!(!format!("{builder:?}").contains("secret"));
    let error = builder.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let message = format!("{error} {error:?}");
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
    assert!(!message.contains("secret"), "{message}");
}

#[test]
fn the_defaults_are_as_documented() {
    let config = good().check().unwrap();
    assert_eq!(config.lease.duration(), Duration::from_secs(30));
    assert_eq!(config.drift, Drift { factor: 0.01, slack: Duration::from_millis(2) });
    assert_eq!(&*config.prefix, "");
    assert_eq!(config.node_timeout, Duration::from_millis(500));
    assert_eq!(config.unavailable_after, Duration::from_secs(10));
    assert_eq!(config.poll_interval, Duration::from_secs(5));
    assert_eq!(config.retry_delay, Duration::from_millis(50)..=Duration::from_millis(250));
    assert_eq!(config.token_ttl, Some(Lease::DAY));
    assert_eq!(config.local_handoff, Duration::from_millis(10));
    assert_eq!(
        config.warn_after,
        Some(WarnAfter { first: Duration::from_secs(5), again: Duration::from_secs(30) })
    );
    assert!(!format!("{config:?}").contains("secret"));
}

#[test]
fn a_builder_shows_each_option_once_as_it_would_be_used() {
    let shown = |builder: Builder| format!("{builder:?}");
    for option in
        ["lease: ", "restart_delay: ", "token_ttl: ", "blocked_for: ", "sharded_channels: ", "warn_after: "]
    {
        assert_eq!(shown(good()).matches(option).count(), 1, "{option}");
    }
    assert!(shown(good().lease(Duration::from_secs(7))).contains("7s"));
    assert!(shown(good().lease(Duration::ZERO)).contains("lease of 0"));
}

/// The default of the option must not make a short lease an error.
#[test]
fn a_hold_is_passed_on_for_a_sixth_of_the_lease_at_most() {
    let handoff = |builder: Builder| builder.check().unwrap().local_handoff;
    let lease = Duration::from_secs(6);
    assert_eq!(handoff(good().lease(lease).local_handoff(Duration::MAX)), Duration::from_secs(1));
    assert_eq!(handoff(good().lease(lease / 1000)), Duration::from_millis(1));
    assert_eq!(handoff(good().local_handoff(Duration::ZERO)), Duration::ZERO);
}

#[test]
fn a_fencing_counter_outlives_every_holder() {
    let (minute, week) = (Duration::from_secs(60), 7 * Lease::DAY.duration());
    let ttl = |builder: Builder| builder.check().unwrap().token_ttl.map(Lease::duration);
    assert_eq!(ttl(good().token_ttl(minute)), Some(minute));
    assert_eq!(ttl(good().token_ttl(Duration::MAX)), None);
    assert_eq!(ttl(good().lease(week)), Some(week));
    rejects(good().token_ttl(Duration::ZERO), &["token_ttl", "0ns"]);
    rejects(good().token_ttl(Duration::from_secs(29)), &["token_ttl", "29s", "30s"]);
    rejects(good().token_ttl(week).restart_delay(week * 2), &["token_ttl"]);
    rejects(good().token_ttl(Duration::MAX - minute), &["token_ttl", "more than Redis can store"]);
}

#[test]
fn a_master_has_to_be_given() {
    rejects(quorum([] as [&str; 0]), &["no master", "`Locks::quorum`", "`Locks::in_memory`"]);
    rejects(quorum(Vec::<Master>::new()), &["no master"]);
    assert_eq!(quorum(["redis://c"]).check().unwrap().masters[0].to_string(), "c:6379");
}

#[test]
fn a_master_that_is_given_twice_is_rejected() {
    rejects(
        quorum(["redis://:secret@127.0.0.1", "redis://127.0.0.1:6379"]),
        &["127.0.0.1:6379", "more than once"],
    );
    let stores = [Memory::new(), Memory::new()];
    let over = |stores: &[&Memory]| quorum(stores.iter().copied());
    rejects(over(&[&stores[0], &stores[1], &stores[0].clone()]), &["in-memory store", "more than once"]);
    let mixed = [Master::server(("::1", 7)), Master::memory(&stores[0]), Master::memory(&stores[1])];
    assert_eq!(quorum(mixed).check().unwrap().masters.len(), 3);
    let crowd = (0..64).map(|_| Master::memory(&Memory::new()));
    rejects(quorum(crowd), &["64 masters", "at most 63"]);
}

#[test]
fn a_cluster_is_one_master_that_is_given_once() {
    let nodes = || ["redis://:secret@10.0.0.1", "redis://:secret@10.0.0.2"];
    let with = |other: Master| quorum([Master::cluster(nodes()), other]);
    assert_eq!(one(Master::cluster(nodes())).check().unwrap().masters.len(), 1);
    let twice = Master::cluster(["redis://10.0.0.2", "redis://10.0.0.3"]);
    rejects(with(twice), &["10.0.0.2:6379", "more than once"]);
    rejects(with(Master::server("redis://10.0.0.1")), &["10.0.0.1:6379", "more than once"]);
    rejects(
        quorum([Master::server("redis://10.0.0.1"), Master::cluster(nodes())]),
        &["10.0.0.1:6379", "more than once"],
    );
    rejects(one(Master::cluster([] as [&str; 0])), &["`Master::cluster`"]);
    rejects(one(Master::cluster(["redis://:secret@10.0.0.1/3"])), &["database", "10.0.0.1:6379"]);
    with(Master::cluster(["redis://10.0.0.3"])).check().unwrap();
}

#[test]
fn a_master_shows_no_credentials() {
    let shown = [
        Master::server("redis://user:secret@one"),
        Master::sentinel(["redis://user:secret@one"], "mine"),
        Master::cluster(["redis://user:secret@one"]),
    ]
    .map(|master| format!("{master:?}"));
    assert!(shown.iter().all(|shown| shown.contains("one:6379") && !shown.contains("secret")), "{shown:?}");
}

#[test]
fn several_masters_do_not_trust_one_that_was_just_started() {
    let several = || quorum([("127.0.0.1", 6379), ("::1", 7)]);
    assert_eq!(good().check().unwrap().probation(), None);
    assert_eq!(several().check().unwrap().probation(), Some(Duration::from_millis(30_302)));
    assert_eq!(several().restart_delay(Duration::ZERO).check().unwrap().probation(), None);
    let longer = several().restart_delay(Duration::from_secs(60)).check().unwrap();
    assert!(longer.probation() > Some(Duration::from_secs(60)));
    longer.lease("fixed_lease", Duration::from_secs(60)).unwrap();
    let error = longer.lease("fixed_lease", Duration::from_secs(61)).unwrap_err();
    assert!(error.to_string().contains("fixed_lease of 61s is more than restart_delay"), "{error}");
    good().check().unwrap().lease("fixed_lease", Duration::from_secs(61)).unwrap();
    rejects(good().restart_delay(Duration::from_secs(29)), &["restart_delay of 29s", "or zero"]);
}

#[test]
fn an_address_that_cannot_be_used_is_rejected() {
    rejects(one("http://user:secret@host"), &["address"]);
}

#[test]
fn a_lease_within_its_drift_is_rejected() {
    rejects(good().lease(Duration::ZERO), &["lease", "0ns"]);
    rejects(good().lease(Duration::from_millis(2)), &["lease", "2ms"]);
    rejects(good().drift(0.5, Duration::from_secs(15)), &["lease", "30s"]);
    rejects(good().drift(0.5, Duration::MAX), &["lease", "30s"]);
    good().lease(Duration::from_millis(3)).check().unwrap();
}

#[test]
fn a_lease_beyond_what_redis_can_store_is_rejected() {
    rejects(good().lease(Duration::MAX), &["lease", "more than Redis can store"]);
}

#[test]
fn a_drift_factor_that_is_no_share_is_rejected() {
    for (factor, shown) in [(f64::NAN, "NaN"), (-0.5, "-0.5"), (1.0, "of 1 "), (f64::INFINITY, "inf")] {
        rejects(good().drift(factor, Duration::ZERO), &["drift", shown]);
    }
    good().drift(0.0, Duration::ZERO).check().unwrap();
}

#[test]
fn a_prefix_that_breaks_the_hash_tag_is_rejected() {
    rejects(good().prefix("}app:"), &["prefix", "}app:"]);
    good().prefix("{app}:").check().unwrap();
}

#[test]
fn a_prefix_that_is_too_long_is_rejected() {
    rejects(good().prefix("x".repeat(1025)), &["prefix", "1025 bytes", "xxx"]);
    good().prefix("x".repeat(1024)).check().unwrap();
}

#[test]
fn the_name_of_a_holder_is_printable_and_ends_before_a_colon() {
    let named = |name: &str| good().holder_name(name).check().unwrap().holder_name;
    assert_eq!(good().check().unwrap().holder_name, None);
    for good in ["billing@web-7", "a b", "'\"\\", "schön", &"x".repeat(64), &"ü".repeat(32)] {
        assert_eq!(named(good).as_deref(), Some(good));
    }
    rejects(good().holder_name(""), &["holder name", "empty"]);
    rejects(good().holder_name("x".repeat(65)), &["holder name", "65 bytes", "64"]);
    for (bad, shown) in [
        ("a:b", "`:`"),
        ("a\n", "`\\n`"),
        ("\0", "`\\0`"),
        ("\u{202e}b", "`\\u{202e}`"),
        ("\u{7f}", "`\\u{7f}`"),
    ] {
        rejects(good().holder_name(bad), &["holder name", shown, "printable"]);
    }
}

#[test]
fn credentials_come_from_one_place() {
    let provided = |builder: Builder| {
        builder.credentials(|| async { Ok::<_, std::io::Error>(Credentials::new("bob", "secret")) })
    };
    for url in ["redis://:secret@10.0.0.1", "redis://bob@10.0.0.1", "redis://bob:secret@10.0.0.1"] {
        for builder in [
            one(url),
            quorum(["redis://10.0.0.2", url]),
            one(Master::cluster([url])),
            quorum([Master::memory(&Memory::new()), Master::cluster([url])]),
        ] {
            rejects(provided(builder), &["credentials", "10.0.0.1:6379", "remove"]);
        }
    }
    rejects(provided(one(Memory::new())), &["credentials", "`Memory`"]);
    let mixed = [Master::memory(&Memory::new()), Master::server("redis://10.0.0.1/3")];
    provided(quorum(mixed)).check().unwrap();
    // The passwords in the URLs of sentinels are the sentinels' own.
    provided(one(Master::sentinel([url_of("secret")], "mine"))).check().unwrap();
    assert!(!format!("{:?}", provided(good()).check()).contains("secret"));
    assert!(good().check().unwrap().provider.is_none());
}

fn url_of(password: &str) -> String {
    format!("redis://:{password}@10.0.0.1")
}

#[test]
fn addresses_are_mapped_where_some_are_reported() {
    let mapped = |builder: Builder| builder.address_map(|host, port| (host.to_owned(), port + 1));
    rejects(mapped(good()), &["address_map", "`Master::cluster`", "`Master::sentinel`"]);
    rejects(mapped(one(Memory::new())), &["address_map"]);
    for builder in [one(Master::cluster(["redis://a"])), one(Master::sentinel(["redis://a"], "mine"))] {
        let map = mapped(builder.clone()).check().unwrap().address_map;
        assert_eq!(map.get("a", 1), Some(("a".to_owned(), 2)));
        assert_eq!(builder.check().unwrap().address_map.get("a", 1), None);
    }
}

#[test]
fn a_node_timeout_of_zero_is_rejected() {
    rejects(good().node_timeout(Duration::ZERO), &["node_timeout", "0 ns"]);
}

#[test]
fn waits_are_reported_soon_and_then_after_each_lease_or_as_asked_or_never() {
    let warns = |builder: Builder| builder.check().unwrap().warn_after.map(|warn| (warn.first, warn.again));
    let second = Duration::from_secs(1);
    assert_eq!(warns(good().lease(7 * second)), Some((5 * second, 7 * second)));
    assert_eq!(warns(good().lease(2 * second)), Some((2 * second, 2 * second)));
    assert_eq!(warns(good().lease(7 * second).warn_after(second)), Some((second, second)));
    assert_eq!(warns(good().warn_after(Duration::MAX)), None);
    // A default must not make a short lease an error.
    assert!(warns(good().lease(second / 250)).is_some());
    for short in [Duration::ZERO, Duration::from_micros(999)] {
        rejects(good().warn_after(short), &["warn_after", &format!("{short:?}")]);
    }
}

#[test]
fn a_poll_interval_of_zero_is_rejected() {
    rejects(good().poll_interval(Duration::ZERO), &["poll_interval", "0 ns"]);
}

#[test]
fn a_retry_delay_without_a_value_is_rejected() {
    let range = Duration::from_millis(2)..=Duration::from_millis(1);
    rejects(good().retry_delay(range), &["retry_delay", "2ms..=1ms"]);
}

#[test]
fn replicas_are_waited_for_where_there_are_some_and_not_for_ever() {
    let asked = |count, millis| good().replicas(count, Duration::from_millis(millis));
    assert_eq!(good().check().unwrap().replicas, None);
    assert_eq!(asked(0, 0).check().unwrap().replicas, None);
    let wait = Duration::from_millis(7);
    let config = asked(2, 7).check().unwrap();
    assert_eq!(config.replicas, Some(Replicas { count: 2, wait }));
    assert!(config.attempt_limit() > good().check().unwrap().attempt_limit() + wait);
    rejects(asked(1, 0), &["replicas", "0 ns"]);
    rejects(one(Memory::new()).replicas(1, wait), &["replicas", "`Memory`"]);
    rejects(good().replicas(1, Duration::from_secs(30)), &["replicas", "wait of 30s", "lease of 30s"]);
    good().replicas(usize::MAX, Duration::from_secs(29)).check().unwrap();
}

#[test]
fn only_a_cluster_has_sharded_channels() {
    let cluster = || one(Master::cluster(["redis://10.0.0.1"]));
    assert!(cluster().check().unwrap().sharded_channels);
    assert!(!cluster().sharded_channels(false).check().unwrap().sharded_channels);
    for sharded in [true, false] {
        rejects(good().sharded_channels(sharded), &["sharded_channels", "`Master::cluster`"]);
    }
    let mixed = [Master::server("redis://10.0.0.2"), Master::cluster(["redis://10.0.0.1"])];
    quorum(mixed).sharded_channels(true).check().unwrap();
}

#[test]
fn the_lock_is_kept_for_a_waiter_no_longer_than_for_a_holder() {
    let (second, forever) = (Duration::from_secs(1), Duration::MAX);
    let term = |builder: Builder| builder.check().unwrap().line().unwrap().term.duration();
    assert_eq!(term(good()), second);
    assert_eq!(term(good().node_timeout(3 * second)), 6 * second);
    assert_eq!(term(good().node_timeout(forever)), 30 * second);
    assert_eq!(term(good().node_timeout(forever).lease(second / 4)), second);
    let stays = good().poll_interval(forever).check().unwrap().line().unwrap().stays.duration();
    assert_eq!(stays, LONGEST_STAY + second);
}

#[test]
fn what_may_last_for_ever_may() {
    let forever = Duration::MAX;
    good().node_timeout(forever).unavailable_after(forever).poll_interval(forever).check().unwrap();
    good().unavailable_after(Duration::ZERO).check().unwrap();
}
