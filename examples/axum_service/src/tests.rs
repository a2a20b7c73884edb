//! Real requests over real connections, on a `Memory` or, with `REDIS_URL`, on a Redis server.

use std::net::SocketAddr;

use nestlock::Memory;
use tokio::task::JoinSet;

use super::*;

/// Returns the locks of one process; several share a deployment.
async fn locks(store: &Memory) -> Locks {
    match std::env::var("REDIS_URL") {
        Ok(url) => Locks::connect(url).await.unwrap(),
        Err(_) => Locks::builder(store).connect().await.unwrap(),
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Serves these routes for as long as the test runs.
async fn start(routes: Router) -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async { axum::serve(listener, routes).await.unwrap() });
    address
}

/// Returns a prefix that no other test has: tests share a server, and so do people who try this.
fn item(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// Makes three requests on one connection: a stocktaking begins, somebody buys, the stocktaking ends.
async fn buy_during_stocktaking(address: SocketAddr, item: &str) -> u16 {
    let mut visitor = Visitor::connect(address).await.unwrap();
    visitor.expect("PUT", &format!("/{item}"), "1", 200).await.unwrap();
    visitor.expect("POST", &format!("/{item}/stocktaking"), "", 201).await.unwrap();
    visitor.send("POST", &format!("/{item}/sell"), "").await.unwrap();
    let (status, _) = visitor.receive().await.unwrap();
    visitor.expect("DELETE", &format!("/{item}/stocktaking"), "", 204).await.unwrap();
    status
}

#[tokio::test]
async fn a_guard_kept_beyond_its_request_keeps_the_next_request_on_the_connection_out() {
    let app = App::new(locks(&Memory::new()).await);
    assert_eq!(buy_during_stocktaking(start(service(app)).await, &item("chair")).await, 423);
}

#[tokio::test]
async fn without_the_line_of_middleware_the_next_request_gets_in() {
    let app = App::new(locks(&Memory::new()).await);
    assert_eq!(buy_during_stocktaking(start(routes(app)).await, &item("desk")).await, 200);
}

#[tokio::test]
async fn requests_that_are_sent_at_once_over_one_connection_are_owners_of_their_own() {
    let app = App::new(locks(&Memory::new()).await);
    let mut visitor = Visitor::connect(start(service(app)).await).await.unwrap();
    let item = item("couch");
    visitor.send("PUT", &format!("/{item}"), "1").await.unwrap();
    visitor.send("POST", &format!("/{item}/stocktaking"), "").await.unwrap();
    visitor.send("POST", &format!("/{item}/sell"), "").await.unwrap();
    visitor.send("POST", &format!("/{item}/stocktaking"), "").await.unwrap();
    visitor.send("DELETE", &format!("/{item}/stocktaking"), "").await.unwrap();
    visitor.send("POST", &format!("/{item}/sell"), "").await.unwrap();
    for status in [200, 201, 423, 423, 204, 200] {
        assert_eq!(visitor.receive().await.unwrap().0, status);
    }
}

#[tokio::test]
async fn what_connections_to_two_processes_buy_is_sold_once() {
    let store = Memory::new();
    let app = App::new(locks(&store).await);
    // Another process has locks of its own, and the same database.
    let other = locks(&store).await;
    let other = App { shelf: app.shelf.with(other.clone()), locks: other, stocktakings: Arc::default() };
    let addresses = [start(service(app.clone())).await, start(service(other)).await];
    let item = item("lamp");
    app.shelf.put(&item, 5).await.unwrap();

    let mut customers = JoinSet::new();
    for customer in 0..8 {
        let (address, item) = (addresses[customer % 2], item.clone());
        customers.spawn(async move {
            let mut visitor = Visitor::connect(address).await.unwrap();
            loop {
                visitor.send("POST", &format!("/{item}/sell"), "").await.unwrap();
                match visitor.receive().await.unwrap().0 {
                    423 => {} // busy, as the answer says: come back later
                    status => return status,
                }
            }
        });
    }
    let answers = customers.join_all().await;
    assert_eq!(answers.iter().filter(|status| **status == 200).count(), 5, "{answers:?}");
    assert_eq!(answers.iter().filter(|status| **status == 409).count(), 3, "{answers:?}");
}

#[tokio::test]
async fn a_shutdown_gives_back_what_is_still_locked() {
    let store = Memory::new();
    let (listener, address) = listen().await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let app = App::new(locks(&store).await);
    let server = tokio::spawn(serve(listener, app.clone(), async { _ = stopped.await }));
    let item = item("stool");
    let mut visitor = Visitor::connect(address).await.unwrap();
    visitor.expect("POST", &format!("/{item}/stocktaking"), "", 201).await.unwrap();

    let other = locks(&store).await.mutex(&item);
    assert!(other.is_locked().await.unwrap());
    drop(stop);
    server.await.unwrap().unwrap();
    assert!(!other.is_locked().await.unwrap());
    drop(app); // not earlier: the guards are dropped with it in any case
}
