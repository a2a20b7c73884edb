//! The tree of owners, which decides who re-enters. It follows J. E. B. Moss, *Nested Transactions* (MIT, 1981): a lock is granted
//! to an owner when each of its holders is that owner or one of its ancestors, and the holds that a child still has when it ends
//! pass to its parent.

use std::cell::RefCell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use tokio::task;

use crate::base::{Mutex, lock};

thread_local! {
    // Not `tokio::task_local!`: it panics if a scope is dropped while its thread ends, and clones the value for each poll.
    static CURRENT: RefCell<Vec<PolledScope>> = const { RefCell::new(Vec::new()) };
}

/// A scope that is being polled, and the task that it runs in. The last one is the innermost. A `LocalSet` polls its tasks in the poll of
/// the task that awaits it, so the task's id is needed. Without it:
///
/// 1. A scope awaits a `LocalSet`.
/// 2. Two of its tasks request one lock.
/// 3. Both are taken for the scope's owner, and the second one re-enters what the first one holds.
#[derive(Clone)]
struct PolledScope {
    owner: Owner,
    task: Option<task::Id>,
}

/// Who takes a lock: the identity by which calls re-enter.
///
/// By default the owner is the current tokio task, so nested calls on one task re-enter. Outside any task, as in the root future of
/// `block_on`, it is the thread. [`Mutex::run`](crate::Mutex::run) and [`scope`](crate::scope()) make a child of it for their work,
/// so branches that run side by side in one task exclude each other, while both re-enter the holds of their common ancestor.
///
/// A server runs all requests of a keep-alive connection in one task. Run each of them in the scope of a [new owner](Owner::new):
/// otherwise, if a guard outlives its request, the next request re-enters what that guard still holds.
///
/// Clones of an owner are equal, and two that were made by [`new`](Owner::new) or [`child`](Owner::child) never are.
///
/// ```
/// # #[tokio::main] async fn main() -> nestlock::Result<()> {
/// # let stock = nestlock::Locks::in_memory().mutex("stock");
/// let guard = stock.lock().await?;
/// // A spawned task is an owner of its own; in the scope of a child of this owner it re-enters what is held here.
/// let owner = nestlock::Owner::current().child();
/// let nested = stock.clone();
/// tokio::spawn(owner.scope(async move { nested.lock().await?.release().await })).await.unwrap()?;
/// guard.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct Owner(Kind);

#[derive(Clone)]
enum Kind {
    Task(task::Id),
    Thread(ThreadId),
    Made(Arc<TreeNode>),
}

/// Identifies an owner or, by its root, a tree of owners. Valid while any owner of the tree is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OwnerId {
    Task(task::Id),
    Thread(ThreadId),
    Made(usize),
}

struct TreeNode {
    parent: Option<Owner>,
    depth: u32,
    /// `None` if this node is the root. Kept in each node, since a recursion may be a thousand deep.
    root: Option<OwnerId>,
    scopes: Mutex<Scopes>,
}

/// The scopes of an owner. Locked only briefly. They may be locked inside a visit of a table; no table is visited while they are locked.
#[derive(Default)]
struct Scopes {
    open: usize,
    entered: bool,
    /// One registration for each level and each request, which pass to the heir when the last scope ends. The level of a `run` has
    /// none, since it is released before the scope ends.
    positions: Vec<Position>,
}

/// A place where an owner has levels or requests: one lock of one session.
#[derive(Clone, Debug)]
pub(crate) struct Position {
    pub(crate) session: Weak<dyn OwnerEnds>,
    pub(crate) name: Arc<str>,
}

/// Notified when an owner's last scope ends.
pub(crate) trait OwnerEnds: Send + Sync {
    /// Called when the last scope of `owner` has ended: its levels and requests at the lock `name` belong to its nearest live
    /// ancestor from now on.
    fn owner_ended(&self, name: &Arc<str>, owner: &Owner);
}

