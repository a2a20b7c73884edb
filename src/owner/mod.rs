//! Who holds a lock: the owner, and work that runs as an owner.

#[cfg(feature = "tower")]
mod layer;
mod owner;
mod scope;

#[cfg(feature = "tower")]
pub use layer::{OwnerLayer, OwnerService};
pub use owner::Owner;
pub(crate) use owner::{OwnerEnds, OwnerId, Position, inside};
pub use scope::{Scope, scope};
