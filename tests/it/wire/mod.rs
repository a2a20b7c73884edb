//! What may happen between a command and its answer, and what must not follow from it.

mod late;
mod order;
mod repeats;

use crate::support::server::Server;

/// Returns the fields of a lock with their counts, by HGETALL.
pub async fn fields(server: &Server, name: &str) -> Vec<(String, String)> {
    let flat: Vec<String> = server.ask(&["HGETALL", name]).await;
    flat.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

/// Returns the count of a field, `None` if the field does not exist.
pub async fn count(server: &Server, name: &str, field: &str) -> Option<String> {
    server.ask(&["HGET", name, field]).await
}

/// Returns the remaining lease of a lock, in ms.
pub async fn ttl(server: &Server, name: &str) -> i64 {
    server.ask(&["PTTL", name]).await
}
