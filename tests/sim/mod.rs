//! Simulated runs of the whole crate: several processes and masters in one thread. Its clock advances when all tasks wait.
//!
//! A seed decides what callers do, what goes wrong, and in which order things happen; two runs of one seed
//! are the same. The connections between each process and each master are simulated, as a wire over the
//! in-memory store or as streams of bytes to a small server; all else is the code that users run.
//!
//! `SIM_FIRST` sets the first seed, `SIM_SEEDS` the number of seeds, and `SIM_EDITION` an earlier edition.
//! `SIM_TRACE` prints what happens in the first run. `SIM_SURVEY` lists all seeds that break a promise.

mod agenda;
mod allowed;
mod caller;
mod dice;
mod draw;
mod foreign;
mod gate;
mod history;
mod master;
mod network;
mod phases;
mod polling;
mod program;
mod requests;
mod shrink;
mod stream;
mod tests;
mod wire;
mod world;
