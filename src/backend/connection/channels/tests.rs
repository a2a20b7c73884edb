use super::*;

struct Bench {
    channels: Channels,
    now: Instant,
    channel: Arc<str>,
}

impl Bench {
    fn connected() -> Bench {
        let mut bench = Bench { channels: Channels::default(), now: Instant::now(), channel: "c".into() };
        bench.channels.connected();
        bench
    }

    fn want(&mut self) {
        self.channels.want(&self.channel);
    }

    fn leave(&mut self) {
        self.channels.leave(&self.channel, self.now);
    }

    fn answered(&mut self, request: ChannelRequest, confirmed: bool) {
        self.channels.answered(request, &self.channel, confirmed, self.now);
    }

    fn ended(&mut self) {
        self.channels.ended(&self.channel, self.now);
    }

    fn run_due(&mut self, time: Duration) {
        self.now += time;
        self.channels.run_due(self.now);
    }

    #[track_caller]
    fn expect(&mut self, requests: &[ChannelRequest], events: &[SubscriptionEvent]) {
        assert_eq!(
            self.channels.requests.drain(..).map(|(request, _)| request).collect::<Vec<_>>(),
            requests
        );
        assert_eq!(self.channels.events.drain(..).map(|(event, _)| event).collect::<Vec<_>>(), events);
    }
}

#[test]
fn nothing_is_requested_without_a_connection() {
    let (channels, channel) = (Channels::default(), "c".into());
    let mut bench = Bench { channels, now: Instant::now(), channel };
    bench.want();
    bench.expect(&[], &[]);
    bench.channels.unreachable();
    assert!(bench.channels.reported_failed("c"));
    bench.expect(&[], &[SubscriptionEvent::NotSubscribed]);
    bench.channels.connected();
    bench.expect(&[ChannelRequest::Subscribe], &[]);
    bench.answered(ChannelRequest::Subscribe, true);
    assert!(!bench.channels.reported_failed("c"));
    bench.expect(&[], &[SubscriptionEvent::Subscribed]);
}

#[test]
fn a_channel_is_reported_as_subscribed_once_the_server_has_answered() {
    let mut bench = Bench::connected();
    bench.want();
    bench.expect(&[ChannelRequest::Subscribe], &[]);
    bench.answered(ChannelRequest::Subscribe, true);
    bench.expect(&[], &[SubscriptionEvent::Subscribed]);
    assert!(bench.channels.wants("c"));
}

#[test]
fn a_lingering_channel_is_confirmed_at_once() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(ChannelRequest::Subscribe, true);
    bench.leave();
    bench.run_due(LINGER / 2);
    bench.expect(&[ChannelRequest::Subscribe], &[SubscriptionEvent::Subscribed]);
    bench.want();
    bench.expect(&[], &[SubscriptionEvent::Subscribed]);
    bench.run_due(LINGER);
    bench.leave();
    bench.run_due(LINGER / 2);
    bench.expect(&[], &[]);
    bench.run_due(LINGER);
    bench.expect(&[ChannelRequest::Unsubscribe], &[]);
    bench.answered(ChannelRequest::Unsubscribe, true);
    assert!(bench.channels.channels.is_empty() && bench.channels.timers.is_empty());
}

#[test]
fn a_channel_wanted_while_it_is_unsubscribed_waits_for_that_answer() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(ChannelRequest::Subscribe, true);
    bench.leave();
    bench.run_due(LINGER);
    bench.expect(&[ChannelRequest::Subscribe, ChannelRequest::Unsubscribe], &[SubscriptionEvent::Subscribed]);
    bench.want();
    bench.leave();
    bench.want();
    bench.expect(&[], &[]);
    bench.answered(ChannelRequest::Unsubscribe, true);
    bench.expect(&[ChannelRequest::Subscribe], &[]);
    bench.answered(ChannelRequest::Subscribe, true);
    bench.expect(&[], &[SubscriptionEvent::Subscribed]);
}

#[test]
fn a_channel_left_while_it_is_subscribed_is_not_requested_twice() {
    let mut bench = Bench::connected();
    bench.want();
    bench.leave();
    bench.want();
    bench.expect(&[ChannelRequest::Subscribe], &[]);
    bench.leave();
    bench.answered(ChannelRequest::Subscribe, true);
    bench.expect(&[], &[]);
    bench.run_due(LINGER);
    bench.expect(&[ChannelRequest::Unsubscribe], &[]);
}

