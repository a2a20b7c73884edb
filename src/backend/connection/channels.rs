//! What is asked of the subscriber connection, channel by channel. No I/O, and no clock: `now` is an argument.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// A channel that nobody wants stays subscribed this long: the next waiter for a busy lock finds it confirmed.
const LINGER: Duration = Duration::from_secs(1);

/// A refused request is repeated after this long.
const REPEAT: Duration = LINGER;

/// A request to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelRequest {
    Subscribe,
    Unsubscribe,
}

/// What to tell those who wait for a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubscriptionEvent {
    Subscribed,
    NotSubscribed,
}

/// All channels that are wanted, or were a moment ago.
#[derive(Default)]
pub(crate) struct Channels {
    topics: HashMap<Arc<str>, Channel>,
    wanted: usize,
    connected: bool,
    /// What falls due when, in the order of time, for all of it is due after the same delay. A topic's own `due` says
    /// whether an entry still holds.
    timers: VecDeque<(Instant, Arc<str>)>,
    /// To be sent, in this order.
    pub(crate) asks: Vec<(ChannelRequest, Arc<str>)>,
    /// To be told, in this order.
    pub(crate) tells: Vec<(SubscriptionEvent, Arc<str>)>,
}

struct Channel {
    wanted: bool,
    phase: ChannelState,
    due: Option<Instant>,
    /// Who waits was told that nothing comes, and not since that something does.
    told_not: bool,
}

/// One request of a channel is under way at a time: with a subscribe, an unsubscribe and a subscribe under way, the answer
/// to the first would pass for that to the third.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChannelState {
    Off,
    Subscribing,
    On,
    Unsubscribing,
}

impl Channels {
    /// How many channels are wanted.
    pub(crate) fn wanted(&self) -> usize {
        self.wanted
    }

    pub(crate) fn wants(&self, channel: &str) -> bool {
        self.topics.get(channel).is_some_and(|topic| topic.wanted)
    }

    /// Whether those who wait for the channel know that nothing comes.
    pub(crate) fn told_not(&self, channel: &str) -> bool {
        self.topics.get(channel).is_some_and(|topic| topic.told_not)
    }

    /// Somebody wants the channel. Each wish gets an answer, also one for a channel that is subscribed.
    pub(crate) fn want(&mut self, channel: &Arc<str>) {
        let topic = self.topics.entry(channel.clone()).or_insert(Channel {
            wanted: false,
            phase: ChannelState::Off,
            due: None,
            told_not: false,
        });
        self.wanted += usize::from(!topic.wanted);
        topic.wanted = true;
        match topic.phase {
            ChannelState::On => {
                topic.due = None;
                self.tells.push((SubscriptionEvent::Subscribed, channel.clone()));
            }
            // Refused a moment ago: it is asked again when that falls due.
            ChannelState::Off if topic.due.is_some() => {
                self.tells.push((SubscriptionEvent::NotSubscribed, channel.clone()))
            }
            ChannelState::Off => {
                topic.told_not = false;
                self.start(channel);
            }
            ChannelState::Subscribing | ChannelState::Unsubscribing => topic.told_not = false,
        }
    }

    /// Nobody wants the channel any more.
    pub(crate) fn leave(&mut self, channel: &Arc<str>, now: Instant) {
        let Some(topic) = self.topics.get_mut(channel) else { return };
        self.wanted -= usize::from(topic.wanted);
        topic.wanted = false;
        match topic.phase {
            ChannelState::Off => drop(self.topics.remove(channel)),
            ChannelState::On => self.later(channel, now, LINGER),
            // What becomes of it is looked at when the answer comes.
            ChannelState::Subscribing | ChannelState::Unsubscribing => {}
        }
    }

    /// A connection stands.
    pub(crate) fn connected(&mut self) {
        self.connected = true;
        let all: Vec<_> = self.topics.keys().cloned().collect();
        all.iter().for_each(|channel| self.start(channel));
    }

    /// The connection is gone, with all that was subscribed or asked for.
    pub(crate) fn disconnected(&mut self) {
        self.connected = false;
        self.asks.clear();
        self.timers.clear();
        self.topics.retain(|_, topic| topic.wanted);
        for topic in self.topics.values_mut() {
            (topic.phase, topic.due) = (ChannelState::Off, None);
        }
    }

    /// No connection could be made: told once to each who waits, until it is otherwise.
    pub(crate) fn unreachable(&mut self) {
        for (channel, topic) in &mut self.topics {
            if topic.wanted && !std::mem::replace(&mut topic.told_not, true) {
                self.tells.push((SubscriptionEvent::NotSubscribed, channel.clone()));
            }
        }
    }

    /// The server granted or refused a request.
    pub(crate) fn answered(&mut self, ask: ChannelRequest, channel: &Arc<str>, granted: bool, now: Instant) {
        let Some(topic) = self.topics.get_mut(channel) else { return };
        topic.phase = match (ask, granted) {
            (ChannelRequest::Subscribe, true) | (ChannelRequest::Unsubscribe, false) => ChannelState::On,
            (ChannelRequest::Subscribe, false) | (ChannelRequest::Unsubscribe, true) => ChannelState::Off,
        };
        match (topic.phase, topic.wanted) {
            (ChannelState::On, true) => {
                topic.told_not = false;
                self.tells.push((SubscriptionEvent::Subscribed, channel.clone()));
            }
            (ChannelState::On, false) => self.later(channel, now, LINGER),
            (_, false) => drop(self.topics.remove(channel)),
            (_, true) if ask == ChannelRequest::Unsubscribe => self.start(channel),
            (_, true) => {
                // Refused again and again is told once.
                if !std::mem::replace(&mut topic.told_not, true) {
                    self.tells.push((SubscriptionEvent::NotSubscribed, channel.clone()));
                }
                self.later(channel, now, REPEAT);
            }
        }
    }

    /// The next moment at which [`pass`](Channels::pass) has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.timers.front().map(|(due, _)| *due)
    }

    /// Does what has fallen due.
    pub(crate) fn pass(&mut self, now: Instant) {
        while self.due().is_some_and(|due| due <= now) {
            let Some((due, channel)) = self.timers.pop_front() else { return };
            let Some(topic) = self.topics.get_mut(&channel) else { continue };
            if topic.due != Some(due) {
                continue;
            }
            topic.due = None;
            match (topic.phase, topic.wanted) {
                (ChannelState::On, false) => {
                    topic.phase = ChannelState::Unsubscribing;
                    self.asks.push((ChannelRequest::Unsubscribe, channel));
                }
                _ => self.start(&channel),
            }
        }
    }

    fn start(&mut self, channel: &Arc<str>) {
        let Some(topic) = self.topics.get_mut(channel) else { return };
        if self.connected && topic.wanted && topic.phase == ChannelState::Off {
            (topic.phase, topic.due) = (ChannelState::Subscribing, None);
            self.asks.push((ChannelRequest::Subscribe, channel.clone()));
        }
    }

    fn later(&mut self, channel: &Arc<str>, now: Instant, delay: Duration) {
        let due = now + delay;
        if let Some(topic) = self.topics.get_mut(channel) {
            topic.due = Some(due);
            self.timers.push_back((due, channel.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
