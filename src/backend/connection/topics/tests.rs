use super::*;

struct Bench {
    topics: Topics,
    now: Instant,
    channel: Arc<str>,
}

impl Bench {
    fn connected() -> Bench {
        let mut bench = Bench { topics: Topics::default(), now: Instant::now(), channel: "c".into() };
        bench.topics.connected();
        bench
    }

    fn want(&mut self) {
        self.topics.want(&self.channel);
    }

    fn leave(&mut self) {
        self.topics.leave(&self.channel, self.now);
    }

    fn answered(&mut self, ask: Ask, granted: bool) {
        self.topics.answered(ask, &self.channel, granted, self.now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.topics.pass(self.now);
    }

    #[track_caller]
    fn expect(&mut self, asks: &[Ask], tells: &[Tell]) {
        assert_eq!(self.topics.asks.drain(..).map(|(ask, _)| ask).collect::<Vec<_>>(), asks);
        assert_eq!(self.topics.tells.drain(..).map(|(tell, _)| tell).collect::<Vec<_>>(), tells);
    }
}

#[test]
fn a_channel_is_told_as_subscribed_when_the_server_answered() {
    let mut bench = Bench::connected();
    bench.want();
    bench.expect(&[Ask::Subscribe], &[]);
    bench.answered(Ask::Subscribe, true);
    bench.expect(&[], &[Tell::Subscribed]);
    assert!(bench.topics.wants("c"));
}

#[test]
fn a_channel_lingers_and_is_confirmed_at_once_meanwhile() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(Ask::Subscribe, true);
    bench.leave();
    bench.pass(LINGER / 2);
    bench.expect(&[Ask::Subscribe], &[Tell::Subscribed]);
    bench.want();
    bench.expect(&[], &[Tell::Subscribed]);
    bench.pass(LINGER);
    bench.leave();
    bench.pass(LINGER / 2);
    bench.expect(&[], &[]);
    bench.pass(LINGER);
    bench.expect(&[Ask::Unsubscribe], &[]);
    bench.answered(Ask::Unsubscribe, true);
    assert!(bench.topics.topics.is_empty() && bench.topics.timers.is_empty());
}

#[test]
fn a_channel_wanted_while_it_is_unsubscribed_waits_for_that_answer() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(Ask::Subscribe, true);
    bench.leave();
    bench.pass(LINGER);
    bench.expect(&[Ask::Subscribe, Ask::Unsubscribe], &[Tell::Subscribed]);
    bench.want();
    bench.leave();
    bench.want();
    bench.expect(&[], &[]);
    bench.answered(Ask::Unsubscribe, true);
    bench.expect(&[Ask::Subscribe], &[]);
    bench.answered(Ask::Subscribe, true);
    bench.expect(&[], &[Tell::Subscribed]);
}

#[test]
fn a_channel_left_while_it_is_subscribed_is_not_asked_twice() {
    let mut bench = Bench::connected();
    bench.want();
    bench.leave();
    bench.want();
    bench.expect(&[Ask::Subscribe], &[]);
    bench.leave();
    bench.answered(Ask::Subscribe, true);
    bench.expect(&[], &[]);
    bench.pass(LINGER);
    bench.expect(&[Ask::Unsubscribe], &[]);
}

#[test]
fn a_refused_channel_is_asked_again_for_as_long_as_it_is_wanted() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(Ask::Subscribe, false);
    bench.want();
    bench.expect(&[Ask::Subscribe], &[Tell::NotSubscribed, Tell::NotSubscribed]);
    bench.pass(REPEAT);
    bench.answered(Ask::Subscribe, false);
    bench.expect(&[Ask::Subscribe], &[]);
    bench.pass(REPEAT);
    bench.answered(Ask::Subscribe, true);
    bench.expect(&[Ask::Subscribe], &[Tell::Subscribed]);
    bench.leave();
    bench.pass(LINGER);
    bench.answered(Ask::Unsubscribe, true);
    bench.want();
    bench.answered(Ask::Subscribe, false);
    bench.leave();
    bench.pass(REPEAT);
    bench.expect(&[Ask::Unsubscribe, Ask::Subscribe], &[Tell::NotSubscribed]);
    assert!(bench.topics.topics.is_empty());
}

#[test]
fn a_lost_connection_forgets_what_is_not_wanted_and_asks_again_for_the_rest() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(Ask::Subscribe, true);
    let other: Arc<str> = "other".into();
    bench.topics.want(&other);
    bench.topics.leave(&other, bench.now);
    bench.topics.disconnected();
    bench.expect(&[], &[Tell::Subscribed]);
    bench.topics.unreachable();
    bench.topics.unreachable();
    bench.expect(&[], &[Tell::NotSubscribed]);
    bench.topics.connected();
    bench.expect(&[Ask::Subscribe], &[]);
    assert_eq!(bench.topics.wanted(), 1);
}

#[test]
fn a_channel_left_again_lingers_from_then_on() {
    let mut bench = Bench::connected();
    bench.want();
    bench.answered(Ask::Subscribe, true);
    bench.leave();
    bench.pass(LINGER * 3 / 4);
    bench.want();
    bench.leave();
    bench.expect(&[Ask::Subscribe], &[Tell::Subscribed, Tell::Subscribed]);
    bench.pass(LINGER * 3 / 4);
    bench.expect(&[], &[]);
    bench.pass(LINGER / 4);
    bench.expect(&[Ask::Unsubscribe], &[]);
}
