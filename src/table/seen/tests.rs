use super::*;

#[test]
fn a_hold_stands_since_it_was_seen_first() {
    let (second, lease) = (Duration::from_secs(1), Duration::from_secs(10));
    let began = Instant::now();
    let mut seen = Seen::default();
    let mut note = |field, at| {
        seen.note(Some(Holder::new(field, 1, lease)), began + at);
        seen.holder(began + at + second).unwrap().held
    };
    assert_eq!(note("theirs:1", Duration::ZERO), second);
    assert_eq!(note("theirs:1", 20 * second), 21 * second, "though it was not looked at for two leases");
    assert_eq!(note("theirs:2", 30 * second), second);
    seen.clear(began + 31 * second);
    seen.note(Some(Holder::new("theirs:2", 1, lease)), began + 32 * second);
    assert_eq!(seen.holder(began + 33 * second).unwrap().held, second, "the lock was free in between");
}

/// This includes a command that was sent at that very moment: its answer may be about the time before it.
#[test]
fn what_was_asked_before_the_lock_changed_hands_is_not_noted() {
    let (step, lease) = (Duration::from_millis(1), Duration::from_secs(10));
    let now = Instant::now();
    for (sent, is_noted) in [(now, false), (now + step, false), (now + 2 * step, true)] {
        let mut seen = Seen::default();
        seen.clear(now + step);
        seen.note(Some(Holder::new("theirs:1", 1, lease)), sent);
        assert_eq!(seen.holder(now + 2 * step).is_some(), is_noted);
    }
}
