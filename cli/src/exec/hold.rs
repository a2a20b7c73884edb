//! The holds that the child runs under.

use std::future::{Future, poll_fn};
use std::pin::Pin;

use nestlock::{Fenced, Guards, Loss, Result};
use tokio::time::Instant;

use crate::exec::nest::Entered;

/// Holds of commands around this one, and of this command itself: together, one of each name.
pub(super) struct Hold {
    pub(super) entered: Vec<Entered>,
    /// `None` if all were entered.
    pub(super) own: Option<Own>,
}

/// Holds of this command.
pub(super) struct Own {
    guards: Guards,
    /// In the order of the names; empty without tokens.
    tokens: Vec<u64>,
}

/// How a hold ended before its release.
pub(super) struct End {
    /// Whether its time is over, so that TERM is of no use any more. Otherwise the lock was taken away.
    pub(super) is_due: bool,
    pub(super) why: String,
}

impl Own {
    pub(super) fn plain(guards: Guards) -> Own {
        Own { guards, tokens: Vec::new() }
    }

    pub(super) fn fenced(guards: Guards<Fenced>) -> Own {
        let tokens = guards.tokens().map(|(_, token)| token).collect();
        Own { guards: guards.into(), tokens }
    }

    /// Returns the name, the field and the token of each hold.
    pub(super) fn holds(&self) -> impl Iterator<Item = (&str, &str, Option<u64>)> {
        let named =
            |(at, name)| (name, self.guards.hold_id(name).unwrap_or_default(), self.tokens.get(at).copied());
        self.guards.names().enumerate().map(named)
    }
}

impl Hold {
    /// Returns when the first of the holds ends if nothing renews it.
    pub(super) fn valid_until(&self) -> Instant {
        let ends = self.entered.iter().map(Entered::valid_until);
        let ends = ends.chain(self.own.as_ref().map(|own| own.guards.valid_until()));
        ends.min().unwrap_or_else(Instant::now)
    }

    /// Waits until one of the holds is lost. Cancel safe.
    pub(super) async fn lost(&self) -> End {
        type Losses<'a> = Vec<Pin<Box<dyn Future<Output = Loss> + 'a>>>;
        let mut losses: Losses<'_> = Vec::new();
        losses.extend(self.entered.iter().map(|entered| Box::pin(entered.lost()) as _));
        losses.extend(self.own.iter().map(|own| Box::pin(own.guards.lost()) as _));
        let first = poll_fn(|cx| {
            let mut polls = losses.iter_mut().map(|loss| loss.as_mut().poll(cx));
            polls.find(std::task::Poll::is_ready).unwrap_or(std::task::Poll::Pending)
        });
        let loss = first.await;
        End { is_due: loss != Loss::Gone, why: loss.to_string() }
    }

    /// Releases the holds of this command. Those that it has entered are released by their owners.
    pub(super) async fn release(self) -> Result<()> {
        match self.own {
            Some(own) => own.guards.release().await,
            None => Ok(()),
        }
    }
}
