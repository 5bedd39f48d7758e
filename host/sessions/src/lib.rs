//! The collecting loop: assigns requests to sessions, matches a request with the turn that it continues, extracts the
//! next state of that turn, detects retries, and ends sessions.
//!
//! Clients need not send any header: conversations are matched by our own replies, and by the user's messages if a
//! client leaves our replies out. Every turn records the reason of its match. A turn is never dropped because it looks
//! like a side request. Nothing is kept in memory that a restart would lose, except ends of turns that the journal could
//! not record. This crate does not score or train; it only writes to the journal. The inspect crate explains what it recorded.
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
//!
//! ```
//! use clawhost_journal::{Finish, Journal};
//! use clawhost_sessions::{IncomingRequest, Reply, SessionOptions, Sessions};
//! use serde_json::json;
//!
//! let sessions = Sessions::new(Journal::in_memory()?, SessionOptions::default());
//! let question = json!({"role": "user", "content": "What is 7 × 8?"});
//! let answer = json!({"role": "assistant", "content": "It is 56, if I am not mistaken."});
//! let thanks = json!({"role": "user", "content": "Thank you!"});
//!
//! let first = sessions.record_request(IncomingRequest {
//!     n: 1,
//!     messages: serde_json::from_value(json!([question]))?,
//!     ..IncomingRequest::default()
//! })?;
//! sessions.complete(first.turns[0], Reply {
//!     message: serde_json::from_value(answer.clone())?,
//!     finish: Finish::Stop,
//!     token_ids: vec![3],
//!     logprobs: vec![-0.5],
//!     full_logprobs: vec![-0.5],
//!     forced: Vec::new(),
//! })?;
//! // The next request repeats our reply, so it continues the same session without any header.
//! let second = sessions.record_request(IncomingRequest {
//!     n: 1,
//!     messages: serde_json::from_value(json!([question, answer, thanks]))?,
//!     ..IncomingRequest::default()
//! })?;
//! assert_eq!(second.session, first.session);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod ambiguity;
mod assignment;
mod candidates;
mod continuations;
mod decision;
mod digests;
mod ephemeral;
mod error;
mod history;
mod idle;
mod lookup;
mod matching;
mod next_state;
mod normalize;
mod opening;
mod pending_ends;
mod rendering;
mod request;
mod request_matcher;
mod retry;
mod sessions;
mod similarity;
mod user_messages;

pub use clawhost_config::SessionOptions;
pub use digests::reply_digest;
pub use error::SessionError;
pub use normalize::{NormalizedMessage, normalize_all};
pub use request::{IncomingRequest, Reply, SessionAssignment};
pub use sessions::Sessions;
