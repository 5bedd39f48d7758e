//! How a reply is sampled, as data: the parameters of a request and its structured-output constraint.
//!
//! The gateway parses them, the engine and the backends sample by them, and the journal records them, so there is one
//! type for all. It lives beside the conversation, because the journal must not depend on the engine. Nothing here
//! samples or compiles a grammar.

mod constraint;
mod params;

pub use constraint::{CallableTool, Constraint, ResponseFormat, ToolCallConstraint};
pub use params::{SamplingError, SamplingParams};
