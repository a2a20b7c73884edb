use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::base::testing::{fuzz, text};

/// Generates answers to `INFO` with lines that are missing, repeated, or have other values.
fn infos() -> impl Strategy<Value = String> {
    let name = select(&["run_id", "uptime_in_seconds", "master_replid", "server_time_usec", "role"][..]);
    let number =
        prop_oneof![any::<i64>().prop_map(|n| n.to_string()), (-2..100_i64).prop_map(|n| n.to_string())];
    let line = (name, select(&[":", "", " : "][..]), prop_oneof![number, "[ab]", text()]);
    let line = line.prop_map(|(name, colon, value)| format!("{name}{colon}{value}"));
    (vec(line, 0..8), select(&["\r\n", "\n", ""][..])).prop_map(|(lines, end)| lines.join(end))
}

/// No report moves the known start of a server back. Another run counts as started when it was first seen.
#[test]
fn no_answer_to_info_makes_a_known_server_older() {
    let rounds = vec((infos(), 0..100_u64), 1..8);
    fuzz(rounds, |rounds| {
        let (server_info, mut now) = (ServerInfo::default(), Instant::now());
        let started = || lock(&server_info.run).as_ref().map(|run| (run.started, run.id.run.clone()));
        for (info, later) in rounds {
            let (before, sent) = (started(), now);
            now += seconds(later);
            server_info.update(&info, now);
            server_info.has_same_data(&info);
            server_info.set_clock(&info, sent, now);
            if let Some(clock) = server_info.clock() {
                clock.apart(&clock);
            }
            let Some((before, run)) = before else { continue };
            let (after, same) = started().expect("it was known");
            assert!(after >= before, "{info:?}");
            assert!(same == run || after == now, "{info:?}");
        }
    });
}