impl Owner {
    /// Makes a new owner without a parent.
    ///
    /// Use it for a hold that outlives the call that takes it, and for each request of a server, since one task serves all requests of a
    /// keep-alive connection. [`Owner::scope`] and [`Request::owner`](crate::futures::Request::owner) have examples.
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
        Owner::made(None, Scopes::default())
    }

    /// Returns the current owner: that of the innermost scope, otherwise the tokio task, otherwise the thread.
    ///
    /// ```
    /// use nestlock::Owner;
    /// assert_eq!(Owner::current(), Owner::current());
    /// ```
    #[must_use]
    pub fn current() -> Owner {
        let innermost = CURRENT.try_with(|current| {
            let current = current.borrow();
            let scope = current.last().filter(|scope| scope.task == task::try_id());
            scope.map(|scope| scope.owner.clone())
        });
        innermost.ok().flatten().unwrap_or_else(Owner::of_task)
    }

    /// Returns the owner outside any scope: the task, otherwise the thread.
    fn of_task() -> Owner {
        Owner(match task::try_id() {
            Some(id) => Kind::Task(id),
            None => Kind::Thread(std::thread::current().id()),
        })
    }

    /// Returns whether the current code runs in a scope of this owner or of a descendant, even with scopes of other owners in
    /// between, or in the task that this owner stands for.
    pub(crate) fn surrounds(&self) -> bool {
        let here = task::try_id();
        let read = CURRENT.try_with(|current| {
            let current = current.borrow();
            let scopes = current.iter().rev().filter(|inner| inner.task == here).map(|inner| &inner.owner);
            let mut below = None::<&Owner>;
            scopes.into_iter().any(|owner| {
                // If a child is not within it, neither is its parent: a deep recursion costs one look.
                let is_parent = below.replace(owner).is_some_and(|below| below.parent() == Some(owner));
                !is_parent && owner.is_within(self)
            })
        });
        read.unwrap_or(false) || Owner::of_task() == *self
    }

    /// Returns a new child, which re-enters this owner's holds and excludes its other children.
    ///
    /// [`Owner`] has an example that passes one to a spawned task.
    #[must_use = "a child does nothing until a request or a scope uses it"]
    pub fn child(&self) -> Owner {
        Owner::made(Some(self.clone()), Scopes::default())
    }

    /// Returns a new child, whose first scope has begun.
    #[inline]
    pub(crate) fn into_entered_child(self) -> Owner {
        Owner::made(Some(self), Scopes { open: 1, entered: true, positions: Vec::new() })
    }

    fn made(parent: Option<Owner>, scopes: Scopes) -> Owner {
        let depth = parent.as_ref().map_or(0, |parent| parent.depth() + 1);
        let root = parent.as_ref().map(Owner::tree);
        Owner(Kind::Made(Arc::new(TreeNode { parent, depth, root, scopes: Mutex::new(scopes) })))
    }

    fn node(&self) -> Option<&TreeNode> {
        if let Kind::Made(node) = &self.0 { Some(node) } else { None }
    }

    fn depth(&self) -> u32 {
        self.node().map_or(0, |node| node.depth)
    }

    pub(super) fn parent(&self) -> Option<&Owner> {
        self.node()?.parent.as_ref()
    }

    /// Returns whether this owner is `other` or one of its descendants.
    pub(crate) fn is_within(&self, other: &Owner) -> bool {
        let mut at = self;
        while at.depth() > other.depth() {
            let Some(parent) = at.parent() else { return false };
            at = parent;
        }
        at == other
    }

    fn id(&self) -> OwnerId {
        match &self.0 {
            Kind::Task(id) => OwnerId::Task(*id),
            Kind::Thread(id) => OwnerId::Thread(*id),
            Kind::Made(node) => OwnerId::Made(Arc::as_ptr(node) as usize),
        }
    }

    /// Returns the root of this owner's tree.
    pub(crate) fn tree(&self) -> OwnerId {
        self.node().and_then(|node| node.root).unwrap_or_else(|| self.id())
    }

    /// Registers a level or a request at `position` with this owner or, if its last scope has ended, with its nearest live
    /// ancestor. Returns that owner, which notifies the session when it ends, until [`unregister_at`](Owner::unregister_at).
    pub(crate) fn register_at(&self, position: &Position) -> Owner {
        let mut at = self;
        while let Some(node) = at.node() {
            let mut scopes = lock(&node.scopes);
            // Not if its scopes have ended.
            if scopes.open > 0 || !scopes.entered {
                scopes.positions.push(position.clone());
                break;
            }
            // A root that has ended keeps its holds, since it has no heir.
            let Some(parent) = &node.parent else { break };
            at = parent;
        }
        at.clone()
    }

    /// Undoes one [`register_at`](Owner::register_at).
    pub(crate) fn unregister_at(&self, position: &Position) {
        if let Some(node) = self.node() {
            let mut scopes = lock(&node.scopes);
            let is_this = |other: &Position| {
                Arc::ptr_eq(&other.name, &position.name) && Weak::ptr_eq(&other.session, &position.session)
            };
            // Searched from the end, since holds are usually released in the reverse order of their grants.
            if let Some(at) = scopes.positions.iter().rposition(is_this) {
                scopes.positions.swap_remove(at);
            }
        }
    }

    pub(crate) fn enter(&self) {
        if let Some(node) = self.node() {
            let mut scopes = lock(&node.scopes);
            scopes.open += 1;
            scopes.entered = true;
        }
    }

    /// Ends one scope. When the last one ends, all that the owner still has passes to its heir.
    pub(crate) fn leave(self) {
        if let Kind::Made(node) = &self.0
            // If nothing else refers to the owner (no level, no request, and no code that may make one), nothing has to pass on.
            && Arc::strong_count(node) > 1
        {
            self.end_scope(node);
        }
    }

    // Not inlined, since most owners that leave have nothing to pass on.
    #[inline(never)]
    fn end_scope(&self, node: &TreeNode) {
        let positions = {
            let mut scopes = lock(&node.scopes);
            scopes.open = scopes.open.saturating_sub(1);
            if scopes.open > 0 {
                return;
            }
            std::mem::take(&mut scopes.positions)
        };
        for position in positions {
            if let Some(session) = position.session.upgrade() {
                session.owner_ended(&position.name, self);
            }
        }
    }
}

/// Keeps an owner the current one until this is dropped: around each poll of its work, and around the work's drop. The value is false
/// if the owner could not be set, since the thread is ending.
pub(crate) struct Inside(bool);

/// Makes the owner the current one. It returns a guard and doesn't take the work as a closure, which would add a frame to a stack of a
/// thousand nested polls.
pub(crate) fn inside(owner: &Owner) -> Inside {
    let inner = PolledScope { owner: owner.clone(), task: task::try_id() };
    Inside(CURRENT.try_with(|current| current.borrow_mut().push(inner)).is_ok())
}

impl Drop for Inside {
    // This runs also if the work panics: the task that catches the panic is not this owner.
    fn drop(&mut self) {
        if self.0 {
            let _ = CURRENT.try_with(|current| current.borrow_mut().pop());
        }
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Owner {}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
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
