//! The engine's test suite on the CPU backend, and on replicas of it.

#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use clawhost_cpu::CpuBackend;
use clawhost_engine::ReplicatedBackend;
use clawhost_engine::backend::{Backend, HostReducer};
use clawhost_engine::testing::Tolerance;

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
