//! Benchmark of a training step, for `clawhost bench train`.
//!
//! It runs the update of a step (forward, loss, backward, AdamW) on random tokens, without journal and checkpoint. Each
//! update continues from the one before, as steps do.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clawhost_engine::Backend;
use clawhost_engine::measure::Spread;
use clawhost_journal::{SampleId, SampleProvenance, SampleRecord, SampleState, SessionId, TurnId};
use clawhost_model::{Adapter, LoadError, TrainedWeights};

use crate::auxiliary::AuxiliaryMaterial;
use crate::batch_sample::BatchSample;
use crate::optimizer::OptimizerState;
use crate::shuffle::SplitMix;
use crate::update::update;
use crate::update_task::{UpdateError, UpdateTask};
use clawhost_config::{OptionsError, TrainableParameters, TrainingOptions};

/// The workload of the benchmark.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainWorkload {
    /// Samples in the batch. Default 16.
    pub samples: usize,
    /// Tokens of each prompt. Default 96.
    pub prompt_tokens: usize,
    /// Tokens of each reply. Default 64.
    pub reply_tokens: usize,
    /// Measured repetitions, after one warm-up run. Default 5.
    pub rounds: usize,
    /// Options of the step; `parameters`, `lora`, `micro_batch_tokens` and `num_epochs` affect the speed.
    pub options: TrainingOptions,
}

impl Default for TrainWorkload {
    fn default() -> Self {
        Self {
            samples: 16,
            prompt_tokens: 96,
            reply_tokens: 64,
            rounds: 5,
            options: TrainingOptions::default(),
        }
    }
}

/// Result of the benchmark.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct TrainMeasurement {
    /// Samples in the batch.
    pub samples: usize,
    /// Tokens of the batch, prompts included, times epochs.
    pub tokens: usize,
    /// Trained parameters.
    pub parameters: usize,
    /// Tokens per second of the update.
    pub tokens_per_second: Spread,
    /// Milliseconds of the update.
    pub update_ms: Spread,
    /// Milliseconds to score the reference model, not part of the update.
    pub reference_ms: Spread,
    /// Milliseconds of a repetition in total.
    pub round_ms: Spread,
}

/// Why the benchmark failed.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// An invalid option.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The samples are longer than the model's context.
    #[error("{tokens} tokens per sample exceed the model's context of {context}")]
    TooLong {
        /// Tokens of a sample, prompt included.
        tokens: usize,
        /// Context length of the model.
        context: usize,
    },
    /// The base model's weights could not be read.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// The update failed.
    #[error("the training update failed: {0}")]
    Update(String),
}

impl From<UpdateError> for MeasureError {
    fn from(error: UpdateError) -> Self {
        Self::Update(error.to_string())
    }
}

/// Measures updates of a new adapter or of all parameters of this backend's model, according to `load.options.parameters`.
///
/// # Errors
/// Invalid options, samples that exceed the model's context, or a failed update.
pub fn measure_updates(
    backend: &dyn Backend,
    load: &TrainWorkload,
) -> Result<TrainMeasurement, MeasureError> {
    load.options.validate()?;
    let model = backend.model();
    let context = backend.max_model_len();
    let tokens = load.prompt_tokens.saturating_add(load.reply_tokens);
    if tokens > context {
        return Err(MeasureError::TooLong { tokens, context });
    }
    let mut weights = match load.options.parameters {
        TrainableParameters::Lora => {
            let shape = load.options.lora.clone();
            TrainedWeights::Lora(Arc::new(Adapter::init(
                model.config(),
                shape,
                load.options.seed,
            )))
        }
        TrainableParameters::Full => TrainedWeights::Full(model.in_memory()?),
    };
    let parameters = weights.tensors().iter().map(|(_, v)| v.len()).sum();
    let mut optimizer_state = OptimizerState::for_weights(&weights);
    let chosen = random_batch(load, model.config().vocab_size);
    let stop = AtomicBool::new(false);
    let mut update = || {
        let task = UpdateTask {
            backend,
            weights: &weights,
            optimizer_state: &optimizer_state,
            teacher: None,
            remote_teacher: None,
            chosen: &chosen,
            auxiliary: &AuxiliaryMaterial::default(),
            learning_rate_scale: 1.0,
            active: 0,
            options: &load.options,
            component: None,
            pair_component: None,
            seed: load.options.seed,
            stop: &stop,
        };
        let output = update(&task)?;
        (weights, optimizer_state) = (output.weights, output.optimizer_state);
        Ok::<_, UpdateError>(output.report)
    };
    update()?;
    let (mut speed, mut times, mut references, mut rounds) = (vec![], vec![], vec![], vec![]);
    let mut tokens = 0;
    for _ in 0..load.rounds.max(1) {
        let started = Instant::now();
        let report = update()?;
        tokens = report.all_tokens * load.options.num_epochs;
        #[allow(
            clippy::cast_precision_loss,
            reason = "token counts are far below 2^53"
        )]
        speed.push(tokens as f64 / report.update_seconds.max(1e-9));
        times.push(report.update_seconds * 1e3);
        references.push(report.reference_seconds * 1e3);
        rounds.push(started.elapsed().as_secs_f64() * 1e3);
    }
    Ok(TrainMeasurement {
        samples: load.samples,
        tokens,
        parameters,
        tokens_per_second: Spread::of(&speed),
        update_ms: Spread::of(&times),
        reference_ms: Spread::of(&references),
        round_ms: Spread::of(&rounds),
    })
}

