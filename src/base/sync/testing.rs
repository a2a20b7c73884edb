//! Locking of both kinds of mutex: shuttle's, and std's for code that is not tested under shuttle.

use std::ops::DerefMut;
use std::sync::PoisonError;

pub(crate) trait Lockable {
    type Value;

    fn locked(&self) -> impl DerefMut<Target = Self::Value>;
}

impl<T> Lockable for std::sync::Mutex<T> {
    type Value = T;

    fn locked(&self) -> impl DerefMut<Target = T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Lockable for shuttle::sync::Mutex<T> {
    type Value = T;

    fn locked(&self) -> impl DerefMut<Target = T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reference to an `Arc` is one to its mutex wherever the type of the argument is known; here it is generic.
impl<M: Lockable> Lockable for std::sync::Arc<M> {
    type Value = M::Value;

    fn locked(&self) -> impl DerefMut<Target = M::Value> {
        (**self).locked()
    }
}

pub(crate) fn lock<M: Lockable>(mutex: &M) -> impl DerefMut<Target = M::Value> {
    mutex.locked()
}
