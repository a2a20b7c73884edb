//! The counter: which keys can be one, how long it is kept, and what raises it.

use super::*;

#[tokio::test]
async fn a_counter_at_its_end_grants_nothing_and_stays() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    wire.count_from("9223372036854775806").await;
    assert_eq!(wire.take(OURS, "7").await, token(LAST));
    assert_eq!(wire.try_take(OURS, "2", "7", DAY).await.unwrap(), token(LAST), "its holder re-enters");
    assert_eq!(wire.raise(OURS, LAST).await, DONE);
    assert!(is_busy(&wire.take(THEIRS, "7").await));
    wire.release(OURS, 0).await;
    let before = wire.counter_state().await;
    for least in ["7", "", LAST] {
        assert_eq!(wire.take(THEIRS, least).await, status("counter end"));
    }
    assert_eq!((wire.look().await, wire.counter_state().await), (FREE, before));
}

#[tokio::test]
async fn a_key_that_is_no_counter_is_reported_and_neither_it_nor_the_lock_is_touched() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let others: [(&str, &[&str]); 5] = [
        ("list", &["RPUSH", COUNTER, "x"]),
        ("set", &["SADD", COUNTER, "x"]),
        ("zset", &["ZADD", COUNTER, "1", "x"]),
        ("hash", &["HSET", COUNTER, "x", "y"]),
        ("stream", &["XADD", COUNTER, "*", "x", "y"]),
    ];
    // These texts are not numbers for INCR.
    let texts = [
        "",
        "x",
        "7x",
        " 7",
        "7 ",
        "+7",
        "-",
        "--7",
        "1.5",
        "1e3",
        "0x10",
        "nan",
        "inf",
        "007",
        "-0",
        "-07",
        "9223372036854775808",
        "9999999999999999999",
        "10000000000000000000",
        "-9223372036854775809",
        "7\n",
    ];
    let strings = texts.map(|text| ["SET", COUNTER, text]);
    let strings = strings.iter().map(|make| ("string", &make[..]));
    for (kind, make) in others.into_iter().chain(strings) {
        wire.clear().await;
        wire.ask::<Value>(make).await;
        let before = wire.counter_state().await;
        assert_eq!(wire.take(OURS, "7").await, status(&format!("counter {kind}")), "{make:?}");
        assert_eq!(wire.look().await, FREE, "{make:?}");
        // If such a key is made under a hold, it ends neither the hold nor its renewal.
        assert_eq!(wire.acquire(OURS, 1, LEASE / 2).await, DONE);
        let end = wire.end().await;
        deferred(wire.raise(OURS, "7").await);
        assert!(wire.end().await > end, "{make:?}");
        deferred(wire.mend(OURS, "2", "0", "7", DAY).await);
        assert_eq!(wire.fields().await, held(&[(OURS, "2")]), "{make:?}");
        assert_eq!(wire.raise(THEIRS, "7").await, GONE);
        assert_eq!(wire.counter_state().await, before, "{make:?}");
        assert_eq!(
            wire.mend(OURS, "0", "0", "7", DAY).await,
            token("the key of the fencing counter holds something else")
        );
        assert_eq!(wire.look().await, FREE, "{make:?}");
    }
}

#[tokio::test]
async fn a_counter_is_kept_for_the_given_time_and_no_use_shortens_it() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    let day = 86_400;
    wire.take(OURS, "7").await;
    assert!((day - 60..=day).contains(&wire.stays().await));
    for used in ["acquire", "raise", "renew", "settle", "repair"] {
        for (had, then) in [(60, day), (3 * day, 3 * day)] {
            wire.clear().await;
            wire.count_from("41").await;
            wire.ask::<()>(&["EXPIRE", COUNTER, &had.to_string()]).await;
            match used {
                "acquire" => assert_eq!(wire.take(OURS, "7").await, token("42")),
                "raise" => assert_eq!(wire.raise(OURS, "42").await, GONE),
                "renew" => assert_eq!(wire.raise(OURS, "41").await, GONE),
                "settle" => assert_eq!(wire.mend(OURS, "1", "0", "42", DAY).await, GONE),
                _ => assert_eq!(wire.mend(OURS, "1", "1", "41", DAY).await, DONE),
            }
            let stays = wire.stays().await;
            assert!((then - 60..=then).contains(&stays), "{used} of {had}: {stays}");
        }
    }
}

