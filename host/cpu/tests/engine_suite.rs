//! The engine's test suite on the CPU backend, and on replicas of it.

#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use clawhost_cpu::CpuBackend;
use clawhost_engine::ReplicatedBackend;
use clawhost_engine::backend::{Backend, HostReducer};
use clawhost_engine::testing::Tolerance;
use clawhost_model::{Model, ModelFiles, QuantizedFormat};

clawhost_engine::backend_suite!(cpu, Tolerance::F32, |model| Arc::new(CpuBackend::new(
    model
)));

clawhost_engine::backend_suite!(replicated, Tolerance::F32, |model| {
    let replica = || -> Arc<dyn Backend> { Arc::new(CpuBackend::new(Arc::clone(&model))) };
    Arc::new(ReplicatedBackend::new(
        vec![replica(), replica()],
        HostReducer,
    ))
});

/// The model with the weights of its linear layers in bf16.
fn in_bf16(model: &Model) -> Arc<Model> {
    let dir = tempfile::tempdir().expect("a directory");
    model.save(dir.path()).expect("the model is written");
    let files = ModelFiles::from_dir(dir.path()).expect("the files are there");
    Arc::new(Model::load_in(&files, Some(QuantizedFormat::Bf16)).expect("the model is read"))
}

clawhost_engine::numeric_suite!(bf16_weights, Tolerance::F32, |model| Arc::new(
    CpuBackend::new(in_bf16(&model))
));
