//! A small service and its unit tests. They need no server, because their locks are in memory.
//!
//! `Cashier` pays each invoice once, however many callers in however many processes request that. Its tests
//! are in the same file, as in a crate of yours: they have two processes in one test, hours that take no
//! time, and faults made on purpose.
//!
//! Run the tests: `cargo test --example testing`. To pause time, your dev-dependencies need tokio's feature `test-util`. Run the service
//! itself: `cargo run --example testing`, with the URL of a Redis in `REDIS_URL` if the locks are to be kept there.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use nestlock::Locks;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How long a caller waits for another one that pays the same invoice.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct Cashier {
    locks: Locks,
    bank: Bank,
}

impl Cashier {
    /// Pays an invoice if it was not paid before, and returns whether it did.
    async fn pay(&self, invoice: &str) -> nestlock::Result<bool> {
        let work = async {
            if self.bank.has_paid(invoice).await {
                return false;
            }
            self.bank.transfer(invoice).await;
            true
        };
        self.locks.mutex(invoice).lock().within(PATIENCE).run(|_| work).await
    }
}

/// Stands in for a bank, which is slow and pays on each request.
#[derive(Clone, Default)]
struct Bank {
    takes: Duration,
    paid: Arc<Mutex<Vec<String>>>,
}

impl Bank {
    async fn has_paid(&self, invoice: &str) -> bool {
        self.paid.lock().await.iter().any(|paid| paid == invoice)
    }

    async fn transfer(&self, invoice: &str) {
        sleep(self.takes).await;
        self.paid.lock().await.push(invoice.to_owned());
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = match std::env::var("REDIS_URL") {
        Ok(url) => Locks::connect(url).await?,
        Err(_) => Locks::in_memory(),
    };
    let bank = Bank { takes: Duration::from_millis(200), ..Bank::default() };
    let cashier = Cashier { locks: locks.clone(), bank: bank.clone() };

    // The process id keeps two people who try this on one Redis out of each other's way.
    let invoice = format!("example:invoice:{}", std::process::id());
    let mut clerks = JoinSet::new();
    for _ in 0..5 {
        let (cashier, invoice) = (cashier.clone(), invoice.clone());
        clerks.spawn(async move { cashier.pay(&invoice).await });
    }
    let paid: Vec<bool> = clerks.join_all().await.into_iter().collect::<Result<_, _>>()?;
    println!("5 clerks at once; did they pay? {paid:?}");
    locks.close().await?;

    let transfers = bank.paid.lock().await.len();
    println!("the bank was asked for {transfers} transfer");
    if transfers != 1 || paid.iter().filter(|paid| **paid).count() != 1 {
        return Err("the invoice must be paid once".into());
    }
    println!("its tests: cargo test --example testing");
    Ok(())
}

#[cfg(test)]
mod tests {
    use nestlock::{ErrorKind, Loss, Memory};
    use tokio::time::Instant;

    use super::*;

    const INVOICE: &str = "invoice:7";

    fn cashier(locks: Locks, takes: Duration) -> Cashier {
        Cashier { locks, bank: Bank { takes, ..Bank::default() } }
    }

    #[tokio::test]
    async fn an_invoice_is_paid_once() {
        let cashier = cashier(Locks::in_memory(), Duration::ZERO);
        assert!(cashier.pay(INVOICE).await.unwrap());
        assert!(!cashier.pay(INVOICE).await.unwrap());
        assert_eq!(*cashier.bank.paid.lock().await, [INVOICE]);
    }

    /// Two `Locks` that share a `Memory` are like two processes that share a server.
    #[tokio::test]
    async fn two_processes_pay_it_once() {
        let store = Memory::new();
        let ours = cashier(Locks::builder(&store).connect().await.unwrap(), Duration::from_millis(50));
        let theirs = Locks::builder(&store).connect().await.unwrap();
        let theirs = Cashier { locks: theirs, bank: ours.bank.clone() };

        let (we, they) = tokio::join!(ours.pay(INVOICE), theirs.pay(INVOICE));
        assert!(we.unwrap() != they.unwrap());
        assert_eq!(*ours.bank.paid.lock().await, [INVOICE]);
    }

    /// With the clock paused, an hour at the bank takes no time, although leases are renewed during it.
    #[tokio::test(start_paused = true)]
    async fn a_slow_bank_makes_others_wait_only_so_long() {
        let cashier = cashier(Locks::in_memory(), Duration::from_secs(60 * 60));
        let began = Instant::now();
        let (slow, late) = tokio::join!(cashier.pay(INVOICE), async {
            let late = cashier.pay(INVOICE).await;
            (late, began.elapsed())
        });
        let (late, waited) = late;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Timeout);
        assert!(waited >= PATIENCE && waited < 2 * PATIENCE, "waited {waited:?}");
        assert!(slow.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_transferred_once_the_lock_is_lost() {
        let store = Memory::new();
        let locks = Locks::builder(&store).connect().await.unwrap();
        let cashier = cashier(locks, Duration::from_secs(10));

        let (paid, lost) = tokio::join!(cashier.pay(INVOICE), async {
            sleep(Duration::from_secs(5)).await;
            store.faults().lose(INVOICE)
        });
        assert!(lost, "it was held until then");
        assert_eq!(paid.unwrap_err().loss(), Some(Loss::Gone));
        sleep(Duration::from_secs(60)).await;
        assert!(cashier.bank.paid.lock().await.is_empty());
    }

    /// The command that takes the lock runs, and its answer never arrives. The command is sent again, and
    /// counts once.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_lost_on_the_way_harms_nothing() {
        let store = Memory::new();
        let locks = Locks::builder(&store).connect().await.unwrap();
        let cashier = cashier(locks, Duration::ZERO);

        store.faults().drop_replies(1);
        assert!(cashier.pay(INVOICE).await.unwrap());
        assert!(!cashier.locks.mutex(INVOICE).is_locked().await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_reported_and_nothing_is_transferred() {
        let store = Memory::new();
        let locks = Locks::builder(&store).connect().await.unwrap();
        let cashier = cashier(locks, Duration::ZERO);

        store.faults().stall(Duration::from_secs(30)); // longer than `unavailable_after`, which is 10 s
        assert_eq!(cashier.pay(INVOICE).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(cashier.bank.paid.lock().await.is_empty());

        sleep(Duration::from_secs(30)).await;
        assert!(cashier.pay(INVOICE).await.unwrap(), "as soon as it is over");
    }
}