#[test]
fn a_subscription_that_the_server_ends_is_reported_and_asked_for_at_once() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(ChannelRequest::Subscribe, true);
    bench.expect(&[ChannelRequest::Subscribe], &[SubscriptionEvent::Subscribed]);
    bench.ended();
    bench.expect(&[ChannelRequest::Subscribe], &[SubscriptionEvent::NotSubscribed]);
    // This is the end of the subscription from before that request.
    bench.ended();
    bench.expect(&[], &[]);
    bench.answered(ChannelRequest::Subscribe, true);
    bench.expect(&[], &[SubscriptionEvent::Subscribed]);
}

#[test]
fn a_subscription_that_the_server_ends_while_nobody_wants_it_is_forgotten() {
    for asked in [false, true] {
        let mut bench = Bench::connected();
        bench.want();
        bench.answered(ChannelRequest::Subscribe, true);
        bench.leave();
        if asked {
            bench.run_due(LINGER);
        }
        bench.ended();
        bench.channels.requests.clear();
        bench.channels.events.clear();
        bench.want();
        bench.expect(&[ChannelRequest::Subscribe], &[]);
    }
}

#[test]
fn a_refused_unsubscribe_does_not_end_the_subscription_that_is_requested_since() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(ChannelRequest::Subscribe, true);
    bench.leave();
    bench.run_due(LINGER);
    bench.want();
    bench.expect(&[ChannelRequest::Subscribe, ChannelRequest::Unsubscribe], &[SubscriptionEvent::Subscribed]);
    bench.ended();
    bench.expect(&[ChannelRequest::Subscribe], &[]);
    // The slot has moved, so the unsubscribe is refused, which counts as confirmed.
    bench.answered(ChannelRequest::Unsubscribe, true);
    bench.expect(&[], &[]);
    bench.answered(ChannelRequest::Subscribe, true);
    bench.expect(&[], &[SubscriptionEvent::Subscribed]);
}

#[test]
fn a_refused_channel_is_retried_for_as_long_as_it_is_wanted() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(ChannelRequest::Subscribe, false);
    bench.want();
    bench.expect(
        &[ChannelRequest::Subscribe],
        &[SubscriptionEvent::NotSubscribed, SubscriptionEvent::NotSubscribed],
    );
    bench.run_due(REPEAT);
    bench.answered(ChannelRequest::Subscribe, false);
    bench.expect(&[ChannelRequest::Subscribe], &[]);
    bench.run_due(REPEAT);
    bench.answered(ChannelRequest::Subscribe, true);
    bench.expect(&[ChannelRequest::Subscribe], &[SubscriptionEvent::Subscribed]);
    bench.leave();
    bench.run_due(LINGER);
    bench.answered(ChannelRequest::Unsubscribe, true);
    bench.want();
    bench.answered(ChannelRequest::Subscribe, false);
    bench.leave();
    bench.run_due(REPEAT);
    bench.expect(
        &[ChannelRequest::Unsubscribe, ChannelRequest::Subscribe],
        &[SubscriptionEvent::NotSubscribed],
    );
    assert!(bench.channels.channels.is_empty());
}

#[test]
fn after_a_lost_connection_only_wanted_channels_are_subscribed_again() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(ChannelRequest::Subscribe, true);
    let other: Arc<str> = "other".into();
    bench.channels.want(&other);
    bench.channels.leave(&other, bench.now);
    bench.channels.disconnected();
    bench.expect(&[], &[SubscriptionEvent::Subscribed]);
    bench.channels.unreachable();
    bench.channels.unreachable();
    bench.expect(&[], &[SubscriptionEvent::NotSubscribed]);
    bench.channels.connected();
    bench.expect(&[ChannelRequest::Subscribe], &[]);
    assert_eq!(bench.channels.wanted(), 1);
}

#[test]
fn a_channel_left_again_lingers_from_then_on() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(ChannelRequest::Subscribe, true);
    bench.leave();
    bench.run_due(LINGER * 3 / 4);
    bench.want();
    bench.leave();
    bench.expect(
        &[ChannelRequest::Subscribe],
        &[SubscriptionEvent::Subscribed, SubscriptionEvent::Subscribed],
    );
    bench.run_due(LINGER * 3 / 4);
    bench.expect(&[], &[]);
    bench.run_due(LINGER / 4);
    bench.expect(&[ChannelRequest::Unsubscribe], &[]);
}
