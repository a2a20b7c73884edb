use super::*;

#[test]
fn a_wait_of_thirty_years_is_for_ever() {
    let (now, shorter) = (Instant::now(), FAR - Duration::from_nanos(1));
    assert_eq!((limit(now, FAR), limit(now, shorter)), (None, Some(now + shorter)));
}

#[test]
fn a_stamp_is_the_instant_in_half_the_room() {
    assert_eq!((size_of::<Stamp>(), size_of::<Option<Stamp>>()), (8, 8));
    let (start, step, mut before) = (Instant::from_std(*START), Duration::from_nanos(1), None);
    for at in [start - step, start, start + step, start + 2 * step, after(start, FAR)] {
        let stamp = Stamp::from(at);
        assert_eq!(stamp.at(), at);
        assert!(before < Some(stamp), "they have the order of the instants");
        before = Some(stamp);
    }
}
