use super::*;

#[test]
fn masters_are_iterated_in_ascending_order() {
    let listed = |masters: MasterSet| masters.iter().collect::<Vec<_>>();
    assert_eq!(listed(MasterSet::NONE), [0; 0]);
    assert_eq!(listed(MasterSet::one(63).union(MasterSet::one(0)).union(MasterSet::one(2))), [0, 2, 63]);
    assert_eq!(listed(MasterSet::ALL), (0..=MasterSet::MOST).collect::<Vec<_>>());
}
