//! The goods of the shop: items, and bundles made of items.

use std::collections::{BTreeSet, HashMap};

use crate::Result;

/// A part of a bundle, and how many of it one bundle has.
pub(crate) struct Part {
    pub(crate) item: &'static str,
    pub(crate) quantity: i64,
}

/// All items with their first stock, in one order that all tasks use.
pub(crate) struct Catalogue {
    items: Vec<(&'static str, i64)>,
    lines: HashMap<&'static str, usize>,
    parts: HashMap<&'static str, Vec<Part>>,
}

impl Catalogue {
    /// Reads the two files. A bundle must stand above its parts in `catalogue.csv`: so no bundle
    /// can contain itself, and the lines can serve as the order in which locks are taken.
    pub(crate) fn load() -> Result<Catalogue> {
        let mut catalogue = Catalogue { items: Vec::new(), lines: HashMap::new(), parts: HashMap::new() };
        for line in include_str!("catalogue.csv").lines().skip(1) {
            let (item, stock) = line.split_once(',').ok_or("catalogue.csv: a line is `item,stock`")?;
            catalogue.lines.insert(item, catalogue.items.len());
            catalogue.items.push((item, stock.parse()?));
        }
        for line in include_str!("bundles.csv").lines().skip(1) {
            let mut columns = line.split(',');
            let (Some(bundle), Some(item), Some(quantity)) = (columns.next(), columns.next(), columns.next())
            else {
                return Err("bundles.csv: a line is `bundle,part,quantity`".into());
            };
            if catalogue.line(bundle)? >= catalogue.line(item)? {
                return Err(format!("catalogue.csv: {bundle} must stand above its part {item}").into());
            }
            let part = Part { item, quantity: quantity.parse()? };
            catalogue.parts.entry(bundle).or_default().push(part);
        }
        Ok(catalogue)
    }

    fn line(&self, item: &str) -> Result<usize> {
        Ok(*self.lines.get(item).ok_or_else(|| format!("catalogue.csv has no {item}"))?)
    }

    /// Returns every item, and how many there are before the first order.
    pub(crate) fn items(&self) -> &[(&'static str, i64)] {
        &self.items
    }

    pub(crate) fn bundles(&self) -> usize {
        self.parts.len()
    }

    /// Returns the parts of one unit of this item; none for a plain item.
    pub(crate) fn parts(&self, item: &str) -> &[Part] {
        self.parts.get(item).map_or(&[], Vec::as_slice)
    }

    /// Returns the item and everything in it, each once, in the catalogue's order.
    pub(crate) fn contents(&self, item: &str) -> Result<Vec<&'static str>> {
        let mut found = BTreeSet::new();
        let mut open = vec![self.line(item)?];
        while let Some(line) = open.pop() {
            if found.insert(line) {
                for part in self.parts(self.items[line].0) {
                    open.push(self.line(part.item)?);
                }
            }
        }
        Ok(found.into_iter().map(|line| self.items[line].0).collect())
    }

    /// Returns how many steps it takes to take this item from the shelves: one for itself, and those of its parts. A part that occurs twice
    /// counts twice.
    pub(crate) fn steps(&self, item: &str) -> usize {
        1 + self.parts(item).iter().map(|part| self.steps(part.item)).sum::<usize>()
    }

    /// Adds what an order takes of each item.
    pub(crate) fn add_up(&self, item: &'static str, quantity: i64, taken: &mut HashMap<&'static str, i64>) {
        *taken.entry(item).or_default() += quantity;
        for part in self.parts(item) {
            self.add_up(part.item, quantity * part.quantity, taken);
        }
    }
}
