//! Golden transcripts: what a plugin is shown, and what it has to answer.
//!
//! A file of the folder `tests` is one transcript or a list of them, in JSON. An answer is compared
//! with `expect` as far as `expect` goes: what is not mentioned may be anything. A loss that answers as
//! expected is asked again with its inputs moved a little, to see that its partials are its slopes.
//!
//! A plugin is run with every capability that it imports and none of them is real. `exchanges` lists its calls of
//! models and of HTTP in order, each with its answer; `state` is what its state holds before the call.

pub(crate) mod agree;
pub(crate) mod check;
pub(crate) mod read;
mod slopes;
