//! What is taken from [`Shared`] and goes back after its use.

use std::fmt::{Debug, Formatter};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::shared::Shared;

/// A value in use; it goes back when this is dropped.
pub(crate) struct Lease<T> {
    shared: Arc<Shared>,
    value: Option<T>,
    give_back: fn(&Shared, T),
}

impl<T> Lease<T> {
    pub(crate) fn new(shared: &Arc<Shared>, value: T, give_back: fn(&Shared, T)) -> Self {
        Self {
            shared: Arc::clone(shared),
            value: Some(value),
            give_back,
        }
    }
}

impl<T> Deref for Lease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is there until the drop")
    }
}

impl<T> DerefMut for Lease<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("it is there until the drop")
    }
}

impl<T> Drop for Lease<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            (self.give_back)(&self.shared, value);
        }
    }
}

impl<T: Debug> Debug for Lease<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}
