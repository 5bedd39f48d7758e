//! Episodes: a policy acts in an environment component.
//!
//! An environment is a WebAssembly component of the world `environment-plugin`; it holds the protocol, the state and the
//! reward. This crate reads task sets, lets the engine's active version play groups of episodes in parallel, records
//! their tokens and rewards in the journal as samples, and reports pass@1 and pass@k. It does not train: the trainer takes
//! the recorded samples from the journal's queue like those of conversations.
//!
//! ```
//! use clawhost_episodes::{Split, parse_tasks};
//!
//! let tasks = parse_tasks(
//!     "{\"id\": \"sum-1\", \"instruction\": \"What is 2 + 3?\", \"family\": \"sums\", \"answer\": 5}",
//!     "tasks.jsonl",
//! )?;
//! assert_eq!(tasks[0].split, Split::Train);
//! assert_eq!(tasks[0].payload, "{\"answer\":5}");
//! # Ok::<(), clawhost_episodes::TaskError>(())
//! ```

mod artifacts;
mod dialogue;
mod episode;
mod import;
mod record;
mod report;
mod runner;
mod seeds;
mod sequence;
mod step_judge;
mod task;
mod window;

pub use artifacts::{Artifacts, ArtifactsRoot, file_url};
pub use dialogue::SampleUnit;
pub use episode::{EpisodeOptions, FinishedEpisode, NoVerdict};
pub use import::{ImportError, ImportOptions, ImportedTasks, TaskFormat, import_tasks};
pub use record::{EpisodeSource, is_recorded, record_episode};
pub use report::{EpisodeReport, FamilyReport};
pub use runner::{EpisodePlan, EpisodeRecord, EpisodeRunner, choose_tasks, plan_groups};
pub use sequence::SampledSequence;
pub use step_judge::{JudgedSteps, StepJudge};
pub use task::{Split, Task, TaskError, load_tasks, parse_tasks};
