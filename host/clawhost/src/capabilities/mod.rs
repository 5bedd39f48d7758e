//! The capabilities of plugins: models, state, network. Implements the traits of the plugin host.
//!
//! Limits and grants are not checked here; the plugin host has checked them before.

mod endpoint;
mod external;
mod models;
mod network;
mod state;
mod teacher;

pub(crate) use models::Models;
pub(crate) use network::Internet;
pub(crate) use state::PluginState;
pub(crate) use teacher::FarTeacher;
