use super::*;

struct Bench {
    topics: Channels,
    now: Instant,
    channel: Arc<str>,
}

impl Bench {
    fn connected() -> Bench {
        let mut bench = Bench { topics: Channels::default(), now: Instant::now(), channel: "c".into() };
        bench.topics.connected();
        bench
    }

    fn want(&mut self) {
        self.topics.want(&self.channel);
    }

    fn leave(&mut self) {
        self.topics.leave(&self.channel, self.now);
    }

    fn answered(&mut self, ask: ChannelRequest, granted: bool) {
        self.topics.answered(ask, &self.channel, granted, self.now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.topics.pass(self.now);
    }

    #[track_caller]
    fn expect(&mut self, asks: &[ChannelRequest], tells: &[SubscriptionEvent]) {
        assert_eq!(self.topics.asks.drain(..).map(|(ask, _)| ask).collect::<Vec<_>>(), asks);
        assert_eq!(self.topics.tells.drain(..).map(|(tell, _)| tell).collect::<Vec<_>>(), tells);
    }
}

#[test]
fn a_channel_is_told_as_subscribed_when_the_server_answered() {
    let mut bench = Bench::connected();
    bench.want();
    bench.expect(&[ChannelRequest::Subscribe], &[]);
    bench.answered(ChannelRequest::Subscribe, true);
    bench.expect(&[], &[SubscriptionEvent::Subscribed]);
    assert!(bench.topics.wants("c"));
}

#[test]
fn a_channel_lingers_and_is_confirmed_at_once_meanwhile() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(ChannelRequest::Subscribe, true);
    bench.leave();
    bench.pass(LINGER / 2);
    bench.expect(&[ChannelRequest::Subscribe], &[SubscriptionEvent::Subscribed]);
    bench.want();
    bench.expect(&[], &[SubscriptionEvent::Subscribed]);
    bench.pass(LINGER);
    bench.leave();
    bench.pass(LINGER / 2);
    bench.expect(&[], &[]);
    bench.pass(LINGER);
    bench.expect(&[ChannelRequest::Unsubscribe], &[]);
    bench.answered(ChannelRequest::Unsubscribe, true);
    assert!(bench.topics.topics.is_empty() && bench.topics.timers.is_empty());
}

#[test]
fn a_channel_wanted_while_it_is_unsubscribed_waits_for_that_answer() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(ChannelRequest::Subscribe, true);
    bench.leave();
    bench.pass(LINGER);
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
fn a_channel_left_while_it_is_subscribed_is_not_asked_twice() {
    let mut bench = Bench::connected();
    bench.want();
    bench.leave();
    bench.want();
    bench.expect(&[ChannelRequest::Subscribe], &[]);
    bench.leave();
    bench.answered(ChannelRequest::Subscribe, true);
    bench.expect(&[], &[]);
    bench.pass(LINGER);
    bench.expect(&[ChannelRequest::Unsubscribe], &[]);
}

#[test]
fn a_refused_channel_is_asked_again_for_as_long_as_it_is_wanted() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(ChannelRequest::Subscribe, false);
    bench.want();
    bench.expect(
        &[ChannelRequest::Subscribe],
        &[SubscriptionEvent::NotSubscribed, SubscriptionEvent::NotSubscribed],
    );
    bench.pass(REPEAT);
    bench.answered(ChannelRequest::Subscribe, false);
    bench.expect(&[ChannelRequest::Subscribe], &[]);
    bench.pass(REPEAT);
    bench.answered(ChannelRequest::Subscribe, true);
    bench.expect(&[ChannelRequest::Subscribe], &[SubscriptionEvent::Subscribed]);
    bench.leave();
    bench.pass(LINGER);
    bench.answered(ChannelRequest::Unsubscribe, true);
    bench.want();
    bench.answered(ChannelRequest::Subscribe, false);
    bench.leave();
    bench.pass(REPEAT);
    bench.expect(
        &[ChannelRequest::Unsubscribe, ChannelRequest::Subscribe],
        &[SubscriptionEvent::NotSubscribed],
    );
    assert!(bench.topics.topics.is_empty());
}

#[test]
fn a_lost_connection_forgets_what_is_not_wanted_and_asks_again_for_the_rest() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(ChannelRequest::Subscribe, true);
    let other: Arc<str> = "other".into();
    bench.topics.want(&other);
    bench.topics.leave(&other, bench.now);
    bench.topics.disconnected();
    bench.expect(&[], &[SubscriptionEvent::Subscribed]);
    bench.topics.unreachable();
    bench.topics.unreachable();
    bench.expect(&[], &[SubscriptionEvent::NotSubscribed]);
    bench.topics.connected();
    bench.expect(&[ChannelRequest::Subscribe], &[]);
    assert_eq!(bench.topics.wanted(), 1);
}

#[test]
fn a_channel_left_again_lingers_from_then_on() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(ChannelRequest::Subscribe, true);
    bench.leave();
    bench.pass(LINGER * 3 / 4);
    bench.want();
    bench.leave();
    bench.expect(
        &[ChannelRequest::Subscribe],
        &[SubscriptionEvent::Subscribed, SubscriptionEvent::Subscribed],
    );
    bench.pass(LINGER * 3 / 4);
    bench.expect(&[], &[]);
    bench.pass(LINGER / 4);
    bench.expect(&[ChannelRequest::Unsubscribe], &[]);
}
