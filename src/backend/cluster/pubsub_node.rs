//! Where messages are heard.

use std::sync::Arc;

use tokio::sync::watch;

use crate::backend::cluster::nodes::Nodes;
use crate::backend::cluster::slots::NodeAddress;
use crate::backend::connection::Endpoint;

/// Keys the node that messages are heard from. Any will do: what is published on one is told by all.
pub(super) struct PubsubNode {
    nodes: Arc<Nodes>,
    target: watch::Sender<Option<Endpoint>>,
    last: Option<NodeAddress>,
}

impl PubsubNode {
    pub(super) fn new(nodes: Arc<Nodes>, target: watch::Sender<Option<Endpoint>>) -> PubsubNode {
        PubsubNode { nodes, target, last: None }
    }

    /// Keys another one where the last was lost, or has left the cluster: nothing is told there any more.
    pub(super) async fn listen(mut self, mut failures: watch::Receiver<u64>) {
        let mut news = self.nodes.news.subscribe();
        self.turn();
        loop {
            let failed = tokio::select! {
                failed = failures.changed() => match failed {
                    Ok(()) => true,
                    Err(_) => return,
                },
                _ = news.changed() => false,
            };
            if failed || !self.last.as_ref().is_some_and(|last| self.nodes.may_hear(last)) {
                self.turn();
            }
        }
    }

    fn turn(&mut self) {
        let Some(place) = self.choose() else { return };
        if let Ok(site) = self.nodes.site(&place) {
            self.target.send_replace(Some(site));
        }
        self.nodes.set_ear(&place);
        self.last = Some(place);
    }

    /// Another one than the last, where there is one; one that is connected to rather than one that is not.
    fn choose(&self) -> Option<NodeAddress> {
        let (serving, replicas) = self.nodes.all();
        let (up, down): (Vec<_>, Vec<_>) = serving.into_iter().partition(|node| node.single.line().is_up());
        let mut places: Vec<NodeAddress> = up.into_iter().map(|node| node.place).collect();
        if places.iter().all(|place| Some(place) == self.last.as_ref()) {
            places.extend(replicas);
            places.extend(down.into_iter().map(|node| node.place));
        }
        if places.len() > 1 {
            places.retain(|place| Some(place) != self.last.as_ref());
        }
        match places.len() {
            0 => None,
            count => Some(places.swap_remove(rand::random_range(0..count))),
        }
    }
}
