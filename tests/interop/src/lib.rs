//! Redisson, redsync and nestlock on the same locks: real processes of all three, on one server and on a Cluster.
//!
//! `scripts/lab/interop` builds the drivers of the other libraries, and runs the tests. Without drivers the
//! tests pass and do nothing.

#[cfg(test)]
mod cases;
#[cfg(test)]
mod deployment;
#[cfg(test)]
mod peer;

// The tests of the crate use this module to start their servers and processes.
#[cfg(test)]
#[allow(
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::must_use_candidate
)]
#[path = "../../it/support/mod.rs"]
mod support;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use crate::cases::Fleet;
    use crate::deployment::Deployment;

    #[tokio::test]
    async fn on_one_server() {
        all(Deployment::one().await).await;
    }

    #[tokio::test]
    async fn on_a_cluster() {
        all(Deployment::cluster().await).await;
    }

    async fn all(deployment: Deployment) {
        let mut fleet = Fleet::start(deployment).await;
        fleet.java().await;
        fleet.go().await;
        fleet.plain_strings().await;
    }
}
