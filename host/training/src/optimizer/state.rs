//! The optimizer state of a version.

use clawhost_engine::AdamWState;
use clawhost_model::TrainedWeights;

use crate::float::Float;

/// What the next step continues from besides the weights.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OptimizerState {
    /// State of AdamW.
    pub adamw: AdamWState,
    /// EMA of the parameters, for `training.teacher.source = "ema"`; empty otherwise.
    pub ema: Vec<Vec<f32>>,
}

impl OptimizerState {
    /// Zero state for these weights, without an EMA.
    pub fn for_weights(weights: &TrainedWeights) -> Self {
        Self {
            adamw: AdamWState::for_weights(weights),
            ema: Vec::new(),
        }
    }
}

/// Moves an EMA towards the parameters by `rate`; copies them if it is empty.
pub fn update_ema<'a, R: Float>(
    ema: &mut Vec<Vec<R>>,
    parameters: impl IntoIterator<Item = &'a [R]>,
    rate: f64,
) {
    if ema.is_empty() {
        *ema = parameters.into_iter().map(<[R]>::to_vec).collect();
        return;
    }
    let (decay, rate) = (R::from_f64(1.0 - rate), R::from_f64(rate));
    for (average, parameters) in ema.iter_mut().zip(parameters) {
        for (average, parameter) in average.iter_mut().zip(parameters) {
            *average = decay * *average + rate * *parameter;
        }
    }
}
