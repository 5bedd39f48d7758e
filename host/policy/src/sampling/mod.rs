//! From logits to a token, with the log-probs that training needs.
//!
//! A token is drawn in a fixed order: bias, penalties, what is not allowed, what a constraint forbids, what is not wanted (yet),
//! temperature, min-p, top-k, top-p, one draw. Two log-probs are recorded with it: of the distribution
//! that was really drawn from, and of the full softmax at the temperature, which a trainer can recompute
//! because it knows of no cut, bias, penalty or mask. A third, of the model's own distribution at
//! temperature 1, is what chat clients are shown.
//!
//! Where a constraint left one token, the first is 0 and the second is what the model thought of it. So the
//! first tells what was likely to be drawn, the second what the policy knows; a trainer that measures how
//! the policy has moved compares like with like by the second. Such a token is marked as forced: the policy had no
//! choice at it, so a trainer leaves it out.

mod constraint;
mod distribution;
mod options;
mod sampler;
mod scan;
mod select;

pub use constraint::{
    Answer, Callable, Calls, Constraint, ConstraintError, SchemaError, check_schema,
};
pub(crate) use constraint::{Compiler, Guide};
pub use options::{Sampling, SamplingError};
pub(crate) use sampler::{Drawn, Sampler};
