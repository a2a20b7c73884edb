use super::*;

#[test]
fn the_last_ones_are_known_and_no_more() {
    let mut handed_over = HandedOver::default();
    for last in 0..100 {
        handed_over.note(last);
        for hold in 0..=last {
            let is_late = last - hold < HandedOver::MOST as u64;
            assert_eq!(handed_over.has(hold), is_late, "{hold} of {last}");
        }
    }
}
