//! What is taken from its owner and goes back after its use.

use std::fmt::{Debug, Formatter};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A value in use; it goes back to its owner when this is dropped.
pub(crate) struct Lease<O, T> {
    owner: Arc<O>,
    value: Option<T>,
    give_back: fn(&O, T),
}

impl<O, T> Lease<O, T> {
    pub(crate) fn new(owner: &Arc<O>, value: T, give_back: fn(&O, T)) -> Self {
        Self {
            owner: Arc::clone(owner),
            value: Some(value),
            give_back,
        }
    }
}

impl<O, T> Deref for Lease<O, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is there until the drop")
    }
}

impl<O, T> DerefMut for Lease<O, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("it is there until the drop")
    }
}

impl<O, T> Drop for Lease<O, T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            (self.give_back)(&self.owner, value);
        }
    }
}

impl<O, T: Debug> Debug for Lease<O, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}
