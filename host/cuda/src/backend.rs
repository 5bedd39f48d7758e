//! The backend: the base model in device memory, and the trained weights that are loaded beside it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use clawhost_engine::backend::{
    AdamWState, AdapterSlot, Backend, Device, LogprobRounding, Runner, Sequence, SequenceScores,
    TrainLimits, TrainSession,
};
use clawhost_model::{Checkpoint, LoadError, Model, ModelFiles, Quantization, TrainedWeights};

use crate::base::Base;
use crate::device::cuda::CudaDriver;
use crate::device::{Driver, Precision, Result, Stream, StreamPriority};
use crate::memory::model_bytes;
use crate::plan;
use crate::runner::CudaRunner;
use crate::session::CudaTrainSession;
use crate::shared::{Loaded, Shared};
use crate::weights::{DeviceModel, device_error};

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
    /// A tensor that is missing, has the wrong shape or is not finite, by name; or as [`Self::new`].
    pub fn load(
        ordinal: usize,
        files: &ModelFiles,
        quantization: Quantization,
        precision: Precision,
    ) -> std::result::Result<Self, LoadError> {
        let mut loaded = Self::load_each(&[ordinal], files, quantization, precision)?;
        Ok(loaded.pop().expect("a backend for each GPU"))
    }

    /// Loads a checkpoint onto each of these GPUs, one after the other. They share what the host has of the model.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_each(
        ordinals: &[usize],
        files: &ModelFiles,
        quantization: Quantization,
        precision: Precision,
    ) -> std::result::Result<Vec<Self>, LoadError> {
        let drivers = ordinals.iter().map(|ordinal| CudaDriver::open(*ordinal));
        let drivers: Result<Vec<_>> = drivers.collect();
        Self::load_on(
            drivers.map_err(device_error)?,
            files,
            quantization,
            precision,
        )
    }

    pub(crate) fn load_on(
        drivers: Vec<Arc<dyn Driver>>,
        files: &ModelFiles,
        quantization: Quantization,
        precision: Precision,
    ) -> std::result::Result<Vec<Self>, LoadError> {
        let checkpoint = Arc::new(Checkpoint::open(files)?);
        let config = checkpoint.config().clone();
        // Before the weights are read.
        plan::check_model(&config).map_err(device_error)?;
        for driver in &drivers {
            plan::check_memory(&**driver, &config, (precision, quantization))
                .map_err(device_error)?;
        }
        let on_disk = |hash: Box<dyn FnOnce() -> _ + Send>| {
            Arc::new(Model::on_disk(
                config.clone(),
                files.clone(),
                quantization,
                hash,
            ))
        };
        // Quantized weights are in host memory until they have been uploaded and hashed.
        let quantized = match quantization {
            Quantization::None => None,
            _ => Some(Arc::new(Model::load_quantized(files, quantization)?)),
        };
        let model = match &quantized {
            None => {
                let hashed = Arc::clone(&checkpoint);
                on_disk(Box::new(move || hashed.digest()))
            }
            Some(quantized) => {
                let hashed = Arc::clone(quantized);
                on_disk(Box::new(move || Ok(hashed.digest().to_owned())))
            }
        };
        std::thread::scope(|scope| {
            let head = quantized
                .is_none()
                .then(|| scope.spawn(|| checkpoint.check_tied_head()));
            let load = |driver: Arc<dyn Driver>| {
                let started = Instant::now();
                let uploads =
                    Stream::new(&driver, StreamPriority::Serving).map_err(device_error)?;
                let device_model = match &quantized {
                    None => DeviceModel::from_checkpoint(&uploads, &checkpoint, precision)?,
                    Some(model) => {
                        DeviceModel::new(&uploads, model, precision).map_err(device_error)?
                    }
                };
                tracing::info!(
                    device = driver.device().name,
                    bytes = model_bytes(&config, precision, quantization),
                    ?precision,
                    quantization = quantization.name(),
                    ms = started.elapsed().as_millis(),
                    "loaded the model"
                );
                let model = Arc::clone(&model);
                Ok(Self::from_parts(driver, uploads, model, device_model))
            };
            let loaded: std::result::Result<Vec<Self>, LoadError> =
                drivers.into_iter().map(load).collect();
            let loaded = loaded?;
            if let Some(head) = head {
                head.join().expect("comparing does not panic")?;
            }
            Ok(loaded)
        })
    }

    pub(crate) fn on(
        driver: Arc<dyn Driver>,
        model: Arc<Model>,
        precision: Precision,
    ) -> Result<Self> {
        plan::check_model(model.config())?;
        plan::check_memory(&*driver, model.config(), (precision, model.quantization()))?;
        let uploads = Stream::new(&driver, StreamPriority::Serving)?;
        let device_model = DeviceModel::new(&uploads, &model, precision)?;
        Ok(Self::from_parts(driver, uploads, model, device_model))
    }

    fn from_parts(
        driver: Arc<dyn Driver>,
        uploads: Stream,
        model: Arc<Model>,
        device_model: DeviceModel,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                base: Base::new(driver, model, device_model),
                loaded: RwLock::default(),
                last_slot: AtomicU32::new(AdapterSlot::BASE.0),
                scorers: Mutex::default(),
                kept: Mutex::default(),
                uploads,
            }),
        }
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn model(&self) -> &Arc<Model> {
        &self.shared.base.model
    }

    fn device(&self) -> Device {
        self.shared.base.driver.device()
    }

    fn weight_bytes(&self) -> usize {
        self.shared.base.memory().weights()
    }

    fn block_bytes(&self) -> usize {
        self.shared.base.memory().block()
    }

    fn logprob_rounding(&self) -> LogprobRounding {
        match self.shared.base.precision {
            Precision::F32 => LogprobRounding::F32,
            Precision::Bf16 => LogprobRounding::BF16,
        }
    }

    /// Steps of serving have a stream of a higher priority, and training waits between layers: at this share the 99th
    /// percentile of the gaps between tokens stays below twice that without training (`benches/README.md`).
    fn training_share(&self) -> f64 {
        0.5
    }

    fn runner(&self, blocks: usize) -> Result<Box<dyn Runner>> {
        let shared = &self.shared;
        let runner = shared.with_memory(|| CudaRunner::new(Arc::clone(shared), blocks))?;
        Ok(Box::new(runner))
    }

    fn load_adapter(&self, weights: &TrainedWeights) -> Result<AdapterSlot> {
        let shared = &self.shared;
        let base = &shared.base.model;
        let load = || match weights {
            _ if !weights.fits(base) => Ok(Loaded::Misfit),
            TrainedWeights::Lora(adapter) => {
                let adapter = shared.device_adapter(adapter)?;
                Ok(Loaded::Adapter(adapter))
            }
            TrainedWeights::Full(model) => {
                let model = DeviceModel::new(&shared.uploads, model, shared.base.precision)?;
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
        let mut scorer = self.shared.lease_scorer(false)?;
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
