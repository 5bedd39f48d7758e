//! How much device memory a model takes, computed from its configuration before it is loaded. The sizes are those of the
//! buffers that are allocated. Allocates nothing.

use clawhost_engine::backend::BLOCK_TOKENS;
use clawhost_model::{Adapter, LoraSpec, ModelConfig, Quantization, QuantizedFormat, Weights};

use crate::adapters::padded_rank;
use crate::device::Precision;
use crate::device::cuda::PRODUCT_WORKSPACE;
use crate::gradient_workspace::GradientWorkspace;
use crate::head::logits_bytes;
use crate::layout::ModelLayout;
use crate::loading::staging_bytes;
use crate::quantized::{largest_weight, layer_bytes};
use crate::workspace::Workspace;

/// The memory plan of a model on a GPU.
#[derive(Debug, Clone, Copy)]
pub struct CudaMemory<'a> {
    config: &'a ModelConfig,
    precision: Precision,
    quantization: Quantization,
}

impl<'a> CudaMemory<'a> {
    /// Bytes that are set aside on each of several GPUs for NCCL's buffers: an estimate, not a measurement.
    pub const NCCL: usize = 512 << 20;

    /// The plan of a base model in this precision, with linear layers in this format.
    pub fn new(config: &'a ModelConfig, precision: Precision, quantization: Quantization) -> Self {
        Self {
            config,
            precision,
            quantization,
        }
    }

    /// Bytes of the base model's weights, as [`clawhost_engine::Backend::weight_bytes`] of the loaded model.
    pub fn weights(&self) -> usize {
        model_bytes(self.config, self.precision, self.quantization)
    }

    /// Bytes of a KV-cache block, as [`clawhost_engine::Backend::block_bytes`].
    pub fn block(&self) -> usize {
        let c = self.config;
        c.num_hidden_layers * 2 * c.key_width() * BLOCK_TOKENS * self.precision.bytes()
    }

    /// Values of an adapter on the device.
    fn adapter_values(&self, spec: &LoraSpec) -> usize {
        let pairs = Adapter::planned_pairs(self.config, spec);
        let values = pairs.map(|((inputs, outputs), rank)| (inputs + outputs) * padded_rank(rank));
        values.sum()
    }

    /// Bytes of a loaded adapter.
    pub fn adapter(&self, spec: &LoraSpec) -> usize {
        self.adapter_values(spec) * self.precision.bytes()
    }

    /// Bytes of a training session: weights, gradients and two moments in f32, and the copy that the products read. `None`
    /// trains all weights.
    pub fn session(&self, spec: Option<&LoraSpec>) -> usize {
        let values = match spec {
            Some(spec) => self.adapter_values(spec),
            None => ModelLayout::new(self.config).total,
        };
        values * (4 * size_of::<f32>() + self.precision.bytes())
    }

    /// Most bytes of one serving step of `rows` requests and `tokens` tokens with adapters of this rank: activations and logits.
    pub fn step(&self, rows: usize, tokens: usize, rank: usize) -> usize {
        let rank = Self::rank(rank);
        let activations = tokens * Workspace::bytes_per_token(self.config, self.precision, rank);
        activations + rows * self.config.vocab_size * size_of::<f32>() + self.restored()
    }

    /// Bytes of a forward and backward pass over `tokens` packed tokens: the input of every layer, the activations and
    /// gradients of one, and the logits of a chunk. `rank` is 0 if all weights are trained.
    pub fn training_pass(&self, tokens: usize, rank: usize) -> TrainingPassMemory {
        let (c, precision) = (self.config, self.precision);
        let rank = Self::rank(rank);
        TrainingPassMemory {
            stored: c.num_hidden_layers * c.hidden_size * size_of::<f32>() * tokens,
            working: (Workspace::bytes_per_token(c, precision, rank)
                + GradientWorkspace::bytes_per_token(c, precision, rank))
                * tokens
                + logits_bytes(c, precision)
                + self.restored(),
        }
    }

    /// Most bytes of a scoring pass over `tokens` packed tokens, for judges and teachers: activations and the logits of a
    /// chunk.
    pub fn scoring_pass(&self, tokens: usize, rank: usize) -> usize {
        let (c, precision) = (self.config, self.precision);
        Workspace::bytes_per_token(c, precision, Self::rank(rank)) * tokens
            + logits_bytes(c, precision)
            + self.restored()
    }

    /// Bytes of the workspaces of matrix products, one for each stream: of uploads, steps, scores and training.
    pub fn product_workspaces(&self) -> usize {
        4 * PRODUCT_WORKSPACE
    }

    /// Bytes of host memory that loading takes. Quantized weights are made in host memory.
    pub fn loading(&self) -> usize {
        match self.quantization {
            Quantization::None => staging_bytes(self.precision),
            quantization => Weights::planned_bytes(self.config, quantization),
        }
    }

    /// Bytes of the restored weight of a pass with quantized weights.
    fn restored(&self) -> usize {
        match self.quantization {
            Quantization::None => 0,
            _ => largest_weight(self.config) * self.precision.bytes(),
        }
    }

    /// The largest sum of the ranks of targets that read the same input: queries, keys and values.
    fn rank(rank: usize) -> usize {
        3 * padded_rank(rank)
    }
}

/// Bytes of a model's weights on the device.
pub(crate) fn model_bytes(
    c: &ModelConfig,
    precision: Precision,
    quantization: Quantization,
) -> usize {
    let layout = ModelLayout::new(c);
    let exact = (layout.total - layout.matrices) * size_of::<f32>();
    exact
        + match QuantizedFormat::of(quantization) {
            None => layout.matrices * precision.bytes(),
            Some(format) => layout.tables * precision.bytes() + layer_bytes(format, c),
        }
}

/// Device memory of a training pass, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainingPassMemory {
    /// Kept from the forward to the backward pass.
    pub stored: usize,
    /// In use while a layer or the head runs.
    pub working: usize,
}
