//! Gradients on two backends, for the tests on a GPU and those on the emulated device.

use std::sync::Arc;

use clawhost_cpu::CpuBackend;
use clawhost_engine::SamplingParams;
use clawhost_engine::backend::{
    AdapterSlot, Backend, Batch, BlockId, Candidates, LossGradients, RequestId, Row, SamplerSpec,
    Sequence, TrainLimits,
};
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
    let full = TrainedWeights::Full(Arc::clone(model));
    [
        adapter_gradient_error(model, backend),
        gradient_error(model, backend, &full),
    ]
}

/// As [`gradient_errors`] for an adapter alone.
pub(crate) fn adapter_gradient_error(model: &Arc<Model>, backend: &dyn Backend) -> f64 {
    let mut adapter: TrainedWeights = Arc::new(random_adapter(model.config(), 4)).into();
    for (_, values) in adapter.tensors_mut() {
        // As small beside the model as a trained adapter; with a large one the model multiplies every rounding.
        values.iter_mut().for_each(|value| *value *= 0.3);
        round(values);
    }
    gradient_error(model, backend, &adapter)
}

fn gradient_error(model: &Arc<Model>, backend: &dyn Backend, weights: &TrainedWeights) -> f64 {
    let expected = gradients(&CpuBackend::new(Arc::clone(model)), weights);
    let found = gradients(backend, weights);
    let (found, expected) = (found.concat(), expected.concat());
    assert_eq!(found.len(), expected.len());
    let square = |values: &mut dyn Iterator<Item = f32>| -> f64 {
        values.map(|v| f64::from(v).powi(2)).sum::<f64>()
    };
    let error = square(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
    let size = square(&mut expected.iter().copied());
    assert!(size > 0.0);
    (error / size).sqrt()
}

/// Mean and largest difference of the log-probs that a request recorded while it sampled and those of scoring, with the
/// base model or an adapter. The prompt runs in chunks, then every token in a step of its own.
pub(super) fn recorded_differences(
    backend: &dyn Backend,
    adapter: Option<&TrainedWeights>,
    replies: usize,
) -> (f64, f64) {
    const PROMPT: usize = 72;
    let vocab = backend.model().config().vocab_size as u32;
    let slot = adapter.map_or(AdapterSlot::BASE, |weights| {
        backend.load_adapter(weights).unwrap()
    });
    let (mut sum, mut count, mut worst) = (0.0, 0, 0.0f64);
    let mut runner = backend.runner(8).unwrap();
    let blocks: Vec<BlockId> = (0..8).map(BlockId).collect();
    for seed in 0..2 {
        let params = SamplingParams {
            temperature: 0.7,
            ..SamplingParams::default()
        };
        let spec = SamplerSpec {
            params: params.clone(),
            seed,
            prompt: Arc::from([]),
            eos_token_ids: Arc::from([]),
            banned: Vec::new(),
            recorded: None,
        };
        let request = RequestId(seed);
        runner.add_request(request, spec);
        let mut tokens: Vec<u32> = (0..PROMPT as u32)
            .map(|i| (i * 37 + seed as u32 * 11 + 5) % vocab)
            .collect();
        let (mut computed, mut recorded) = (0, Vec::new());
        while recorded.len() < replies {
            // The second chunk has few enough rows for the kernels of decoding.
            let end = if computed == 0 {
                PROMPT - 9
            } else {
                tokens.len()
            };
            let row = Row {
                request,
                tokens: &tokens[computed..end],
                computed,
                blocks: &blocks[..end.div_ceil(32)],
                slot,
                sample: end == tokens.len(),
                bitmask: None,
            };
            let batch = Batch {
                copies: &[],
                rows: &[row],
            };
            let outputs = runner.step(batch).unwrap();
            computed = end;
            if let Some(output) = outputs.into_iter().next().flatten() {
                let output = output.unwrap();
                tokens.push(output.id);
                recorded.push(output.full_logprob);
            }
        }
        runner.remove_request(request);
        let sequence = Sequence {
            tokens: &tokens,
            start: PROMPT,
            temperature: params.full_temperature(),
            candidates: Candidates::None,
        };
        let scored = backend.score(slot, &[sequence]).unwrap();
        for (recorded, scored) in recorded.iter().zip(&scored[0].logprobs) {
            let difference = f64::from((recorded - scored).abs());
            (sum, count, worst) = (sum + difference, count + 1, worst.max(difference));
        }
    }
    (sum / f64::from(count), worst)
}
