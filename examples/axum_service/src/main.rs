//! A web service on axum whose layers lock what they change.
//!
//! Two layers lock the same item: the handler `sell`, which checks first and takes afterwards, and
//! `Shelf::take` below it, which re-enters. One request begins a stocktaking, and another one ends it: its
//! guard is kept in between.
//!
//! A server serves all requests of a keep-alive connection in one task, and by default the task is the owner of
//! what is locked in it. So one line of middleware, in `service`, makes each request an owner of its own. Without it the
//! next request on the connection that began a stocktaking would get in; `tests.rs` shows both.
//!
//! Run it: `cargo run -p axum_service`. It serves on a free port, visits itself, and shuts down. It needs no Redis
//! server; with the URL of one in `REDIS_URL` its locks are kept there.
//!
//! `cargo run -p axum_service serve` serves until `SIGTERM` or Ctrl-C. Then it takes no more connections, answers the requests under way,
//! releases the stocktakings, and closes its locks: a request in another copy that waits for one of them continues at once, not a lease
//! later. `tests/processes.rs` runs two copies over one server. All its tests: `cargo test -p axum_service`.

mod shelf;
mod visitor;

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use nestlock::{BareReentry, ErrorKind, Guard, Locks, Master, Memory, OwnerLayer};
use tokio::net::TcpListener;

use crate::shelf::Shelf;
use crate::visitor::Visitor;

/// How long a request waits for a lock. After that the client is asked to retry later.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a stocktaking may take: the client that begins one may never come back to end it.
const STOCKTAKING: Duration = Duration::from_secs(15 * 60);

/// The state that the handlers share: one `Locks` for the process, like a pool of connections.
#[derive(Clone)]
struct App {
    locks: Locks,
    shelf: Shelf,
    /// The stocktakings of this process: each is begun and ended here.
    stocktakings: Arc<Mutex<HashMap<String, Guard>>>,
}

impl App {
    fn new(locks: Locks) -> App {
        App { shelf: Shelf::new(locks.clone()), locks, stocktakings: Arc::default() }
    }

