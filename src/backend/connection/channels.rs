//! The subscription state of each channel. No I/O, and no clock: `now` is an argument.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// How long a channel stays subscribed after it is no longer wanted, so that the next waiter for a busy lock need not subscribe again.
const LINGER: Duration = Duration::from_secs(1);

/// How long after a refusal a subscription is retried. Equal to [`LINGER`], so that `timers` stays sorted.
const REPEAT: Duration = LINGER;

/// The channels by name. Tests walk over them in the same order each time.
#[cfg(test)]
type ByName<T> = std::collections::BTreeMap<Arc<str>, T>;
#[cfg(not(test))]
type ByName<T> = std::collections::HashMap<Arc<str>, T>;

/// A request to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelRequest {
    Subscribe,
    Unsubscribe,
}

/// An event for the waiters of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubscriptionEvent {
    Subscribed,
    NotSubscribed,
}

/// All channels that are wanted, that linger, or that have a request in flight.
#[derive(Default)]
pub(super) struct Channels {
    channels: ByName<Channel>,
    wanted: usize,
    connected: bool,
    /// Sorted by time, since all delays are equal. An entry is valid only if it equals the channel's own `due`.
    timers: VecDeque<(Instant, Arc<str>)>,
    /// Requests to be sent, in this order.
    pub(super) requests: Vec<(ChannelRequest, Arc<str>)>,
    /// Events to be reported, in this order.
    pub(super) events: Vec<(SubscriptionEvent, Arc<str>)>,
}

#[derive(Default)]
struct Channel {
    wanted: bool,
    state: ChannelState,
    /// When its timer runs out: for an unsubscribe after [`LINGER`], or a retry after [`REPEAT`].
    due: Option<Instant>,
    /// Whether the last event that the waiters got is [`NotSubscribed`](SubscriptionEvent::NotSubscribed).
    reported_failed: bool,
}

/// A channel has at most one request in flight. Otherwise the answer to a subscribe could be taken for the answer to a second one, sent
/// after an unsubscribe.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum ChannelState {
    #[default]
    Off,
    Subscribing,
    On,
    Unsubscribing,
}

impl Channels {
    /// Returns how many channels are wanted.
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    pub(super) fn wants(&self, channel: &str) -> bool {
        self.channels.get(channel).is_some_and(|entry| entry.wanted)
    }

    /// Returns whether the waiters of the channel know that it is not subscribed.
    pub(super) fn reported_failed(&self, channel: &str) -> bool {
        self.channels.get(channel).is_some_and(|entry| entry.reported_failed)
    }

    /// Marks the channel as wanted. Each call is answered by an event once the server is reachable, even if the channel is subscribed already, or its failure was
    /// reported to earlier waiters.
    pub(super) fn want(&mut self, channel: &Arc<str>) {
        let entry = self.channels.entry(channel.clone()).or_default();
        self.wanted += usize::from(!entry.wanted);
        entry.wanted = true;
        match entry.state {
            ChannelState::On => {
                entry.due = None;
                self.events.push((SubscriptionEvent::Subscribed, channel.clone()));
            }
            // It was refused less than [`REPEAT`] ago, and is retried when that is due.
            ChannelState::Off if entry.due.is_some() => {
                self.events.push((SubscriptionEvent::NotSubscribed, channel.clone()))
            }
            ChannelState::Off => {
                entry.reported_failed = false;
                self.subscribe_if_wanted(channel);
            }
            ChannelState::Subscribing | ChannelState::Unsubscribing => entry.reported_failed = false,
        }
    }

    /// Marks the channel as not wanted any more.
    pub(super) fn leave(&mut self, channel: &Arc<str>, now: Instant) {
        let Some(entry) = self.channels.get_mut(channel) else { return };
        self.wanted -= usize::from(entry.wanted);
        entry.wanted = false;
        match entry.state {
            ChannelState::Off => drop(self.channels.remove(channel)),
            ChannelState::On => self.set_timer(channel, now, LINGER),
            // Whether to keep the channel is decided when the answer arrives.
            ChannelState::Subscribing | ChannelState::Unsubscribing => {}
        }
    }

    /// Called when a connection was made.
    pub(super) fn connected(&mut self) {
        self.connected = true;
        let all: Vec<_> = self.channels.keys().cloned().collect();
        all.iter().for_each(|channel| self.subscribe_if_wanted(channel));
    }

    /// Called when the connection is lost, and with it all subscriptions and requests.
    pub(super) fn disconnected(&mut self) {
        self.connected = false;
        self.requests.clear();
        self.timers.clear();
        self.channels.retain(|_, entry| entry.wanted);
        for entry in self.channels.values_mut() {
            (entry.state, entry.due) = (ChannelState::Off, None);
        }
    }

