//! What a server does with the commands of one lock.

use super::*;

/// The key of the lock: the field that has it, its count, and when it expires.
#[derive(Default)]
pub(super) struct Master {
    pub(super) key: Option<(Arc<str>, u32, Instant)>,
    pub(super) listener: Listener,
    /// Messages on their way to this process.
    pub(super) messages: u32,
}

/// The state of this process's subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Listener {
    #[default]
    None,
    /// The server has not read the subscription: what is published reaches nobody.
    Asks,
    /// The confirmation is on its way, and messages come after it.
    Unconfirmed,
    Listens,
}

impl Master {
    /// The lock is freed.
    pub(super) fn free(&mut self) {
        self.key = None;
        self.publish();
    }

    fn publish(&mut self) {
        self.messages += u32::from(matches!(self.listener, Listener::Unconfirmed | Listener::Listens));
    }

    pub(super) fn run(&mut self, pending: &Pending, now: Instant) -> Reply {
        self.key.take_if(|(_, _, until)| *until <= now);
        let end = |lease: Lease| now + lease.duration();
        let known = self.key.as_mut().filter(|(field, ..)| *field == pending.call.field);
        match (pending.call.action, known) {
            (Action::Acquire { count, lease }, Some((_, stands, until))) => {
                (*stands, *until) = (count.max(*stands), end(lease).max(*until));
                Reply::Done
            }
            (Action::Acquire { count: 1, lease }, None) => match &self.key {
                Some((_, _, until)) => Reply::busy(*until - now),
                None => {
                    self.key = Some((pending.call.field.clone(), 1, end(lease)));
                    Reply::Done
                }
            },
            (Action::Release { count: 0 } | Action::Settle { count: 0, .. }, Some(_)) => {
                self.free();
                Reply::Done
            }
            (Action::Move { lease }, known) => match known.is_some() {
                true => Reply::Done,
                false => {
                    match self.key.as_mut().filter(|(field, ..)| Some(field) == pending.call.from.as_ref()) {
                        Some((field, count, until)) => {
                            (*field, *count, *until) = (pending.call.field.clone(), 1, end(lease));
                            Reply::Done
                        }
                        None => Reply::Gone,
                    }
                }
            },
            (Action::Keep { lease }, Some((field, _, until))) => {
                (*field, *until) = (crate::wire::kept_field(field).into(), end(lease));
                self.publish();
                Reply::Done
            }
            (Action::Release { count }, Some((_, stands, _))) => {
                *stands = count.min(*stands);
                Reply::Done
            }
            (Action::Renew { lease }, Some((_, _, until))) => {
                *until = end(lease).max(*until);
                Reply::Done
            }
            (Action::Settle { count, lease } | Action::Repair { count, lease }, Some((_, stands, until))) => {
                (*stands, *until) = (count, end(lease).max(*until));
                Reply::Done
            }
            (_, None) => Reply::Gone,
            (other, _) => panic!("{other:?} is for no hold"),
        }
    }
}
