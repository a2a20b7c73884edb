use proptest::collection::vec;

use super::*;
use crate::base::testing::{answers, fuzz, is_bounded};

const ADDRESSES: [&str; 4] = [
    "*2\r\n$4\r\nhost\r\n$4\r\n7000\r\n",
    "*-1\r\n",
    "-ERR unknown command\r\n",
    "*2\r\n$3\r\n::1\r\n:7000\r\n",
];

const DETAILS: [&str; 2] = [
    "*8\r\n$2\r\nip\r\n$4\r\nhost\r\n$4\r\nport\r\n$4\r\n7000\r\n\
     $5\r\nflags\r\n$27\r\nmaster,failover_in_progress\r\n$12\r\nconfig-epoch\r\n$1\r\n7\r\n",
    "-NOPERM no right\r\n",
];

/// Some sentinels answer again and again: what is remembered of them does not grow, and the master is always one that was named.
#[tokio::test(start_paused = true)]
async fn whatever_sentinels_answer_names_a_master_or_is_an_error() {
    let round = || vec((answers(&ADDRESSES), answers(&DETAILS)), 0..4);
    fuzz(vec(round(), 1..4), |rounds| {
        let (mut history, sentinel) = (ReportHistory::default(), Arc::from("sentinel:26379"));
        let mut named = Vec::new();
        for round in rounds {
            let report = |(address, details): (Value, Value)| Report::read(address, &details, &sentinel);
            let reports = numbered(round.clone().into_iter().map(report).collect());
            named.extend(reports.iter().filter_map(|(_, report)| match report {
                Report::Master(one) => Some(one.address()),
                _ => None,
            }));
            match decide_master(reports, Instant::now(), 3, "stock", false, &mut history) {
                Ok(decided) => {
                    assert!(named.contains(&decided.address()), "{decided:?}");
                    is_bounded(&decided, &named);
                    history.current = Some(decided);
                }
                Err(error) => is_bounded(&error, &round),
            }
        }
        assert!(history.seen.len() <= REMEMBERED && history.last.len() <= 4);
    });
}
