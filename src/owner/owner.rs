//! Who re-enters: the tree of owners. After J. E. B. Moss, *Nested Transactions* (MIT, 1981): a lock is granted to an
//! owner when everyone who holds it is that owner or one of its ancestors, and what a child still holds when it ends
//! is its parent's.

use std::cell::Cell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, Weak};
use std::thread::ThreadId;

use tokio::task;

use crate::base::lock;

thread_local! {
    // A cell of our own and not `tokio::task_local!`: that one panics where a scope is dropped while its thread ends,
    // and clones the value for each poll.
    static CURRENT: Cell<Option<Inner>> = const { Cell::new(None) };
}

/// The innermost scope, and the task that is inside of it. A `LocalSet` polls its tasks in the poll of whoever awaits it:
/// without the task's id 1. a scope awaits a `LocalSet`, 2. two of its tasks ask for one lock, 3. both are taken for the
/// scope's owner, and the second one re-enters what the first one holds.
#[derive(Clone)]
struct Inner {
    owner: Owner,
    task: Option<task::Id>,
}

/// Who holds a lock: an identity that calls re-enter by.
///
/// Without any ceremony the owner is the tokio task (outside any task, in the root future of `block_on`, the thread), so
/// nested calls on one task re-enter. [`Mutex::run`](crate::Mutex::run) and [`scope`](crate::scope()) make a child of it for
/// their work, so branches that run side by side in one task exclude each other, while both re-enter what their common
/// ancestor holds.
///
/// A server runs all requests of a keep-alive connection in one task: there each request takes a scope of a
/// [new owner](Owner::new), or a guard that is kept beyond its request would let the next one in.
///
/// Two owners are equal when they are the same owner.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let stock = nestlock::Locks::in_memory().mutex("stock");
/// let guard = stock.lock().await?;
/// // A spawned task is a stranger; handed a child of this owner, it enters what is held here.
/// let owner = nestlock::Owner::current().child();
/// let nested = stock.clone();
/// tokio::spawn(owner.scope(async move { nested.lock().await?.release().await })).await.unwrap()?;
/// guard.release().await
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner(Kind);

#[derive(Clone)]
enum Kind {
    Task(task::Id),
    Thread(ThreadId),
    Made(Arc<TreeNode>),
}

struct TreeNode {
    parent: Option<Owner>,
    depth: u32,
    life: Mutex<Life>,
}

/// Changes only while locked, and never while a table is being locked.
#[derive(Default)]
struct Life {
    scopes: usize,
    entered: bool,
    /// One entry for each level and each request: what is to be passed on at the end.
    places: Vec<Position>,
}

/// Where an owner has levels or requests: one lock of one table.
#[derive(Clone)]
pub(crate) struct Position {
    pub(crate) table: Weak<dyn OwnerEnds>,
    pub(crate) name: Arc<str>,
}

/// What is told of the end of an owner's last scope.
pub(crate) trait OwnerEnds: Send + Sync {
    /// What `owner` still has at the lock `name` belongs to its nearest living ancestor from now on.
    fn owner_ended(&self, name: &Arc<str>, owner: &Owner);
}

