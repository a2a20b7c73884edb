//! What is sent to a master: keys, scripts, commands, and the fencing counter.

mod fence;
pub(crate) mod keys;
mod line;
mod pending;
mod script;

pub(crate) use fence::{Fence, Token};
pub(crate) use line::{Hint, LEFT_TO_OTHERS, Line, RELEASED};
pub(crate) use pending::{Pending, Rule};
pub(crate) use script::{
    AT_ITS_END, Action, Call, CallResult, Count, KeyEnd, Notice, Renewals, Reply, field, kept_field,
    polling_field, polls,
};
