//! Who holds a lock: the owner, and work that runs as one.

mod owner;
mod scope;

pub use owner::Owner;
pub(crate) use owner::{Inside, OwnerEnds, Position, Tree, inside};
pub use scope::{Scope, scope};
