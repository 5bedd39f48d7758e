//! How much memory the state of a training step takes, besides the passes of the backend: computed from the options
//! before a model is loaded. Allocates nothing.

use clawhost_config::{TeacherSource, TrainingOptions};

use crate::auxiliary::max_sample_tokens;
use crate::error::TrainingError;
use crate::packing::max_micro_batch_tokens;
use crate::{few_shot, rehearsal};

/// Copies of the trained weights that a step holds besides the versions that are served: those it starts from, those it
/// trains, and those it reads back from the checkpoint to prove them.
pub const STEP_COPIES: usize = 3;

/// The most that steps with these options hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepMemory {
    /// Tokens of the longest sequence.
    pub longest: usize,
    /// Tokens of the longest forward and backward pass.
    pub pass_tokens: usize,
    /// Bytes of optimizer state.
    pub optimizer_state: usize,
    /// Bytes of the base model's replies and of its scores of them.
    pub generated_replies: usize,
}

impl StepMemory {
    /// For trained tensors of `values` bytes in f32, and samples of at most `context` tokens.
    ///
    /// # Errors
    /// `training.rehearsal.prompts_file` cannot be read.
    pub fn new(
        options: &TrainingOptions,
        values: usize,
        context: usize,
    ) -> Result<Self, TrainingError> {
        let longest = max_sample_tokens(options, context);
        // Two moments each of the version that the step starts from and of the one it trains.
        let moments = 2 * 2 * values;
        // The moving average before and after the step, and the teacher's weights made from it.
        let averages = match options.teacher.source {
            TeacherSource::Ema => 3 * values,
            _ => 0,
        };
        Ok(Self {
            longest,
            pass_tokens: max_micro_batch_tokens(options.micro_batch_tokens, longest),
            optimizer_state: moments + averages,
            generated_replies: rehearsal::max_bytes(options)?
                + few_shot::max_bytes(options, longest),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clawhost_model::{Adapter, LoraSpec, TrainedWeights};

    use super::*;
    use crate::optimizer::OptimizerState;
    use crate::tests::tiny_model;

    #[test]
    fn the_plan_has_the_sizes_of_the_state() {
        let model = tiny_model(1);
        let adapter = Adapter::init(model.config(), LoraSpec::default(), 1);
        let weights = TrainedWeights::Lora(Arc::new(adapter));
        let values = weights.tensors();
        let values: usize = values.iter().map(|(_, values)| size_of_val(*values)).sum();
        let state = OptimizerState::for_weights(&weights).adamw;
        let moments = state.exp_avg.iter().chain(state.exp_avg_sq.iter());
        let moments: usize = moments.map(|m| size_of_val(m.as_slice())).sum();
        let mut options = TrainingOptions::default();
        let memory = StepMemory::new(&options, values, 100).unwrap();
        assert_eq!(memory.optimizer_state, 2 * moments);
        assert_eq!((memory.longest, memory.pass_tokens), (100, 4096));
        assert_eq!(memory.generated_replies, 0);
        options.teacher.source = TeacherSource::Ema;
        options.max_sample_tokens = 5000;
        options.rehearsal.enabled = true;
        let memory = StepMemory::new(&options, values, 8000).unwrap();
        assert_eq!(memory.optimizer_state, 2 * moments + 3 * values);
        assert_eq!((memory.longest, memory.pass_tokens), (5000, 5000));
        let scores = options.rehearsal.held_out * 128 * options.rehearsal.top_k * 8;
        assert!(memory.generated_replies > scores && memory.generated_replies < 64 << 20);
        options.few_shot.coef = 1.0;
        let both = StepMemory::new(&options, values, 64)
            .unwrap()
            .generated_replies;
        let scores = options.few_shot.replies * 128 * options.rehearsal.top_k * 8;
        assert!(both > memory.generated_replies + scores && both < 96 << 20);
        options.rehearsal.prompts_file = Some("no such file".into());
        assert!(StepMemory::new(&options, values, 8000).is_err());
    }
}
