//! Which allocation a value in host memory is, without keeping it alive: equal values elsewhere are others.

use std::sync::{Arc, Weak};

/// The allocation of a value in host memory.
#[derive(Debug)]
pub(crate) struct Identity<T>(Weak<T>);

impl<T> Identity<T> {
    pub(crate) fn of(value: &Arc<T>) -> Self {
        Self(Arc::downgrade(value))
    }

    pub(crate) fn is(&self, value: &Arc<T>) -> bool {
        Weak::as_ptr(&self.0) == Arc::as_ptr(value)
    }
}
