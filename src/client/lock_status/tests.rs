use super::*;

#[test]
fn a_status_is_shown_in_a_line() {
    let second = Duration::from_secs(1);
    let holder = Holder::new("f:1", 2, 12 * second);
    let shown = |held, waiting, holder| {
        let longest = 4 * second;
        LockStatus::new("stock\n42".into(), Usage { held, waiting, longest, holder }).to_string()
    };
    assert_eq!(
        shown(Some((1, second, second / 2)), 0, None),
        "stock\\n42: held for 1 s, good for another 500 ms"
    );
    assert_eq!(
        shown(Some((3, second, 2 * second)), 7, None),
        "stock\\n42: held for 1 s, good for another 2 s, 3 levels, 7 waiting, the first for 4 s"
    );
    assert_eq!(
        shown(None, 1, Some(holder)),
        "stock\\n42: 1 waiting, the first for 4 s, held by f:1 for another 12 s"
    );
    assert_eq!(shown(None, 1, None), "stock\\n42: 1 waiting, the first for 4 s");
}

#[test]
fn a_status_has_how_many_wait_and_for_how_long() {
    let longest = Duration::from_secs(4);
    for waiting in [0, 1, 7] {
        let usage = Usage { held: None, waiting, longest, holder: None };
        let status = LockStatus::new("stock".into(), usage);
        assert_eq!(status.waiting(), waiting);
        assert_eq!(status.waiting_for(), (waiting > 0).then_some(longest));
    }
}
