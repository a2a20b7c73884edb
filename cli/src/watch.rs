//! `nestlock watch`: each change of a lock's holder.

use std::time::{Duration, SystemTime};

use nestlock::Holder;
use tokio::time::sleep;

use crate::duration::point;
use crate::options::ServerOptions;
use crate::output::{as_json, as_text, is_closed, line};
use crate::servers::Servers;
use crate::status::{Failure, warn};

/// Runs until it is interrupted, or its output is closed.
pub(crate) async fn run(
    name: &str,
    interval: Duration,
    servers: ServerOptions,
    json: bool,
) -> Result<u8, Failure> {
    let locks = Servers::new(servers)?.builder().connect().await?;
    let mutex = locks.mutex(name);
    let mut seen: Option<Option<Holder>> = None;
    let mut in_trouble = false;
    loop {
        match mutex.holder().await {
            Ok(holder) => {
                in_trouble = false;
                if !seen.as_ref().is_some_and(|seen| is_same(seen.as_ref(), holder.as_ref())) {
                    let time = point(SystemTime::now());
                    let text = if json {
                        let mut state = as_json(name, holder.as_ref());
                        state["time"] = time.into();
                        state.to_string()
                    } else {
                        format!("{time} {}", as_text(name, holder.as_ref()))
                    };
                    if !line(&text)? {
                        return Ok(0);
                    }
                    seen = Some(holder);
                }
            }
            // An error of the first look is a mistake of the user's. Later the servers may be unreachable for a while.
            Err(error) if seen.is_none() => return Err(error.into()),
            Err(error) if !in_trouble => {
                in_trouble = true;
                warn(json, &format!("{error}; it is asked again every {interval:?}"));
            }
            Err(_) => {}
        }
        sleep(interval).await;
        if is_closed() {
            return Ok(0);
        }
    }
}

/// Compares two holders, without the rest of the lease, which changes all the time.
fn is_same(one: Option<&Holder>, other: Option<&Holder>) -> bool {
    let of = |holder: &Holder| (holder.hold_id().to_owned(), holder.count());
    one.map(of) == other.map(of)
}
