//! Executions that an adversary would choose.

mod lines;
mod outages;
