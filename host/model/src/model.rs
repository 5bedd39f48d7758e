//! A decoder: its configuration and weights, in host memory or in their files. It is loaded, saved and compared here, and
//! run by a backend.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use clawhost_config::{Quantization, Target};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::derived::Derived;
use crate::digest;
use crate::error::LoadError;
use crate::files::ModelFiles;
use crate::hashing::Hashing;
use crate::load;
use crate::quantized::QuantizedFormat;
use crate::tensors::write_safetensors;
use crate::weights::{Weights, tensor_entries};

const QUANTIZED_PARAMETERS: &str = "full-parameter training is rejected for a quantized model";

/// A decoder with its weights. Immutable while it serves; shared by the engine and the trainer. A clone copies all
/// weights, for full-parameter training.
#[derive(Debug, Clone)]
pub struct Model {
    config: ModelConfig,
    storage: Storage,
    threads: usize,
    digest: OnceLock<String>,
    /// The digest in old records, once one has been compared.
    unversioned_digest: OnceLock<String>,
    derived: Derived,
}

/// Where the weights are.
#[derive(Debug, Clone)]
enum Storage {
    Memory(Weights),
    /// In the files of a checkpoint; a backend has them in the memory of its device.
    Disk(ModelFiles, Quantization, Hashing),
}

impl Model {
    /// Loads a checkpoint.
    ///
    /// # Errors
    /// A tensor that is missing, has the wrong shape or is not finite, by name.
    pub fn load(files: &ModelFiles) -> Result<Self, LoadError> {
        Self::load_quantized(files, Quantization::None)
    }

