//! The structured-output constraint of a request, compiled. The sampling parameters themselves are
//! [`clawhost_chat::SamplingParams`]. A backend samples.

mod structured_output;

pub use clawhost_chat::{
    CallableTool, Constraint, ResponseFormat, SamplingError, SamplingParams, ToolCallConstraint,
};
pub use structured_output::{
    ConstraintError, GrammarCompiler, GrammarMatcher, SchemaError, TokenBitmask, check_schema,
};
