//! The decoder: loading a checkpoint, and the forward pass that serving and training share. Sampling, scheduling and
//! optimization are elsewhere.

mod forward;
mod layer;
mod load;
mod packed_weights;

pub use forward::BatchRow;
pub(crate) use layer::{Activations, AdapterGroup, LayerPass};

use std::path::Path;
use std::sync::OnceLock;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::cache::KvCache;
use crate::config::{ModelConfig, frequencies};
use crate::derived::Derived;
use crate::error::LoadError;
use crate::files::ModelFiles;
use crate::lora::{Adapter, Target, write_safetensors};
use crate::ops::attention::Shape;
use crate::ops::linear::{Mat, Threads};
use crate::ops::rope::Rope;
use crate::weights::{Weights, tensor_entries};

use packed_weights::ModelPackedWeights;

/// A decoder with its weights. Immutable while it serves; shared by the engine and the trainer. A clone copies all
/// weights, for full-parameter training.
#[derive(Debug, Clone)]
pub struct Model {
    config: ModelConfig,
    pub(crate) weights: Weights,
    pub(crate) rope: Rope,
    pub(crate) threads: Threads,
    digest: OnceLock<String>,
    /// The packed weights, built on first use; `None` for a large model.
    packed: Derived<Option<ModelPackedWeights>>,
}

impl Model {
    /// Loads a checkpoint.
    ///
    /// # Errors
    /// A tensor that is missing, has the wrong shape or is not finite, by name.
    pub fn load(files: &ModelFiles) -> Result<Self, LoadError> {
        let config = ModelConfig::parse(files.config())?;
        let weights = load::load(&config, files)?;
        Ok(Self::with_weights(config, weights))
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

    pub(crate) fn with_weights(config: ModelConfig, weights: Weights) -> Self {
        let (frequencies, scale) = frequencies(&config);
        let rope = Rope::new(frequencies, scale);
        let threads = Threads(std::thread::available_parallelism().map_or(1, usize::from));
        Self {
            config,
            weights,
            rope,
            threads,
            digest: OnceLock::new(),
            packed: Derived::default(),
        }
    }

    /// Limits how many threads one product may use. Default: all processors.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = Threads(threads.max(1));
        self
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// sha256 of the weights, hex.
    pub fn digest(&self) -> &str {
        self.digest
            .get_or_init(|| self.weights.digest(&self.config))
    }

    /// An empty KV cache for a new sequence.
    pub fn new_cache(&self) -> KvCache {
        KvCache::new(&self.config)
    }

    /// Named tensors, in the order of full-parameter gradients.
    pub fn parameters(&self) -> Vec<(String, &[f32])> {
        tensor_entries(&self.config)
            .into_iter()
            .map(|e| {
                let values = self.weights.tensor(&e);
                (e.name, values)
            })
            .collect()
    }

    /// As [`Model::parameters`], mutable, for full-parameter training.
    pub fn parameters_mut(&mut self) -> Vec<(String, &mut [f32])> {
        self.digest = OnceLock::new();
        self.packed.invalidate();
        self.weights.tensors_mut(&self.config)
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

    /// Writes `config.json` and `model.safetensors` (f32) into `dir`, which must exist.
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
        write_safetensors(
            &dir.join("model.safetensors"),
            entries
                .iter()
                .map(|e| (e.name.as_str(), e.shape.as_slice(), self.weights.tensor(e))),
        )
    }

    /// The packed weights; packs them on first use.
    pub(crate) fn packed_weights(&self) -> Option<&ModelPackedWeights> {
        let packed = || ModelPackedWeights::new(&self.config, &self.weights);
        self.packed.get_or_init(packed).as_ref()
    }

    /// Packs the weights of model and adapter ahead of the first forward pass.
    pub(crate) fn pack_weights(&self, adapter: Option<&Adapter>) {
        let small = self.packed_weights().is_some();
        if let Some(adapter) = adapter.filter(|_| small) {
            adapter.pack_weights();
        }
    }

    /// The language-model head, `[vocab, hidden]`.
    pub(crate) fn lm_head(&self) -> Mat<'_> {
        let (vocab, hidden) = (self.config.vocab_size, self.config.hidden_size);
        let head = Mat::new(self.weights.head(), vocab, hidden);
        head.with_packed(self.packed_weights().map(|packed| &packed.head))
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape {
            heads: self.config.num_attention_heads,
            kv_heads: self.config.num_key_value_heads,
            dim: self.config.head_dim,
        }
    }

    /// Widths of the queries, of the keys, and of a whole row of queries, keys and values.
    pub(crate) fn qkv_widths(&self) -> (usize, usize, usize) {
        let (q, k) = (self.config.query_width(), self.config.key_width());
        (q, k, q + 2 * k)
    }
}

/// A standard normal sample (Box and Muller 1958).
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    use rand::RngExt;
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    ((-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
}

#[cfg(test)]
pub(crate) mod tests;
