//! What training makes of the base, whatever its kind: an adapter over it, or a whole copy of its weights.
//!
//! Everything that trains, writes, proves and serves a version speaks of this, and only the forward pass has to
//! know the difference. A copy takes as much memory as the base, an adapter a few megabytes; both are shared
//! until somebody changes them.

use std::path::Path;
use std::sync::Arc;

use crate::error::{ForwardError, LoadError};
use crate::files::ModelFiles;
use crate::grad::{Gradients, Scored, Sequence, TrainPass, Trained};
use crate::lora::Adapter;
use crate::model::Model;

/// What a version has beside the base.
#[derive(Debug, Clone)]
pub enum Learned {
    /// An adapter over the base.
    Lora(Arc<Adapter>),
    /// Weights that stand in the place of the base's.
    Full(Arc<Model>),
}

impl From<Arc<Adapter>> for Learned {
    fn from(adapter: Arc<Adapter>) -> Self {
        Self::Lora(adapter)
    }
}

impl From<Arc<Model>> for Learned {
    fn from(model: Arc<Model>) -> Self {
        Self::Full(model)
    }
}

impl Learned {
    /// The adapter, when it is one.
    pub fn adapter(&self) -> Option<&Arc<Adapter>> {
        match self {
            Self::Lora(adapter) => Some(adapter),
            Self::Full(_) => None,
        }
    }

    /// The model that runs: the copy, or the base under an adapter.
    pub fn model<'a>(&'a self, base: &'a Model) -> &'a Model {
        match self {
            Self::Lora(_) => base,
            Self::Full(model) => model,
        }
    }

    /// Whether it was made for a base of this shape.
    pub fn fits(&self, base: &Model) -> bool {
        match self {
            Self::Lora(adapter) => adapter.fits(base.config()),
            Self::Full(model) => model.same_shape(base),
        }
    }

    /// sha256 over what was learned, hex: two with the same digest serve the same.
    pub fn digest(&self) -> String {
        match self {
            Self::Lora(adapter) => adapter.digest(),
            Self::Full(model) => model.digest().to_owned(),
        }
    }

    /// Euclidean norm of the difference over all tensors; infinite between different kinds or shapes.
    pub fn delta_norm(&self, other: &Self) -> f64 {
        match (self, other) {
            (Self::Lora(one), Self::Lora(other)) => one.delta_norm(other),
            (Self::Full(one), Self::Full(other)) => one.delta_norm(other),
            _ => f64::INFINITY,
        }
    }

    /// Every tensor that training changes, with its name, in the order of the gradients.
    pub fn tensors(&self) -> Vec<(String, &[f32])> {
        match self {
            Self::Lora(adapter) => adapter.tensors(),
            Self::Full(model) => model.parameters(),
        }
    }

    /// As [`Learned::tensors`], to be changed by an optimizer. Copies first what somebody else holds.
    pub fn tensors_mut(&mut self) -> Vec<(String, &mut [f32])> {
        match self {
            Self::Lora(adapter) => Arc::make_mut(adapter).tensors_mut(),
            Self::Full(model) => Arc::make_mut(model).parameters_mut(),
        }
    }

    /// Zeros, one for each value that training changes.
    pub fn gradients(&self) -> Gradients {
        match self {
            Self::Lora(adapter) => Gradients::for_adapter(adapter),
            Self::Full(model) => Gradients::for_model(model),
        }
    }

    /// [`Model::score`] under what was learned.
    ///
    /// # Errors
    /// As [`Model::score`].
    pub fn score(
        &self,
        base: &Model,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<Scored>, ForwardError> {
        let adapter = self.adapter().map(Arc::as_ref);
        self.model(base).score(adapter, sequences)
    }

    /// [`Model::forward_train`] under what was learned and by it.
    ///
    /// # Errors
    /// As [`Model::forward_train`].
    pub fn forward_train<'m>(
        &'m self,
        base: &'m Model,
        sequences: &[Sequence<'_>],
    ) -> Result<TrainPass<'m>, ForwardError> {
        match self {
            Self::Lora(adapter) => base.forward_train(Trained::Lora(adapter), sequences),
            Self::Full(model) => model.forward_train(Trained::Full, sequences),
        }
    }

