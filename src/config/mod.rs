//! The options of the builder, and their checks.
//!
//! `config` has all options, and `limits` and `credentials` check some of them. A `master` is where the votes are: a `server`, or a cluster
//! by its `seeds`. `destination` is how to connect to one server, with `tls`, and with the `address_map` for what servers report.

mod address_map;
mod config;
mod credentials;
mod destination;
mod limits;
mod master;
mod seeds;
mod server;
mod tls;

pub(crate) use address_map::AddressMap;
pub(crate) use config::Config;
pub use config::{BareReentry, Builder};
pub use credentials::Credentials;
pub(crate) use credentials::Provider;
pub(crate) use destination::Destination;
pub(crate) use limits::Replicas;
pub use master::Master;
pub(crate) use master::{MasterKind, SentinelMaster};
pub(crate) use seeds::Seeds;
pub use server::Server;
pub use tls::Tls;
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
pub(crate) use tls::{Pem, library};
