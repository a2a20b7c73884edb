//! `Effects`: the work that a visit of an entry leaves for when the table is unlocked.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::base::meter::{self, Sample};
use crate::base::telemetry::{Context, Place};
use crate::error::Loss;
use crate::owner::Owner;
use crate::table::level::Grant;
use crate::table::seen::Owned;

/// Work to be done once the table is unlocked.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) wake: Vec<Waker>,
    pub(crate) resolve: Vec<Arc<Grant>>,
    pub(crate) log: Vec<LogEvent>,
}

/// The effects of an entry's current visit. Boxed, since there are rarely any, and none between two visits.
#[derive(Debug, Default)]
pub(super) struct Out(Option<Box<Effects>>);

impl Out {
    /// Takes the effects. Usually there are none.
    pub(super) fn take(&mut self) -> Option<Box<Effects>> {
        self.0.take()
    }

    /// Returns the effects, allocating them at the first use.
    pub(super) fn made(&mut self) -> &mut Effects {
        self.0.get_or_insert_default()
    }

    pub(super) fn wake(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        for waker in wakers {
            self.made().wake.push(waker);
        }
    }

    pub(super) fn resolve(&mut self, grants: impl IntoIterator<Item = Arc<Grant>>) {
        for grant in grants {
            self.made().resolve.push(grant);
        }
    }

    pub(super) fn log(&mut self, event: LogEvent) {
        self.made().log.push(event);
    }

    pub(super) fn measure(&mut self, sample: Sample) {
        if meter::ON {
            self.log(LogEvent::Measured(sample));
        }
    }
}

/// An event that is logged or counted.
#[derive(Debug)]
pub(crate) enum LogEvent {
    Lost { field: Arc<str>, loss: Loss },
    OutOfOrder { field: Arc<str> },
    SelfWait { asks: Owner, holds: Owner },
    Settled { field: Arc<str> },
    RenewedLate { field: Arc<str>, failures: u32 },
    Waits(Box<LongWait>),
    Measured(Sample),
}

/// A request that has waited for long.
#[derive(Debug)]
pub(crate) struct LongWait {
    pub(crate) waited: Duration,
    /// Where it was made.
    pub(crate) location: Place,
    /// What the program was doing then.
    pub(crate) context: Option<Arc<Context>>,
    /// Who has the lock, if that is known.
    pub(crate) by: Option<Owned>,
    /// The number of this process's requests for the lock.
    pub(crate) waiting: usize,
}
