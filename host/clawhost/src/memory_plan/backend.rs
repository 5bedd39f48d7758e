//! The sizes that the backend of a model computes, whichever it is.

use clawhost_cpu::CpuMemory;
use clawhost_cuda::CudaMemory;

use super::Place;

/// The plan of a backend.
#[derive(Clone, Copy)]
pub(super) enum BackendMemory<'a> {
    Cpu(CpuMemory<'a>),
    Cuda(CudaMemory<'a>),
}

impl BackendMemory<'_> {
    pub(super) fn place(self) -> Place {
        match self {
            Self::Cpu(_) => Place::Host,
            Self::Cuda(_) => Place::Device,
        }
    }

    pub(super) fn weights(self) -> usize {
        match self {
            Self::Cpu(memory) => memory.weights(),
            Self::Cuda(memory) => memory.weights(),
        }
    }

    pub(super) fn block(self) -> usize {
        match self {
            Self::Cpu(memory) => memory.block(),
            Self::Cuda(memory) => memory.block(),
        }
    }

    pub(super) fn step(self, rows: usize, tokens: usize, rank: usize) -> usize {
        match self {
            Self::Cpu(memory) => memory.step(rows, tokens),
            Self::Cuda(memory) => memory.step(rows, tokens, rank),
        }
    }
}
