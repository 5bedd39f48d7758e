//! HTTP grants: a component that imports `http` without a grant is rejected with the command that grants it; with the
//! grant it reaches the allowed origin, and no other.
//!
//! These tests use the command line and the real network code: the sites are sockets on this machine, the components
//! core WebAssembly. The single rules are unit-tested where they are defined.

mod command;
mod origins;
pub(crate) mod request_judge;
mod site;
