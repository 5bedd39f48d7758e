//! One file for each world that this build can call.

pub(crate) mod judge;
