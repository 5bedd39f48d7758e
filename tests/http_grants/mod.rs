//! Promise: a component that imports `http` without a grant is refused with the very command that grants it; with
//! the grant it reaches the origin that was allowed, and no other.
//!
//! Everything here goes through the command line and the real network code: the sites are sockets on this machine,
//! the components core WebAssembly. What single rules let through is shown where the rules are.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

mod command;
pub(crate) mod errand;
mod places;
mod site;
