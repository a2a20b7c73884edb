use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::backend::cluster::testing::{at, node, nodes, slots, topology};
use crate::backend::connection::Connection;
use crate::backend::testing::fakes::usual;
use crate::base::telemetry::testing::Recorder;

/// Connects to node `a` of a cluster of six, which answers with each of these views in turn, and then repeats
/// the last one. Returns the outcome, how often the node was queried, and how many warnings of another
/// cluster were logged.
async fn connected(views: &[(&'static str, &'static str)]) -> (crate::error::Result<()>, usize, usize) {
    let log = Recorder::start();
    let (nodes, _events) = nodes(&["a"]);
    nodes.identity.install(&topology("a b c", "d e f").ids);
    let a = node("a", String::new());
    let (views, asked) = (views.to_vec(), Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    a.answers(move |words| {
        if words != ["CLUSTER", "SLOTS"] {
            return usual(words);
        }
        let (masters, replicas) = views[count.fetch_add(1, Ordering::SeqCst).min(views.len() - 1)];
        Some(slots(masters, replicas))
    });
    let endpoint = nodes.endpoint(&at("a")).unwrap();
    let connection = Connection::connect(&endpoint.to, Box::new(drop)).await.unwrap();
    let passed = endpoint.gate.unwrap()(connection).await;
    (passed, asked.load(Ordering::SeqCst), log.count("a node of another cluster"))
}

#[tokio::test(start_paused = true)]
async fn a_view_that_shows_too_few_of_the_known_nodes_is_asked_for_again_and_no_other_clusters() {
    let (passed, asked, warned) = connected(&[("d", ""), ("d e", ""), ("d e f", "a")]).await;
    assert_eq!((passed.is_ok(), asked, warned), (true, 3, 0));
    let (passed, asked, warned) = connected(&[("d", "")]).await;
    let error = passed.unwrap_err();
    assert_eq!((error.kind(), asked, warned), (ErrorKind::Unavailable, ASKED, 0), "{error}");
    assert!(error.to_string().contains("too few of the known nodes"), "{error}");
    for other in [("x y", ""), ("a x", ""), ("x", "a")] {
        // A node of this cluster may look like that for a moment.
        let (passed, asked, warned) = connected(&[other, ("a b c", "d e f")]).await;
        assert_eq!((passed.is_ok(), asked, warned), (true, 2, 0));
        let (passed, asked, warned) = connected(&[other]).await;
        let error = passed.unwrap_err();
        assert_eq!((asked, warned), (ASKED, 1), "{error}");
        assert!(error.to_string().contains("a node of another cluster"), "{error}");
    }
}
