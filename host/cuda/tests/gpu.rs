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
use clawhost_cuda::{CudaBackend, Precision, devices, replicate};
use clawhost_engine::ReplicatedBackend;
use clawhost_engine::backend::{
    AdamW, AdapterSlot, Backend, Candidates, HostReducer, LossGradients, OptimizerStep, Sequence,
    TrainLimits,
};
use clawhost_engine::testing::Tolerance;
use clawhost_model::testing::{random_adapter, tiny};
use clawhost_model::{Model, ModelConfig, ModelFiles, Quantization, TrainedWeights};

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
clawhost_engine::backend_suite!(replicated_f32, Tolerance::F32, |model| replicas(
    model,
    Precision::F32
));
clawhost_engine::backend_suite!(replicated_bf16, Tolerance::BF16, |model| replicas(
    model,
    Precision::Bf16
));

/// Replicas on the first two GPUs, whose gradients NCCL sums; with one GPU, two on it, whose gradients the host sums.
fn replicas(model: Arc<Model>, precision: Precision) -> Arc<dyn Backend> {
    let first = gpu(Arc::clone(&model), precision);
    if devices().unwrap().len() < 2 {
        return Arc::new(on_host(vec![first.clone(), first]));
    }
    let second = CudaBackend::new(1, model, precision).unwrap();
    replicate(vec![(0, (*first).clone()), (1, second)])
}

/// Replicas whose gradients the host sums.
fn on_host(gpus: Vec<Arc<CudaBackend>>) -> ReplicatedBackend {
    let gpus = gpus.into_iter().map(|gpu| gpu as Arc<dyn Backend>);
    ReplicatedBackend::new(gpus.collect(), HostReducer)
}

/// The weights after three updates, of an adapter and of the full model.
fn trained(backend: &dyn Backend) -> [TrainedWeights; 2] {
    let tokens: Vec<u32> = (0..700).map(|i| i * 37 % 1001).collect();
    let sequences: Vec<Sequence<'_>> = [0..300, 300..420, 420..440, 440..700]
        .map(|range| Sequence {
            tokens: &tokens[range],
            start: 1,
            temperature: 0.9,
            candidates: Candidates::None,
        })
        .into();
    let model = backend.model();
    let adapter = Arc::new(random_adapter(model.config(), 4));
    let starts = [adapter.into(), TrainedWeights::Full(Arc::clone(model))];
    starts.map(|mut weights: TrainedWeights| {
        let mut state = None;
        for _ in 0..3 {
            let session = backend.train(&weights, state, TrainLimits::default());
            let mut session = session.unwrap();
            let scores = session.forward(&sequences).unwrap();
            let gradients = scores.iter().map(|scores| LossGradients {
                d_logprob: vec![-0.1; scores.logprobs.len()],
                d_entropy: Vec::new(),
                d_candidates: Vec::new(),
            });
            session.backward(&gradients.collect::<Vec<_>>()).unwrap();
            assert!(session.gradient_norm().unwrap() > 0.0);
            let step = OptimizerStep {
                adamw: AdamW::default(),
                learning_rate: 1e-3,
                gradient_scale: 1.0,
            };
            session.step(step).unwrap();
            let (next, moments) = session.finish().unwrap();
            (weights, state) = (next, Some(moments));
        }
        weights
    })
}

/// Norm of the difference of two trained weights, relative to what training changed.
fn relative_difference(start: &TrainedWeights, one: &TrainedWeights, two: &TrainedWeights) -> f64 {
    let values = |weights: &TrainedWeights| -> Vec<f32> {
        let tensors = weights.tensors();
        tensors.iter().flat_map(|(_, v)| v.to_vec()).collect()
    };
    let (start, one, two) = (values(start), values(one), values(two));
    let squares = |a: &[f32], b: &[f32]| -> f64 {
        let pairs = a.iter().zip(b);
        pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum()
    };
    (squares(&one, &two) / squares(&start, &one)).sqrt()
}

#[test]
fn an_update_on_two_gpus_is_that_of_one_and_the_same_in_every_run() {
    let model = model();
    for (precision, bound) in [(Precision::F32, 5e-2), (Precision::Bf16, 0.6)] {
        let one = gpu(Arc::clone(&model), precision);
        let starts: [TrainedWeights; 2] = [
            Arc::new(random_adapter(model.config(), 4)).into(),
            TrainedWeights::Full(Arc::clone(&model)),
        ];
        let alone = trained(&*one);
        let both = trained(&*replicas(Arc::clone(&model), precision));
        let again = trained(&*replicas(Arc::clone(&model), precision));
        // The sum of two values has no order.
        let host = trained(&on_host(vec![one.clone(), one]));
        for at in 0..2 {
            assert_eq!(both[at].digest(), again[at].digest(), "{precision:?} {at}");
            assert_eq!(both[at].digest(), host[at].digest(), "{precision:?} {at}");
            let difference = relative_difference(&starts[at], &alone[at], &both[at]);
            println!("{precision:?} {at}: {difference:.2e}");
            assert!(difference < bound, "{precision:?} {at}: {difference:.2e}");
        }
    }
}

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
