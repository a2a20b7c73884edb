//! Tokens over several real masters that lose answers and restart empty: the tokens grow.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use nestlock::{Builder, Locks};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{COUNTER, SECOND, next_token};
use crate::support::proxy::Proxy;
use crate::support::server::Server;
use crate::support::{eventually, quorum, soon};

/// A value above what any clock shows, so that the order of tokens depends only on the counters.
const ABOVE: u64 = 1 << 60;

/// Three masters, each behind a network that can fail.
struct Masters(Vec<(Server, Proxy)>);

impl Masters {
    /// Starts three masters whose counters have these values.
    async fn start(counters: [u64; 3]) -> Masters {
        let masters = Masters::empty().await;
        for (server, counter) in masters.servers().zip(counters) {
            server.ask::<()>(&["SET", COUNTER, &(ABOVE + counter).to_string()]).await;
        }
        masters
    }

    async fn empty() -> Masters {
        let mut masters = Vec::new();
        for _ in 0..3 {
            let server = Server::start().await;
            let proxy = Proxy::to(&server).await;
            masters.push((server, proxy));
        }
        Masters(masters)
    }

    /// Returns options that trust the masters although they have just been started.
    fn builder(&self) -> Builder {
        quorum(self.0.iter().map(|(_, proxy)| proxy.url())).lease(60 * SECOND)
    }

    async fn locks(&self) -> Locks {
        self.builder().node_timeout(20 * SECOND).connect().await.unwrap()
    }

    fn servers(&self) -> impl Iterator<Item = &Server> {
        self.0.iter().map(|(server, _)| server)
    }

    async fn counters(&self) -> Vec<u64> {
        let mut counters = Vec::new();
        for (server, _) in &self.0 {
            counters
                .push(server.ask::<Option<u64>>(&["GET", COUNTER]).await.map_or(0, |token| token - ABOVE));
        }
        counters
    }
}

#[tokio::test]
async fn counters_that_differ_are_made_one_by_the_first_holder() {
    let masters = Masters::start([100, 50, 0]).await;
    let (ours, theirs) = (masters.locks().await, masters.locks().await);
    let (first, second) = (ours.mutex("stock").fenced(), theirs.mutex("stock").fenced());
    let mut before = ABOVE;
    for _ in 0..5 {
        for stock in [&first, &second] {
            let given = next_token(stock).await;
            assert!(given > before, "{given} after {before}");
            before = given;
        }
    }
    eventually("a majority that has it", async || {
        let counters = masters.counters().await;
        counters.iter().filter(|counter| ABOVE + **counter >= before).count() >= 2
    })
    .await;
}

#[tokio::test]
async fn counters_that_agree_cost_one_command_a_master() {
    let masters = Masters::start([7, 7, 7]).await;
    let stock = masters.locks().await.mutex("stock").fenced();
    for server in masters.servers() {
        server.reset_commands_run().await;
    }
    let guard = soon("the lock", stock.lock()).await.unwrap();
    assert_eq!(guard.token(), ABOVE + 8);
    for server in masters.servers() {
        eventually("its one command", async || server.scripts_run().await == 1).await;
    }
    guard.release().await.unwrap();
}

/// 1. The third master doesn't receive the request. 2. The raise on the second is held up. 3. The lock is not handed out before the raise.
#[tokio::test]
async fn no_token_is_returned_that_the_next_holders_could_fall_below() {
    let masters = Masters::start([100, 50, 0]).await;
    let stock = masters.locks().await.mutex("stock").fenced();
    masters.0[2].0.freeze();
    let raise = masters.0[1].1.on(|command| command.is("renew")).times(1).hold();
    let mut asking = tokio::spawn(stock.lock());
    soon("the raise", raise.seen()).await;
    assert!(timeout(SECOND / 5, &mut asking).await.is_err(), "a majority does not know yet");
    raise.let_through().await;
    let guard = soon("the lock", asking).await.unwrap().unwrap();
    assert_eq!(guard.token(), ABOVE + 101);
    assert_eq!(masters.0[1].0.ask::<u64>(&["GET", COUNTER]).await, ABOVE + 101);
    masters.0[2].0.thaw();
    guard.release().await.unwrap();
}

/// 1. The raise is held up. 2. The lease ends, and another request gets a token. 3. The raise arrives, but the first request gets no token
/// from it.
#[tokio::test]
async fn a_raise_that_arrives_after_the_lease_hands_out_nothing() {
    let masters = Masters::start([100, 50, 0]).await;
    let brief = masters.builder().lease(2 * SECOND).node_timeout(20 * SECOND).connect().await.unwrap();
    let (ours, theirs) = (brief.mutex("stock").fenced(), masters.locks().await.mutex("stock").fenced());
    // The third master is killed, not frozen. The two leases end at different times, so votes may be split, and a request with split votes
    // would wait for a frozen master until the node timeout.
    masters.0[2].0.kill();
    let raise = masters.0[1].1.on(|command| command.is("renew")).times(1).hold();
    let asking = tokio::spawn(ours.lock());
    soon("the raise", raise.seen()).await;
    let other = soon("the lock, at the end of that lease", theirs.lock()).await.unwrap();
    raise.let_through().await;
    assert!(!asking.is_finished() && !other.is_lost());
    let given = other.token();
    other.release().await.unwrap();
    let guard = soon("the first", asking).await.unwrap().unwrap();
    assert!(given > ABOVE + 101 && guard.token() > given, "{given}, then {}", guard.token());
}