    /// Writes it into `dir`, which must exist, in the layout that others read: a PEFT directory that names `base`,
    /// or a whole model with the base's tokenizer and template (`files`) beside its weights.
    ///
    /// # Errors
    /// Writing, with the path.
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
                files.map_or(Ok(()), |files| files.save_text(dir))
            }
        }
    }

    /// Reads what [`Learned::save`] wrote for this base: an adapter where there is an `adapter_config.json`, else
    /// a whole model.
    ///
    /// # Errors
    /// A missing or malformed file, or something that was made for a model of another shape.
    pub fn load(dir: &Path, base: &Model) -> Result<Self, LoadError> {
        if dir.join("adapter_config.json").is_file() {
            let adapter = Adapter::load_peft(dir, base.config())?;
            return Ok(Self::Lora(Arc::new(adapter)));
        }
        let model = Model::load(&ModelFiles::dir(dir)?)?.with_threads(base.threads.0);
        if !model.same_shape(base) {
            return Err(LoadError::AdapterMismatch {
                reason: format!(
                    "{} holds a model of another shape than the base",
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
    use crate::grad::{Candidates, Partials};
    use crate::model::tests::{busy_adapter, tiny};

    fn copy(base: &Model) -> Learned {
        Learned::Full(Arc::new(base.clone()))
    }

    const TOKENS: [u32; 6] = [3, 90, 4, 41, 7, 12];

    fn sequence() -> Sequence<'static> {
        Sequence {
            tokens: &TOKENS,
            start: 2,
            temperature: 1.0,
            candidates: Candidates::None,
        }
    }

    #[test]
    fn a_copy_is_changed_without_touching_what_it_was_made_from() {
        let base = Model::random(tiny(), 1);
        let before = copy(&base);
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
        let adapter = Learned::Lora(Arc::new(busy_adapter(base.config(), 1)));
        assert_eq!(adapter.delta_norm(&before), f64::INFINITY);
    }

    #[test]
    fn a_gradient_step_raises_what_it_should() {
        let base = Model::random(tiny(), 2);
        let kinds = [
            copy(&base),
            Learned::Lora(Arc::new(busy_adapter(base.config(), 3))),
        ];
        for mut learned in kinds {
            let before = learned.score(&base, &[sequence()]).unwrap();
            let mut gradients = learned.gradients();
            let pass = learned.forward_train(&base, &[sequence()]).unwrap();
            let partials = Partials {
                d_logprob: vec![1.0; 4],
                d_entropy: Vec::new(),
                d_candidates: Vec::new(),
            };
            pass.backward(&[partials], &mut gradients).unwrap();
            let rate = 1e-2 / gradients.norm() as f32;
            for ((_, values), gradient) in learned.tensors_mut().into_iter().zip(&gradients.tensors)
            {
                for (v, g) in values.iter_mut().zip(gradient) {
                    *v += rate * g;
                }
            }
            let after = learned.score(&base, &[sequence()]).unwrap();
            let sum = |scored: &[Scored]| scored[0].logprobs.iter().sum::<f32>();
            assert!(sum(&after) > sum(&before) + 1e-3);
        }
    }

    #[test]
    fn what_is_written_is_read_back_bit_for_bit_and_by_its_kind() {
        let base = Model::random(tiny(), 4).with_threads(1);
        let adapter = Learned::Lora(Arc::new(busy_adapter(base.config(), 5)));
        let mut full = copy(&base);
        for (_, values) in full.tensors_mut() {
            values.iter_mut().for_each(|v| *v *= 1.25);
        }
        for learned in [adapter, full] {
            let dir = tempfile::tempdir().unwrap();
            let files = ModelFiles::embedded();
            learned.save(dir.path(), "base", Some(&files)).unwrap();
            // What an optimizer leaves beside it is no weight.
            std::fs::write(dir.path().join("optimizer.safetensors"), b"state").unwrap();
            let read = Learned::load(dir.path(), &base).unwrap();
            assert_eq!(read.digest(), learned.digest());
            assert_eq!(read.delta_norm(&learned), 0.0);
            assert!(read.fits(&base));
            if read.adapter().is_none() {
                let written = ModelFiles::dir(dir.path()).unwrap();
                assert_eq!(written.tokenizer().unwrap(), files.tokenizer().unwrap());
                assert_eq!(written.template().unwrap(), files.template().unwrap());
                assert_eq!(written.generation(), files.generation());
                assert_eq!(read.model(&base).threads.0, 1);
            }
        }
    }

    #[test]
    fn a_model_of_another_shape_is_refused() {
        let base = Model::random(tiny(), 1);
        let mut config = tiny();
        config.num_hidden_layers = 3;
        let other = Model::random(config, 1);
        let dir = tempfile::tempdir().unwrap();
        copy(&other).save(dir.path(), "base", None).unwrap();
        assert!(!copy(&other).fits(&base));
        let error = Learned::load(dir.path(), &base).unwrap_err().to_string();
        assert!(error.contains("another shape"), "{error}");
    }
}