    /// Called when no connection can be made. Reports each wanted channel as not subscribed: once, until it is subscribed or wanted
    /// again.
    pub(super) fn unreachable(&mut self) {
        for (channel, entry) in &mut self.channels {
            if entry.wanted && !std::mem::replace(&mut entry.reported_failed, true) {
                self.events.push((SubscriptionEvent::NotSubscribed, channel.clone()));
            }
        }
    }

    /// Called when the server confirmed or refused a request.
    pub(super) fn answered(
        &mut self,
        request: ChannelRequest,
        channel: &Arc<str>,
        confirmed: bool,
        now: Instant,
    ) {
        let Some(entry) = self.channels.get_mut(channel) else { return };
        entry.state = match (request, confirmed) {
            // It was answered before, and this answer must not count: 1. The slot moves, and the server ends the subscription while an
            // unsubscribe is on its way: `ended` counts that as the answer. 2. The channel is wanted, and is requested again. 3. The
            // server refuses the unsubscribe, since the slot has moved. If that counted, a second subscribe would be in flight.
            (ChannelRequest::Unsubscribe, _) if entry.state != ChannelState::Unsubscribing => return,
            (ChannelRequest::Subscribe, true) | (ChannelRequest::Unsubscribe, false) => ChannelState::On,
            (ChannelRequest::Subscribe, false) | (ChannelRequest::Unsubscribe, true) => ChannelState::Off,
        };
        match (entry.state, entry.wanted) {
            (ChannelState::On, true) => {
                entry.reported_failed = false;
                self.events.push((SubscriptionEvent::Subscribed, channel.clone()));
            }
            (ChannelState::On, false) => self.set_timer(channel, now, LINGER),
            (_, false) => drop(self.channels.remove(channel)),
            (_, true) if request == ChannelRequest::Unsubscribe => self.subscribe_if_wanted(channel),
            (_, true) => {
                // Repeated refusals are reported once.
                if !std::mem::replace(&mut entry.reported_failed, true) {
                    self.events.push((SubscriptionEvent::NotSubscribed, channel.clone()));
                }
                self.set_timer(channel, now, REPEAT);
            }
        }
    }

    /// Called when the server has ended a subscription. That answers an unsubscribe, if one is on its way. Otherwise a node of a Cluster has
    /// ended it by itself, since the hash slot of the sharded channel has moved to another node. If the channel is wanted, it is requested
    /// at this node again at once: the node refuses that, and its refusal names the node that serves the slot now.
    pub(super) fn ended(&mut self, channel: &Arc<str>, now: Instant) {
        let Some(entry) = self.channels.get_mut(channel) else { return };
        match (entry.state, entry.wanted) {
            (ChannelState::Unsubscribing, _) => {
                self.answered(ChannelRequest::Unsubscribe, channel, true, now)
            }
            (ChannelState::On, true) => {
                (entry.state, entry.reported_failed) = (ChannelState::Off, true);
                self.events.push((SubscriptionEvent::NotSubscribed, channel.clone()));
                self.subscribe_if_wanted(channel);
            }
            (ChannelState::On, false) => drop(self.channels.remove(channel)),
            // An earlier subscription has ended, not the one that is requested now.
            (ChannelState::Off | ChannelState::Subscribing, _) => {}
        }
    }

    /// Returns when [`run_due`](Channels::run_due) has something to do next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.timers.front().map(|(due, _)| *due)
    }

    /// Runs the timers that are due.
    pub(super) fn run_due(&mut self, now: Instant) {
        while self.due().is_some_and(|due| due <= now) {
            let Some((due, channel)) = self.timers.pop_front() else { return };
            let entry = self.channels.get_mut(&channel).filter(|entry| entry.due == Some(due));
            let Some(entry) = entry else { continue };
            entry.due = None;
            match (entry.state, entry.wanted) {
                (ChannelState::On, false) => {
                    entry.state = ChannelState::Unsubscribing;
                    self.requests.push((ChannelRequest::Unsubscribe, channel));
                }
                _ => self.subscribe_if_wanted(&channel),
            }
        }
    }

    fn subscribe_if_wanted(&mut self, channel: &Arc<str>) {
        let Some(entry) = self.channels.get_mut(channel) else { return };
        if self.connected && entry.wanted && entry.state == ChannelState::Off {
            (entry.state, entry.due) = (ChannelState::Subscribing, None);
            self.requests.push((ChannelRequest::Subscribe, channel.clone()));
        }
    }

    fn set_timer(&mut self, channel: &Arc<str>, now: Instant, delay: Duration) {
        let due = now + delay;
        if let Some(entry) = self.channels.get_mut(channel) {
            entry.due = Some(due);
            self.timers.push_back((due, channel.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
