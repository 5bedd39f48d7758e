//! Replies of a given form: JSON after a schema, calls of given tools, a regular expression, one of some texts.
//!
//! A [`Constraint`] says what is wanted, in words that can be recorded. The [`Compiler`] makes of it a
//! grammar over the tokenizer's vocabulary (llguidance), off the engine's thread and under limits. A
//! [`Guide`] follows one reply and says before each token which may come next.
//!
//! It refuses to choose among what is allowed, to write tokens that the model did not draw, and to accept
//! a schema of which it would enforce a part only.

mod compiler;
mod form;
mod grammar;
mod guide;
mod schema;

pub(crate) use compiler::Compiler;
pub use compiler::ConstraintError;
pub use form::{Answer, Callable, Calls, Constraint};
pub(crate) use guide::{Guide, Next};
pub use schema::{SchemaError, check_schema};

#[cfg(test)]
mod tests;
