use super::*;

/// The acquire's answer may arrive after the repair.
#[test]
fn a_master_that_was_repaired_may_have_the_field() {
    let [first, second] = [0, 1].map(MasterSet::one);
    let mut differences = Differences::NONE;
    differences.note_absent(first.union(second));
    assert_eq!((differences.absent, differences.repaired), (first.union(second), MasterSet::NONE));
    differences.note_repair(second);
    differences.note_absent(second);
    assert_eq!((differences.absent, differences.repaired), (first, second));
}

#[test]
fn an_end_is_sent_again_if_a_maker_may_have_run_after_it() {
    let one = MasterSet::one(1);
    let of = |is: bool| if is { one } else { MasterSet::NONE };
    // Whether a command that makes the field is open, whether there may be two such commands, whether the end
    // found the field, and whether it is ended again.
    for (is_open, repaired, found, again) in [
        (false, false, false, false),
        (false, true, true, false),
        (true, false, true, false),
        (true, false, false, true),
        (true, true, true, true),
        (true, true, false, true),
    ] {
        let mut differences = Differences { open: of(is_open), repaired: of(repaired), ..Differences::NONE };
        // Another command may find the same, but it is no end.
        assert_eq!(differences.note_end(MasterSet::NONE, of(!found)), of(is_open && !found));
        assert_eq!(differences.note_end(one, of(!found)), of(again));
        assert_eq!(differences.note_end(one, of(!found)), MasterSet::NONE);
    }
}
