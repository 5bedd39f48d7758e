//! Low-rank adapters (LoRA, Hu et al. 2021): `y = W x + (alpha / rank) B A x`, kept separate from the base model, so
//! that many versions share one copy of it. On disk they are PEFT directories.

mod peft;
mod peft_config;
mod spec;

use clawhost_config::{LoraSpec, Target};
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::config::{ModelConfig, TargetLayer};
use crate::derived::Derived;
use crate::digest::hex;

/// `A [rank, in]` and `B [out, rank]` of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraPair {
    /// Rank of the update.
    pub rank: usize,
    /// The update is scaled by `alpha / rank`.
    pub alpha: f32,
    /// `[rank, in]`.
    pub a: Vec<f32>,
    /// `[out, rank]`.
    pub b: Vec<f32>,
}

impl LoraPair {
    /// A pair of zeros for a layer with this many inputs and outputs.
    pub fn zeros((inputs, outputs): (usize, usize), rank: usize, alpha: f32) -> Self {
        Self {
            rank,
            alpha,
            a: vec![0.0; rank * inputs],
            b: vec![0.0; outputs * rank],
        }
    }

    /// The scale of `B A`.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }
}

/// A LoRA adapter: training updates it, and publishing swaps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    spec: LoraSpec,
    config: ModelConfig,
    /// `layers * all targets`, in listing order; `None` where nothing is adapted. Rank and alpha are those of the spec,
    /// except in imported adapters with per-module overrides.
    pairs: Vec<Option<LoraPair>>,
    derived: Derived,
    digest: Derived,
}

impl Adapter {
    /// A new adapter: A uniform in ±1/sqrt(inputs) (Kaiming with a = sqrt 5, as in PEFT), B zero, so that it changes
    /// nothing yet.
    pub fn init(config: &ModelConfig, mut spec: LoraSpec, seed: u64) -> Self {
        spec.targets = spec::sorted_targets(&spec).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut pairs = Vec::new();
        for _ in 0..config.num_hidden_layers {
            for target in Target::ALL {
                if !spec.targets.contains(&target) {
                    pairs.push(None);
                    continue;
                }
                let widths = target.widths(config);
                let bound = 1.0 / (widths.0 as f32).sqrt();
                let mut pair = LoraPair::zeros(widths, spec.rank, spec.alpha);
                pair.a.fill_with(|| rng.random_range(-bound..bound));
                pairs.push(Some(pair));
            }
        }
        Self {
            spec,
            config: config.clone(),
            pairs,
            derived: Derived::default(),
            digest: Derived::default(),
        }
    }

    /// The pairs of a new adapter of this shape, as numbers: inputs and outputs of the layer, and the rank.
    pub fn planned_pairs(
        config: &ModelConfig,
        spec: &LoraSpec,
    ) -> impl Iterator<Item = ((usize, usize), usize)> {
        let layer = spec::sorted_targets(spec).map(|target| (target.widths(config), spec.rank));
        let layer: Vec<_> = layer.collect();
        let layers = std::iter::repeat_n(layer, config.num_hidden_layers);
        layers.flatten()
    }

    /// Its rank, alpha and targets.
    pub fn spec(&self) -> &LoraSpec {
        &self.spec
    }

    /// Whether its shape matches this model.
    pub fn fits(&self, config: &ModelConfig) -> bool {
        let dims = |c: &ModelConfig| {
            (
                c.num_hidden_layers,
                c.hidden_size,
                c.query_width(),
                c.key_width(),
                c.intermediate_size,
            )
        };
        dims(&self.config) == dims(config)
    }

    /// The pair of a layer's target, if it is adapted.
    pub fn pair(&self, layer: usize, target: Target) -> Option<&LoraPair> {
        self.pairs[Self::pair_index(layer, target)].as_ref()
    }

