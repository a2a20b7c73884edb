use super::*;

#[test]
fn masters_are_iterated_in_ascending_order() {
    let listed = |masters: MasterSet| masters.iter().collect::<Vec<_>>();
    assert_eq!(listed(MasterSet::NONE), [0; 0]);
    assert_eq!(listed(MasterSet::one(63).union(MasterSet::one(0)).union(MasterSet::one(2))), [0, 2, 63]);
    assert_eq!(listed(MasterSet::ALL), (0..=MasterSet::MOST).collect::<Vec<_>>());
}

/// The acquire's answer may arrive after the repair.
#[test]
fn a_master_that_was_repaired_may_have_the_field() {
    let [first, second] = [0, 1].map(MasterSet::one);
    let mut absence = Absence::default();
    absence.note(first.union(second));
    assert_eq!((absence.masters(), absence.repaired()), (first.union(second), MasterSet::NONE));
    absence.repair(second);
    absence.note(second);
    assert_eq!((absence.masters(), absence.repaired()), (first, second));
}