    /// As [`Model::load`], with the weights of the linear layers quantized while they are read. Blocks of a GGUF file
    /// that have the format already are kept as they are.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_quantized(
        files: &ModelFiles,
        quantization: Quantization,
    ) -> Result<Self, LoadError> {
        Self::load_in(files, QuantizedFormat::of(quantization))
    }

    /// As [`Model::load`], with the weights of the linear layers in this format; `None` is f32.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_in(files: &ModelFiles, format: Option<QuantizedFormat>) -> Result<Self, LoadError> {
        let checkpoint = Checkpoint::open(files)?;
        let weights = load::load(&checkpoint, format)?;
        Ok(Self::with_weights(checkpoint.into_config(), weights))
    }

    /// The model of a checkpoint whose weights stay in their files. `hash` computes the digest of the loaded model, on a
    /// thread of its own; [`Model::wait_for_digest`] has its errors.
    pub fn on_disk(
        config: ModelConfig,
        files: ModelFiles,
        quantization: Quantization,
        hash: impl FnOnce() -> Result<String, LoadError> + Send + 'static,
    ) -> Self {
        let hashing = Hashing::start(hash);
        Self::with_storage(config, Storage::Disk(files, quantization, hashing))
    }

    /// This model with its weights in host memory: itself, or read from its files.
    ///
    /// # Errors
    /// As [`Model::load`], or the files have changed.
    pub fn in_memory(self: &Arc<Self>) -> Result<Arc<Self>, LoadError> {
        let Storage::Disk(files, quantization, _) = &self.storage else {
            return Ok(Arc::clone(self));
        };
        let loaded = Self::load_quantized(files, *quantization)?.with_threads(self.threads);
        self.check_unchanged(files, loaded.digest())?;
        Ok(Arc::new(loaded))
    }

    /// Checks a checkpoint as [`Model::load`] does, without reading the values of its tensors, and returns its
    /// configuration.
    ///
    /// # Errors
    /// A tensor that is missing or has the wrong shape, by name.
    pub fn check(files: &ModelFiles) -> Result<ModelConfig, LoadError> {
        Ok(Checkpoint::open(files)?.into_config())
    }

    /// A model with small random weights (normal, sigma 0.02; output projections scaled down by depth as in GPT-2), for
    /// tests and as the start of pretraining.
    pub fn random(config: ModelConfig, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut weights = Weights::zeros(&config);
        let deep = 0.02 / (2.0 * config.num_hidden_layers as f32).sqrt();
        for (name, values) in weights.tensors_mut(&config) {
            let sigma = match name.as_str() {
                n if n.contains("norm") || n.ends_with(".bias") => continue,
                n if n.contains("o_proj") || n.contains("down_proj") => deep,
                _ => 0.02,
            };
            values
                .iter_mut()
                .for_each(|v| *v = sigma * normal(&mut rng));
        }
        Self::with_weights(config, weights)
    }

    /// A model of these weights, which have the shapes of the configuration.
    pub fn with_weights(config: ModelConfig, weights: Weights) -> Self {
        Self::with_storage(config, Storage::Memory(weights))
    }

    fn with_storage(config: ModelConfig, storage: Storage) -> Self {
        Self {
            config,
            storage,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            digest: OnceLock::new(),
            unversioned_digest: OnceLock::new(),
            derived: Derived::default(),
        }
    }

    /// Limits how many threads of this process one matrix product with these weights may use. Default: all processors.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Threads that one matrix product may use, at least 1.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// All weights, in the buffers in which a backend reads them.
    ///
    /// # Panics
    /// When the weights are not in host memory: see [`Model::in_memory`].
    pub fn weights(&self) -> &Weights {
        match &self.storage {
            Storage::Memory(weights) => Some(weights),
            Storage::Disk(..) => None,
        }
        .expect("Model::in_memory reads the weights")
    }

    /// Bytes of the weights, or that they would take in host memory.
    pub fn weight_bytes(&self) -> usize {
        match &self.storage {
            Storage::Memory(weights) => weights.bytes(&self.config),
            Storage::Disk(_, quantization, _) => {
                Weights::planned_bytes(&self.config, *quantization)
            }
        }
    }

    /// What a backend derives from the weights.
    pub fn derived(&self) -> &Derived {
        &self.derived
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Whether the weights of the linear layers take less memory than f32. They can then only be the base of adapters.
    pub fn is_quantized(&self) -> bool {
        match &self.storage {
            Storage::Memory(weights) => weights.is_quantized(),
            Storage::Disk(_, quantization, _) => *quantization != Quantization::None,
        }
    }

    /// How the linear layers are quantized.
    pub fn quantization(&self) -> Quantization {
        match &self.storage {
            Storage::Memory(weights) => weights.quantization(),
            Storage::Disk(_, quantization, _) => *quantization,
        }
    }

    /// Digest of the weights: `v2-` and 64 hexadecimal digits. A quantized model has another one than the checkpoint in f32.
    ///
    /// # Panics
    /// When the weights are in files that could not be read again: see [`Model::wait_for_digest`].
    pub fn digest(&self) -> &str {
        self.wait_for_digest()
            .expect("whoever loads a model with its weights in files waits for the digest")
    }

    /// As [`Model::digest`], for a model with its weights in files, whose digest may still be computed.
    ///
    /// # Errors
    /// The files could not be read again.
    pub fn wait_for_digest(&self) -> Result<&str, LoadError> {
        match &self.storage {
            Storage::Memory(weights) => {
                let digest = || weights.digest(&self.config, self.threads);
                Ok(self.digest.get_or_init(digest))
            }
            Storage::Disk(files, _, hashing) => {
                hashing.wait().map_err(|reason| LoadError::Digest {
                    name: files.name().to_owned(),
                    reason: reason.to_owned(),
                })
            }
        }
    }

    /// Whether this is the digest of the weights, as it is now or as in old records, which are one sha256 without a prefix.
    /// That one takes a pass over all weights by one thread.
    ///
    /// # Errors
    /// The files could not be read again, or have changed.
    pub fn has_digest(&self, recorded: &str) -> Result<bool, LoadError> {
        if recorded.starts_with(digest::PREFIX) {
            return Ok(self.wait_for_digest()? == recorded);
        }
        if let Some(digest) = self.unversioned_digest.get() {
            return Ok(digest == recorded);
        }
        let digest = match &self.storage {
            Storage::Memory(weights) => weights.unversioned_digest(&self.config),
            Storage::Disk(files, Quantization::None, _) => {
                let checkpoint = Checkpoint::open(files)?;
                self.check_unchanged(files, &checkpoint.digest()?)?;
                checkpoint.unversioned_digest()?
            }
            Storage::Disk(files, quantization, _) => {
                let read = Self::load_quantized(files, *quantization)?;
                self.check_unchanged(files, read.digest())?;
                read.weights().unversioned_digest(&self.config)
            }
        };
        Ok(self.unversioned_digest.get_or_init(|| digest) == recorded)
    }

    /// Checks that the files still have the weights that were loaded from them.
    fn check_unchanged(&self, files: &ModelFiles, digest: &str) -> Result<(), LoadError> {
        if digest == self.wait_for_digest()? {
            return Ok(());
        }
        let name = files.name().to_owned();
        Err(LoadError::Changed { name })
    }

    /// Named tensors, in the order of full-parameter gradients.
    ///
    /// # Panics
    /// When the model is quantized, or its weights are not in host memory.
    pub fn parameters(&self) -> Vec<(String, &[f32])> {
        assert!(!self.is_quantized(), "{QUANTIZED_PARAMETERS}");
        tensor_entries(&self.config)
            .into_iter()
            .map(|e| {
                let values = self.weights().tensor(&e);
                (e.name, values)
            })
            .collect()
    }

    /// As [`Model::parameters`], mutable, for full-parameter training.
    ///
    /// # Panics
    /// When the model is quantized, or its weights are not in host memory.
    pub fn parameters_mut(&mut self) -> Vec<(String, &mut [f32])> {
        assert!(!self.is_quantized(), "{QUANTIZED_PARAMETERS}");
        self.digest = OnceLock::new();
        self.unversioned_digest = OnceLock::new();
        self.derived.invalidate();
        match &mut self.storage {
            Storage::Memory(weights) => Some(weights),
            Storage::Disk(..) => None,
        }
        .expect("Model::in_memory reads the weights")
        .tensors_mut(&self.config)
    }

    /// Whether the weights of one model can replace the other's, including a KV cache.
    pub fn same_shape(&self, other: &Self) -> bool {
        let dims = |c: &ModelConfig| {
            (
                (c.num_hidden_layers, c.hidden_size, c.intermediate_size),
                (c.num_attention_heads, c.num_key_value_heads, c.head_dim),
                (c.vocab_size, c.tie_word_embeddings, c.has_head_norms()),
                Target::ALL.map(|target| c.has_bias(target)),
                (c.rope_theta.to_bits(), c.rms_norm_eps.to_bits()),
            )
        };
        dims(&self.config) == dims(&other.config)
            && self.config.rope_scaling == other.config.rope_scaling
    }

    /// Euclidean norm of the difference over all tensors; infinite when the shapes differ.
    pub fn delta_norm(&self, other: &Self) -> f64 {
        if !self.same_shape(other) {
            return f64::INFINITY;
        }
        let (own, other) = (self.parameters(), other.parameters());
        let squares = own.iter().zip(&other).map(|((_, a), (_, b))| {
            let pairs = a.iter().zip(*b);
            pairs
                .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
                .sum::<f64>()
        });
        squares.sum::<f64>().sqrt()
    }

    /// Writes `config.json` and `model.safetensors` (f32) into `dir`, which must exist. Quantized weights are restored.
    ///
    /// # Errors
    /// A write error, with the path.
    pub fn save(&self, dir: &Path) -> Result<(), LoadError> {
        let path = dir.join("config.json");
        let write = |source| LoadError::Write {
            path: path.clone(),
            source,
        };
        let text = serde_json::to_vec_pretty(&self.config).map_err(|e| write(e.into()))?;
        std::fs::write(&path, text).map_err(write)?;
        let entries = tensor_entries(&self.config);
        let restored = self
            .is_quantized()
            .then(|| self.weights().dequantized(&self.config));
        let weights = restored.as_ref().unwrap_or_else(|| self.weights());
        write_safetensors(
            &dir.join("model.safetensors"),
            entries
                .iter()
                .map(|e| (e.name.as_str(), e.shape.as_slice(), weights.tensor(e))),
        )
    }
}

