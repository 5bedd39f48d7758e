//! Trained weights of a version: a LoRA adapter over the base model, or a full copy of its weights.
//!
//! The code that trains, saves, validates and serves a version uses this type; only the forward pass distinguishes the
//! two. A full copy takes as much memory as the base, an adapter a few megabytes. Both are copy-on-write.

use std::path::Path;
use std::sync::Arc;

use crate::error::LoadError;
use crate::files::ModelFiles;
use crate::lora::Adapter;
use crate::model::Model;

/// Trained weights of a version.
#[derive(Debug, Clone)]
pub enum TrainedWeights {
    /// A LoRA adapter over the base model.
    Lora(Arc<Adapter>),
    /// A full copy that replaces the base model's weights.
    Full(Arc<Model>),
}

impl From<Arc<Adapter>> for TrainedWeights {
    fn from(adapter: Arc<Adapter>) -> Self {
        Self::Lora(adapter)
    }
}

impl From<Arc<Model>> for TrainedWeights {
    fn from(model: Arc<Model>) -> Self {
        Self::Full(model)
    }
}

impl TrainedWeights {
    /// The adapter, if this is one.
    pub fn adapter(&self) -> Option<&Arc<Adapter>> {
        match self {
            Self::Lora(adapter) => Some(adapter),
            Self::Full(_) => None,
        }
    }

    /// The model to run: the full copy, or the base for an adapter.
    pub fn model<'a>(&'a self, base: &'a Model) -> &'a Model {
        match self {
            Self::Lora(_) => base,
            Self::Full(model) => model,
        }
    }

    /// Whether the weights match the shape of this base model.
    pub fn fits(&self, base: &Model) -> bool {
        match self {
            Self::Lora(adapter) => adapter.fits(base.config()),
            Self::Full(model) => model.same_shape(base),
        }
    }

    /// sha256 of the weights, hex, with a prefix for a model. Weights with the same digest are identical.
    pub fn digest(&self) -> String {
        match self {
            Self::Lora(adapter) => adapter.digest(),
            Self::Full(model) => model.digest().to_owned(),
        }
    }

    /// Whether a record with this digest is of these weights: see [`Model::has_digest`].
    ///
    /// # Errors
    /// As [`Model::has_digest`].
    pub fn has_digest(&self, recorded: &str) -> Result<bool, LoadError> {
        match self {
            Self::Lora(adapter) => Ok(adapter.digest() == recorded),
            Self::Full(model) => model.has_digest(recorded),
        }
    }

    /// L2 norm of the difference over all tensors; infinite between different kinds or shapes.
    pub fn delta_norm(&self, other: &Self) -> f64 {
        match (self, other) {
            (Self::Lora(one), Self::Lora(other)) => one.delta_norm(other),
            (Self::Full(one), Self::Full(other)) => one.delta_norm(other),
            _ => f64::INFINITY,
        }
    }

    /// All trainable tensors with their names, in the order of the gradients.
    pub fn tensors(&self) -> Vec<(String, &[f32])> {
        match self {
            Self::Lora(adapter) => adapter.tensors(),
            Self::Full(model) => model.parameters(),
        }
    }

    /// As [`TrainedWeights::tensors`], mutable. Copies the weights first if they are shared.
    pub fn tensors_mut(&mut self) -> Vec<(String, &mut [f32])> {
        match self {
            Self::Lora(adapter) => Arc::make_mut(adapter).tensors_mut(),
            Self::Full(model) => Arc::make_mut(model).parameters_mut(),
        }
    }

    /// Weights of this shape with other tensors, in the order of [`TrainedWeights::tensors`].
    ///
    /// # Panics
    /// When there are fewer or more tensors, or one has another length.
    #[must_use]
    pub fn with_tensors(&self, tensors: Vec<Vec<f32>>) -> Self {
        match self {
            Self::Lora(adapter) => Self::Lora(Arc::new(adapter.with_tensors(tensors))),
            Self::Full(_) => {
                let mut weights = self.clone();
                let own = weights.tensors_mut();
                assert_eq!(own.len(), tensors.len(), "every tensor is replaced");
                for ((_, to), from) in own.into_iter().zip(tensors) {
                    to.copy_from_slice(&from);
                }
                weights
            }
        }
    }

