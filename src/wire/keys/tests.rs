use super::*;

mod fuzz;

#[test]
fn names_without_a_prefix_are_redissons() {
    assert_eq!(key("", "order:1"), "order:1");
    assert_eq!(channel("", "order:1"), "redisson_lock__channel:{order:1}");
    assert_eq!(channel("", "a{b}c"), "redisson_lock__channel:a{b}c");
    assert_eq!(channel("", "{x}:y"), "redisson_lock__channel:{x}:y");
    assert_eq!(channel("", "a}b"), "redisson_lock__channel:{a}b}");
    assert_eq!(counter("", "order:1"), "redisson_lock_token:{order:1}");
    assert_eq!(counter("", "a{b}c"), "redisson_lock_token:a{b}c");
    assert_eq!(counter("", "{x}:y"), "redisson_lock_token:{x}:y");
}

#[test]
fn key_and_channel_lie_under_the_prefix() {
    assert_eq!(key("app:", "order:1"), "app:order:1");
    assert_eq!(channel("app:", "order:1"), "app:redisson_lock__channel:{app:order:1}");
    assert_eq!(channel("{app}:", "order:1"), "{app}:redisson_lock__channel:{app}:order:1");
    assert_eq!(channel("app:", "{x}:y"), "app:redisson_lock__channel:app:{x}:y");
    assert_eq!(counter("app:", "order:1"), "app:redisson_lock_token:{app:order:1}");
    assert_eq!(counter("{app}:", "order:1"), "{app}:redisson_lock_token:{app}:order:1");
}

#[test]
fn no_two_locks_have_one_line() {
    for prefix in ["", "app:", "{app}:"] {
        let keys = ["x", "{x}", "{{x}}", "x}", "{x", ":{x}", "{x}:y"].map(|name| Keys::new(prefix, name));
        for (at, one) in keys.iter().enumerate() {
            for other in &keys[..at] {
                assert_ne!(one.line().line, other.line().line, "{} and {}", one.key, other.key);
            }
        }
    }
    // The line is in the slot of the key.
    let line = |prefix, name| Keys::new(prefix, name).line().line.to_string();
    assert_eq!(line("app:", "order:1"), "app:nestlock_line:{app:order:1}");
    assert_eq!(line("", "{x}:y"), "nestlock_line::{x}:y");
    assert_eq!(line("{app}:", "order:1"), "{app}:nestlock_line::{app}:order:1");
}

#[test]
fn the_key_of_a_lock_is_among_those_of_its_channel() {
    for (prefix, name) in [("", "a"), ("app:", "a}b"), ("", "{x}:y"), ("{app}:", "a"), ("app:", "a{b}c")] {
        let (key, channel) = (key(prefix, name), channel(prefix, name));
        assert!(keys_of(&channel).any(|one| *one == *key), "{channel}");
    }
    assert_eq!(keys_of("redisson_lock__channel:{a}").collect::<Vec<_>>(), ["a", "{a}"]);
    assert_eq!(keys_of("another").count(), 0);
}

#[test]
fn on_a_cluster_a_line_and_its_hints_are_in_the_slot_of_their_lock_or_there_are_none() {
    for (prefix, name, expected) in [
        ("", "order:1", Some(("nestlock_line:{order:1}", "nestlock_wake:{order:1}:"))),
        ("app:", "a", Some(("app:nestlock_line:{app:a}", "app:nestlock_wake:{app:a}:"))),
        ("", "{x}:y", Some(("nestlock_line::{x}:y", "nestlock_wake:{x}:y:"))),
        ("{app}:", "a", Some(("{app}:nestlock_line::{app}:a", "{app}:nestlock_wake:{app}:a:"))),
        ("", "a}b", None),
        ("", "{}x", None),
        ("", "un{paired", None),
        ("a{b", "c}d", None),
        // The channel of this name is also that of `a}b`.
        ("", "{a}b}", None),
    ] {
        let keys = Keys::new(prefix, name);
        let line = keys.sharded_line();
        assert_eq!(line.map(|line| (&*line.line, &*line.wakes)), expected, "{prefix} {name}");
        let Some(line) = line else { continue };
        for label in ["", "web-7:", "{web}:"] {
            let session = [label, "4be5fd9c"].concat();
            let hints = [&*line.wakes, &session].concat();
            assert_eq!(tag(&hints), tag(&keys.key));
            assert!(is_for_hints(&hints) && !is_for_hints(keys.channel()));
            let about = channel_of_hints(&hints, &wakes(prefix), &session);
            assert_eq!(about.as_deref(), Some(&**keys.channel()));
        }
        assert_eq!(channel_of_hints(keys.channel(), &wakes(prefix), "4be5fd9c"), None);
    }
}

#[test]
fn a_good_name_passes() {
    for (name, prefix) in [("a", ""), ("a}", ""), ("{}", ""), ("}a", "app:"), (" ", ""), ("schön", "")] {
        check(name, prefix).unwrap();
    }
    check(&"x".repeat(LONGEST), "").unwrap();
}

#[test]
fn a_name_that_cannot_work_is_rejected_with_the_reason() {
    let long = "x".repeat(LONGEST + 1);
    let expected = [
        ("", "", "must not be empty"),
        ("", "app:", "must not be empty"),
        (&long, "", "1025 bytes"),
        ("}a", "", "the name of lock `}a` begins with `}`"),
    ];
    for (name, prefix, why) in expected {
        let error = check(name, prefix).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(why), "{error}");
        assert!(error.to_string().len() < 400, "{error}");
    }
}
