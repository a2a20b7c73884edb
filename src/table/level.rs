//! One level of a hold.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::task::Waker;

use tokio::task;

use crate::base::{LossSignal, Stamp};
use crate::error::Loss;
use crate::owner::{Owner, Position};
use crate::wire::keys::Keys;

/// Where a bare request was first polled: by which code, and through which waker. The default means unknown.
///
/// A stream of futures and a `join_all` of many poll each of their futures through a waker of its own, of one kind for all of them. So two
/// requests of one task that the same code polls through two wakers of one kind belong to two branches, even if they were never in the
/// queue together: 1. One branch is granted the lock. 2. Another one begins, and looks nested in the first.
///
/// Each part rules out nested calls, which are no branches. Below a guard, they may be polled through a waker:
///
/// - of another kind: that of a stream which has one future after the other, of a `Shared`, or of a `block_on`;
/// - of the same kind, from deeper in the stack, because the call that has the guard is below it there: the recursion of a stream of boxed
///   futures, a `Shared` in a `Shared`, a race in a race;
/// - of the same kind, on another thread, and so on another stack: two calls of `block_on` between which the task has moved.
///
/// One kind of nested call still counts as a branch: a stream returns a guard, and below it the same code asks through another
/// stream. Nothing shows that the branch that took the guard is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Polled {
    /// The task, the kind of the waker and the place on the stack, as a hash. Zero means unknown.
    by: u64,
    /// The waker, which identifies it among those of its kind.
    waker: usize,
}

/// A hash of a few words. Hashes are compared only within one task, which has no reason to construct collisions; std's hasher
/// costs four times as much.
struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Polled {
    /// Records a request's first poll. Called at one place for all requests, so that equal calls around it have equal places on the stack.
    pub(crate) fn first(waker: &Waker) -> Polled {
        let here = 0_u8;
        let mut by = Mixed(0);
        let stack = std::hint::black_box(&raw const here).addr();
        (task::try_id(), std::ptr::from_ref(waker.vtable()).addr(), stack).hash(&mut by);
        Polled { by: by.finish(), waker: waker.data().addr() }
    }

    /// Returns whether the two are branches of one task.
    pub(super) fn is_beside(self, other: Polled) -> bool {
        self.by != 0 && self.by == other.by && self.waker != other.waker
    }
}

/// One acquisition inside a hold, which one guard stands for.
#[derive(Debug)]
pub(crate) struct Level {
    pub(crate) owner: Owner,
    /// Whether it was taken by a bare request, whose owner may have branches.
    pub(super) bare: bool,
    /// How its request was first polled, if the request was bare.
    pub(super) first_polled: Polled,
    /// Whether it was taken by a bare request that was proven to be one of several branches of its owner.
    pub(super) branch: bool,
    /// Whether the watchdog renews it: then it has no end of its own.
    pub(super) watched: bool,
    /// The end of a fixed lease, or of one that `extend` promised.
    pub(super) until: Option<Stamp>,
    pub(crate) max_hold: Option<Stamp>,
    pub(super) grant: Arc<Grant>,
}

impl Level {
    pub(super) fn id(&self) -> u64 {
        self.grant.level
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.grant.signal.loss()
    }

    /// Called when it has left its hold, so that its owner has nothing to pass on at this position. The level of a `run` is not
    /// registered there.
    pub(super) fn unregister_at(&self, position: &Position) {
        if self.bare {
            self.owner.unregister_at(position);
        }
    }
}

/// What a level and its guard share.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) keys: Arc<Keys>,
    pub(crate) hold: u64,
    pub(crate) level: u64,
    pub(crate) depth: u32,
    pub(crate) token: Option<u64>,
    pub(crate) field: Arc<str>,
    pub(crate) signal: LossSignal,
}

#[cfg(test)]
impl Level {
    /// Makes a bare level that is renewed, of an owner that has nothing else.
    pub(super) fn of_nobody(id: u64) -> Level {
        Level {
            owner: Owner::new(),
            bare: true,
            first_polled: Polled::default(),
            branch: false,
            watched: true,
            until: None,
            max_hold: None,
            grant: Arc::new(Grant {
                keys: Arc::new(Keys::new("", "stock")),
                hold: 1,
                level: id,
                depth: 1,
                token: None,
                field: "me:1".into(),
                signal: LossSignal::default(),
            }),
        }
    }
}
