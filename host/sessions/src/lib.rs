//! The collecting loop: assigns requests to sessions, matches a request with the turn that it continues, extracts the
//! next state of that turn, detects retries, and ends sessions.
//!
//! Clients need not send any header: conversations are matched by our own replies, and by the user's messages if a
//! client leaves our replies out. Every turn records the reason of its match. A turn is never dropped because it looks
//! like a side request. Nothing is kept in memory that a restart would lose, except ends of turns that the journal could
//! not record. This crate does not score or train; it only writes to the journal.
//!
//! | module | purpose |
//! |---|---|
//! | `normalize` | messages reduced to what survives a client's reformatting |
//! | `digests` | digests of replies, requests and histories |
//! | `similarity` | similarity of messages that a client decorates |
//! | `rendering` | comparison of texts in different renderings |
//! | `history` | agreement of two message histories |
//! | `lookup` | queries to the journal, all answered by an index |
//! | `candidates` | turns with a matching reply, ranked |
//! | `matching` | the turn whose reply a request continues |
//! | `user_messages` | the same by the user's messages, if our reply is missing or rendered differently |
//! | `ephemeral` | trailing messages that a client replaces in each request |
//! | `next_state` | the messages that follow our reply |
//! | `ambiguity` | requests whose shape differs from their conversation |
//! | `continuations` | several requests that continue one reply |
//! | `retry` | retry detection |
//! | `decision` | continue, fork, retry or new, with the reason |
//! | `opening` | the same for requests without a matching reply |
//! | `assignment` | next states: recorded, held back or retracted |
//! | `sessions` | [`Sessions`]: requests, completions, session ends |
//! | `idle` | ends idle sessions |
//! | `pending_ends` | ends of turns that the journal could not record yet |
//! | `user_prompt` | the user message that a turn answers |
//! | `explain` | explanation of a turn: match, verdicts, training |
//! | `explain_next_state` | the part about held back and retracted next states |
//! | `explain_step` | explanation of a training step |

mod ambiguity;
mod assignment;
mod candidates;
mod continuations;
mod decision;
mod digests;
mod ephemeral;
mod error;
mod explain;
mod explain_next_state;
mod explain_step;
mod history;
mod idle;
mod lookup;
mod matching;
mod next_state;
mod normalize;
mod opening;
mod options;
mod pending_ends;
mod rendering;
mod request;
mod retry;
mod sessions;
mod similarity;
mod user_messages;
mod user_prompt;

pub use digests::reply_digest;
pub use error::SessionError;
pub use options::SessionOptions;
pub use request::{IncomingRequest, MALFORMED_CALLS, Reply, SessionAssignment};
pub use sessions::Sessions;
