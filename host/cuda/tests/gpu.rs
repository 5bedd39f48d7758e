//! The engine's test suite on a GPU, in both precisions, and agreement with the CPU backend. On a machine without a GPU
//! this binary says so and ends; the same code runs there on an emulated device (`src/tests.rs`).

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test"
)]

use std::io::Write;
use std::sync::Arc;

use clawhost_cpu::CpuBackend;
use clawhost_cuda::{CudaBackend, Precision, devices};
use clawhost_engine::backend::{AdapterSlot, Backend, Candidates, Sequence};
use clawhost_engine::testing::Tolerance;
use clawhost_model::testing::tiny;
use clawhost_model::{Model, ModelConfig, ModelFiles, Quantization};

mod agreement;

/// The first GPU with this model. Without one the test binary ends, successfully.
fn gpu(model: Arc<Model>, precision: Precision) -> Arc<CudaBackend> {
    if devices().unwrap().is_empty() {
        // Not captured, unlike what tests print.
        let _ = std::io::stderr().write_all(b"no NVIDIA GPU: the tests on a GPU are skipped\n");
        std::process::exit(0);
    }
    Arc::new(CudaBackend::new(0, model, precision).unwrap())
}

clawhost_engine::backend_suite!(f32, Tolerance::F32, |model| gpu(model, Precision::F32));
clawhost_engine::backend_suite!(bf16, Tolerance::BF16, |model| gpu(model, Precision::Bf16));

/// A model whose heads the tensor-core kernels run.
fn model() -> Arc<Model> {
    let config = ModelConfig {
        hidden_size: 256,
        intermediate_size: 512,
        head_dim: 64,
        vocab_size: 1001,
        ..tiny()
    };
    Arc::new(Model::random(config, 3))
}

#[test]
fn scores_agree_with_the_cpu_backend() {
    let model = model();
    let cpu = CpuBackend::new(Arc::clone(&model));
    let tokens: Vec<u32> = (0..300).map(|i| i * 37 % 1001).collect();
    let sequence = Sequence {
        tokens: &tokens,
        start: 1,
        temperature: 0.9,
        candidates: Candidates::Top(4),
    };
    let expected = cpu.score(AdapterSlot::BASE, &[sequence]).unwrap();
    for (precision, bound) in [(Precision::F32, 1e-3), (Precision::Bf16, 1e-1)] {
        let gpu = gpu(Arc::clone(&model), precision);
        let found = gpu.score(AdapterSlot::BASE, &[sequence]).unwrap();
        let pairs = found[0].logprobs.iter().zip(&expected[0].logprobs);
        let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < bound, "{precision:?}: {worst}");
    }
}

#[test]
fn a_quantized_checkpoint_agrees_with_the_cpu_backend() {
    // Says so where there is no GPU.
    drop(gpu(model(), Precision::F32));
    let dir = tempfile::tempdir().unwrap();
    agreement::model(256).save(dir.path()).unwrap();
    let files = ModelFiles::from_dir(dir.path()).unwrap();
    for quantization in [Quantization::Int8, Quantization::Int4] {
        let model = Arc::new(Model::load_quantized(&files, quantization).unwrap());
        for (precision, bound) in [(Precision::F32, 1e-4), (Precision::Bf16, 5e-2)] {
            let gpu = CudaBackend::load(0, &files, quantization, precision).unwrap();
            assert_eq!(gpu.model().digest(), model.digest());
            let error = agreement::adapter_gradient_error(&model, &gpu);
            println!("{quantization:?} {precision:?}: {error}");
            assert!(error < bound, "{quantization:?} {precision:?}: {error}");
        }
    }
}

#[test]
fn gradients_agree_with_the_cpu_backend() {
    let model = agreement::model(256);
    for (precision, bound) in [(Precision::F32, 1e-4), (Precision::Bf16, 5e-2)] {
        let gpu = gpu(Arc::clone(&model), precision);
        let errors = agreement::gradient_errors(&model, &*gpu);
        println!("{precision:?}: {errors:?}");
        for error in errors {
            assert!(error < bound, "{precision:?}: {error}");
        }
    }
}

#[test]
fn log_probs_of_steps_are_those_of_scoring() {
    let deep = ModelConfig {
        num_hidden_layers: 30,
        ..model().config().clone()
    };
    let embedded = Model::load(&ModelFiles::embedded()).unwrap();
    for (name, model) in [
        ("embedded", embedded),
        ("30 layers", Model::random(deep, 4)),
    ] {
        let gpu = gpu(Arc::new(model), Precision::Bf16);
        let (mean, largest) = agreement::recorded_differences(&*gpu, None, 150);
        println!("{name}: mean {mean:.2e}, largest {largest:.2e}");
        assert!(
            mean < 1e-2 && largest < 1e-1,
            "{name}: {mean:.2e} {largest:.2e}"
        );
    }
}
