//! The backend: the base model in device memory, and the trained weights that are loaded beside it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use clawhost_engine::ForwardError;
use clawhost_engine::backend::{
    AdamWState, AdapterSlot, Backend, Device, LogprobRounding, Runner, Sequence, SequenceScores,
    TrainLimits, TrainSession,
};
use clawhost_model::{LoadError, Model, ModelConfig, ModelFiles, Quantization, TrainedWeights};

use crate::device::cuda::CudaDriver;
use crate::device::{Driver, Precision, Result, Stream, StreamPriority};
use crate::memory::CudaMemory;
use crate::plan;
use crate::runner::CudaRunner;
use crate::scoring::Scorer;
use crate::session::CudaTrainSession;
use crate::shared::{Loaded, Shared};
use crate::weights::{DeviceModel, model_bytes};

/// A model on one GPU. Clones share its weights.
#[derive(Debug, Clone)]
pub struct CudaBackend {
    pub(crate) shared: Arc<Shared>,
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
                kept: Mutex::default(),
                staging: Mutex::default(),
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

    /// Products of few rows and of many have different kernels, which add in different orders.
    fn is_batch_invariant(&self) -> bool {
        false
    }

    fn runner(&self, blocks: usize) -> Result<Box<dyn Runner>> {
        let shared = &self.shared;
        let runner = shared.with_memory(|| CudaRunner::new(Arc::clone(shared), blocks))?;
        Ok(Box::new(runner))
    }

    fn load_adapter(&self, weights: &TrainedWeights) -> Result<AdapterSlot> {
        let shared = &self.shared;
        let base = &shared.model;
        let load = || match weights {
            _ if !weights.fits(base) => Ok(Loaded::Misfit),
            TrainedWeights::Lora(adapter) => {
                let adapter = shared.device_adapter(adapter)?;
                Ok(Loaded::Adapter(adapter))
            }
            TrainedWeights::Full(model) => {
                let model = DeviceModel::new(&shared.uploads, model, shared.precision)?;
                Ok(Loaded::Model(Arc::new(model)))
            }
        };
        let loaded = shared.with_memory(load)?;
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
        let mut scorer = Scorer::lease(&self.shared, false)?;
        scorer.score(&model, adapter.as_deref(), sequences)
    }

    fn train(
        &self,
        weights: &TrainedWeights,
        state: Option<AdamWState>,
        // The backward pass computes all activations again.
        _limits: TrainLimits,
    ) -> Result<Box<dyn TrainSession>> {
        let shared = &self.shared;
        let new = || CudaTrainSession::new(shared, weights, state.as_ref());
        Ok(Box::new(shared.with_memory(new)?))
    }
}
