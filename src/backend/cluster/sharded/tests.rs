use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::*;
use crate::backend::cluster::Cluster;
use crate::backend::cluster::shard_reports::ShardReports;
use crate::backend::cluster::slots::NodeAddress;
use crate::backend::connection::ChannelKind;
use crate::backend::server::Role;
use crate::backend::testing::{ALONE, Event, EventRecorder, TestServer, until};
use crate::config::{AddressMap, Seeds};
use crate::wire::keys::{Keys, channel};
use crate::wire::{Action, Call, Reply};

#[test]
fn a_channel_is_sharded_if_it_is_in_the_slot_of_each_key_that_it_may_be_of() {
    for (prefix, name) in [
        ("", "stock:42"),
        ("app:", "stock:42"),
        ("", "{x}:y"),
        ("", "a{b}c"),
        ("{app}:", "a"),
        ("app:", "{x}"),
    ] {
        assert!(is_sharded(&channel(prefix, name)), "{prefix} {name}");
        assert_eq!(slot(&channel(prefix, name)), slot(&Keys::new(prefix, name).key));
    }
    for (prefix, name) in [("", "a}b"), ("", "{}x"), ("", "un{paired"), ("p{", "a}")] {
        assert!(!is_sharded(&channel(prefix, name)), "{prefix} {name}");
    }
    // One channel belongs to two locks in two slots.
    assert_eq!(channel("", "a}b"), channel("", "{a}b}"));
    assert!(!is_sharded(&channel("", "{a}b}")) && !is_sharded("another"));
}

/// Starts a cluster of one node, and a client of it.
async fn lone() -> (TestServer, Arc<Cluster>, EventRecorder) {
    let server = TestServer::start(&["--cluster-enabled", "yes"]).await;
    server.command("CLUSTER ADDSLOTSRANGE 0 16383").await;
    until(async || {
        let redis::Value::BulkString(text) = server.command("CLUSTER INFO").await else { panic!() };
        String::from_utf8(text).unwrap().contains("cluster_state:ok")
    })
    .await;
    let events = EventRecorder::new();
    let seeds = Seeds::new([server.url("")]);
    let cluster = Cluster::new(&seeds, ALONE, true, events.sender()).unwrap();
    assert!(cluster.connect().await.unwrap().is_none());
    (server, cluster, events)
}

/// Returns the next event about a subscription.
async fn next(events: &mut EventRecorder) -> Event {
    loop {
        match events.next().await {
            Event::Reconnected | Event::Moved(_) => {}
            event => return event,
        }
    }
}

const CHANNEL: &str = "redisson_lock__channel:{stock}";

#[tokio::test]
async fn a_subscription_ends_with_its_slot_and_is_made_again_once_a_node_serves_that() {
    let (server, cluster, mut events) = lone().await;
    cluster.subscribe(CHANNEL);
    assert_eq!(next(&mut events).await, Event::Subscribed(CHANNEL.into()));
    server.command(&format!("SPUBLISH {CHANNEL} 0")).await;
    assert_eq!(next(&mut events).await, Event::Message(CHANNEL.into()));
    let slot = slot("stock");
    server.command(&format!("CLUSTER DELSLOTS {slot}")).await;
    assert_eq!(next(&mut events).await, Event::NotSubscribed(CHANNEL.into()));
    server.command(&format!("CLUSTER ADDSLOTS {slot}")).await;
    until(async || next(&mut events).await == Event::Subscribed(CHANNEL.into())).await;
    server.command(&format!("SPUBLISH {CHANNEL} 0")).await;
    until(async || next(&mut events).await == Event::Message(CHANNEL.into())).await;
    cluster.unsubscribe(CHANNEL);
    until(async || server.count("sunsubscribe").await == 1).await;
}

#[tokio::test]
async fn a_lost_connection_is_reported_for_each_of_its_channels() {
    let (server, cluster, mut events) = lone().await;
    cluster.subscribe(CHANNEL);
    assert_eq!(next(&mut events).await, Event::Subscribed(CHANNEL.into()));
    server.command("CLIENT KILL TYPE pubsub").await;
    assert_eq!(next(&mut events).await, Event::NotSubscribed(CHANNEL.into()));
    assert_eq!(next(&mut events).await, Event::Subscribed(CHANNEL.into()));
}

#[tokio::test]
async fn each_request_for_a_channel_is_answered() {
    let (_server, cluster, mut events) = lone().await;
    for _ in 0..3 {
        cluster.subscribe(CHANNEL);
        assert_eq!(next(&mut events).await, Event::Subscribed(CHANNEL.into()));
    }
    cluster.unsubscribe(CHANNEL);
    cluster.subscribe(CHANNEL);
    assert_eq!(next(&mut events).await, Event::Subscribed(CHANNEL.into()));
}