#[tokio::test]
async fn a_counter_without_an_end_gets_none_and_one_that_is_to_stay_for_ever_loses_its_own() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    // The counter is one that Redisson made, or one of a fleet that sets a TTL for its counters.
    for (ends, stays) in [(false, DAY), (false, ""), (true, "")] {
        for used in ["acquire", "least", "raise", "renew", "settle", "repair"] {
            wire.clear().await;
            wire.count_from("41").await;
            if ends {
                wire.ask::<()>(&["EXPIRE", COUNTER, "60"]).await;
            }
            match used {
                "acquire" => assert_eq!(wire.try_take(OURS, "1", "7", stays).await.unwrap(), token("42")),
                "least" => assert_eq!(wire.try_take(OURS, "1", "99", stays).await.unwrap(), token("99")),
                "raise" => assert_eq!(wire.try_raise(OURS, "42", stays).await.unwrap(), GONE),
                "renew" => assert_eq!(wire.try_raise(OURS, "7", stays).await.unwrap(), GONE),
                "settle" => assert_eq!(wire.mend(OURS, "1", "0", "42", stays).await, GONE),
                _ => assert_eq!(wire.mend(OURS, "1", "1", "41", stays).await, DONE),
            }
            assert_eq!(wire.stays().await, -1, "{used}, {ends} {stays}");
        }
    }
    wire.clear().await;
    wire.try_take(OURS, "1", "7", "").await.unwrap();
    assert_eq!(wire.stays().await, -1, "a new counter has a TTL");
}

#[tokio::test]
async fn a_counter_is_raised_by_any_client_with_a_token_and_only_a_holder_is_confirmed() {
    let server = Server::start().await;
    let mut wire = Wire::to(&server).await;
    for (counter, given, then) in [
        (None, "7", "7"),
        (Some("7"), "7", "7"),
        (Some("8"), "7", "8"),
        (Some("9"), "10", "10"),
        (Some("10"), "9", "10"),
        (Some("-3"), "1", "1"),
        (Some("9007199254740992"), "9007199254740993", "9007199254740993"),
        (Some("9007199254740993"), "9007199254740992", "9007199254740993"),
        (Some("9223372036854775806"), LAST, LAST),
        (Some(LAST), "9223372036854775806", LAST),
    ] {
        for (holder, expected) in [(None, GONE), (Some(THEIRS), GONE), (Some(OURS), DONE)] {
            for way in ["renew", "settle"] {
                wire.clear().await;
                if let Some(holder) = holder {
                    wire.acquire(holder, 1, LEASE).await;
                }
                if let Some(counter) = counter {
                    wire.count_from(counter).await;
                }
                let before = wire.fields().await;
                let answer = match way {
                    "renew" => wire.raise(OURS, given).await,
                    _ => wire.mend(OURS, "1", "0", given, DAY).await,
                };
                assert_eq!(answer, expected, "{way}: {counter:?} to {given} by {holder:?}");
                assert_eq!(wire.counter().await.as_deref(), Some(then), "{way}: {counter:?} to {given}");
                assert_eq!(wire.fields().await, before);
            }
        }
    }
    // A repair brings the hold and its counter to a server that lacks both.
    wire.clear().await;
    assert_eq!(wire.mend(OURS, "2", "1", "77", DAY).await, DONE);
    assert_eq!((wire.fields().await, wire.counter().await), (held(&[(OURS, "2")]), Some("77".to_owned())));
}

#[tokio::test]
async fn on_a_full_server_a_renewal_is_made_and_its_raise_put_off() {
    let server = Server::with(&["--maxmemory-policy", "noeviction"]).await;
    let mut wire = Wire::to(&server).await;
    wire.take(OURS, "41").await;
    wire.count_from("7").await;
    wire.ask::<()>(&["PEXPIRE", KEY, "60000"]).await;
    wire.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let end = wire.end().await;
    assert!(deferred(wire.raise(OURS, "41").await).starts_with("OOM"));
    assert!(wire.end().await > end);
    assert!(deferred(wire.mend(OURS, "1", "0", "41", DAY).await).starts_with("OOM"));
    assert_eq!(wire.counter().await.as_deref(), Some("7"));
    // A counter that need not be raised is renewed, so it is kept for longer.
    wire.ask::<()>(&["EXPIRE", COUNTER, "60"]).await;
    assert_eq!(wire.raise(OURS, "7").await, DONE);
    assert!(wire.stays().await > 60);
    assert!(is_busy(&wire.take(THEIRS, "7").await));
    assert_eq!(wire.release(OURS, 0).await, ENDED);
    let refused = wire.try_take(THEIRS, "1", "7", DAY).await.unwrap_err().to_string();
    assert!(refused.contains("OOM"), "{refused}");
    assert_eq!((wire.look().await, wire.counter().await.as_deref()), (FREE, Some("7")));
    wire.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(wire.take(THEIRS, "7").await, token("8"));
}
