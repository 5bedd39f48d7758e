//! The backend: the base model in device memory, and the trained weights that are loaded beside it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use clawhost_engine::ForwardError;
use clawhost_engine::backend::{
    AdamWState, AdapterSlot, BLOCK_TOKENS, Backend, Device, LogprobRounding, Runner, Sequence,
    SequenceScores, TrainLimits, TrainSession,
};
use clawhost_model::{LoadError, Model, ModelConfig, ModelFiles, Quantization, TrainedWeights};

use crate::adapters::DeviceAdapter;
use crate::attention::HeadShape;
use crate::device::cuda::CudaDriver;
use crate::device::{Driver, Precision, Result, Stream, StreamPriority};
use crate::memory::CudaMemory;
use crate::plan;
use crate::runner::CudaRunner;
use crate::scoring::{Scorer, ScorerBuffers};
use crate::session::CudaTrainSession;
use crate::weights::{DeviceModel, model_bytes};

/// A model on one GPU. Clones share its weights.
#[derive(Debug, Clone)]
pub struct CudaBackend {
    shared: Arc<Shared>,
}

/// The weights, shared by a backend, its runners and training sessions.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) model: Arc<Model>,
    pub(crate) device_model: Arc<DeviceModel>,
    pub(crate) precision: Precision,
    loaded: RwLock<HashMap<AdapterSlot, Loaded>>,
    last_slot: AtomicU32,
    /// The buffers of scorers that are not in use.
    scorers: Mutex<Vec<ScorerBuffers>>,
    /// The stream of uploads.
    uploads: Stream,
}

/// What is in a slot.
#[derive(Debug, Clone)]
pub(crate) enum Loaded {
    Adapter(Arc<DeviceAdapter>),
    /// A full copy of the model.
    Model(Arc<DeviceModel>),
    /// Weights of another shape, which every use rejects.
    Misfit,
}

/// The heads of the base model.
pub(crate) fn head_shape(shared: &Shared) -> HeadShape {
    let c = shared.model.config();
    HeadShape {
        precision: shared.precision,
        heads: c.num_attention_heads,
        kv_heads: c.num_key_value_heads,
        dim: c.head_dim,
    }
}

impl Shared {
    /// The weights in a slot; `None` is the base model.
    ///
    /// # Panics
    /// When nothing is loaded there.
    pub(crate) fn loaded(&self, slot: AdapterSlot) -> Option<Loaded> {
        let loaded = || self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        (slot != AdapterSlot::BASE).then(|| loaded()[&slot].clone())
    }

    /// Model and adapter in a slot.
    ///
    /// # Errors
    /// Weights of another shape.
    pub(crate) fn weights(
        &self,
        slot: AdapterSlot,
    ) -> Result<(Arc<DeviceModel>, Option<Arc<DeviceAdapter>>)> {
        let base = || Arc::clone(&self.device_model);
        match self.loaded(slot) {
            None => Ok((base(), None)),
            Some(Loaded::Adapter(adapter)) => Ok((base(), Some(adapter))),
            Some(Loaded::Model(model)) => Ok((model, None)),
            Some(Loaded::Misfit) => Err(ForwardError::Adapter),
        }
    }

    /// Checks the tokens of a row or sequence.
    ///
    /// # Errors
    /// No token, or one outside the vocabulary.
    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let vocab = self.model.config().vocab_size;
        if tokens.is_empty() {
            return Err(ForwardError::Empty);
        }
        match tokens.iter().find(|id| **id as usize >= vocab) {
            Some(id) => Err(ForwardError::Token { id: *id, vocab }),
            None => Ok(()),
        }
    }

    /// Values of a KV-cache block.
    pub(crate) fn block_values(&self) -> usize {
        let c = self.model.config();
        c.num_hidden_layers * 2 * c.key_width() * BLOCK_TOKENS
    }

    /// Runs `work` with a scorer that is not in use.
    pub(crate) fn with_scorer<T>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Scorer) -> Result<T>,
    ) -> Result<T> {
        let scorers = || self.scorers.lock().unwrap_or_else(PoisonError::into_inner);
        let free = scorers().pop();
        let mut scorer = match free {
            Some(buffers) => Scorer::from_buffers(self, buffers),
            None => Scorer::new(self)?,
        };
        let result = work(&mut scorer)?;
        scorers().push(scorer.into_buffers());
        Ok(result)
    }
}

impl CudaBackend {
    /// Loads a model onto a GPU, counted from 0. Adapters, KV memory and training sessions take their memory when they are
    /// made.
    ///
    /// # Errors
    /// There is no such GPU or no driver; the kernels do not run this model; or the weights do not fit the free memory:
    /// the error has the numbers.
    pub fn new(ordinal: usize, model: Arc<Model>, precision: Precision) -> Result<Self> {
        Self::on(CudaDriver::open(ordinal)?, model, precision)
    }

