//! Shared code of the first-party plugins that call a model: prompts with untrusted text, and parsing of the responses.
//!
//! A judge's input is written by those whom it judges: a response, a web page that a tool fetched, a user. Any of it may
//! try to talk the judging model into a score. Three defences, none of which relies on the model:
//!
//! - [`Fence`]: untrusted text is wrapped in delimiters that its author cannot guess, and a delimiter inside of it is
//!   neutralized. Role labels are outside of the delimiters, so no text can forge another role.
//! - [`bounded`]: text cannot push the instructions out of the context.
//! - [`last_score`]: only lines of one strict form count, and a response that contains different scores is no vote.
//!
//! This is a library of plain functions; the component decides which host interfaces it imports. Tests replace [`Model`]
//! with a fake.

mod answer;
mod bound;
mod fence;
mod model;
mod random;
mod tally;
mod transcript;

#[cfg(test)]
mod steering;

pub use answer::{labelled_lines, last_score, without_thinking};
pub use bound::{bounded, excerpt};
pub use fence::Fence;
pub use model::{Granted, Model, Prompt, ask, fault};
pub use random::Random;
pub use tally::{Tally, plurality};
pub use transcript::{Limits, conversation, message, next_state, turn};
