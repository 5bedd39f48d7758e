//! The host interfaces that a component can import, one module each.
//!
//! Every function counts against the call's budgets before it does anything.

pub(crate) mod context;
pub(crate) mod display;
pub(crate) mod http;
pub(crate) mod log;
pub(crate) mod model;
pub(crate) mod sandbox;
pub(crate) mod state;

use std::pin::Pin;

/// The future that a host capability returns.
pub type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;
