//! Read-only views over the journal for operators: why a turn trained or did not, what a training step consisted of, the
//! state of a data directory, and the recent activity that the operator page shows.
//!
//! Nothing here writes, and no loop depends on this crate: a view that is wrong cannot change what is recorded or trained.
//! From the sessions crate it uses only how a message is normalized.
//!
//! | module | purpose |
//! |---|---|
//! | `turns` | explanation of a turn: match, verdicts, training |
//! | `next_state` | the part about held back and retracted next states |
//! | `user_prompt` | the user message that a turn answers |
//! | `steps` | explanation of a training step: its samples and how far each moved |
//! | `status` | counts, served version, plugins and last steps of a data directory |
//! | `activity` | last turns, rewards, steps and releases, kept up to date with bounded queries |
//! | `preview` | shortened texts |
//!
//! # Example
//! ```
//! use clawhost_inspect::{Status, explain_turn};
//! use clawhost_journal::Journal;
//! use clawhost_sessions::{IncomingRequest, SessionOptions, Sessions};
//! use serde_json::json;
//!
//! let journal = Journal::in_memory()?;
//! let sessions = Sessions::new(journal.clone(), SessionOptions::default());
//! let recorded = sessions.record_request(IncomingRequest {
//!     response_id: "chatcmpl-1".into(),
//!     n: 1,
//!     messages: serde_json::from_value(json!([{"role": "user", "content": "What is 3 + 4?"}]))?,
//!     prompt_ids: vec![1, 2, 3],
//!     ..IncomingRequest::default()
//! })?;
//!
//! let explained = explain_turn(&journal, recorded.turns[0])?.expect("it was just recorded");
//! assert_eq!(explained["asked"], "What is 3 + 4?");
//! assert_eq!(explained["why"], "Its reply is still being generated.");
//! assert_eq!(Status::read(&journal, 10)?.counts.sessions, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod activity;
mod next_state;
mod pairs;
mod preview;
mod status;
mod steps;
mod turns;
mod user_prompt;

pub use activity::{
    AdapterSummary, OperatorRecords, OwnerRecord, RecordLoader, Records, StepRow, TurnRow,
    TurnText, VerdictRow, Viewer,
};
pub use status::{PLUGIN_STATUS_KEY, Status};
pub use steps::{explain_planned_step, explain_step};
pub use turns::{explain_session, explain_turn};
