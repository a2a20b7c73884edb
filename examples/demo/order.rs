//! The order service, the upper layer: places each order once.

use crate::Result;
use crate::exclusion::Exclusion;
use crate::journal::{Journal, Progress};
use crate::stock::{Steps, Stock};

pub(crate) struct Order {
    pub(crate) id: &'static str,
    pub(crate) customer: &'static str,
    pub(crate) item: &'static str,
    pub(crate) quantity: i64,
}

impl Order {
    /// The list that the processes share.
    pub(crate) fn list() -> Result<Vec<Order>> {
        include_str!("orders.csv").lines().skip(1).map(Order::read).collect()
    }

    fn read(line: &'static str) -> Result<Order> {
        let mut columns = line.split(',');
        let mut column = || columns.next().ok_or("orders.csv: a line is `order,customer,item,quantity`");
        Ok(Order { id: column()?, customer: column()?, item: column()?, quantity: column()?.parse()? })
    }
}

/// The result of an attempt to place an order.
pub(crate) enum Outcome {
    Placed,
    /// A process that died had begun the order. It is finished now.
    Finished(Steps),
    /// The order was done before.
    Old,
    /// Another process works on the order.
    Busy,
}

pub(crate) struct Orders {
    pub(crate) worker: String,
    pub(crate) exclusion: Exclusion,
    pub(crate) journal: Journal,
    pub(crate) stock: Stock,
}

impl Orders {
    /// Places an order unless another process works on it. The order's lock reserves the order, and needs no
    /// cleanup, since it ends with its holder.
    pub(crate) async fn try_place(&self, order: &Order) -> Result<Outcome> {
        // An order that is done stays done, so this check needs no lock.
        if let Progress::Done = self.journal.progress(order.id).await? {
            return Ok(Outcome::Old);
        }
        let placed = self.exclusion.try_hold(&lock_name(order.id), self.place_claimed(order)).await?;
        Ok(placed.unwrap_or(Outcome::Busy))
    }

    /// Waits for the process that works on the order, and places the order if that process has not done it.
    pub(crate) async fn place(&self, order: &Order) -> Result<Outcome> {
        self.exclusion.hold(&lock_name(order.id), self.place_claimed(order)).await
    }

    async fn place_claimed(&self, order: &Order) -> Result<Outcome> {
        let found = self.journal.progress(order.id).await?;
        if let Progress::Done = found {
            return Ok(Outcome::Old);
        }
        self.journal.begin(order.id, &self.worker).await?;
        let steps =
            self.exclusion.hold(&format!("lock:customer:{}", order.customer), self.serve(order)).await?;
        self.journal.finish(order.id, &self.worker).await?;
        Ok(match found {
            Progress::Begun => Outcome::Finished(steps),
            _ => Outcome::Placed,
        })
    }

    async fn serve(&self, order: &Order) -> Result<Steps> {
        let step = format!("{}/customer", order.id);
        self.journal.step(&customer_key(order.customer), &step, 1).await?;
        self.stock.take_order(order).await
    }
}

pub(crate) fn customer_key(customer: &str) -> String {
    format!("customer:{customer}")
}

pub(crate) fn lock_name(order: &str) -> String {
    format!("lock:order:{order}")
}
