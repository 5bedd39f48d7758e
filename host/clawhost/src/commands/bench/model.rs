//! The model that a benchmark measures, and where it runs.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use clawhost_config::{DeviceChoice, Dtype, TrainableParameters};
use clawhost_engine::{Backend, EngineOptions};
use clawhost_model::{ModelFiles, Quantization};

use super::shapes::Shape;
use crate::device;
use crate::serve::model_files;

/// Flags of a benchmark that runs a model.
#[derive(Debug, Clone, Args)]
pub(super) struct ModelFlags {
    /// Model directory or GGUF file instead of the embedded model
    #[arg(long, value_name = "PATH")]
    pub(super) model: Option<PathBuf>,
    /// Random weights in the shape of a known model instead of a checkpoint
    #[arg(long, value_name = "SHAPE", value_enum, conflicts_with = "model")]
    pub(super) random: Option<Shape>,
    /// Device that runs the model: auto, cpu, cuda:N, or several GPUs as in cuda:0,1
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Auto)]
    pub(super) device: DeviceChoice,
    /// Number format of the weights of the linear layers of --model: none, int8 or int4
    #[arg(long, value_name = "FORMAT", default_value_t = Quantization::None, conflicts_with = "random")]
    pub(super) quantization: Quantization,
    /// Number format, as engine.dtype: auto, float32 or bfloat16
    #[arg(long, value_name = "FORMAT", default_value_t = Dtype::Auto, conflicts_with = "random")]
    pub(super) dtype: Dtype,
}

impl ModelFlags {
    /// The files of the model; those of the embedded one for random weights, for which any tokenizer will do.
    pub(super) fn files(&self) -> Result<ModelFiles> {
        model_files(self.model.as_deref())
    }

    /// The model on its device, to train these parameters; `threads` limits those of a matrix product, 0 = one per processor.
    pub(super) fn backend(
        &self,
        threads: usize,
        parameters: TrainableParameters,
    ) -> Result<Arc<dyn Backend>> {
        let device = device::choose(self.device, self.dtype)?;
        let Some(shape) = self.random else {
            let options = EngineOptions {
                num_threads: threads,
                quantization: self.quantization,
                ..EngineOptions::default()
            };
            let files = self.files()?;
            let configured = (self.dtype, self.quantization, parameters);
            let device = device.for_checkpoint(&files, configured);
            return Ok(device.load(&files, &options)?);
        };
        let model = shape.model()?;
        device.run(match threads {
            0 => model,
            threads => model.with_threads(threads),
        })
    }
}