    /// Index of a layer's target in [`Adapter::pairs`].
    pub fn pair_index(layer: usize, target: Target) -> usize {
        layer * Target::ALL.len() + target as usize
    }

    /// `layers * all targets` in listing order; `None` where nothing is adapted.
    pub fn pairs(&self) -> &[Option<LoraPair>] {
        &self.pairs
    }

    /// The pairs, mutable, to give an adapter any ranks.
    #[cfg(any(test, feature = "testing"))]
    pub fn pairs_mut(&mut self) -> &mut [Option<LoraPair>] {
        self.invalidate();
        &mut self.pairs
    }

    /// Discards what has been computed from the values.
    fn invalidate(&mut self) {
        self.derived.invalidate();
        self.digest.invalidate();
    }

    /// What a backend derives from this adapter.
    pub fn derived(&self) -> &Derived {
        &self.derived
    }

    /// Index of A in [`Adapter::tensors`]; B follows it.
    pub fn tensor_index(&self, layer: usize, target: Target) -> Option<usize> {
        let index = Self::pair_index(layer, target);
        self.pairs[index].as_ref()?;
        Some(self.pairs[..index].iter().flatten().count() * 2)
    }

    /// The adapted modules: name, target and pair.
    fn adapted_modules(&self) -> impl Iterator<Item = (String, Target, &LoraPair)> {
        let modules = modules(&self.config).zip(&self.pairs);
        modules.filter_map(|((name, target), pair)| Some((name, target, pair.as_ref()?)))
    }

    /// Names and shapes in the order of [`Adapter::tensors`].
    fn layout(&self) -> Vec<(String, [usize; 2])> {
        let mut all = Vec::new();
        for (module, target, pair) in self.adapted_modules() {
            let (inputs, outputs) = target.widths(&self.config);
            all.push((tensor_name(&module, "A"), [pair.rank, inputs]));
            all.push((tensor_name(&module, "B"), [outputs, pair.rank]));
        }
        all
    }

    /// Every tensor with its PEFT name, in a fixed order.
    pub fn tensors(&self) -> Vec<(String, &[f32])> {
        let values = self
            .pairs
            .iter()
            .flatten()
            .flat_map(|p| [p.a.as_slice(), p.b.as_slice()]);
        let names = self.layout().into_iter().map(|(n, _)| n);
        names.zip(values).collect()
    }

    /// As [`Adapter::tensors`], mutable, for an optimizer.
    pub fn tensors_mut(&mut self) -> Vec<(String, &mut [f32])> {
        self.invalidate();
        let names = self.layout().into_iter().map(|(n, _)| n);
        let values = self
            .pairs
            .iter_mut()
            .flatten()
            .flat_map(|p| [p.a.as_mut_slice(), p.b.as_mut_slice()]);
        names.zip(values).collect()
    }

    /// An adapter of this shape with other tensors, in the order of [`Adapter::tensors`].
    ///
    /// # Panics
    /// When there are fewer or more tensors, or one has another length.
    pub(crate) fn with_tensors(&self, tensors: Vec<Vec<f32>>) -> Self {
        let mut tensors = tensors.into_iter();
        let mut next = |old: &[f32]| {
            let new = tensors.next().expect("every tensor is replaced");
            assert_eq!(new.len(), old.len(), "a tensor keeps its length");
            new
        };
        let mut replace = |pair: &LoraPair| LoraPair {
            rank: pair.rank,
            alpha: pair.alpha,
            a: next(&pair.a),
            b: next(&pair.b),
        };
        let pairs = self.pairs.iter();
        let pairs = pairs.map(|pair| pair.as_ref().map(&mut replace)).collect();
        assert!(tensors.next().is_none(), "every tensor has a place");
        Self {
            spec: self.spec.clone(),
            config: self.config.clone(),
            pairs,
            derived: Derived::default(),
            digest: Derived::default(),
        }
    }

