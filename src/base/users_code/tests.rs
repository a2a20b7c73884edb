use super::*;

#[test]
fn what_panics_returns_nothing() {
    assert_eq!(unless_it_panics(|| 7), Some(7));
    assert_eq!(unless_it_panics(|| -> u8 { panic!("on purpose") }), None);
}
