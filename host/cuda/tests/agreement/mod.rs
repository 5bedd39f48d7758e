//! Gradients on two backends, for the tests on a GPU and those on the emulated device.

use std::sync::Arc;

use clawhost_cpu::CpuBackend;
use clawhost_engine::backend::{Backend, Candidates, LossGradients, Sequence, TrainLimits};
use clawhost_model::testing::{random_adapter, tiny};
use clawhost_model::{Model, ModelConfig, TrainedWeights};

/// A model whose heads the tensor-core kernels run, with weights that bf16 represents, so that only the arithmetic differs.
pub(super) fn model(hidden_size: usize) -> Arc<Model> {
    let config = ModelConfig {
        hidden_size,
        head_dim: 64,
        ..tiny()
    };
    let mut model = Model::random(config, 3);
    for (_, values) in model.parameters_mut() {
        round(values);
    }
    Arc::new(model)
}

/// Rounds to values that bf16 represents.
fn round(values: &mut [f32]) {
    for value in values {
        *value = half::bf16::from_f32(*value).to_f32();
    }
}

/// Gradients of a loss over two sequences.
fn gradients(backend: &dyn Backend, weights: &TrainedWeights) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = (0..150).map(|i| i * 37 % 97).collect();
    let sequence = |range: std::ops::Range<usize>, temperature| Sequence {
        tokens: &tokens[range],
        start: 3,
        temperature,
        candidates: Candidates::Top(2),
    };
    let sequences = [sequence(0..131, 0.8), sequence(131..150, 1.0)];
    let mut session = backend
        .train(weights, None, TrainLimits::default())
        .unwrap();
    let scores = session.forward(&sequences).unwrap();
    // Without candidates, whose choice depends on rounding.
    let slope = |values: &[f32]| -> Vec<f32> {
        (0..values.len()).map(|i| (i as f32 * 1.3).sin()).collect()
    };
    let partials: Vec<LossGradients> = scores
        .iter()
        .map(|scores| LossGradients {
            d_logprob: slope(&scores.logprobs),
            d_entropy: slope(&scores.entropies),
            d_candidates: Vec::new(),
        })
        .collect();
    session.backward(&partials).unwrap();
    session.gradients().unwrap()
}

/// Norms of the difference to the gradients of the CPU backend, relative to theirs: of an adapter and of all weights.
pub(super) fn gradient_errors(model: &Arc<Model>, backend: &dyn Backend) -> [f64; 2] {
    let cpu = CpuBackend::new(Arc::clone(model));
    let mut adapter: TrainedWeights = Arc::new(random_adapter(model.config(), 4)).into();
    for (_, values) in adapter.tensors_mut() {
        // As small beside the model as a trained adapter; with a large one the model multiplies every rounding.
        values.iter_mut().for_each(|value| *value *= 0.3);
        round(values);
    }
    [adapter, TrainedWeights::Full(Arc::clone(model))].map(|weights| {
        let expected = gradients(&cpu, &weights);
        let found = gradients(backend, &weights);
        let (found, expected) = (found.concat(), expected.concat());
        assert_eq!(found.len(), expected.len());
        let square = |values: &mut dyn Iterator<Item = f32>| -> f64 {
            values.map(|v| f64::from(v).powi(2)).sum::<f64>()
        };
        let error = square(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
        let size = square(&mut expected.iter().copied());
        assert!(size > 0.0);
        (error / size).sqrt()
    })
}
