//! How the first-party plugins put untrusted text before a model, and read what it answers.
//!
//! What a judge reads was written by those it judges: a reply, a web page that a tool fetched, a
//! user. Any of it may try to talk the judging model into a score. Three walls, none of which asks
//! the model to be clever:
//!
//! - [`Fence`]: untrusted text stands between marks that its author cannot know, and a mark inside
//!   of it is made harmless. Labels (who said it) are outside, so no text can forge another role.
//! - [`bounded`]: text cannot push the instructions out of the context.
//! - [`last_score`]: of an answer only lines of one strict form count, and an answer that names
//!   different scores is no vote at all.
//!
//! It is a library of plain functions: what a component asks for is decided by the component.
//! [`Model`] is the seam at which tests put a model of their own.

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
