//! What an inference backend does for the engine and the trainer.
//!
//! The seam is a batch, not an operation, so that a backend is free to fuse everything inside it. The scheduler deals
//! in block ids; the backend owns the memory behind them, samples the tokens, and keeps gradients and optimizer state.
//!
//! [`Backend`] is the shared half: one copy of the base weights serves every engine, scorer and training session of a
//! process. [`Runner`] is the half that one engine thread owns: KV memory and the sampler state of its requests.
//! [`TrainSession`] is the half that one trainer owns: trainable weights, gradients and optimizer state.
//!
//! A server that takes whole requests cannot honour a step at a time; see [`crate::RemoteBackend`] for that seam.

mod device;
mod error;
mod sampled;
mod sequence;
mod training;

pub use device::{Device, DeviceMemory};
pub use error::{ForwardError, SampleError};
pub use sampled::SamplerOutput;
pub use sequence::{Candidates, LossGradients, Sequence, SequenceScores};
pub use training::{
    AdamW, AdamWState, GradientReducer, HostReducer, Moments, OptimizerStep, TrainLimits,
    TrainSession,
};

use std::fmt::Debug;
use std::sync::Arc;

use clawhost_model::{Model, TrainedWeights};

use crate::sampling::{SamplingParams, TokenBitmask};

/// Tokens per KV-cache block.
pub const BLOCK_TOKENS: usize = 32;

/// A KV-cache block of a runner, below the number of blocks that the runner was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// Weights that a backend has loaded: the base model, an adapter or a full copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterSlot(pub u32);

impl AdapterSlot {
    /// The base model; always loaded.
    pub const BASE: Self = Self(0);
}

/// A request of a runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Differences of log-probs, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogprobRounding {
    /// Of all tokens, on average.
    pub mean: f64,
    /// Of one token.
    pub max: f64,
}

impl LogprobRounding {
    /// Arithmetic in f32.
    pub const F32: Self = Self {
        mean: 1e-4,
        max: 1e-3,
    };
    /// Weights and activations in bf16, the residual stream in f32. For SmolLM2-135M at temperature 0.7, in 201 proofs of
    /// some hundred tokens each, means up to 0.033 and single tokens up to 0.37 were seen; for the embedded model 1.2e-3
    /// and 0.024.
    pub const BF16: Self = Self {
        mean: 0.06,
        max: 1.0,
    };
}

/// A model on a device. Weights are loaded by the backend's constructor.
pub trait Backend: Debug + Send + Sync + 'static {
    /// The name of the backend, such as `cpu`.
    fn name(&self) -> &'static str;

    /// The base model. Of a backend with memory of its own, the weights may be in their files only:
    /// [`Model::in_memory`] reads them.
    fn model(&self) -> &Arc<Model>;

    /// The device, and its memory as of now.
    fn device(&self) -> Device;

    /// Bytes that the base model's weights take on the device.
    fn weight_bytes(&self) -> usize;

    /// Bytes of one KV-cache block of [`BLOCK_TOKENS`] tokens.
    fn block_bytes(&self) -> usize;

    /// Maximum context in tokens that the backend can run. Default: the model's `max_position_embeddings`.
    fn max_model_len(&self) -> usize {
        self.model().config().max_position_embeddings
    }

    /// How far the log-probs of recorded tokens may be from those of the steps that sampled them: what the rounding of this
    /// backend causes when the shape of a batch differs. Default: [`LogprobRounding::F32`].
    fn logprob_rounding(&self) -> LogprobRounding {
        LogprobRounding::F32
    }

    /// Whether the results of a sequence are the same whatever else is in its batch, to the bit. Default: true.
    fn is_batch_invariant(&self) -> bool {
        true
    }

    /// Number of devices that each hold the base weights and run steps and passes independently of each other. An engine
    /// makes as many runners, and schedules the requests of each by itself. Default: 1.
    fn replicas(&self) -> usize {
        1
    }

    /// Makes KV memory of this many blocks for one scheduler, on the device that has the fewest runners. Memory may be
    /// allocated when a block is first used.
    ///
    /// # Errors
    /// The device has no memory for the blocks.
    fn runner(&self, blocks: usize) -> Result<Box<dyn Runner>, ForwardError>;

    /// Loads weights ahead of the first step that uses them. Weights of another shape than the base model are
    /// rejected by the step or score that uses them.
    ///
    /// # Errors
    /// The device has no memory for the weights.
    fn load_adapter(&self, weights: &TrainedWeights) -> Result<AdapterSlot, ForwardError>;

    /// Unloads weights; no step uses them any more.
    fn drop_adapter(&self, slot: AdapterSlot);

    /// Computes log-probs and entropies of recorded tokens. Runs concurrently with the steps of runners.
    ///
    /// # Errors
    /// A token outside the vocabulary, an invalid start or temperature, weights of another shape, or a failure of the
    /// device.
    fn score(
        &self,
        slot: AdapterSlot,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<SequenceScores>, ForwardError>;

    /// Starts training from a copy of these weights. `state` continues an earlier session; `None` starts with zero
    /// moments. It is fastest with the very weights and state that the last session of this backend ended with, which may
    /// still be on the device: with their clones, not with equal ones that were read from a file. `limits` bounds what its passes store. Runs concurrently with the steps of runners.
    ///
    /// # Errors
    /// Weights of another shape than the base model, an optimizer state of another shape than the weights, or no memory
    /// on the device.
    fn train(
        &self,
        weights: &TrainedWeights,
        state: Option<AdamWState>,
        limits: TrainLimits,
    ) -> Result<Box<dyn TrainSession>, ForwardError>;
}

