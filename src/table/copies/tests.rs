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
