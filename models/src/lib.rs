//! Models of nestlock's protocol, which stateright explores: all executions within bounds, not only random ones.
//!
//! [`hold`] is about who has the lock, [`wake`] about who is woken when it is free, [`line`] about the line on the server, by which the lock
//! is handed on from process to process, and [`several`] about requests for several names. The section "The models" of docs/lab/tests.md
//! lists which code each step stands for. `scripts/lab/models` runs the big configurations; the tests run small ones, and the designs
//! that are known to be broken, each of which must be found by an execution of known length.

pub mod hold;
pub mod line;
pub mod several;
pub mod wake;

#[cfg(test)]
mod testing;
