//! Executions that an adversary would choose.

mod holds;
mod lines;
mod outages;
