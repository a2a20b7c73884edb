use super::*;

const INFO: &str = "redis_build_id:4d072dc1c62d5672\r\nredis_mode:standalone\r\nexecutable:/usr/bin/redis-server\r\n\
                    # Replication\r\nrole:master\r\n";

#[tokio::test(start_paused = true)]
async fn what_info_has_shown_counts_for_a_moment_until_an_invalidation() {
    use tokio::time::advance;

    let (watch, tick) = (DataWatch::default(), Duration::from_millis(1));
    let known = || [watch.needs_no_info(Instant::now()), watch.grant_counts(Instant::now())];
    assert_eq!(known(), [false, false]);
    watch.start();
    assert_eq!(known(), [true, true]);
    advance(Duration::from_secs(1)).await;
    assert_eq!(known(), [false, false]);
    let sent = Instant::now();
    advance(tick).await;
    watch.confirm(sent);
    // An `INFO` that was sent earlier, and is answered later.
    watch.confirm(sent - tick);
    advance(SENT_WITHIN - 2 * tick).await;
    assert_eq!(known(), [true, true]);
    advance(tick).await;
    assert_eq!(known(), [false, true]);
    advance(ANSWERED_WITHIN - SENT_WITHIN - tick).await;
    assert_eq!(known(), [false, true]);
    advance(tick).await;
    assert_eq!(known(), [false, false]);
    watch.confirm(Instant::now());
    watch.receive(&PushInfo { kind: PushKind::Message, data: Vec::new() });
    assert_eq!(known(), [true, true]);
    watch.receive(&PushInfo { kind: PushKind::Invalidate, data: Vec::new() });
    watch.confirm(Instant::now());
    assert_eq!(known(), [false, false]);
}

#[test]
fn only_a_master_that_is_redis_itself_and_no_node_of_a_cluster_is_expected_to_report() {
    assert!(can_report(INFO));
    assert!(can_report(&INFO.replace("redis_mode", "server_mode")));
    assert!(!can_report(""));
    for (known, other) in [
        ("role:master", "role:slave"),
        ("redis_build_id:4d072dc1c62d5672", "dragonfly_version:df-v1.25"),
        ("redis_build_id:4d072dc1c62d5672", "redis_build_id:"),
        ("executable:/usr/bin/redis-server", "executable:"),
        ("redis_mode:standalone", "redis_mode:cluster"),
        ("redis_mode:standalone", "server_mode:cluster"),
        ("redis_mode:standalone", ""),
    ] {
        assert!(!can_report(&INFO.replace(known, other)), "{other}");
    }
}
