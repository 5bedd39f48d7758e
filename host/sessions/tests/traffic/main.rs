//! Traffic as clients really send it, and what is made of it.
//!
//! | file | promise |
//! |---|---|
//! | `scripts` | continue, fork, retry and new, case by case, without any header |
//! | `openclaw` | a stock agent: ephemeral blocks, rewritten ids, 51 KB of instructions |
//! | `named` | clients that send session headers |
//! | `crowds` | many sessions that look alike |
//! | `alike` | many sessions that differ only at their beginning |
//! | `housekeeping` | titles and heartbeats never stand in for a person, in any wording |
//! | `drifting` | a system message that changes each turn |
//! | `rewritten` | our replies left out, summarised, without markdown, in lower case |
//! | `ends` | done, idle, restart |
//! | `explained` | every turn has its story |
//! | `noise` | matching is stable under what clients add |
//! | `strangers` | people that cannot be told apart, and keys, never share a session |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected stops there"
)]

mod alike;
mod builder;
mod crowds;
mod drifting;
mod ends;
mod explained;
mod housekeeping;
mod named;
mod noise;
mod openclaw;
mod rewritten;
mod scripts;
mod strangers;
