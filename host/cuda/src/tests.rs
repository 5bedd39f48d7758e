//! The whole backend on an emulated device: the engine's suite, and agreement with the CPU backend.

use std::sync::Arc;

use clawhost_engine::ReplicatedBackend;
use clawhost_engine::backend::{Backend, HostReducer};
use clawhost_engine::testing::Tolerance;
use clawhost_model::testing::{random_adapter, tiny};
use clawhost_model::{Model, ModelConfig, ModelFiles, TrainedWeights};

use crate::device::Driver;
use crate::device::emulated::EmulatedDriver;
use crate::{CudaBackend, Precision};

#[path = "../tests/agreement/mod.rs"]
pub(crate) mod agreement;

fn emulated(model: Arc<Model>, precision: Precision) -> Arc<CudaBackend> {
    let driver: Arc<dyn Driver> = EmulatedDriver::new().expect("these tests need a C++ compiler");
    Arc::new(CudaBackend::on(driver, model, precision).unwrap())
}

// The scheduler does not depend on the kernels; `tests/gpu.rs` runs all tests.
clawhost_engine::numeric_suite!(f32, Tolerance::F32, |model| emulated(model, Precision::F32));

#[test]
fn gradients_agree_with_the_cpu_backend_where_tiles_have_the_heads() {
    let model = agreement::model(64);
    for (precision, bound) in [(Precision::F32, 1e-4), (Precision::Bf16, 5e-2)] {
        let backend = emulated(Arc::clone(&model), precision);
        for error in agreement::gradient_errors(&model, &*backend) {
            assert!(error < bound, "{precision:?}: {error}");
        }
    }
}

#[test]
fn gradients_of_replicas_agree_with_the_cpu_backend() {
    let model = agreement::model(64);
    let replica = || -> Arc<dyn Backend> { emulated(Arc::clone(&model), Precision::F32) };
    let backend = ReplicatedBackend::new(vec![replica(), replica()], HostReducer);
    for error in agreement::gradient_errors(&model, &backend) {
        assert!(error < 1e-4, "{error}");
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

#[test]
fn log_probs_of_steps_are_those_of_scoring() {
    // The tensor-core kernels of attention run heads of 64.
    let config = ModelConfig {
        hidden_size: 192,
        intermediate_size: 384,
        num_hidden_layers: 8,
        head_dim: 64,
        vocab_size: 521,
        ..tiny()
    };
    let random = Arc::new(Model::random(config.clone(), 5));
    let embedded = Arc::new(Model::load(&ModelFiles::embedded()).unwrap());
    let mut adapter: TrainedWeights = Arc::new(random_adapter(&config, 6)).into();
    for (_, values) in adapter.tensors_mut() {
        // As small beside the model as a trained adapter; with a large one the model multiplies every rounding.
        values.iter_mut().for_each(|value| *value *= 0.3);
    }
    for (name, model, adapter, replies) in [
        ("embedded", &embedded, None, 40),
        ("random weights", &random, None, 16),
        ("an adapter", &random, Some(&adapter), 16),
    ] {
        let backend = emulated(Arc::clone(model), Precision::Bf16);
        let (mean, largest) = agreement::recorded_differences(&*backend, adapter, replies);
        println!("{name}: mean {mean:.2e}, largest {largest:.2e}");
        assert!(
            mean < 2e-3 && largest < 3e-2,
            "{name}: {mean:.2e} {largest:.2e}"
        );
    }
}
