//! Write a clawhost plugin in Rust.
//!
//! Implement [`Judge`] for a type of yours and name it in [`export_judge!`]; build the crate as a
//! `cdylib` for `wasm32-unknown-unknown`. The component that comes out imports only what it really
//! uses; `log` and `context` are granted to everybody, `model`, `state` and `http` by the operator.
//!
//! ```
//! use clawhost_sdk::{Judge, PluginError, Trajectory, Turn, Verdict};
//!
//! struct Polite;
//!
//! impl Judge for Polite {
//!     fn score_turn(_all: &Trajectory, turn: &Turn) -> Result<Verdict, PluginError> {
//!         if turn.next_state.is_empty() {
//!             return Err(PluginError::Unsupported("nothing followed the reply".to_owned()));
//!         }
//!         let thanked = turn.user_text().to_lowercase().contains("thank");
//!         let reward = if thanked { 1.0 } else { 0.0 };
//!         Ok(Verdict::new(reward, "looked for thanks"))
//!     }
//! }
//!
//! clawhost_sdk::export_judge!(Polite);
//! ```
//!
//! A judge must not depend on earlier calls: the host makes a fresh instance for each. The logic
//! is ordinary Rust and is tested natively; only the host functions ([`model`], [`state`],
//! [`http`], [`context`]) exist in a component alone.

#[doc(hidden)]
pub mod bindings;
mod conversation;
mod judge;
pub mod log;
mod verdict;

/// Which call this is, and the settings that the operator wrote for the plugin.
pub use bindings::clawhost::plugin::context;
/// HTTP exchanges with origins that the operator allowed.
pub use bindings::clawhost::plugin::http;
/// Completions and scores from models.
pub use bindings::clawhost::plugin::model;
/// Durable state of the plugin.
pub use bindings::clawhost::plugin::state;
pub use bindings::clawhost::plugin::types::{
    Blob, Message, Metric, Part, PluginError, Role, ToolCall, ToolSpec, Trajectory, Turn, Verdict,
    Vote,
};
pub use judge::Judge;
#[doc(hidden)]
pub use judge::answer;