/// A standard normal sample (Box and Muller 1958).
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    use rand::RngExt;
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    ((-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    #[test]
    fn a_model_on_disk_is_read_when_its_weights_are_needed() {
        let model = Model::random(tiny(), 6);
        let dir = tempfile::tempdir().unwrap();
        model.save(dir.path()).unwrap();
        let files = ModelFiles::from_dir(dir.path()).unwrap();
        let digest = model.digest().to_owned();
        let hash = move || Ok(digest);
        let stored = Model::on_disk(tiny(), files, Quantization::None, hash);
        let stored = Arc::new(stored.with_threads(1));
        assert_eq!(stored.weight_bytes(), model.weight_bytes());
        assert!(stored.same_shape(&model) && !stored.is_quantized());
        let read = stored.in_memory().unwrap();
        assert_eq!((read.digest(), read.threads()), (model.digest(), 1));
        assert_eq!(read.delta_norm(&model), 0.0);
        assert!(Arc::ptr_eq(&read, &read.in_memory().unwrap()));
        Model::random(tiny(), 7).save(dir.path()).unwrap();
        let error = stored.in_memory().unwrap_err().to_string();
        assert!(error.contains("have changed on disk"), "{error}");
    }

    #[test]
    fn a_model_has_its_digest_and_that_of_old_records() {
        let (model, other) = (Model::random(tiny(), 6), Model::random(tiny(), 7));
        // What version 0.1 recorded for this model.
        let old = "80676f09d290d949b3bc8a0ddc3c870eacc87e956109d9e9b6f7537e60450ece";
        assert_eq!(model.weights().unversioned_digest(&tiny()), old);
        assert!(model.digest().starts_with("v2-") && model.digest().len() == 67);
        assert_eq!(
            model.clone().with_threads(1).weights().digest(&tiny(), 1),
            model.digest()
        );
        let dir = tempfile::tempdir().unwrap();
        let plain = Quantization::None;
        for quantization in [plain, Quantization::Int8] {
            model.save(dir.path()).unwrap();
            let files = ModelFiles::from_dir(dir.path()).unwrap();
            let read = Model::load_quantized(&files, quantization).unwrap();
            let old = match quantization {
                Quantization::None => old.to_owned(),
                _ => read.weights().unversioned_digest(&tiny()),
            };
            let digest = read.digest().to_owned();
            let hash = move || Ok(digest);
            let stored = Model::on_disk(tiny(), files, quantization, hash);
            for model in [&read, &stored] {
                for (recorded, has) in [
                    (old.as_str(), true),
                    (read.digest(), true),
                    (other.digest(), false),
                    (&other.weights().unversioned_digest(&tiny()), false),
                    ("", false),
                    ("v2-", false),
                ] {
                    let found = model.has_digest(recorded).unwrap();
                    assert_eq!(found, has, "{quantization:?} {recorded}");
                }
            }
            let fresh = stored.clone();
            other.save(dir.path()).unwrap();
            assert!(fresh.has_digest(&old).unwrap());
        }
        let files = ModelFiles::from_dir(dir.path()).unwrap();
        let digest = model.digest().to_owned();
        let changed = Model::on_disk(tiny(), files, plain, move || Ok(digest));
        assert!(changed.has_digest(model.digest()).unwrap());
        let error = changed.has_digest(old).unwrap_err().to_string();
        assert!(error.contains("have changed on disk"), "{error}");
    }

    #[test]
    fn a_digest_that_cannot_be_computed_is_an_error_of_every_use() {
        let hash = || {
            let (file, name) = ("a".to_owned(), "b".to_owned());
            Err(LoadError::NotFinite { file, name })
        };
        let stored = Model::on_disk(tiny(), ModelFiles::embedded(), Quantization::None, hash);
        for model in [&stored, &stored.clone(), &stored] {
            let error = model.wait_for_digest().unwrap_err().to_string();
            assert!(error.contains("cannot compute the digest"), "{error}");
            assert!(error.contains("not finite"), "{error}");
        }
    }

    #[test]
    fn a_saved_model_loads_with_the_same_digest_and_errors_name_the_tensor() {
        let model = Model::random(tiny(), 6);
        let dir = tempfile::tempdir().unwrap();
        model.save(dir.path()).unwrap();
        let files = ModelFiles::from_dir(dir.path()).unwrap();
        assert_eq!(Model::load(&files).unwrap().digest(), model.digest());

        let config = ModelConfig {
            num_hidden_layers: 3,
            ..tiny()
        };
        let write = |c: &ModelConfig| {
            std::fs::write(
                dir.path().join("config.json"),
                serde_json::to_vec(c).unwrap(),
            )
            .unwrap();
            Model::load(&ModelFiles::from_dir(dir.path()).unwrap())
                .unwrap_err()
                .to_string()
        };
        assert!(
            write(&config).contains("model.layers.2."),
            "{}",
            write(&config)
        );
        let config = ModelConfig {
            intermediate_size: 81,
            ..tiny()
        };
        assert!(
            write(&config).contains("down_proj.weight has shape [48, 80]"),
            "{}",
            write(&config)
        );
        std::fs::write(dir.path().join("model.safetensors"), b"not tensors").unwrap();
        assert!(write(&tiny()).contains("model.safetensors"));
    }
}