    /// Writes the weights into `dir`, which must exist, in a standard layout: a PEFT directory that names `base`, or a
    /// Hugging Face model directory with the base's tokenizer and chat template (`files`).
    ///
    /// # Errors
    /// A write error, with the path.
    pub fn save(
        &self,
        dir: &Path,
        base: &str,
        files: Option<&ModelFiles>,
    ) -> Result<(), LoadError> {
        match self {
            Self::Lora(adapter) => adapter.save_peft(dir, base),
            Self::Full(model) => {
                model.save(dir)?;
                files.map_or(Ok(()), |files| files.save_tokenizer_and_templates(dir))
            }
        }
    }

    /// Loads weights that [`TrainedWeights::save`] wrote for this base model: an adapter if there is an
    /// `adapter_config.json`, else a full model.
    ///
    /// # Errors
    /// A missing or malformed file, or weights of another shape than the base model.
    pub fn load(dir: &Path, base: &Model) -> Result<Self, LoadError> {
        if dir.join("adapter_config.json").is_file() {
            let adapter = Adapter::load_peft(dir, base.config())?;
            return Ok(Self::Lora(Arc::new(adapter)));
        }
        let model = Model::load(&ModelFiles::from_dir(dir)?)?.with_threads(base.threads());
        if !model.same_shape(base) {
            return Err(LoadError::AdapterMismatch {
                reason: format!(
                    "{} holds a model of another shape than the base model",
                    dir.display()
                ),
            });
        }
        Ok(Self::Full(Arc::new(model)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{random_adapter, tiny};

    fn full_copy(base: &Model) -> TrainedWeights {
        TrainedWeights::Full(Arc::new(base.clone()))
    }

    #[test]
    fn full_copies_are_copy_on_write() {
        let base = Model::random(tiny(), 1);
        let before = full_copy(&base);
        assert_eq!(before.digest(), base.digest());
        let mut after = before.clone();
        for (_, values) in after.tensors_mut() {
            values.iter_mut().for_each(|v| *v += 0.01);
        }
        assert_eq!(before.digest(), base.digest());
        assert_ne!(after.digest(), base.digest());
        let values: usize = base.parameters().iter().map(|(_, v)| v.len()).sum();
        let norm = 0.01 * (values as f64).sqrt();
        assert!((after.delta_norm(&before) / norm - 1.0).abs() < 1e-5);
        let adapter = TrainedWeights::Lora(Arc::new(random_adapter(base.config(), 1)));
        assert_eq!(adapter.delta_norm(&before), f64::INFINITY);
    }

    #[test]
    fn saved_weights_load_bit_for_bit_and_as_their_kind() {
        let base = Model::random(tiny(), 4).with_threads(1);
        let adapter = TrainedWeights::Lora(Arc::new(random_adapter(base.config(), 5)));
        let mut full = full_copy(&base);
        for (_, values) in full.tensors_mut() {
            values.iter_mut().for_each(|v| *v *= 1.25);
        }
        for weights in [adapter, full] {
            let dir = tempfile::tempdir().unwrap();
            let files = ModelFiles::embedded();
            weights.save(dir.path(), "base", Some(&files)).unwrap();
            // Optimizer state beside the weights is ignored.
            std::fs::write(dir.path().join("optimizer.safetensors"), b"state").unwrap();
            let read = TrainedWeights::load(dir.path(), &base).unwrap();
            assert_eq!(read.digest(), weights.digest());
            assert_eq!(read.delta_norm(&weights), 0.0);
            assert!(read.fits(&base));
            if read.adapter().is_none() {
                let written = ModelFiles::from_dir(dir.path()).unwrap();
                assert_eq!(written.tokenizer().unwrap(), files.tokenizer().unwrap());
                assert_eq!(written.template().unwrap(), files.template().unwrap());
                assert_eq!(written.generation_config(), files.generation_config());
                assert_eq!(read.model(&base).threads(), 1);
            }
        }
    }

    #[test]
    fn model_of_another_shape_is_rejected() {
        let base = Model::random(tiny(), 1);
        let mut config = tiny();
        config.num_hidden_layers = 3;
        let other = Model::random(config, 1);
        let dir = tempfile::tempdir().unwrap();
        full_copy(&other).save(dir.path(), "base", None).unwrap();
        assert!(!full_copy(&other).fits(&base));
        let error = TrainedWeights::load(dir.path(), &base)
            .unwrap_err()
            .to_string();
        assert!(error.contains("another shape"), "{error}");
    }
}
