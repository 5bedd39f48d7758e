//! The SDK for clawhost plugins in Rust.
//!
//! Implement [`Judge`] for a type, export it with [`export_judge!`], and build the crate as a `cdylib` for
//! `wasm32-unknown-unknown`. The component imports only the host interfaces that it uses: `log` and `context` are always
//! granted, `model`, `state`, `http`, `sandbox` and `display` have to be granted by the operator.
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
//! The other kinds work the same way: [`GroupJudge`], [`HintExtractor`], [`Filter`], [`Loss`], [`PairLoss`], [`Advantage`], [`Gate`] and [`Environment`],
//! each with its `export_…!` macro and, where needed, a module with its types. A component is exactly one kind of plugin.
//!
//! A judge cannot keep data between calls: the host creates a fresh instance for each call. The logic is ordinary Rust
//! and can be tested natively; only the host functions ([`model`], [`state`], [`http`], [`context`]) work exclusively in a
//! component. [`settings`] reads the operator's settings; tests can set them.

pub mod advantage;
mod aggregation;
#[doc(hidden)]
pub mod bindings;
mod conversation;
pub mod environment;
pub mod filter;
#[cfg(any(test, target_arch = "wasm32"))]
mod first_block;
pub mod gate;
mod group_judge;
pub mod hint;
mod judge;
pub mod log;
pub mod loss;
pub mod pair_loss;
pub mod settings;
mod tokens;
mod verdict;

pub use advantage::Advantage;
/// Identity of the call, and the plugin's settings.
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
/// Displays of environments.
pub use bindings::environment::clawhost::plugin::display;
/// Machines of environments.
pub use bindings::environment::clawhost::plugin::sandbox;
pub use environment::Environment;
pub use filter::Filter;
pub use gate::Gate;
pub use group_judge::GroupJudge;
pub use hint::HintExtractor;
pub use judge::Judge;
#[doc(hidden)]
pub use judge::answer;
pub use loss::Loss;
pub use pair_loss::PairLoss;
pub use settings::Settings;

#[cfg(target_arch = "wasm32")]
#[global_allocator]
static ALLOCATOR: first_block::FirstBlock = first_block::FirstBlock::new();
