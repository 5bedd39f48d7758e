//! The whole backend on an emulated device: the engine's suite, and agreement with the CPU backend.

use std::sync::Arc;

use clawhost_engine::testing::Tolerance;
use clawhost_model::Model;
use clawhost_model::testing::tiny;

use crate::device::Driver;
use crate::device::emulated::EmulatedDriver;
use crate::{CudaBackend, Precision};

#[path = "../tests/agreement/mod.rs"]
mod agreement;

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
fn a_model_that_does_not_fit_is_rejected_with_the_numbers() {
    let driver: Arc<dyn Driver> =
        EmulatedDriver::with_capacity(1 << 16).expect("these tests need a C++ compiler");
    let model = Arc::new(Model::random(tiny(), 1));
    let error = CudaBackend::on(driver, model, Precision::Bf16).unwrap_err();
    assert!(error.to_string().contains("MiB of weights"), "{error}");
}
