//! Stops a worker in the middle of an order, where it is going to be killed.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncReadExt;

use crate::Result;
use crate::order::Order;
use crate::report::Report;

/// Stops in one order after that many of its steps. The default never stops.
#[derive(Default)]
pub(crate) struct Halt {
    order: String,
    after: usize,
    done: AtomicUsize,
}

impl Halt {
    pub(crate) fn within(order: &str, after: usize) -> Halt {
        Halt { order: order.to_owned(), after, done: AtomicUsize::new(0) }
    }

    /// Counts a step. At the chosen one, it waits for a byte that never comes, or for the end of the process
    /// that would send it. So a demo that is ended leaves no holder behind.
    pub(crate) async fn after_step(&self, order: &Order) -> Result<()> {
        if order.id != self.order || self.done.fetch_add(1, Ordering::Relaxed) + 1 != self.after {
            return Ok(());
        }
        Report::Inside { order: order.id.to_owned() }.send()?;
        let _ = tokio::io::stdin().read(&mut [0]).await?;
        Ok(())
    }
}
