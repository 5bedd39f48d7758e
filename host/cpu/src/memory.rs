//! How much host memory a model takes, computed from its configuration before it is loaded. The sizes are those of the
//! functions that allocate: packed weights, blocks, activations. Allocates nothing.

use clawhost_engine::TrainLimits;
use clawhost_model::{Adapter, LoraSpec, ModelConfig, QuantizedFormat, Weights};

use crate::grad::PassMemory;
use crate::model::adapter::planned_pair_bytes;
use crate::model::{LayerValues, ModelPackedWeights};

/// The memory plan of a model on the CPU.
#[derive(Debug, Clone, Copy)]
pub struct CpuMemory<'a> {
    config: &'a ModelConfig,
    format: Option<QuantizedFormat>,
    threads: usize,
}

impl<'a> CpuMemory<'a> {
    /// The plan of a base model with its linear layers in this format, `None` is f32; `threads` as in
    /// [`crate::CpuBackend::load`].
    pub fn new(config: &'a ModelConfig, format: Option<QuantizedFormat>, threads: usize) -> Self {
        Self {
            config,
            format,
            threads: match threads {
                0 => std::thread::available_parallelism().map_or(1, usize::from),
                threads => threads,
            },
        }
    }

    /// Threads of one matrix product.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Bytes of the base model's weights, as [`clawhost_engine::Backend::weight_bytes`] of the loaded model.
    pub fn weights(&self) -> usize {
        Weights::planned_bytes_in(self.config, self.format)
            + ModelPackedWeights::planned_bytes(self.config, self.format)
    }

    /// Bytes of a KV-cache block, as [`clawhost_engine::Backend::block_bytes`].
    pub fn block(&self) -> usize {
        crate::block_bytes(self.config)
    }

    /// Bytes of the trained values of an adapter in f32.
    pub fn adapter_values(&self, spec: &LoraSpec) -> usize {
        let pair = |((inputs, outputs), rank)| (inputs + outputs) * rank * size_of::<f32>();
        Adapter::planned_pairs(self.config, spec).map(pair).sum()
    }

    /// Bytes of a loaded adapter: its values, and their packed copy where the base model has one.
    pub fn adapter(&self, spec: &LoraSpec) -> usize {
        let packs = ModelPackedWeights::planned_bytes(self.config, self.format) > 0;
        let pairs = Adapter::planned_pairs(self.config, spec).filter(|_| packs);
        let packed = pairs.map(|(widths, rank)| planned_pair_bytes(widths, rank));
        self.adapter_values(spec) + packed.sum::<usize>()
    }

    /// Most bytes of the gradients of trained tensors of `values` bytes: their sum, and in the training of an adapter one
    /// more for each thread.
    pub fn gradients(&self, values: usize, all_weights: bool) -> usize {
        match all_weights {
            true => values,
            false => (1 + self.threads) * values,
        }
    }

    /// Most bytes of one serving step of `rows` requests and `tokens` tokens, of which the last layer runs one per
    /// request: the activations of one layer, and the logits.
    pub fn step(&self, rows: usize, tokens: usize) -> usize {
        let LayerValues { stored, restored } = LayerValues::new(self.config);
        let layer = (stored + restored + self.config.hidden_size) * tokens;
        (layer + rows * self.config.vocab_size) * size_of::<f32>()
    }

    /// Most bytes of a training pass over `tokens` packed tokens, in sequences of at most `longest`, with an adapter of
    /// this rank; 0 if all weights are trained.
    pub fn training_pass(
        &self,
        (tokens, longest): (usize, usize),
        rank: usize,
        limits: TrainLimits,
    ) -> PassMemory {
        PassMemory::new(self.config, (tokens, longest), (rank, self.threads), limits)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clawhost_engine::backend::Backend;
    use clawhost_model::testing::tiny;
    use clawhost_model::{Model, ModelFiles};

    use super::*;
    use crate::CpuBackend;
    use crate::model::adapter::pack_adapter;

    #[test]
    fn the_plan_has_the_sizes_of_the_loaded_model() {
        let files = ModelFiles::embedded();
        let config = Model::check(&files).unwrap();
        let formats = [
            QuantizedFormat::Bf16,
            QuantizedFormat::Int8,
            QuantizedFormat::Int4,
        ];
        for format in formats.map(Some).into_iter().chain([None]) {
            let memory = CpuMemory::new(&config, format, 1);
            let backend = CpuBackend::load(&files, format, 1).unwrap();
            assert_eq!(memory.weights(), backend.weight_bytes());
            assert_eq!(memory.block(), backend.block_bytes());
        }
    }

    #[test]
    fn a_large_model_is_not_packed() {
        let config = ModelConfig {
            vocab_size: 1 << 21,
            ..tiny()
        };
        let memory = CpuMemory::new(&config, None, 1);
        let values = Weights::planned_bytes_in(&config, None);
        assert_eq!(memory.weights(), values);
        let spec = LoraSpec::default();
        assert_eq!(memory.adapter(&spec), memory.adapter_values(&spec));
    }

    #[test]
    fn the_plan_has_the_sizes_of_an_adapter() {
        let model = Arc::new(Model::random(tiny(), 1));
        for rank in [1, 4, 16] {
            let spec = LoraSpec {
                rank,
                ..LoraSpec::default()
            };
            let adapter = Adapter::init(model.config(), spec.clone(), 1);
            let tensors = adapter.tensors();
            let values: usize = tensors.iter().map(|(_, values)| size_of_val(*values)).sum();
            let packed = pack_adapter(&adapter).iter().flatten();
            let packed: usize = packed.map(|pair| pair.a.bytes() + pair.b.bytes()).sum();
            let memory = CpuMemory::new(model.config(), None, 1);
            assert_eq!(memory.adapter_values(&spec), values);
            assert_eq!(memory.adapter(&spec), values + packed);
        }
    }
}
