use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

proptest! {
    /// Compares the agenda with an ordered set.
    #[test]
    fn what_is_due_is_what_was_put_in_and_not_taken_out(
        steps in proptest::collection::vec((0..12_usize, proptest::option::of(0..5_u64)), 1..100),
    ) {
        let begin = Instant::now();
        let time = |seconds| begin + Duration::from_secs(seconds);
        let (mut agenda, mut due_of, mut expected) = (Agenda::default(), [None; 12], BTreeSet::new());
        for (slot, due) in steps {
            if let Some(before) = due_of[slot] {
                agenda.remove(time(before), slot);
                expected.remove(&(before, slot));
            }
            if let Some(due) = due {
                agenda.insert(time(due), slot);
                expected.insert((due, slot));
            }
            due_of[slot] = due;
            prop_assert_eq!(agenda.first(), expected.first().map(|(due, _)| time(*due)));
            for now in 0..5 {
                let mut until: Vec<_> = agenda.until(time(now)).map(|slot| (due_of[slot], slot)).collect();
                prop_assert!(until.is_sorted_by_key(|(due, _)| *due));
                until.sort();
                let due = expected.iter().filter(|(due, _)| *due <= now);
                let due: Vec<_> = due.map(|(due, slot)| (Some(*due), *slot)).collect();
                prop_assert_eq!(until, due);
            }
        }
    }
}
