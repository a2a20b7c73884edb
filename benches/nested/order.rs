//! The orders of `examples/demo`, without its faults: the order, the customer and all items are locked, and the lower layer locks each item
//! that it takes again.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use nestlock::{Locks, Mutex};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::catalogue::Catalogue;
use crate::server::{Result, connection_to, url};

/// How many orders of the list a round takes: few, so that it is short.
const ORDERS: usize = 60;

type Boxed<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

pub(crate) struct Shop {
    locks: Locks,
    catalogue: Catalogue,
    /// `None`: an order consists of its locks alone.
    books: Option<MultiplexedConnection>,
}

impl Shop {
    pub(crate) async fn open(locks: &Locks, books: bool) -> Result<Shop> {
        let books = if books { Some(connection_to(&url()).await?) } else { None };
        Ok(Shop { locks: locks.clone(), catalogue: Catalogue::load()?, books })
    }

    /// Serves the orders one after the other. Returns how many it served a second, and how many in all.
    pub(crate) async fn serve(&self) -> Result<(f64, usize)> {
        let list = include_str!("../../examples/demo/orders.csv").lines().skip(1).take(ORDERS);
        let list: Vec<Vec<&'static str>> = list.map(|line| line.split(',').collect()).collect();
        let began = Instant::now();
        for order in &list {
            let [id, customer, item, _] = order[..] else { return Err("orders.csv: four columns".into()) };
            self.hold(format!("order:{id}"), self.place(id, customer, item)).await?;
        }
        Ok((list.len() as f64 / began.elapsed().as_secs_f64(), list.len()))
    }

    async fn place(&self, id: &str, customer: &str, item: &'static str) -> Result<()> {
        self.note(id).await?;
        let names = self.catalogue.contents(item)?;
        let serve = async {
            self.step(customer).await?;
            self.hold_all(&names, self.take(item)).await
        };
        self.hold(format!("customer:{customer}"), serve).await?;
        self.note(id).await
    }

    fn hold_all<'a>(&'a self, names: &'a [&'static str], work: Boxed<'a>) -> Boxed<'a> {
        match names {
            [] => work,
            [first, others @ ..] => Box::pin(self.hold(item_name(first), self.hold_all(others, work))),
        }
    }

    /// Takes an item, then its parts, each under its lock: it re-enters.
    fn take(&self, item: &'static str) -> Boxed<'_> {
        let work = async move {
            self.step(item).await?;
            for part in self.catalogue.parts(item) {
                self.take(part.item).await?;
            }
            Ok(())
        };
        Box::pin(self.hold(item_name(item), work))
    }

    async fn hold(&self, name: String, work: impl Future<Output = Result<()>>) -> Result<()> {
        let lock: Mutex = self.locks.mutex(name);
        lock.run(|_| work).await?
    }

    /// Does what the demo's books do: two reads and two writes.
    async fn step(&self, what: &str) -> Result<()> {
        self.note(what).await?;
        self.note(&format!("step:{what}")).await
    }

    async fn note(&self, what: &str) -> Result<()> {
        let Some(books) = &self.books else { return Ok(()) };
        let (mut books, key) = (books.clone(), format!("nested:books:{what}"));
        let _: Option<String> = books.get(&key).await?;
        Ok(books.set_ex(&key, "noted", 60).await?)
    }
}

fn item_name(item: &str) -> String {
    format!("item:{item}")
}