#[tokio::test]
async fn a_node_that_refuses_sharded_channels_is_listened_to_by_plain_ones() {
    let (server, cluster, mut events) = lone().await;
    server.command("ACL SETUSER default -ssubscribe").await;
    cluster.subscribe(CHANNEL);
    assert_eq!(next(&mut events).await, Event::Subscribed(CHANNEL.into()));
    server.command(&format!("PUBLISH {CHANNEL} 0")).await;
    assert_eq!(next(&mut events).await, Event::Message(CHANNEL.into()));
    server.command("ACL SETUSER default +ssubscribe").await;
    // The subscription is retried when the topology is queried: then the head of the queue has to ask again.
    assert_eq!(next(&mut events).await, Event::NotSubscribed(CHANNEL.into()));
    assert_eq!(next(&mut events).await, Event::Subscribed(CHANNEL.into()));
    server.command(&format!("SPUBLISH {CHANNEL} 0")).await;
    assert_eq!(next(&mut events).await, Event::Message(CHANNEL.into()));
}

fn nodes(events: &EventRecorder, sharded: bool, address_map: AddressMap) -> Arc<Nodes> {
    let role = Role { node_timeout: Duration::from_secs(1), address_map, ..ALONE };
    let inbox = sharded.then(|| mpsc::unbounded_channel().0);
    let runtime = tokio::runtime::Handle::current();
    Nodes::new(Seeds::new([("127.0.0.1", 1)]), role, events.sender(), inbox, runtime)
}

/// Returns the subscriptions, driven by hand, and their events.
fn driven() -> (Subscriptions, EventRecorder) {
    let events = EventRecorder::new();
    let nodes = nodes(&events, true, AddressMap::NONE);
    // This subscriber reports to nobody: the test passes its reports on by hand.
    let reports: Arc<dyn Events> = Arc::new(ShardReports::new(mpsc::unbounded_channel().0, None));
    let (target, limit) = (watch::Sender::new(None).subscribe(), Duration::from_secs(1));
    let receiver = Arc::downgrade(&reports);
    let plain = Subscriber::start(ChannelKind::Plain, target, "none".into(), receiver, limit, None);
    let channels = HashMap::new();
    (Subscriptions { nodes, events: events.sender(), plain, _reports: reports, channels }, events)
}

#[tokio::test]
async fn what_a_node_reports_that_a_channel_has_left_is_ignored() {
    let (mut task, mut events) = driven();
    let address = |port| NodeAddress { host: "127.0.0.1".into(), port };
    let (channel, at): (Arc<str>, _) = (CHANNEL.into(), slot(CHANNEL));
    let server = |task: &mut Subscriptions, port| {
        task.nodes.moved(at, &address(port));
        Arc::downgrade(&task.nodes.owner(at).unwrap().server)
    };
    let one = server(&mut task, 1);
    task.want(&channel);
    task.handle(Some(&one), Report::Subscribed(channel.clone()));
    assert_eq!(events.next().await, Event::Subscribed(CHANNEL.into()));
    let other = server(&mut task, 2);
    task.follow();
    assert_eq!(events.next().await, Event::NotSubscribed(CHANNEL.into()));
    let message = |channel| Report::Message(channel, "0".into());
    for late in [Report::Subscribed, message, Report::NotSubscribed, Report::NotSharded] {
        task.handle(Some(&one), late(channel.clone()));
    }
    task.handle(Some(&one), Report::Moved(channel.clone(), address(3)));
    task.handle(Some(&one), Report::Lost);
    events.expect_none();
    task.handle(Some(&other), Report::Subscribed(channel.clone()));
    assert_eq!(events.next().await, Event::Subscribed(CHANNEL.into()));
    assert_eq!(task.nodes.owner(at).unwrap().node_address, address(2));
}

#[tokio::test]
async fn a_redirection_is_followed_and_two_nodes_that_redirect_to_each_other_are_left_alone_for_a_while() {
    let (mut task, mut events) = driven();
    let address = |port| NodeAddress { host: "127.0.0.1".into(), port };
    let (channel, at): (Arc<str>, _) = (CHANNEL.into(), slot(CHANNEL));
    task.nodes.moved(at, &address(1));
    task.want(&channel);
    for hop in 0..=HOPS {
        let (from, to) = (1 + (hop % 2) as u16, 2 - (hop % 2) as u16);
        let owner = task.nodes.owner(at).unwrap();
        assert_eq!(owner.node_address, address(from));
        task.handle(Some(&Arc::downgrade(&owner.server)), Report::Moved(channel.clone(), address(to)));
    }
    assert_eq!(task.nodes.owner(at).unwrap().node_address, address(1 + (HOPS % 2) as u16));
    events.expect_none();
}