    fn stocktakings(&self) -> std::sync::MutexGuard<'_, HashMap<String, Guard>> {
        self.stocktakings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the routes. Each request is an owner of its own.
fn service(app: App) -> Router {
    routes(app).layer(OwnerLayer::new())
}

fn routes(app: App) -> Router {
    Router::new()
        .route("/{item}", get(count).put(restock))
        .route("/{item}/sell", post(sell))
        .route("/{item}/stocktaking", post(begin_stocktaking).delete(end_stocktaking))
        .with_state(app)
}

async fn count(State(app): State<App>, Path(item): Path<String>) -> String {
    app.shelf.count(&item).await.to_string()
}

async fn restock(State(app): State<App>, Path(item): Path<String>, more: String) -> Result<String, Refusal> {
    let more = more.parse().map_err(|_| Refusal::NotANumber)?;
    Ok(app.shelf.put(&item, more).await?.to_string())
}

/// The upper layer: nobody can take the last one between the check and the sale.
async fn sell(State(app): State<App>, Path(item): Path<String>) -> Result<String, Refusal> {
    let work = async {
        if app.shelf.count(&item).await == 0 {
            return Err(Refusal::SoldOut);
        }
        Ok(app.shelf.take(&item).await?.to_string())
    };
    // The first `?` is for the lock's error, the second one for the work's.
    app.locks.mutex(&item).lock().within(PATIENCE).run(|_| work).await?
}

/// Locks the item, and keeps the lock beyond this request.
async fn begin_stocktaking(State(app): State<App>, Path(item): Path<String>) -> Result<StatusCode, Refusal> {
    let guard = app.locks.mutex(&item).lock().within(PATIENCE).max_hold(STOCKTAKING).await?;
    app.stocktakings().insert(item, guard);
    Ok(StatusCode::CREATED)
}

async fn end_stocktaking(State(app): State<App>, Path(item): Path<String>) -> Result<StatusCode, Refusal> {
    let guard = app.stocktakings().remove(&item).ok_or(Refusal::NoStocktaking)?;
    guard.release().await?; // an error of kind `Lost` if the item was not locked to the end
    Ok(StatusCode::NO_CONTENT)
}

/// The answer to a request that fails.
enum Refusal {
    SoldOut,
    NoStocktaking,
    NotANumber,
    Lock(nestlock::Error),
}

impl From<nestlock::Error> for Refusal {
    fn from(error: nestlock::Error) -> Refusal {
        Refusal::Lock(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, message) = match self {
            Refusal::SoldOut => (StatusCode::CONFLICT, "sold out"),
            Refusal::NoStocktaking => (StatusCode::NOT_FOUND, "no stocktaking"),
            Refusal::NotANumber => (StatusCode::BAD_REQUEST, "not a number"),
            Refusal::Lock(error) => match error.kind() {
                ErrorKind::Timeout => (StatusCode::LOCKED, "busy, come back later"),
                ErrorKind::InvalidInput => (StatusCode::BAD_REQUEST, "not a name"),
                _ => {
                    eprintln!("{error}"); // for the operator's eyes
                    (StatusCode::SERVICE_UNAVAILABLE, "try again later")
                }
            },
        };
        (status, message).into_response()
    }
}

/// Serves until `stop`, then answers the requests under way, and then releases what is still locked.
async fn serve(
    listener: TcpListener,
    app: App,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    axum::serve(listener, service(app.clone())).with_graceful_shutdown(stop).await?;
    app.stocktakings().clear();
    Ok(app.locks.close().await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // Nested calls here use `run`. If somebody adds a guard below another guard, maybe in a branch, it fails instead of entering.
    let master = std::env::var("REDIS_URL").map_or_else(|_| Master::memory(&Memory::new()), Master::server);
    let locks = Locks::builder(master).bare_reentry(BareReentry::Refused).connect().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    println!("serving on http://{address}");

    if std::env::args().nth(1).as_deref() == Some("serve") {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let requested = tokio::spawn(async move {
            stop_requested().await?;
            drop(stop);
            Ok::<_, std::io::Error>(())
        });
        serve(listener, App::new(locks), async { _ = stopped.await }).await?;
        requested.await??;
        println!("shut down");
        return Ok(());
    }

    // This server stops when its visitor has left.
    let (stay, gone) = tokio::sync::oneshot::channel::<()>();
    let visit = tokio::spawn(async move {
        let _stay = stay;
        let mut visitor = Visitor::connect(address).await?;
        visitor.print_requests();
        visit(&mut visitor, &format!("lamp-{}", std::process::id())).await
    });
    serve(listener, App::new(locks), async { _ = gone.await }).await?;
    visit.await??;
    println!("shut down");
    Ok(())
}

/// Waits until this process is asked to stop: by a service manager with `SIGTERM`, by a person with Ctrl-C.
async fn stop_requested() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            _ = terminate.recv() => Ok(()),
            pressed = tokio::signal::ctrl_c() => pressed,
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}

/// One customer's requests, over one connection.
async fn visit(visitor: &mut Visitor, item: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    visitor.expect("PUT", &format!("/{item}"), "2", 200).await?;
    visitor.expect("POST", &format!("/{item}/sell"), "", 200).await?;
    visitor.expect("POST", &format!("/{item}/stocktaking"), "", 201).await?;
    visitor.expect("POST", &format!("/{item}/sell"), "", 423).await?; // on the same connection, but it does not get in
    visitor.expect("DELETE", &format!("/{item}/stocktaking"), "", 204).await?;
    visitor.expect("POST", &format!("/{item}/sell"), "", 200).await?;
    visitor.expect("POST", &format!("/{item}/sell"), "", 409).await
}

#[cfg(test)]
mod tests;
