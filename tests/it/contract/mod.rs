//! What every backend must keep to. Nothing here asks for a fault of a server.

mod basics;
mod owners;
