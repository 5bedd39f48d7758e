//! Losses over log-probs with their partial derivatives, one formula per file.
//!
//! Notation: lp = current log-prob, lo = old log-prob (recomputed by the trainer before the update), lb = behaviour log-prob
//! (recorded by the engine when it sampled), lr = reference log-prob (base model), lT = teacher log-prob.

mod aggregation;
mod cispo;
mod distillation;
mod dppo;
mod gspo;
mod importance;
mod kl;
mod objective;
mod on_policy_distillation;
mod ppo;
mod sapo;
mod select;
mod surrogate;

pub use aggregation::Aggregation;
pub use cispo::Cispo;
pub use distillation::{DistillationDivergence, TopKDistillation};
pub use dppo::Dppo;
pub use gspo::Gspo;
pub use importance::{ImportanceLevel, ImportanceSampling, LogprobMismatch, WeightBound};
pub use kl::{KlEstimate, KlEstimator};
pub use objective::{KlPenalty, LossError, Objective, SequenceInputs, SequenceLoss};
pub use on_policy_distillation::OnPolicyDistillation;
pub use ppo::PpoClip;
pub use sapo::Sapo;
pub use select::{TopKSelect, count_shared_tokens};
pub use surrogate::{Surrogate, TokenLoss};
