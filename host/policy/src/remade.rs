//! What is made from other values and can be made from them again.

use std::sync::OnceLock;

/// Made when it is first asked for. A copy begins without it, and two are never different for it.
#[derive(Debug)]
pub(crate) struct Remade<T>(OnceLock<T>);

impl<T> Remade<T> {
    /// It, made now if it was not yet.
    pub(crate) fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(make)
    }

    /// It is no longer right.
    pub(crate) fn forget(&mut self) {
        self.0 = OnceLock::new();
    }

    #[cfg(test)]
    pub(crate) fn of(value: T) -> Self {
        Self(OnceLock::from(value))
    }
}

impl<T> Default for Remade<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> Clone for Remade<T> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<T> PartialEq for Remade<T> {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}
