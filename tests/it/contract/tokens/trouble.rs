//! Tokens grow across losses, crashes, lost answers, restarts and dropped requests.

use super::*;

#[tokio::test]
async fn after_a_loss_the_guard_keeps_its_token_and_the_next_one_is_larger() {
    let home = Home::start().await;
    let (locks, others) = (long_lived(&home).await, long_lived(&home).await);
    let (stock, theirs) = (locks.mutex("stock").fenced(), others.mutex("stock").fenced());
    for trouble in ["force_release", "lose"] {
        let guard = stock.lock().await.unwrap();
        let given = guard.token();
        assert_eq!(stock.token(), Some(given));
        match trouble {
            "lose" => {
                home.lose("stock").await;
                assert_eq!(guard.extend(HOUR).await.unwrap_err().kind(), ErrorKind::Lost);
            }
            _ => assert!(stock.force_release().await.unwrap()),
        }
        assert_eq!(soon("the loss", guard.lost()).await, Loss::Gone);
        assert_eq!(stock.token(), None, "{trouble}");
        assert_eq!(guard.token(), given, "{trouble}: a guard's token changed");
        assert!(next_token(&theirs).await > given, "{trouble}");
        guard.release().await.unwrap_err();
        assert!(next_token(&stock).await > given, "{trouble}");
    }
}

#[tokio::test]
async fn a_late_holder_has_a_smaller_token_than_the_next_one() {
    let home = Home::start().await;
    let (locks, others) = (home.locks().await, home.locks().await);
    let stock = locks.mutex("stock").fenced();
    let guard = stock.lock().fixed_lease(SECOND).await.unwrap();
    let given = guard.token();
    assert_eq!(soon("its end", guard.lost()).await, Loss::Expired);
    assert_eq!((stock.token(), guard.token()), (None, given));
    assert!(next_token(&others.mutex("stock").fenced()).await > given);
    drop(guard);

    let guard = stock.lock().max_hold(SECOND / 2).await.unwrap();
    let given = guard.token();
    assert_eq!(soon("its end", guard.lost()).await, Loss::MaxHold);
    assert_eq!((stock.token(), guard.token()), (None, given));
    drop(guard);
    assert!(next_token(&others.mutex("stock").fenced()).await > given);
}

#[tokio::test]
async fn tokens_grow_past_a_crash_and_past_plain_holds_of_others() {
    let home = Home::start().await;
    let stock = home.locks().await.mutex("stock").fenced();
    let before = next_token(&stock).await;
    crash(&home, "stock", SECOND).await;
    let after = next_token(&stock).await;
    assert!(after > before);
    let foreign = foreign_guard(&home, "stock").await;
    assert_eq!(stock.token(), None);
    assert!(stock.try_lock().await.unwrap().is_none());
    foreign.release().await.unwrap();
    assert!(next_token(&stock).await > after);
}

#[tokio::test]
async fn a_grant_whose_answer_was_lost_is_undone_and_the_next_token_is_larger() {
    let home = Home::with_faults().await;
    let locks = home.builder().lease(LONG).node_timeout(SECOND).connect().await.unwrap();
    let stock = locks.mutex("stock").fenced();
    let mut before = next_token(&stock).await;
    for lost in 1..=3 {
        home.drop_replies(lost).await;
        let guard = soon("the lock", stock.lock()).await.unwrap();
        home.drop_replies(0).await;
        assert!(guard.token() > before);
        before = guard.token();
        assert_eq!(home.fields("stock").await, [(guard.hold_id().to_owned(), 1)]);
        guard.release().await.unwrap();
    }
    // If the lost answer belongs to a re-entry, the hold is settled and keeps its token.
    let guard = stock.lock().await.unwrap();
    home.drop_replies(1).await;
    let inner = soon("the re-entry", stock.lock()).await.unwrap();
    home.drop_replies(0).await;
    assert_eq!((inner.depth(), inner.token()), (2, guard.token()));
    assert!(guard.token() > before);
}

#[tokio::test]
async fn tokens_grow_past_a_restart_that_forgets_them() {
    let home = Home::start().await;
    let locks = home.builder().node_timeout(SECOND).connect().await.unwrap();
    let stock = locks.mutex("stock").fenced();
    let before = next_token(&stock).await;
    home.restart_empty().await;
    assert!(next_token(&stock).await > before, "the clock's time makes it greater");
}

#[tokio::test]
async fn requests_dropped_on_their_way_let_no_token_fall() {
    let home = Home::start().await;
    let locks = [long_lived(&home).await, long_lived(&home).await];
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut before = 0;
    for _ in 0..40 {
        for locks in &locks {
            let mut request = Box::pin(locks.mutex("stock").fenced().lock());
            for _ in 0..random.random_range(1..6) {
                if let std::task::Poll::Ready(guard) = futures::poll!(&mut request) {
                    let guard = guard.unwrap();
                    assert!(guard.token() > before);
                    before = guard.token();
                    break;
                }
                tokio::time::sleep(Duration::from_micros(random.random_range(0..300))).await;
            }
        }
        let stock = locks[random.random_range(0..2)].mutex("stock").fenced();
        let given = next_token(&stock).await;
        assert!(given > before, "{given} after {before}");
        before = given;
    }
}

#[tokio::test]
async fn a_closed_locks_has_the_tokens_of_the_guards_that_live() {
    let home = Home::start().await;
    let locks = home.locks().await;
    let stock = locks.mutex("stock").fenced();
    let guard = stock.lock().await.unwrap();
    let given = guard.token();
    locks.close().await.unwrap();
    assert_eq!((guard.token(), stock.token()), (given, Some(given)));
    assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Closed);
    guard.release().await.unwrap();
    assert!(next_token(&home.locks().await.mutex("stock").fenced()).await > given);
}
