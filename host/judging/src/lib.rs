//! Judging: calls the judges, combines their votes into verdicts and records training samples.
//!
//! [`JudgeWorker`] reads complete turns from the journal as soon as a next state or feedback exists, calls the judges
//! and the hint extractors, and writes verdicts, hints, receipts and the sample in one transaction. Requests with
//! several complete choices go to the group judges when one is loaded. A missing verdict is never treated as a reward
//! of 0: when a judge fails, times out or abstains, the turn stays out of every batch, mean and baseline, and the
//! reason is recorded. [`Rejudger`] runs the same code over recorded turns without writing. This crate knows nothing
//! about models, gradients or HTTP.
//!
//! ```
//! use clawhost_judging::{CombineRule, CombineVerdicts, combine_votes};
//! use clawhost_journal::VerdictOutcome::{None as NoVerdict, Verdict};
//!
//! // The votes of one judge: a call that failed is not a vote of 0.
//! let reward = combine_votes(&[Some(1.0), Some(1.0), None]).unwrap();
//! assert_eq!(reward, 1.0);
//!
//! // The verdicts of several judges.
//! let failed = NoVerdict { reason: "timed out".into() };
//! let combined = CombineRule::Mean.apply(&[Verdict { reward, accept: true }, failed.clone()]);
//! assert_eq!((combined.reward, combined.accept), (Some(1.0), true));
//! assert_eq!(CombineRule::Mean.apply(&[failed]).reward, None);
//! ```

mod calls;
mod context;
mod deferred;
mod evidence;
mod filters;
mod group;
mod health;
mod hints;
mod job;
mod judge;
mod judgement;
mod panel;
mod rejudge;
mod samples;
mod session_end;
mod slots;
mod status;
mod trajectory;
mod votes;
mod worker;

pub use clawhost_config::{CombineRule, FaultPolicy, JudgingOptions, NeutralPolicy};
pub use rejudge::{RejudgeError, RejudgeResult, Rejudger};
pub use slots::JudgeSlots;
pub use status::{JudgingSnapshot, JudgingStatus};
pub use votes::{CombineVerdicts, CombinedVerdict, combine_votes, majority_vote};
pub use worker::JudgeWorker;

#[cfg(test)]
mod tests;