/// A request that is dropped between its grant and the raise leaves no hold, and its token is not used again.
#[tokio::test]
async fn a_request_dropped_before_its_token_was_known_is_undone_everywhere() {
    let masters = Masters::start([100, 50, 0]).await;
    let stock = masters.locks().await.mutex("stock").fenced();
    for round in 0..3 {
        let [(ahead, _), (behind, proxy), (deaf, _)] = [0, 1, 2].map(|at| &masters.0[(round + at) % 3]);
        let counter: u64 = ahead.ask(&["INCRBY", COUNTER, "1000"]).await;
        deaf.freeze();
        let raise = proxy.on(|command| command.is("renew")).times(1).hold();
        let asking = tokio::spawn(stock.lock());
        soon("the raise", raise.seen()).await;
        asking.abort();
        assert!(asking.await.unwrap_err().is_cancelled());
        raise.let_through().await;
        deaf.thaw();
        for server in [ahead, behind, deaf] {
            eventually("it is free", async || server.keys().await == [COUNTER]).await;
        }
        assert!(next_token(&stock).await > counter + 1, "its token was used again");
    }
}

/// With fewer holds the test shows nothing. On a busy machine most holds come after the trouble is over.
const FEWEST: usize = 6;

/// Runs a client whose holds end in every way. Appends each hold's token to `tokens`.
async fn hold(locks: Locks, tokens: Arc<Mutex<Vec<u64>>>, end: Instant, mut random: StdRng) {
    let stock = locks.mutex("stock").fenced();
    while Instant::now() < end || tokens.lock().unwrap().len() < FEWEST {
        let patience = Duration::from_millis(random.random_range(1..3_000));
        let Ok(Ok(guard)) = timeout(patience, stock.lock()).await else { continue };
        // While the hold is valid, no other client gets a token. A hold that is lost by now does not count.
        {
            let mut tokens = tokens.lock().unwrap();
            if !guard.is_lost() {
                tokens.push(guard.token());
            }
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..20))).await;
        match random.random_range(0..3) {
            0 => drop(guard),
            1 => drop(timeout(Duration::from_millis(1), guard.release()).await),
            _ => drop(guard.release().await),
        }
    }
}

/// Loses replies, and freezes masters for less and for more than a node timeout. Sometimes it does `worst` to one of them.
async fn trouble(masters: &Masters, end: Instant, mut random: StdRng, worst: impl AsyncFn(&Server, u64)) {
    while Instant::now() < end {
        let (server, proxy) = &masters.0[random.random_range(0..3)];
        match random.random_range(0..4) {
            0 => {
                server.freeze();
                tokio::time::sleep(Duration::from_millis(random.random_range(0..700))).await;
                server.thaw();
            }
            1 => {
                let lost = random.random_range(1..4);
                let fault = proxy.on(|command| command.script.is_some()).times(lost).drop_reply();
                let _ = timeout(SECOND / 2, fault.done()).await;
            }
            2 => worst(server, random.random_range(1..1_000)).await,
            _ => tokio::time::sleep(Duration::from_millis(random.random_range(0..200))).await,
        }
    }
}

/// Returns how long each of the two tests below runs.
fn time() -> Duration {
    let asked = std::env::var("NESTLOCK_FENCING_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(asked.unwrap_or(8))
}

/// Runs four clients under trouble, each with a `Locks` of its own like a separate process.
async fn tokens_grow(masters: &Masters, builder: impl Fn() -> Builder, worst: impl AsyncFn(&Server, u64)) {
    let seed = rand::random::<u64>() >> 8;
    println!("seed {seed}");
    let (end, tokens) = (Instant::now() + time(), Arc::default());
    let mut clients = JoinSet::new();
    for client in 0..4 {
        let options = builder().node_timeout(SECOND / 4);
        let locks = soon("a connect", async {
            loop {
                if let Ok(locks) = options.clone().connect().await {
                    break locks;
                }
            }
        })
        .await;
        clients.spawn(hold(locks, Arc::clone(&tokens), end, StdRng::seed_from_u64(seed + client)));
    }
    trouble(masters, end, StdRng::seed_from_u64(seed + 99), worst).await;
    soon("enough holds", clients.join_all()).await;
    let tokens = tokens.lock().unwrap();
    println!("{} holds", tokens.len());
    assert!(tokens.is_sorted_by(|one, next| one < next), "seed {seed}: {tokens:?}");
}

#[tokio::test]
async fn tokens_grow_while_replies_are_lost_and_masters_freeze() {
    let masters = Masters::start([500, 30, 0]).await;
    tokens_grow(
        &masters,
        || masters.builder(),
        async |server, more| {
            // This raises the counter as attempts that only this master granted would.
            server.ask::<()>(&["INCRBY", COUNTER, &more.to_string()]).await;
        },
    )
    .await;
}

#[tokio::test]
async fn tokens_grow_while_masters_come_back_without_their_counters() {
    let masters = Masters::empty().await;
    let young =
        || masters.builder().restart_delay(2 * SECOND).lease(2 * SECOND).unavailable_after(60 * SECOND);
    tokens_grow(&masters, young, async |server, _| {
        server.restart_empty().await;
        // The next master restarts only when this one has its vote again. Otherwise there might never be a majority.
        tokio::time::sleep(3 * SECOND).await;
    })
    .await;
}
