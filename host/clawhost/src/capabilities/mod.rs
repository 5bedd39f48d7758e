//! What the host offers to plugins that are granted it: models, state, a way out.
//!
//! The plugin host knows these as traits; here is what stands behind them. Limits and grants are
//! not looked at here: nothing gets this far that the plugin host did not let through.

mod endpoint;
mod external;
mod models;
mod network;
mod state;
mod teacher;

pub use models::{ModelAlias, Which};
pub use state::StateConfig;

pub(crate) use models::Models;
pub(crate) use network::Internet;
pub(crate) use state::PluginState;
pub(crate) use teacher::FarTeacher;
