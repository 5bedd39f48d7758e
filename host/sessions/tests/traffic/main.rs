//! Session matching with realistic client traffic.
//!
//! | file | covers |
//! |---|---|
//! | `scripts` | continue, fork, retry and new, case by case, without any header |
//! | `openclaw` | a stock agent: ephemeral messages, rewritten ids, 51 KB of instructions |
//! | `named_sessions` | clients that send session headers |
//! | `common_replies` | many sessions with the same messages |
//! | `similar_conversations` | many sessions that differ only at their beginning |
//! | `side_requests` | titles and heartbeats are not taken for user messages, in any wording |
//! | `changing_instructions` | a system message that changes each turn |
//! | `rewritten_replies` | our replies left out, summarized, without markdown, in lower case |
//! | `session_end` | done, idle, restart |
//! | `noise` | matching is stable under additions by clients |
//! | `isolation` | API keys and indistinguishable users never share a session |

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets the unexpected stops there"
)]

mod builder;
mod changing_instructions;
mod common_replies;
mod isolation;
mod named_sessions;
mod noise;
mod openclaw;
mod rewritten_replies;
mod scripts;
mod session_end;
mod side_requests;
mod similar_conversations;
