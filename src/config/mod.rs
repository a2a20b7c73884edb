//! The options of the builder, and their checks.

mod config;
mod limits;
mod master;
mod seeds;
mod server;

pub use config::Builder;
pub(crate) use config::Config;
pub(crate) use limits::Replicas;
pub use master::Master;
pub(crate) use master::{MasterKind, SentinelMaster};
pub(crate) use seeds::Seeds;
pub use server::Server;
