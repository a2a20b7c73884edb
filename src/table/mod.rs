//! All decisions about the locks of one process, as plain state: no I/O, no clock.

mod answer;
mod hearing;
mod hold;
mod level;
mod queue;
mod registry;
mod remnants;
mod room;
mod terms;
mod turn;
mod upkeep;

pub(crate) use answer::{Late, Leave, Verdict};
pub(crate) use hold::Hold;
pub(crate) use level::Level;
pub(crate) use queue::{HEAD_PATIENCE, Request};
pub(crate) use registry::{Chores, Registry};
pub(crate) use room::{News, Room};
pub(crate) use terms::Terms;
pub(crate) use turn::{Ask, Entry, InVain, Nap, Turn};
pub(crate) use upkeep::retry_pause;