    /// sha256 over shape, scale, names and values, hex. Adapters with the same digest give the same outputs.
    pub fn digest(&self) -> String {
        self.digest.get_or_init(|| self.compute_digest()).to_owned()
    }

    fn compute_digest(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.spec.alpha.to_le_bytes());
        for (module, _, pair) in self.adapted_modules() {
            if pair.alpha != self.spec.alpha {
                hash.update(module.as_bytes());
                hash.update(pair.alpha.to_le_bytes());
            }
        }
        for ((name, shape), (_, values)) in self.layout().iter().zip(self.tensors()) {
            hash.update(name.as_bytes());
            for dim in shape {
                hash.update((*dim as u64).to_le_bytes());
            }
            let mut bytes = [0; 4096];
            for part in values.chunks(bytes.len() / 4) {
                for (bytes, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(part) {
                    *bytes = value.to_le_bytes();
                }
                hash.update(&bytes[..4 * part.len()]);
            }
        }
        hex(&hash.finalize())
    }

    /// Euclidean norm of the difference over all tensors; infinite when the shapes differ.
    pub fn delta_norm(&self, other: &Self) -> f64 {
        let shape = |adapter: &Self| -> Vec<Option<(usize, f32)>> {
            let pairs = adapter.pairs.iter();
            pairs
                .map(|pair| pair.as_ref().map(|pair| (pair.rank, pair.alpha)))
                .collect()
        };
        if !self.fits(&other.config) || shape(self) != shape(other) {
            return f64::INFINITY;
        }
        let squares: f64 = self
            .tensors()
            .iter()
            .zip(other.tensors())
            .flat_map(|((_, a), (_, b))| a.iter().zip(b))
            .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
            .sum();
        squares.sqrt()
    }
}

/// Every module that can be adapted, in listing order, by its name in a checkpoint.
fn modules(config: &ModelConfig) -> impl Iterator<Item = (String, Target)> {
    (0..config.num_hidden_layers).flat_map(|layer| {
        Target::ALL
            .into_iter()
            .map(move |target| (format!("model.layers.{layer}.{}", target.module()), target))
    })
}

/// PEFT's name of a module's tensor `A` or `B`.
fn tensor_name(module: &str, part: &str) -> String {
    format!("base_model.model.{module}.lora_{part}.weight")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tiny;

    #[test]
    fn a_saved_adapter_loads_with_the_same_digest() {
        let config = tiny();
        let spec = LoraSpec {
            rank: 3,
            alpha: 5.0,
            targets: vec![Target::Down, Target::Q],
        };
        let mut adapter = Adapter::init(&config, spec, 1);
        for (_, values) in adapter.tensors_mut() {
            values.iter_mut().for_each(|v| *v += 0.25);
        }
        let digest = adapter.digest();
        adapter.tensors_mut()[0].1[0] += 1.0;
        assert_ne!(adapter.digest(), digest);
        let dir = tempfile::tempdir().unwrap();
        adapter.save_peft(dir.path(), "base").unwrap();
        let loaded = Adapter::load_peft(dir.path(), &config).unwrap();
        assert_eq!(loaded.digest(), adapter.digest());
        assert_eq!(loaded.delta_norm(&adapter), 0.0);
        let other = ModelConfig {
            num_hidden_layers: 3,
            ..config
        };
        let error = Adapter::load_peft(dir.path(), &other)
            .unwrap_err()
            .to_string();
        assert!(error.contains("layers.2"), "{error}");
    }

    #[test]
    fn a_new_adapter_has_a_zero_b_and_a_seeded_a() {
        let config = tiny();
        let make = |seed| Adapter::init(&config, LoraSpec::default(), seed);
        assert_eq!(make(1).digest(), make(1).digest());
        assert_ne!(make(1).digest(), make(2).digest());
        let adapter = make(1);
        let mut pairs = adapter.pairs.iter().flatten();
        assert!(pairs.all(|p| p.b.iter().all(|v| *v == 0.0)));
    }
}
