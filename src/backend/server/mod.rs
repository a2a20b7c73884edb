//! A Redis server as a master.

mod grants;
mod keeper;
mod single;
mod source;

pub(crate) use single::{Role, SHORTEST_CONNECT, Single};
