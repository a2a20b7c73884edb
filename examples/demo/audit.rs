//! The books: what must be left of each item, and what is left.

use std::collections::HashMap;

use crate::Result;
use crate::catalogue::Catalogue;
use crate::journal::{Journal, Progress};
use crate::order::{Order, customer_key};
use crate::stock::stock_key;

/// What a run left behind.
pub(crate) struct Audit {
    /// Each item's stock.
    pub(crate) stock: Vec<i64>,
    /// Orders that are not done.
    pub(crate) open: usize,
    /// Customers whose count of orders is wrong.
    pub(crate) miscounted: usize,
}

impl Audit {
    pub(crate) async fn read(catalogue: &Catalogue, orders: &[Order], journal: &Journal) -> Result<Audit> {
        let mut audit = Audit { stock: Vec::new(), open: 0, miscounted: 0 };
        for (item, _) in catalogue.items() {
            audit.stock.push(journal.count(&stock_key(item)).await?);
        }
        for order in orders {
            if !matches!(journal.progress(order.id).await?, Progress::Done) {
                audit.open += 1;
            }
        }
        for (customer, count) in by_customer(orders) {
            if journal.count(&customer_key(customer)).await? != count {
                audit.miscounted += 1;
            }
        }
        Ok(audit)
    }

    /// Returns how many units are in the books although they were sold, so that they will be sold twice, and how many are missing from the
    /// books although nobody bought them.
    pub(crate) fn wrong(&self, expected: &[i64]) -> (i64, i64) {
        let differences = || self.stock.iter().zip(expected).map(|(found, expected)| found - expected);
        (differences().filter(|d| *d > 0).sum(), -differences().filter(|d| *d < 0).sum::<i64>())
    }
}

/// Returns how many units of each item all orders take together.
pub(crate) fn ordered(catalogue: &Catalogue, orders: &[Order]) -> Vec<i64> {
    let mut taken = HashMap::new();
    for order in orders {
        catalogue.add_up(order.item, order.quantity, &mut taken);
    }
    catalogue.items().iter().map(|(item, _)| taken.get(item).copied().unwrap_or_default()).collect()
}

/// Returns how many orders each customer has.
pub(crate) fn by_customer(orders: &[Order]) -> HashMap<&'static str, i64> {
    let mut counts = HashMap::new();
    for order in orders {
        *counts.entry(order.customer).or_default() += 1;
    }
    counts
}