/// Samples of random tokens, with alternating positive and negative rewards.
fn random_batch(load: &TrainWorkload, vocabulary: usize) -> Vec<BatchSample> {
    let mut random = SplitMix(load.options.seed);
    let mut random_ids = |count: usize| -> Vec<u32> {
        (0..count)
            .map(|_| u32::try_from(random.next() % vocabulary.max(1) as u64).unwrap_or(0))
            .collect()
    };
    (0..load.samples.max(1))
        .map(|i| {
            let reward = if i % 2 == 0 { 1.0 } else { -1.0 };
            let number = i64::try_from(i).unwrap_or(0);
            let reply = vec![-1.0; load.reply_tokens.max(1)];
            BatchSample {
                sample: SampleRecord {
                    id: SampleId(number),
                    turn: TurnId(number),
                    session: SessionId(String::new()),
                    group: String::new(),
                    reward: Some(reward),
                    hints: Vec::new(),
                    baseline_key: String::new(),
                    provenance: SampleProvenance::default(),
                    state: SampleState::Queued,
                    reason: None,
                    step: None,
                    advantage: None,
                    created_ms: 0,
                    prompt_ids: random_ids(load.prompt_tokens.max(1)),
                    token_ids: random_ids(reply.len()),
                    logprobs: reply.clone(),
                    full_logprobs: reply,
                    forced: Vec::new(),
                    temperature: 1.0,
                    adapter_version: 0,
                },
                advantage: Some(f64::from(reward)),
                token_advantages: None,
                hinted: Vec::new(),
                off_policy: false,
                staleness: 0,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::tiny_model;
    use clawhost_cpu::CpuBackend;

    #[test]
    fn a_small_workload_is_measured() {
        let backend = CpuBackend::new(Arc::new(tiny_model(1)));
        let load = TrainWorkload {
            samples: 3,
            prompt_tokens: 5,
            reply_tokens: 4,
            rounds: 2,
            ..TrainWorkload::default()
        };
        let measure = measure_updates(&backend, &load).unwrap();
        assert_eq!((measure.samples, measure.tokens), (3, 27));
        assert!(measure.tokens_per_second.low > 0.0 && measure.parameters > 0);
        let all = TrainWorkload {
            options: TrainingOptions {
                parameters: TrainableParameters::Full,
                ..TrainingOptions::default()
            },
            ..load.clone()
        };
        let measure = measure_updates(&backend, &all).unwrap();
        let model = tiny_model(1);
        let values = model.parameters();
        let values = values.iter().map(|(_, v)| v.len());
        assert_eq!(measure.parameters, values.sum::<usize>());
        let long = TrainWorkload {
            prompt_tokens: 1000,
            ..load
        };
        assert!(measure_updates(&backend, &long).is_err());
    }
}
