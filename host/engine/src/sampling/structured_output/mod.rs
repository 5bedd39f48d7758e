//! Structured output: JSON that follows a schema, tool calls, a regular expression, or one of several texts.
//!
//! A [`Constraint`](clawhost_chat::Constraint) describes the output in a form that can be recorded. The [`GrammarCompiler`] compiles it to a
//! grammar over the tokenizer's vocabulary (llguidance), off the engine thread and within limits. A [`GrammarMatcher`]
//! tracks one reply and returns the bitmask of tokens allowed next.
//!
//! The matcher only masks: it never chooses among allowed tokens and never inserts tokens that were not sampled. A
//! schema that can only be enforced in part is rejected.

mod compiler;
mod constraint_error;
mod grammar;
mod matcher;
mod schema;

pub use compiler::GrammarCompiler;
pub use constraint_error::ConstraintError;
pub use matcher::{GrammarMatcher, TokenBitmask};
pub use schema::{SchemaError, check_schema};