#[tokio::test]
async fn a_refusal_is_dealt_with_elsewhere_if_another_node_or_a_plain_channel_can_do_it() {
    let (inbox, mut notes) = mpsc::unbounded_channel();
    let address = NodeAddress { host: "asked".into(), port: 1 };
    let reports = ShardReports::new(inbox, Some((Weak::new(), address)));
    let own = slot(CHANNEL);
    for (why, elsewhere) in [
        (format!("MOVED {own} 10.0.0.1:7000"), true),
        (format!("MOVED {own} :7000"), true),
        // This is the answer to another request.
        (format!("MOVED {} 10.0.0.1:7000", own + 1), false),
        (format!("MOVED {own} nowhere"), false),
        ("NOPERM this user has no permissions to run the 'ssubscribe' command".to_owned(), true),
        ("ERR unknown command `SSUBSCRIBE`, with args beginning with: `c`".to_owned(), true),
        ("CLUSTERDOWN Hash slot not served".to_owned(), false),
    ] {
        assert_eq!(reports.refused(CHANNEL, &why), elsewhere, "{why}");
        assert_eq!(notes.try_recv().is_ok(), elsewhere, "{why}");
    }
}

#[tokio::test]
async fn a_channel_that_has_moved_is_at_the_mapped_address() {
    let (mut task, events) = driven();
    let map = AddressMap::new(|host, port| (format!("{host}.mapped"), port + 1));
    task.nodes = nodes(&events, true, map);
    let (channel, at): (Arc<str>, _) = (CHANNEL.into(), slot(CHANNEL));
    let asked = NodeAddress { host: "asked".into(), port: 1 };
    for (reported, expected) in [("10.0.0.1:7000", "10.0.0.1.mapped:7001"), (":7000", "asked.mapped:7001")] {
        task.nodes.moved(at, &asked);
        task.want(&channel);
        task.follow();
        let server = Arc::downgrade(&task.nodes.owner(at).unwrap().server);
        let (inbox, mut notes) = mpsc::unbounded_channel();
        let reports = ShardReports::new(inbox, Some((server, asked.clone())));
        assert!(reports.refused(CHANNEL, &format!("MOVED {at} {reported}")));
        let Ok(Note::Report(server, report)) = notes.try_recv() else { panic!("no report") };
        task.handle(server.as_ref(), report);
        assert_eq!(task.nodes.owner(at).unwrap().node_address.to_string(), expected);
    }
    task.nodes.close();
}

#[tokio::test]
async fn what_a_subscriber_reports_is_brought_to_the_task_with_its_source() {
    let (inbox, mut notes) = mpsc::unbounded_channel();
    let address = NodeAddress { host: "asked".into(), port: 1 };
    let of_node = ShardReports::new(inbox.clone(), Some((Weak::new(), address)));
    for (reports, by_node) in [(&of_node as &dyn Events, true), (&ShardReports::new(inbox, None), false)] {
        reports.subscribed("s");
        reports.message("m", "0");
        reports.not_subscribed("n");
        reports.subscriptions_lost();
        reports.reconnected();
        let mut next = || match notes.try_recv() {
            Ok(Note::Report(server, report)) => {
                assert_eq!(server.is_some(), by_node);
                report
            }
            _ => panic!("it is no report"),
        };
        assert!(matches!(next(), Report::Subscribed(channel) if &*channel == "s"));
        assert!(matches!(next(), Report::Message(channel, _) if &*channel == "m"));
        assert!(matches!(next(), Report::NotSubscribed(channel) if &*channel == "n"));
        assert!(matches!(next(), Report::Lost));
        assert!(notes.try_recv().is_err());
    }
}