impl dyn Backend {
    /// Runs `work` with weights that are loaded for this call only; `None` is the base model.
    ///
    /// # Errors
    /// As [`Backend::load_adapter`], or the error of `work`.
    pub fn with_weights<T, E: From<ForwardError>>(
        &self,
        weights: Option<&TrainedWeights>,
        work: impl FnOnce(AdapterSlot) -> Result<T, E>,
    ) -> Result<T, E> {
        let Some(weights) = weights else {
            return work(AdapterSlot::BASE);
        };
        let loaded = TemporaryWeights {
            backend: self,
            slot: self.load_adapter(weights)?,
        };
        work(loaded.slot)
    }

    /// [`Backend::score`] of weights that are loaded for this call only; `None` is the base model.
    ///
    /// # Errors
    /// As [`Backend::score`].
    pub fn score_weights(
        &self,
        weights: Option<&TrainedWeights>,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<SequenceScores>, ForwardError> {
        self.with_weights(weights, |slot| self.score(slot, sequences))
    }
}

/// Weights that are unloaded when this is dropped, also by a panic.
struct TemporaryWeights<'a> {
    backend: &'a dyn Backend,
    slot: AdapterSlot,
}

impl Drop for TemporaryWeights<'_> {
    fn drop(&mut self) {
        self.backend.drop_adapter(self.slot);
    }
}

/// How one request is sampled; constant for its lifetime.
#[derive(Debug, Clone)]
pub struct SamplerSpec {
    /// The sampling parameters.
    pub params: SamplingParams,
    /// Key of the random stream. Token `i` of the reply depends on the seed, `i` and its logits alone.
    pub seed: u64,
    /// Tokens of the prompt, for the repetition penalty; empty without one.
    pub prompt: Arc<[u32]>,
    /// Tokens with which the model ends a reply, suppressed before `min_tokens`.
    pub eos_token_ids: Arc<[u32]>,
    /// Bad words: token sequences whose last token is not sampled after the others.
    pub banned: Vec<Vec<u32>>,
    /// Returns these tokens one after the other instead of sampling (replay); their `logprob` is 0.
    pub recorded: Option<Arc<[u32]>>,
}

/// The rows of one step.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Blocks to copy before the rows run, in this order.
    pub copies: &'a [(BlockId, BlockId)],
    /// The rows, in any order.
    pub rows: &'a [Row<'a>],
}

/// New tokens of one request.
#[derive(Debug, Clone)]
pub struct Row<'a> {
    /// The request.
    pub request: RequestId,
    /// Tokens to run; at least one.
    pub tokens: &'a [u32],
    /// Tokens that are in the KV cache already.
    pub computed: usize,
    /// The block table, for `computed` and `tokens` at least. No other row reads or writes the blocks that `tokens` are
    /// written to.
    pub blocks: &'a [BlockId],
    /// The weights to run.
    pub slot: AdapterSlot,
    /// Whether to sample a token after the last one.
    pub sample: bool,
    /// The only tokens that may be sampled; `None`: all.
    pub bitmask: Option<&'a TokenBitmask>,
}

/// A row's token; `None` if the row does not sample.
pub type RowOutput = Option<Result<SamplerOutput, SampleError>>;

/// KV memory and sampler state of one scheduler. Its methods are called by one thread.
pub trait Runner: Send {
    /// Adds a request before its first row.
    fn add_request(&mut self, request: RequestId, sampler: SamplerSpec);

    /// Removes a request after its last row.
    fn remove_request(&mut self, request: RequestId);

    /// Copies the blocks, runs the rows and samples. Returns one output per row, in the order of the rows. After an
    /// error or a panic the samplers are unchanged, and the content of the blocks that the rows write is undefined.
    ///
    /// # Errors
    /// A row that cannot run: none has an output.
    fn step(&mut self, batch: Batch<'_>) -> Result<Vec<RowOutput>, ForwardError>;
}