impl Owner {
    /// A new owner that is related to nobody.
    ///
    /// For a hold that outlives the call that takes it, and for each request of a server, since one task serves all requests
    /// of a keep-alive connection. [`Owner::scope`] and [`Lock::owner`](crate::futures::Lock::owner) have examples.
    ///
    /// ```
    /// use nestlock::Owner;
    /// assert_ne!(Owner::new(), Owner::new());
    /// ```
    #[must_use = "an owner does nothing until a request or a scope uses it"]
    #[allow(
        clippy::new_without_default,
        reason = "a default suggests a value; each new owner is a new identity"
    )]
    pub fn new() -> Owner {
        Owner::made(None)
    }

    /// The owner of this place in the code: the innermost scope's, else the tokio task's, else the thread's.
    ///
    /// ```
    /// use nestlock::Owner;
    /// assert_eq!(Owner::current(), Owner::current());
    /// ```
    pub fn current() -> Owner {
        innermost().unwrap_or_else(|| {
            Owner(match task::try_id() {
                Some(id) => Kind::Task(id),
                None => Kind::Thread(std::thread::current().id()),
            })
        })
    }

    /// A new child: it enters what this owner holds, and excludes this owner's other children.
    ///
    /// The example of [`Owner`] hands one to a spawned task.
    #[must_use = "a child does nothing until a request or a scope uses it"]
    pub fn child(&self) -> Owner {
        Owner::made(Some(self.clone()))
    }

    fn made(parent: Option<Owner>) -> Owner {
        let depth = parent.as_ref().map_or(0, |parent| parent.depth() + 1);
        Owner(Kind::Made(Arc::new(TreeNode { parent, depth, life: Mutex::default() })))
    }

    fn depth(&self) -> u32 {
        match &self.0 {
            Kind::Made(node) => node.depth,
            _ => 0,
        }
    }

    pub(crate) fn parent(&self) -> Option<&Owner> {
        match &self.0 {
            Kind::Made(node) => node.parent.as_ref(),
            _ => None,
        }
    }

    /// Whether this owner is `other` or one of its descendants.
    pub(crate) fn is_within(&self, other: &Owner) -> bool {
        let mut at = self;
        while at.depth() > other.depth() {
            match at.parent() {
                Some(parent) => at = parent,
                None => return false,
            }
        }
        at == other
    }

    /// Who owns what this owner takes at `place` now: itself, or its nearest living ancestor where its last scope has
    /// ended. Whoever it is tells `place` of its end, until [`forget`](Owner::forget).
    pub(crate) fn settle_at(&self, place: &Position) -> Owner {
        let mut at = self;
        while let Kind::Made(node) = &at.0 {
            if lock(&node.life).note(place) {
                break;
            }
            match &node.parent {
                Some(parent) => at = parent,
                // A root that has ended keeps what it has: there is nobody to pass it to.
                None => break,
            }
        }
        at.clone()
    }

    /// Takes back one [`settle_at`](Owner::settle_at).
    pub(crate) fn forget(&self, place: &Position) {
        if let Kind::Made(node) = &self.0 {
            let mut life = lock(&node.life);
            // From the end: holds are mostly released in the reverse order of their grants.
            if let Some(at) = life.places.iter().rposition(|noted| noted.is(place)) {
                life.places.swap_remove(at);
            }
        }
    }

    pub(crate) fn enter(&self) {
        if let Kind::Made(node) = &self.0 {
            let mut life = lock(&node.life);
            life.scopes += 1;
            life.entered = true;
        }
    }

    /// Ends one scope. With the last one, what the owner still has goes to its heir.
    pub(crate) fn leave(&self) {
        let Kind::Made(node) = &self.0 else { return };
        let places = {
            let mut life = lock(&node.life);
            life.scopes = life.scopes.saturating_sub(1);
            if life.scopes > 0 {
                return;
            }
            std::mem::take(&mut life.places)
        };
        for place in places {
            if let Some(table) = place.table.upgrade() {
                table.owner_ended(&place.name, self);
            }
        }
    }
}

impl Life {
    /// Notes a place. False where the owner has ended.
    fn note(&mut self, place: &Position) -> bool {
        let lives = self.scopes > 0 || !self.entered;
        if lives {
            self.places.push(place.clone());
        }
        lives
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Position").field(&self.name).finish()
    }
}

impl Position {
    fn is(&self, other: &Position) -> bool {
        Arc::ptr_eq(&self.name, &other.name) && Weak::ptr_eq(&self.table, &other.table)
    }
}

/// The owner of the innermost scope around here.
fn innermost() -> Option<Owner> {
    let read = CURRENT.try_with(|current| {
        let inner = current.take();
        current.set(inner.clone());
        inner
    });
    let inner = read.ok().flatten().filter(|inner| inner.task == task::try_id());
    inner.map(|inner| inner.owner)
}

/// For as long as this lives, its owner is the current one: around each poll of its work, and around its drop.
pub(crate) struct Inside(Option<Option<Inner>>);

/// A value and not a function that takes the work: so that it adds no frame to a stack of a thousand nested polls.
pub(crate) fn inside(owner: &Owner) -> Inside {
    let inner = Inner { owner: owner.clone(), task: task::try_id() };
    Inside(CURRENT.try_with(|current| current.replace(Some(inner))).ok())
}

impl Drop for Inside {
    // Also when the work panics: the task that catches it is not this owner.
    fn drop(&mut self) {
        if let Some(before) = self.0.take() {
            let _ = CURRENT.try_with(|current| current.set(before));
        }
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Kind) -> bool {
        match (self, other) {
            (Kind::Task(a), Kind::Task(b)) => a == b,
            (Kind::Thread(a), Kind::Thread(b)) => a == b,
            (Kind::Made(a), Kind::Made(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Eq for Kind {}

impl Hash for Kind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Kind::Task(id) => id.hash(state),
            Kind::Thread(id) => id.hash(state),
            Kind::Made(node) => Arc::as_ptr(node).hash(state),
        }
    }
}

impl Drop for TreeNode {
    // A chain of a million owners would overflow the stack if each node dropped the next inside its own drop.
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(Owner(Kind::Made(node))) = next {
            next = Arc::into_inner(node).and_then(|mut node| node.parent.take());
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Task(id) => write!(f, "Owner(task {id})"),
            Kind::Thread(id) => write!(f, "Owner({id:?})"),
            Kind::Made(node) => write!(f, "Owner({:p}, depth {})", Arc::as_ptr(node), node.depth),
        }
    }
}

#[cfg(test)]
mod tests;
