//! Losses over log-probs, one formula a file, each with its partial derivatives.
//!
//! Notation: lp = log-prob now, lo = recomputed by the trainer before the update, lb = recorded by
//! the engine when it sampled, lr = reference (base model).

mod aggregation;
mod cispo;
mod distillation;
mod dppo;
mod gspo;
mod importance;
mod kl;
mod objective;
mod ppo;
mod sapo;
mod select;
mod surrogate;
mod teacher;

pub use aggregation::Aggregation;
pub use cispo::Cispo;
pub use distillation::{Direction, Distillation};
pub use dppo::Dppo;
pub use gspo::Gspo;
pub use importance::{Bound, Importance, Mismatch, Span};
pub use kl::{Divergence, Estimate};
pub use objective::{LossError, Objective, Penalty, SequenceInputs, SequenceLoss};
pub use ppo::Clip;
pub use sapo::Sapo;
pub use select::{Select, overlap};
pub use surrogate::{Surrogate, Term};
pub use teacher::Teaching;
