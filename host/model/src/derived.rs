//! Data that a backend derives from weights, such as a packed copy in the memory order of its kernels.

use std::any::Any;
use std::sync::OnceLock;

/// Derived data, computed on first use and kept beside the weights, so that all users of the same weights share it. A
/// clone starts without it, and comparison ignores it. One backend per process derives data in host memory, so there is
/// one type.
#[derive(Debug, Default)]
pub struct Derived(OnceLock<Box<dyn Any + Send + Sync>>);

impl Derived {
    /// Returns the data, computing it on first use.
    ///
    /// # Panics
    /// When the data has another type than on first use.
    pub fn get_or_init<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        let data = self.0.get_or_init(|| Box::new(make()));
        data.downcast_ref()
            .expect("one backend derives data from these weights")
    }

    /// Discards the data after the weights changed.
    pub(crate) fn invalidate(&mut self) {
        self.0 = OnceLock::new();
    }
}

impl Clone for Derived {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Derived {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}
