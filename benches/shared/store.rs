//! The results file: one section for each thing that was measured or counted.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::server::Result;

/// What one acquire and its release allocate.
#[derive(Serialize, Deserialize)]
pub(crate) struct Allocations {
    pub(crate) name: String,
    pub(crate) blocks: f64,
    pub(crate) bytes: f64,
}

/// Figures that are counted, not timed.
#[derive(Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) pairs: u64,
    pub(crate) allocations: Vec<Allocations>,
    pub(crate) tasks_spawned: i64,
    pub(crate) bytes_per_hold: f64,
    pub(crate) bytes_per_waiter: f64,
    pub(crate) sizes: Vec<(String, usize)>,
}

pub(crate) fn read(file: &Path) -> Result<Map<String, Value>> {
    if !file.exists() {
        return Ok(Map::new());
    }
    Ok(serde_json::from_slice(&fs::read(file)?)?)
}

/// Writes one section of the file, and leaves the others as they are.
pub(crate) fn put(file: &Path, section: &str, value: &impl Serialize) -> Result<()> {
    let mut all = read(file)?;
    all.insert(section.to_owned(), serde_json::to_value(value)?);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(fs::write(file, serde_json::to_string_pretty(&all)?)?)
}
