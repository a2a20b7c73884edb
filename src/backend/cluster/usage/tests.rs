use std::time::Duration;

use tokio::time::timeout;

use super::*;

#[tokio::test(start_paused = true)]
async fn the_first_call_since_a_query_is_notified() {
    let usage = Usage::default();
    let begun = async || timeout(Duration::from_secs(9), usage.begun()).await.is_ok();
    assert!(!usage.is_used() && !begun().await);
    for _ in 0..2 {
        usage.record();
        assert!(usage.is_used() && begun().await);
        usage.record();
        assert!(usage.is_used() && !begun().await);
        usage.reset();
        assert!(!usage.is_used() && !begun().await);
    }
}
