//! The stock service, the lower layer: takes items off the shelves.

use std::ops::AddAssign;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};

use crate::Result;
use crate::catalogue::Catalogue;
use crate::exclusion::Exclusion;
use crate::halt::Halt;
use crate::journal::Journal;
use crate::order::Order;

/// How many steps of an order were done now, and how many before, by a process that died.
#[derive(Clone, Copy, Default)]
pub(crate) struct Steps {
    pub(crate) now: usize,
    pub(crate) before: usize,
}

impl AddAssign for Steps {
    fn add_assign(&mut self, other: Steps) {
        self.now += other.now;
        self.before += other.before;
    }
}

pub(crate) struct Stock {
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) exclusion: Exclusion,
    pub(crate) journal: Journal,
    pub(crate) halt: Halt,
}

impl Stock {
    /// Takes the ordered item with all its parts, as one: a task that has the lock of one of these items finds the order in the books
    /// completely or not at all.
    ///
    /// # Order of locks
    /// order, customer, then items from the catalogue's top down. Two bundles may share parts and
    /// name them in different orders, so locking each part when the walk comes to it would deadlock.
    /// All are locked first, in the one order that the catalogue gives, and the walk re-enters them.
    pub(crate) async fn take_order(&self, order: &Order) -> Result<Steps> {
        let contents = self.catalogue.contents(order.item)?;
        let names: Vec<String> = contents.iter().map(|item| lock_name(item)).collect();
        let walk = self.take(order, order.item, order.quantity, format!("{}/{}", order.id, order.item));
        self.exclusion.hold_all(&names, walk).await
    }

    /// Takes one item, then its parts, each under its lock. This function need not know that the caller has these locks: it locks what it
    /// changes, and re-enters.
    fn take<'a>(
        &'a self,
        order: &'a Order,
        item: &'static str,
        quantity: i64,
        step: String,
    ) -> BoxFuture<'a, Result<Steps>> {
        let work = async move {
            let mut steps = Steps::default();
            match self.journal.step(&stock_key(item), &step, -quantity).await? {
                true => steps.now += 1,
                false => steps.before += 1,
            }
            self.halt.after_step(order).await?;
            for part in self.catalogue.parts(item) {
                let step = format!("{step}/{}", part.item);
                steps += self.take(order, part.item, quantity * part.quantity, step).await?;
            }
            Ok(steps)
        };
        async move { self.exclusion.hold(&lock_name(item), work).await }.boxed()
    }
}

pub(crate) fn stock_key(item: &str) -> String {
    format!("stock:{item}")
}

fn lock_name(item: &str) -> String {
    format!("lock:item:{item}")
}
