//! Options that are checked one by one, and their defaults.

use std::time::Duration;

use crate::base::{Drift, Lease};
use crate::config::address_map::AddressMap;
use crate::config::master::MasterKind;
use crate::error::{Result, rejected, shown};
use crate::table::WarnAfter;

/// The most bytes that a prefix may have.
const LONGEST_PREFIX: usize = 1024;

/// The most bytes that the name of a holder may have: it travels with every command.
const LONGEST_HOLDER_NAME: usize = 64;

/// How many replicas have to acknowledge a grant, and how long they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    /// How many replicas have to acknowledge.
    pub(crate) count: usize,
    /// The longest time to wait for them.
    pub(crate) wait: Duration,
}

/// Returns how long an unused counter stays, or `None` for ever. `ttl`: `None` for the default, `Duration::MAX` for ever.
pub(super) fn token_ttl(ttl: Option<Duration>, longest_lease: Lease, drift: Drift) -> Result<Option<Lease>> {
    let asked = match ttl {
        None => return Ok(Some(Lease::DAY.max(longest_lease))),
        Some(Duration::MAX) => return Ok(None),
        Some(asked) => asked,
    };
    let ttl = Lease::new("token_ttl", asked, drift)?;
    if ttl < longest_lease {
        let longest = longest_lease.duration();
        return Err(rejected(format!(
            "token_ttl of {asked:?} is less than the longest lease of {longest:?}: a counter has to outlive its holder"
        )));
    }
    Ok(Some(ttl))
}

/// Returns for how long after its start a master has no vote, or `None` if it has one at once. `asked`: `None` for the default, zero for
/// no delay.
pub(super) fn restart_delay(
    asked: Option<Duration>,
    masters: usize,
    lease: Lease,
    drift: Drift,
) -> Result<Option<Lease>> {
    let asked = match asked {
        None => return Ok((masters > 1).then_some(lease)),
        Some(Duration::ZERO) => return Ok(None),
        Some(asked) => asked,
    };
    let delay = Lease::new("restart_delay", asked, drift)?;
    // A longer `fixed_lease` is compared with this delay when it is used (`Config::lease`).
    if delay < lease {
        let lease = lease.duration();
        return Err(rejected(format!(
            "restart_delay of {asked:?} is less than the lease of {lease:?}: a master would vote before what it has forgotten is over; \
             make it at least as long as the longest lease, or zero if masters forget nothing"
        )));
    }
    Ok(Some(delay))
}

pub(super) fn check_drift(Drift { factor, .. }: Drift) -> Result<()> {
    // Not `factor < 0.0 || factor >= 1.0`: a NaN would pass.
    if (0.0..1.0).contains(&factor) {
        return Ok(());
    }
    Err(rejected(format!("drift factor of {factor} can't be used; it must be at least 0 and less than 1")))
}

pub(super) fn check_wait(wait: Duration, lease: Lease, masters: &[MasterKind]) -> Result<()> {
    // `WAIT` takes 0 for no limit.
    if wait.is_zero() {
        return Err(rejected("replicas with a wait of 0 ns would wait for ever; it must be more than zero"));
    }
    if wait >= lease.duration() {
        let lease = lease.duration();
        return Err(rejected(format!(
            "replicas with a wait of {wait:?} leaves nothing of the lease of {lease:?}; wait for less than the lease"
        )));
    }
    if masters.iter().any(|master| matches!(master, MasterKind::Memory(_))) {
        return Err(rejected("replicas can't be waited for if a `Memory` is a master: it has none"));
    }
    Ok(())
}

/// Returns when a waiting request is reported, or `None` for never. `asked`: `None` for the default, `Duration::MAX` for never.
pub(super) fn warn_after(asked: Option<Duration>, lease: Duration) -> Result<Option<WarnAfter>> {
    const SHORTEST: Duration = Duration::from_millis(1);
    /// The first report comes soon, to reveal a request that waits for its own caller. Later ones come once per lease, so that a standby
    /// that waits for days does not fill the log.
    const FIRST: Duration = Duration::from_secs(5);
    let Some(time) = asked else { return Ok(Some(WarnAfter { first: lease.min(FIRST), again: lease })) };
    if time < SHORTEST {
        return Err(rejected(format!(
            "warn_after of {time:?} would log without a pause; it must be at least {SHORTEST:?}"
        )));
    }
    Ok((time < Duration::MAX).then_some(WarnAfter { first: time, again: time }))
}

/// Returns whether a Cluster's channels are sharded, which is the default. Rejects the option if no master is a Cluster.
pub(super) fn sharded_channels(asked: Option<bool>, masters: &[MasterKind]) -> Result<bool> {
    if asked.is_some() && !masters.iter().any(|master| matches!(master, MasterKind::Cluster(_))) {
        return Err(rejected(
            "sharded_channels is an option of a `Master::cluster`, and no master is one; leave it out",
        ));
    }
    Ok(asked.unwrap_or(true))
}

/// Rejects a map if no master reports addresses.
pub(super) fn check_address_map(map: &AddressMap, masters: &[MasterKind]) -> Result<()> {
    let reports = |master: &MasterKind| matches!(master, MasterKind::Cluster(_) | MasterKind::Sentinel(_));
    if !map.is_none() && !masters.iter().any(reports) {
        return Err(rejected(
            "address_map is an option of a `Master::cluster` or a `Master::sentinel`, which report addresses, and no master is one; leave it out",
        ));
    }
    Ok(())
}

/// Checks the name of a holder. A `:` separates the name from the id of a hold, so the name must not contain one.
pub(super) fn check_holder_name(name: &str) -> Result<()> {
    let is_bad = |char: &char| match char {
        ':' => true,
        // Printable, although `escape_debug` escapes them.
        '\'' | '"' | '\\' => false,
        char => char.escape_debug().len() > 1,
    };
    let wrong = if name.is_empty() {
        "must not be empty; leave it out".to_owned()
    } else if name.len() > LONGEST_HOLDER_NAME {
        format!("has {} bytes, and at most {LONGEST_HOLDER_NAME} are allowed", name.len())
    } else if let Some(char) = name.chars().find(is_bad) {
        format!("has `{}` in it; use printable characters other than `:`", char.escape_debug())
    } else {
        return Ok(());
    };
    Err(rejected(format!("the holder name `{}` {wrong}", shown(name))))
}

pub(super) fn check_prefix(prefix: &str) -> Result<()> {
    if prefix.len() > LONGEST_PREFIX {
        let (bytes, cut) = (prefix.len(), shown(prefix));
        return Err(rejected(format!(
            "prefix of {bytes} bytes, `{cut}`, is too long; it may have at most {LONGEST_PREFIX} bytes"
        )));
    }
    if prefix.starts_with('}') {
        let cut = shown(prefix);
        return Err(rejected(format!(
            "prefix `{cut}` can't begin with `}}`, which would break the hash tag"
        )));
    }
    Ok(())
}
