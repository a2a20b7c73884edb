use super::*;

#[test]
fn a_status_is_shown_in_a_line() {
    let second = Duration::from_secs(1);
    let holder = Holder::new("f:1", 2, 12 * second);
    let shown = |held: Option<(usize, Duration, Duration)>, waiting, holder| {
        let usage = Usage {
            hold_count: held.map_or(0, |(levels, ..)| levels),
            held_for: held.map(|(_, since, _)| since),
            remaining_lease: held.map(|(.., left)| left),
            waiting,
            waiting_for: (waiting > 0).then_some(4 * second),
            holder,
        };
        LockStatus { name: "stock\n42".into(), usage }.to_string()
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
