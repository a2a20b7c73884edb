use proptest::collection::vec;
use proptest::prelude::any;
use proptest::sample::select;

use super::*;
use crate::base::testing::fuzz;

/// The answers are cut anywhere, and changed in one place.
#[test]
fn whatever_comes_from_a_server_is_decoded_or_refused() {
    let answers = vec(select(&ANSWERS[..]), 1..8);
    let change = (any::<usize>(), any::<u8>(), any::<bool>());
    fuzz((answers, vec(0_usize..200, 0..6), change), |(answers, mut cuts, (place, byte, is_changed))| {
        let mut bytes = answers.concat().into_bytes();
        cuts.sort_unstable();
        let expected: Vec<Value> =
            answers.iter().map(|answer| redis::parse_redis_value(answer.as_bytes()).unwrap()).collect();
        assert_eq!(decoded(&bytes, cuts.clone()).unwrap(), expected);
        if is_changed {
            let place = place % bytes.len();
            bytes[place] = byte;
        }
        let (whole, pieces) = (decoded(&bytes, []), decoded(&bytes, cuts));
        assert_eq!(whole.ok(), pieces.ok(), "the cuts change nothing");
    });
}
