//! How fast a step trains: for `clawhost bench train`, and for anyone who changes it.
//!
//! It measures the very update that a step makes (forward, loss, backward, AdamW), on random tokens,
//! without journal and checkpoint.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clawhost_journal::{SampleId, SampleRecord, SampleState, SessionId, TurnId};
use clawhost_policy::measure::Spread;
use clawhost_policy::{Adapter, Learned, Model};
use serde_json::Value;

use crate::batch::Chosen;
use crate::optimizer::Moments;
use crate::options::{OptionsError, Parameters, TrainingOptions};
use crate::packing::SplitMix;
use crate::update::{Broken, Task, update};

/// What to measure with.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainLoad {
    /// Samples in the batch. Default 16.
    pub samples: usize,
    /// Tokens of each prompt. Default 96.
    pub prompt_tokens: usize,
    /// Tokens of each reply. Default 64.
    pub reply_tokens: usize,
    /// Repetitions that count; one more is run before them to warm up. Default 5.
    pub rounds: usize,
    /// How a step is made; `parameters`, `lora`, `pass_tokens` and `epochs` matter for the speed.
    pub options: TrainingOptions,
}

impl Default for TrainLoad {
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

/// What was measured.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct TrainMeasure {
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
    /// Milliseconds that scoring the reference takes beside it.
    pub reference_ms: Spread,
    /// Milliseconds of one whole round.
    pub round_ms: Spread,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// An option that cannot work.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The samples are longer than the model's context.
    #[error("{tokens} tokens a sample do not fit the model's context of {context}")]
    TooLong {
        /// Tokens of a sample, prompt included.
        tokens: usize,
        /// What the model was made for.
        context: usize,
    },
    /// The update failed.
    #[error("the update that was to be measured failed: {0}")]
    Update(String),
}

impl From<Broken> for MeasureError {
    fn from(broken: Broken) -> Self {
        Self::Update(broken.to_string())
    }
}

/// Measures updates of a new adapter on this model, or of all its parameters, as `load.options.parameters` says.
///
/// # Errors
/// Options that cannot work, or a load that does not fit the model.
pub fn updates(model: &Model, load: &TrainLoad) -> Result<TrainMeasure, MeasureError> {
    load.options.validate()?;
    let context = model.config().max_position_embeddings;
    let tokens = load.prompt_tokens.saturating_add(load.reply_tokens);
    if tokens > context {
        return Err(MeasureError::TooLong { tokens, context });
    }
    let learned = match load.options.parameters {
        Parameters::Lora => {
            let shape = load.options.lora.clone();
            Learned::Lora(Arc::new(Adapter::init(
                model.config(),
                shape,
                load.options.seed,
            )))
        }
        Parameters::Full => Learned::Full(Arc::new(model.clone())),
    };
    let lengths: Vec<usize> = learned.tensors().iter().map(|(_, v)| v.len()).collect();
    let moments = Moments::zeros(lengths.iter().copied());
    let chosen = batch(load, model.config().vocab_size);
    let stop = AtomicBool::new(false);
    let task = Task {
        model,
        learned: &learned,
        moments: &moments,
        teacher: None,
        elsewhere: None,
        chosen: &chosen,
        active: 0,
        options: &load.options,
        component: None,
        seed: load.options.seed,
        stop: &stop,
    };
    update(&task)?;
    let (mut speed, mut times, mut references, mut rounds) = (vec![], vec![], vec![], vec![]);
    let mut tokens = 0;
    for _ in 0..load.rounds.max(1) {
        let started = Instant::now();
        let report = update(&task)?.report;
        tokens = report.all_tokens * load.options.epochs;
        #[allow(
            clippy::cast_precision_loss,
            reason = "token counts are far below 2^53"
        )]
        speed.push(tokens as f64 / report.update_seconds.max(1e-9));
        times.push(report.update_seconds * 1e3);
        references.push(report.reference_seconds * 1e3);
        rounds.push(started.elapsed().as_secs_f64() * 1e3);
    }
    Ok(TrainMeasure {
        samples: load.samples,
        tokens,
        parameters: lengths.iter().sum(),
        tokens_per_second: Spread::of(&speed),
        update_ms: Spread::of(&times),
        reference_ms: Spread::of(&references),
        round_ms: Spread::of(&rounds),
    })
}

/// Samples of random tokens, rewarded and punished in turn.
fn batch(load: &TrainLoad, vocabulary: usize) -> Vec<Chosen> {
    let mut random = SplitMix(load.options.seed);
    let mut draw = |count: usize| -> Vec<u32> {
        (0..count)
            .map(|_| u32::try_from(random.next() % vocabulary.max(1) as u64).unwrap_or(0))
            .collect()
    };
    (0..load.samples.max(1))
        .map(|i| {
            let reward = if i % 2 == 0 { 1.0 } else { -1.0 };
            let number = i64::try_from(i).unwrap_or(0);
            let reply = vec![-1.0; load.reply_tokens.max(1)];
            Chosen {
                sample: SampleRecord {
                    id: SampleId(number),
                    turn: TurnId(number),
                    session: SessionId(String::new()),
                    group: String::new(),
                    reward: Some(reward),
                    hints: Vec::new(),
                    baseline_key: String::new(),
                    provenance: Value::Null,
                    state: SampleState::Queued,
                    reason: None,
                    step: None,
                    advantage: None,
                    created_ms: 0,
                    prompt_ids: draw(load.prompt_tokens.max(1)),
                    token_ids: draw(reply.len()),
                    logprobs: reply.clone(),
                    full_logprobs: reply,
                    forced: Vec::new(),
                    temperature: 1.0,
                    adapter_version: 0,
                },
                advantage: Some(f64::from(reward)),
                token_advantages: None,
                hinted: Vec::new(),
                staleness: 0,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::tiny_model;

    #[test]
    fn a_small_load_is_measured() {
        let load = TrainLoad {
            samples: 3,
            prompt_tokens: 5,
            reply_tokens: 4,
            rounds: 2,
            ..TrainLoad::default()
        };
        let measure = updates(&tiny_model(1), &load).unwrap();
        assert_eq!((measure.samples, measure.tokens), (3, 27));
        assert!(measure.tokens_per_second.low > 0.0 && measure.parameters > 0);
        let all = TrainLoad {
            options: TrainingOptions {
                parameters: Parameters::Full,
                ..TrainingOptions::default()
            },
            ..load.clone()
        };
        let measure = updates(&tiny_model(1), &all).unwrap();
        let model = tiny_model(1);
        let values = model.parameters();
        let values = values.iter().map(|(_, v)| v.len());
        assert_eq!(measure.parameters, values.sum::<usize>());
        let long = TrainLoad {
            prompt_tokens: 1000,
            ..load
        };
        assert!(updates(&tiny_model(1), &long).is_err());
    }
}
