//! The engine's test suite on the CPU backend.

#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use clawhost_cpu::CpuBackend;
use clawhost_engine::testing::Tolerance;

clawhost_engine::backend_suite!(cpu, Tolerance::F32, |model| Arc::new(CpuBackend::new(
    model
)));
