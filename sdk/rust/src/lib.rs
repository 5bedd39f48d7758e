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
//! The other kinds go the same way: [`GroupJudge`], [`HintExtractor`], [`Loss`], [`Advantage`] and
//! [`Environment`], each with its `export_…!` and, where it has some, a module of its own types.
//! One component is one kind of plugin.
//!
//! A judge must not depend on earlier calls: the host makes a fresh instance for each. The logic
//! is ordinary Rust and is tested natively; only the host functions ([`model`], [`state`],
//! [`http`], [`context`]) exist in a component alone. [`settings`] reads what the operator wrote, and
//! can be given in a test.

pub mod advantage;
mod aggregation;
#[doc(hidden)]
pub mod bindings;
mod conversation;
pub mod environment;
mod group_judge;
pub mod hint;
mod judge;
pub mod log;
pub mod loss;
pub mod settings;
mod tokens;
mod verdict;

pub use advantage::Advantage;
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
pub use environment::Environment;
pub use group_judge::GroupJudge;
pub use hint::HintExtractor;
pub use judge::Judge;
#[doc(hidden)]
pub use judge::answer;
pub use loss::Loss;
pub use settings::Settings;
