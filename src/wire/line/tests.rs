use super::*;

#[test]
fn a_hint_is_read_as_it_is_written() {
    for wait in [None, Some(Duration::ZERO), Some(Duration::from_millis(1500))] {
        let hint = Hint { number: 7, wait, key: "a lock: with spaces" };
        assert_eq!(Hint::read(&hint.write()), Some(hint));
    }
    for text in ["", "0", "7", "7 -", "x - key", "7 soon key", "-7 - key"] {
        assert_eq!(Hint::read(text), None, "{text}");
    }
}
