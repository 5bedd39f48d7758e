//! Golden transcripts: what a plugin is shown, and what it has to answer.
//!
//! A file of the folder `tests` is one transcript or a list of them, in JSON. An answer is compared
//! with `expect` as far as `expect` goes: what is not mentioned may be anything. A loss that answers as
//! expected is evaluated again with its inputs moved a little, to see that its partials are its slopes.
//!
//! A plugin runs with every capability that it imports, none of them real. `exchanges` lists the expected calls of models
//! and HTTP in order, each with its answer; `state` has the entries of its state before the call.

mod call;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod read;
mod slopes;
