//! The backend: the base model in host memory, and the trained weights that are loaded beside it.

use std::sync::Arc;

use clawhost_chat::{ChatTemplate, Tokenizer};
use clawhost_engine::backend::{AdapterSlot, Backend, Device, Runner};
use clawhost_engine::{
    AdamWState, Engine, EngineOptions, ForwardError, Sequence, SequenceScores, TrainLimits,
    TrainSession,
};
use clawhost_model::{LoadError, Model, ModelConfig, ModelFiles, QuantizedFormat, TrainedWeights};

use crate::cpu_model::{CpuModel, CpuWeights};
use crate::device::{self, Processors};
use crate::kv::block_bytes;
use crate::model::{Decoder, ModelPackedWeights};
use crate::runner::CpuRunner;
use crate::shared::Shared;
use crate::train::CpuTrainSession;

/// A model on the processors of this machine. Clones share its weights.
#[derive(Debug, Clone)]
pub struct CpuBackend {
    shared: Arc<Shared>,
}

impl CpuBackend {
    /// A backend that runs this model; [`Model::with_threads`] limits its threads.
    pub fn new(model: Arc<Model>) -> Self {
        // Ahead of the first step.
        Decoder::new(&model).pack_weights(None);
        Self {
            shared: Arc::new(Shared::new(model)),
        }
    }

    /// Whether a checkpoint in bf16 is best kept so: on `processors` it is as fast as in f32, and with one stream faster. A
    /// model that is small enough to be packed is faster in f32.
    pub fn keeps_bf16(config: &ModelConfig, processors: &Processors) -> bool {
        processors.have_bf16() && ModelPackedWeights::planned_bytes(config, None) == 0
    }

    /// Loads the weights of a checkpoint, those of the linear layers in `format`; `None` is f32. `threads` limits the threads
    /// of one matrix product; 0 = all processors.
    ///
    /// # Errors
    /// A tensor that is missing, has the wrong shape or is not finite, by name.
    pub fn load(
        files: &ModelFiles,
        format: Option<QuantizedFormat>,
        threads: usize,
    ) -> Result<Self, LoadError> {
        let model = Model::load_in(files, format)?;
        Ok(Self::new(Arc::new(match threads {
            0 => model,
            threads => model.with_threads(threads),
        })))
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn model(&self) -> &Arc<Model> {
        &self.shared.model
    }

    fn block_bytes(&self) -> usize {
        block_bytes(self.shared.model.config())
    }

    fn device(&self) -> Device {
        device::device()
    }

    fn weight_bytes(&self) -> usize {
        let model = &self.shared.model;
        model.weights().bytes(model.config()) + Decoder::new(model).packed_bytes()
    }

    fn runner(&self, blocks: usize) -> Result<Box<dyn Runner>, ForwardError> {
        Ok(Box::new(CpuRunner::new(Arc::clone(&self.shared), blocks)))
    }

    fn load_adapter(&self, weights: &TrainedWeights) -> Result<AdapterSlot, ForwardError> {
        let model = weights.model(&self.shared.model);
        Decoder::new(model).pack_weights(weights.adapter().map(Arc::as_ref));
        Ok(self.shared.insert(weights.clone()))
    }

    fn drop_adapter(&self, slot: AdapterSlot) {
        self.shared.remove(slot);
    }

    fn score(
        &self,
        slot: AdapterSlot,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<SequenceScores>, ForwardError> {
        let model = &self.shared.model;
        match self.shared.weights(slot) {
            None => model.score(None, sequences),
            Some(weights) => weights.score(model, sequences),
        }
    }

    fn train(
        &self,
        weights: &TrainedWeights,
        state: Option<AdamWState>,
        limits: TrainLimits,
    ) -> Result<Box<dyn TrainSession>, ForwardError> {
        let base = Arc::clone(&self.shared.model);
        let session = CpuTrainSession::new(base, weights.clone(), state, limits)?;
        Ok(Box::new(session))
    }
}

/// Starts an engine on this model.
///
/// # Errors
/// As [`Engine::new`].
pub fn start_engine(
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    options: EngineOptions,
) -> Result<Engine, ForwardError> {
    Engine::new(
        Arc::new(CpuBackend::new(model)),
        tokenizer,
        template,
        options,
    )
}

/// Loads a checkpoint and starts an engine on it.
///
/// # Errors
/// The missing or malformed file.
pub fn load_engine(files: &ModelFiles, options: EngineOptions) -> Result<Engine, LoadError> {
    let format = QuantizedFormat::of(options.quantization);
    let backend = CpuBackend::load(files, format, options.num_threads)?;
    Engine::load(Arc::new(backend), files, options)
}