/// A channel can be subscribed, or about to be, both at a node and as a plain channel.
#[tokio::test]
async fn what_is_reported_of_a_channel_depends_on_what_else_it_is_subscribed_as() {
    let (mut task, mut events) = driven();
    let (channel, at): (Arc<str>, _) = (CHANNEL.into(), slot(CHANNEL));
    task.nodes.moved(at, &NodeAddress { host: "127.0.0.1".into(), port: 1 });
    task.want(&channel);
    let server = Arc::downgrade(&task.nodes.owner(at).unwrap().server);
    let not = Event::NotSubscribed(CHANNEL.into());
    for (is_on, plain, plain_is_on) in
        [(false, false, false), (true, false, false), (false, true, false), (false, true, true)]
    {
        type Sent<'a> = &'a dyn Fn(&mut Subscriptions);
        let by_node = |report: fn(Arc<str>) -> Report| {
            let (server, channel) = (server.clone(), channel.clone());
            move |task: &mut Subscriptions| task.handle(Some(&server), report(channel.clone()))
        };
        let by_plain = |report: fn(Arc<str>) -> Report| {
            let channel = channel.clone();
            move |task: &mut Subscriptions| task.handle(None, report(channel.clone()))
        };
        let expected: [(Sent<'_>, Option<Event>); 6] = [
            (&by_node(Report::NotSubscribed), (!plain_is_on).then(|| not.clone())),
            (&by_node(|_| Report::Lost), (!plain_is_on).then(|| not.clone())),
            (&by_plain(Report::Subscribed), (plain && !is_on).then(|| Event::Subscribed(CHANNEL.into()))),
            (
                &by_plain(|channel| Report::Message(channel, "0".into())),
                plain.then(|| Event::Message(CHANNEL.into())),
            ),
            (&by_plain(Report::NotSubscribed), (plain && !is_on).then(|| not.clone())),
            (&by_plain(|_| Report::Lost), (plain && !is_on).then(|| not.clone())),
        ];
        for (number, (sent, event)) in expected.into_iter().enumerate() {
            let known = task.channels.get_mut(&channel).unwrap();
            (known.is_on, known.plain) = (is_on || plain_is_on, plain);
            sent(&mut task);
            assert_eq!(events.try_next(), event, "{number}: {is_on} {plain} {plain_is_on}");
            events.expect_none();
        }
    }
    task.nodes.close();
}

/// Whether a channel is wanted decides whether the topology is queried.
#[tokio::test]
async fn a_channel_is_wanted_until_the_last_one_is_left() {
    let (mut task, mut events) = driven();
    let (one, two): (Arc<str>, Arc<str>) = (CHANNEL.into(), "redisson_lock__channel:{two}".into());
    let mut wanted = task.nodes.wanted.subscribe();
    let changed = |wanted: &mut watch::Receiver<bool>| {
        let changed = wanted.has_changed().unwrap();
        (changed, *wanted.borrow_and_update())
    };
    for (step, expected) in [
        (&Subscriptions::want as &dyn Fn(&mut Subscriptions, &Arc<str>), [(true, true), (false, true)]),
        (&Subscriptions::leave, [(false, true), (true, false)]),
        (&Subscriptions::leave, [(false, false), (false, false)]),
    ] {
        for (channel, expected) in [&one, &two].into_iter().zip(expected) {
            step(&mut task, channel);
            assert_eq!(changed(&mut wanted), expected);
        }
    }
    // No node is known to serve the slots of these channels.
    for channel in [&one, &two] {
        assert_eq!(events.try_next(), Some(Event::NotSubscribed(channel.to_string())));
    }
    events.expect_none();
}

#[tokio::test]
async fn a_node_that_does_not_know_sharded_channels_is_replaced_by_plain_ones() {
    let (mut task, mut events) = driven();
    let (channel, at): (Arc<str>, _) = (CHANNEL.into(), slot(CHANNEL));
    task.nodes.moved(at, &NodeAddress { host: "127.0.0.1".into(), port: 1 });
    let server = Arc::downgrade(&task.nodes.owner(at).unwrap().server);
    // Without a node, a plain subscription fails again and again while the channel is wanted.
    let mut plain = task.plain.failures();
    task.want(&channel);
    assert!(!plain.has_changed().unwrap());
    task.handle(Some(&server), Report::NotSharded(channel.clone()));
    plain.changed().await.unwrap();
    task.handle(None, Report::Subscribed(channel.clone()));
    assert_eq!(events.next().await, Event::Subscribed(CHANNEL.into()));
    // For a while no node serves the slot, which does not end a plain subscription.
    task.nodes = nodes(&events, true, AddressMap::NONE);
    task.follow();
    events.expect_none();
    task.leave(&channel);
    until(async || timeout(Duration::from_secs(1), plain.changed()).await.is_err()).await;
}

/// A node counts only its own subscribers, while plain messages go to all nodes.
#[tokio::test]
async fn on_a_cluster_an_end_is_not_answered_by_how_many_are_subscribed() {
    let (server, sharded, _events) = lone().await;
    let events = EventRecorder::new();
    let seeds = Seeds::new([server.url("")]);
    let plain = Cluster::new(&seeds, ALONE, false, events.sender()).unwrap();
    assert!(plain.connect().await.unwrap().is_none());
    for cluster in [sharded, plain] {
        let acquire =
            Call::of("stock", "me:1", Action::Acquire { count: 1, lease: crate::base::Lease::DEFAULT });
        let end = Call { action: Action::END, ..acquire.clone() };
        cluster.clone().run(acquire.clone()).await.unwrap();
        assert_eq!(cluster.clone().run(end.clone()).await.unwrap(), Reply::Done);
        let all = cluster.clone().run_all(vec![acquire, end]).await;
        assert!(all.into_iter().all(|answer| answer.unwrap() == Reply::Done));
    }
}
