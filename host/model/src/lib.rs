//! Models as data: what is on disk and in host memory, without the kernels that run it.
//!
//! - [`ModelConfig`]: the architecture of a decoder (Qwen3, Qwen2.5, Llama 3, Mistral), parsed from `config.json`.
//! - [`ModelFiles`]: the files of a checkpoint, in a directory, in a GGUF file or embedded in the program.
//! - [`Checkpoint`]: its tensors, checked against the configuration, and read in pieces.
//! - [`Model`]: a configuration and its weights, in f32 or with linear layers in 8 or 4 bits; loads safetensors and
//!   GGUF, saves safetensors.
//! - [`Adapter`], [`LoraSpec`]: LoRA adapters; loads and saves PEFT directories.
//! - [`TrainedWeights`]: what training changes: an adapter, or a full copy of the model.
//!
//! This crate computes nothing with a model: an inference backend does (`clawhost-cpu`).
//!
//! ```
//! use clawhost_model::{Adapter, LoraSpec, Model, ModelFiles};
//!
//! let model = Model::load(&ModelFiles::embedded())?;
//! let adapter = Adapter::init(model.config(), LoraSpec::default(), 1);
//! assert!(adapter.fits(model.config()));
//! # Ok::<(), clawhost_model::LoadError>(())
//! ```

mod checkpoint;
mod config;
mod derived;
mod digest;
mod error;
mod files;
mod gguf;
mod half;
mod hashing;
mod load;
mod lora;
mod model;
mod quantized;
mod stored;
mod tensors;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod trained_weights;
mod weights;

pub use checkpoint::{Checkpoint, Piece};
pub use clawhost_config::{LoraSpec, Quantization, Target};
pub use config::{ModelConfig, RopeScaling, TargetLayer, frequencies};
pub use derived::Derived;
pub use error::LoadError;
pub use files::ModelFiles;
pub use lora::{Adapter, LoraPair};
pub use model::Model;
pub use quantized::{BF16_GROUP, QuantizedFormat, QuantizedLayer, QuantizedWeight};
pub use stored::ReadBuffer;
pub use trained_weights::TrainedWeights;
pub use weights::{Layer, ParameterIndex, TensorRole, Weights};
