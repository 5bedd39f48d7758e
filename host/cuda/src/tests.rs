//! The whole backend on an emulated device: the engine's suite, and agreement with the CPU backend.

use std::sync::Arc;

use clawhost_cpu::CpuBackend;
use clawhost_engine::backend::{Backend, Candidates, LossGradients, Sequence, TrainLimits};
use clawhost_engine::testing::Tolerance;
use clawhost_model::testing::{random_adapter, tiny};
use clawhost_model::{Model, ModelConfig, TrainedWeights};

use crate::device::Driver;
use crate::device::emulated::EmulatedDriver;
use crate::{CudaBackend, Precision};

fn emulated(model: Arc<Model>, precision: Precision) -> Arc<CudaBackend> {
    let driver: Arc<dyn Driver> = EmulatedDriver::new().expect("these tests need a C++ compiler");
    Arc::new(CudaBackend::on(driver, model, precision).unwrap())
}

clawhost_engine::backend_suite!(f32, Tolerance::F32, |model| emulated(model, Precision::F32));

/// Gradients of a loss over two sequences, one tensor after the other.
fn gradients(backend: &dyn Backend, weights: &TrainedWeights) -> Vec<f32> {
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
    let slope = |values: &[f32]| -> Vec<f32> {
        (0..values.len()).map(|i| (i as f32 * 1.3).sin()).collect()
    };
    let partials: Vec<LossGradients> = scores
        .iter()
        .map(|scores| LossGradients {
            d_logprob: slope(&scores.logprobs),
            d_entropy: slope(&scores.entropies),
            d_candidates: slope(&scores.candidate_logprobs),
        })
        .collect();
    session.backward(&partials).unwrap();
    session.gradients().unwrap().concat()
}

#[test]
fn gradients_agree_with_the_cpu_backend_where_tiles_have_the_heads() {
    let config = ModelConfig {
        hidden_size: 64,
        head_dim: 64,
        ..tiny()
    };
    let model = Arc::new(Model::random(config, 3));
    let cpu = CpuBackend::new(Arc::clone(&model));
    let adapter = Arc::new(random_adapter(model.config(), 4));
    for weights in [adapter.into(), TrainedWeights::Full(Arc::clone(&model))] {
        let expected = gradients(&cpu, &weights);
        for (precision, bound) in [(Precision::F32, 1e-4), (Precision::Bf16, 3e-2)] {
            let backend = emulated(Arc::clone(&model), precision);
            let found = gradients(&*backend, &weights);
            let square = |values: &mut dyn Iterator<Item = f32>| -> f64 {
                values.map(|v| f64::from(v).powi(2)).sum::<f64>()
            };
            let error = square(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
            let size = square(&mut expected.iter().copied());
            let relative = (error / size).sqrt();
            assert!(relative < bound, "{precision:?}: {relative}");
        }
    }
}

#[test]
fn a_model_that_does_not_fit_is_rejected_with_the_numbers() {
    let driver: Arc<dyn Driver> =
        EmulatedDriver::with_capacity(1 << 16).expect("these tests need a C++ compiler");
    let model = Arc::new(Model::random(tiny(), 1));
    let error = CudaBackend::on(driver, model, Precision::Bf16).unwrap_err();
    assert!(error.to_string().contains("MiB of weights"), "{error}");
}
