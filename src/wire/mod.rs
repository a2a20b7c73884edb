//! What is written to a master: keys, scripts, commands, and the fencing counter.

mod fence;
pub(crate) mod keys;
mod script;
mod step;

pub(crate) use fence::{Fence, Token};
pub(crate) use script::{AT_ITS_END, Call, Count, Reply};
pub(crate) use step::{Job, Step};
