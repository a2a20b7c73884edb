//! A Redis Cluster as one master.

mod apart;
mod cluster;
mod ear;
mod gate;
mod identity;
mod nodes;
mod route;
mod scout;
mod seeding;
mod slots;
mod survey;
mod view;

pub(crate) use cluster::Cluster;
