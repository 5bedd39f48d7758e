//! The base model on a device, and what everything that works with it needs: driver, precision, transfers.

use std::sync::{Arc, Mutex};

use clawhost_engine::backend::BLOCK_TOKENS;
use clawhost_model::Model;

use crate::device::{Driver, Precision, Result, Staging, lock};
use crate::memory::CudaMemory;
use crate::weights::DeviceModel;

/// Bytes of a part of a transfer.
const STAGING_PART: usize = 32 << 20;

/// A base model in device memory.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) model: Arc<Model>,
    pub(crate) device_model: Arc<DeviceModel>,
    pub(crate) precision: Precision,
    /// Made by the first transfer.
    staging: Mutex<Option<Staging>>,
}

impl Base {
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        model: Arc<Model>,
        device_model: DeviceModel,
    ) -> Self {
        Self {
            driver,
            model,
            precision: device_model.precision(),
            device_model: Arc::new(device_model),
            staging: Mutex::new(None),
        }
    }

    /// Runs a transfer through page-locked memory.
    pub(crate) fn transfer<T>(&self, work: impl FnOnce(&mut Staging) -> Result<T>) -> Result<T> {
        let mut staging = lock(&self.staging);
        if staging.is_none() {
            *staging = Some(Staging::new(&self.driver, STAGING_PART)?);
        }
        work(staging.as_mut().expect("it has just been made"))
    }

    /// The memory plan of the base model.
    pub(crate) fn memory(&self) -> CudaMemory<'_> {
        let model = &self.model;
        CudaMemory::new(model.config(), self.precision, model.quantization())
    }

    /// Values of a KV-cache block.
    pub(crate) fn block_values(&self) -> usize {
        let c = self.model.config();
        c.num_hidden_layers * 2 * c.key_width() * BLOCK_TOKENS
    }
}
