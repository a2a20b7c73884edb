use super::*;

/// Makes the turns after a whole one, before which these sessions had the lock.
fn behind(sessions: &[&str]) -> Turns {
    let mut turns = Turns::default();
    sessions.iter().for_each(|session| turns.saw(session));
    turns.end(true);
    turns
}

#[test]
fn others_go_first_until_each_of_them_had_a_turn() {
    let mut turns = behind(&["a", "b", "a", "c"]);
    let due = [0; 5].map(|_| {
        turns.note();
        turns.until_due()
    });
    assert_eq!(due, [2, 1, 0, 0, 0].map(|missed| missed * MISSED));
}

/// No other request of this process waited: its hold did not pass on, so it keeps nobody waiting for long.
#[test]
fn who_has_not_had_a_whole_turn_lets_nobody_go_first() {
    let mut turns = behind(&["a", "b", "c"]);
    turns.end(false);
    turns.note();
    assert_eq!(turns.until_due(), Duration::ZERO);
    assert_eq!(Turns::default().until_due(), Duration::ZERO);
}

#[test]
fn who_has_not_had_the_lock_for_long_is_not_waited_for() {
    for (releases, known) in [(10, 2), (11, 0)] {
        let mut turns = behind(&["a", "b"]);
        (0..releases).for_each(|_| turns.note());
        turns.end(true);
        assert_eq!(turns.until_due(), known * MISSED, "{releases}");
    }
    // With many processes it waits for longer.
    let mut turns = behind(&["a", "b", "c", "d", "e"]);
    (0..13).for_each(|_| turns.note());
    turns.end(true);
    assert_eq!(turns.until_due(), 5 * MISSED);
}

/// Known processes keep their slots; a new one is ignored while all are taken.
#[test]
fn as_many_are_known_as_there_is_room_for() {
    let names: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    let mut turns = behind(&names.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(turns.until_due(), MOST as u32 * MISSED);
    (0..97).for_each(|_| turns.note());
    turns.saw("another");
    turns.end(true);
    assert_eq!(turns.until_due(), MISSED);
}

#[test]
fn of_the_pauses_for_nobody_one_in_four_is_made() {
    let mut turns = Turns::default();
    let skipped = [0; 16].map(|_| turns.skips_a_pause());
    assert_eq!((skipped.iter().filter(|skips| !**skips).count(), skipped[3], skipped[15]), (4, false, false));
}

/// 1. Two others are known. 2. One of them releases the lock, and the other one does not come. 3. This process has a turn.
#[test]
fn who_does_not_come_when_others_let_it_go_first_is_not_waited_for_again() {
    for (comes, known) in [(false, 1), (true, 2)] {
        let mut turns = behind(&["a", "b"]);
        turns.note();
        turns.saw("a");
        assert_eq!(turns.until_due(), MISSED);
        turns.waits();
        if comes {
            turns.saw("b");
        }
        turns.end(true);
        assert_eq!(turns.until_due(), known * MISSED);
    }
}