    /// Loads a checkpoint onto a GPU.
    ///
    /// # Errors
    /// A tensor that is missing, has the wrong shape or is not finite, by name; weights that are to be quantized, which
    /// the kernels do not read; or as [`Self::new`].
    pub fn load(
        ordinal: usize,
        files: &ModelFiles,
        quantization: Quantization,
        precision: Precision,
    ) -> std::result::Result<Self, LoadError> {
        let device = |error: ForwardError| LoadError::Device {
            reason: error.to_string(),
        };
        if quantization != Quantization::None {
            return Err(device(ForwardError::Device(format!(
                "cuda:{ordinal}: engine.quantization = \"{}\" is for the CPU; set it to \"none\", or engine.device to \"cpu\"",
                quantization.name()
            ))));
        }
        let driver = CudaDriver::open(ordinal).map_err(device)?;
        // Before the weights are read.
        let config = ModelConfig::parse(files.config())?;
        plan::check_model(&config)
            .and_then(|()| plan::check_memory(&*driver, &config, precision))
            .map_err(device)?;
        let model = Arc::new(Model::load(files)?);
        Self::on(driver, model, precision).map_err(device)
    }

    pub(crate) fn on(
        driver: Arc<dyn Driver>,
        model: Arc<Model>,
        precision: Precision,
    ) -> Result<Self> {
        if model.is_quantized() {
            return Err(ForwardError::Device(
                "the CUDA backend does not run quantized weights; load the model without quantization".to_owned(),
            ));
        }
        plan::check_model(model.config())?;
        plan::check_memory(&*driver, model.config(), precision)?;
        let uploads = Stream::new(&driver, StreamPriority::Serving)?;
        let device_model = Arc::new(DeviceModel::new(&uploads, &model, precision)?);
        tracing::info!(
            device = driver.device().name,
            bytes = model_bytes(model.config(), precision),
            ?precision,
            "loaded the model"
        );
        Ok(Self {
            shared: Arc::new(Shared {
                driver,
                model,
                device_model,
                precision,
                loaded: RwLock::default(),
                last_slot: AtomicU32::new(AdapterSlot::BASE.0),
                scorers: Mutex::default(),
                uploads,
            }),
        })
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn model(&self) -> &Arc<Model> {
        &self.shared.model
    }

    fn device(&self) -> Device {
        self.shared.driver.device()
    }

    fn weight_bytes(&self) -> usize {
        model_bytes(self.shared.model.config(), self.shared.precision)
    }

    fn block_bytes(&self) -> usize {
        CudaMemory::new(self.shared.model.config(), self.shared.precision).block()
    }

    fn logprob_rounding(&self) -> LogprobRounding {
        match self.shared.precision {
            Precision::F32 => LogprobRounding::F32,
            Precision::Bf16 => LogprobRounding::BF16,
        }
    }

    fn runner(&self, blocks: usize) -> Result<Box<dyn Runner>> {
        Ok(Box::new(CudaRunner::new(Arc::clone(&self.shared), blocks)?))
    }

    fn load_adapter(&self, weights: &TrainedWeights) -> Result<AdapterSlot> {
        let shared = &self.shared;
        let base = &shared.model;
        let loaded = match weights {
            _ if !weights.fits(base) => Loaded::Misfit,
            TrainedWeights::Lora(adapter) => Loaded::Adapter(Arc::new(DeviceAdapter::new(
                &shared.uploads,
                base.config(),
                adapter,
                shared.precision,
            )?)),
            TrainedWeights::Full(model) => Loaded::Model(Arc::new(DeviceModel::new(
                &shared.uploads,
                model,
                shared.precision,
            )?)),
        };
        let slot = AdapterSlot(shared.last_slot.fetch_add(1, Ordering::Relaxed) + 1);
        let slots = shared.loaded.write();
        let mut slots = slots.unwrap_or_else(PoisonError::into_inner);
        slots.insert(slot, loaded);
        Ok(slot)
    }

    fn drop_adapter(&self, slot: AdapterSlot) {
        let slots = self.shared.loaded.write();
        let mut slots = slots.unwrap_or_else(PoisonError::into_inner);
        let weights = slots.remove(&slot);
        drop(slots);
        assert!(weights.is_some(), "nothing is loaded in slot {}", slot.0);
    }

    fn score(&self, slot: AdapterSlot, sequences: &[Sequence<'_>]) -> Result<Vec<SequenceScores>> {
        let (model, adapter) = self.shared.weights(slot)?;
        self.shared
            .with_scorer(|scorer| scorer.score(&model, adapter.as_deref(), sequences))
    }

    fn train(
        &self,
        weights: &TrainedWeights,
        state: Option<AdamWState>,
        // The backward pass computes all activations again.
        _limits: TrainLimits,
    ) -> Result<Box<dyn TrainSession>> {
        let session = CudaTrainSession::new(&self.shared, weights, state)?;
        Ok(Box::new(session))
    }
}
