//! Low-rank adapters (Hu et al. 2021): `y = W x + (alpha / rank) B A x`, kept beside the base and never
//! merged, so that many versions are served from one copy of it. On disk they are PEFT directories.

mod merge;
mod peft;
mod peft_config;
mod spec;

pub(crate) use peft::write_safetensors;
pub use spec::{LoraSpec, Target};

use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::config::ModelConfig;
use crate::ops::panels::Panels;
use crate::remade::Remade;
use crate::weights::hex;

/// `A [rank, in]` and `B [out, rank]` of one layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pair {
    pub(crate) rank: usize,
    alpha: f32,
    pub(crate) a: Vec<f32>,
    pub(crate) b: Vec<f32>,
}

impl Pair {
    /// A pair of zeros for a layer of so many inputs and outputs.
    fn blank((inputs, outputs): (usize, usize), rank: usize, alpha: f32) -> Self {
        Self {
            rank,
            alpha,
            a: vec![0.0; rank * inputs],
            b: vec![0.0; outputs * rank],
        }
    }

    /// What `B A` is multiplied by.
    pub(crate) fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }
}

/// A pair as products read it.
#[derive(Debug)]
pub(crate) struct PairPanels {
    pub(crate) a: Panels,
    pub(crate) b: Panels,
}

impl PairPanels {
    fn new(pair: &Pair) -> Self {
        let (inputs, outputs) = (pair.a.len() / pair.rank, pair.b.len() / pair.rank);
        Self {
            a: Panels::new(&pair.a, (pair.rank, inputs)),
            b: Panels::new(&pair.b, (outputs, pair.rank)),
        }
    }
}

/// One adapter: what training changes and publishing swaps.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    spec: LoraSpec,
    config: ModelConfig,
    /// `layers * all targets`, in listing order; none where nothing is adapted. Rank and alpha are those of the spec but
    /// for adapters that others made with exceptions.
    pairs: Vec<Option<Pair>>,
    /// Of the values as they are, in the order of `pairs`.
    panels: Remade<Vec<Option<PairPanels>>>,
}

impl Adapter {
    /// A new adapter: A uniform in ±1/sqrt(inputs) (Kaiming with a = sqrt 5, as PEFT), B zero, so
    /// that it changes nothing yet.
    pub fn init(config: &ModelConfig, mut spec: LoraSpec, seed: u64) -> Self {
        spec.targets = spec.ordered().collect();
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
                let mut pair = Pair::blank(widths, spec.rank, spec.alpha);
                pair.a.fill_with(|| rng.random_range(-bound..bound));
                pairs.push(Some(pair));
            }
        }
        Self {
            spec,
            config: config.clone(),
            pairs,
            panels: Remade::default(),
        }
    }

    /// Its shape.
    pub fn spec(&self) -> &LoraSpec {
        &self.spec
    }

    /// Whether it was made for a model of this shape.
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

    /// The pair of a layer, if that target is adapted.
    pub(crate) fn pair(&self, layer: usize, target: Target) -> Option<&Pair> {
        self.pairs.get(Self::place(layer, target)?)?.as_ref()
    }

    /// The same in panels.
    pub(crate) fn panels(&self, layer: usize, target: Target) -> Option<&PairPanels> {
        self.prepare().get(Self::place(layer, target)?)?.as_ref()
    }

    /// Lays out all panels, if that is not done yet.
    pub(crate) fn prepare(&self) -> &[Option<PairPanels>] {
        let panels = |pair: &Option<Pair>| pair.as_ref().map(PairPanels::new);
        self.panels
            .get_or_make(|| self.pairs.iter().map(panels).collect())
    }

    /// Index of A in [`Adapter::tensors`]; B follows it.
    pub(crate) fn tensor_index(&self, layer: usize, target: Target) -> Option<usize> {
        let place = Self::place(layer, target)?;
        self.pairs.get(place)?.as_ref()?;
        Some(self.pairs.iter().take(place).flatten().count() * 2)
    }

    fn place(layer: usize, target: Target) -> Option<usize> {
        let within = Target::ALL.into_iter().position(|t| t == target)?;
        Some(layer * Target::ALL.len() + within)
    }

    /// What is adapted: the module's name, its target, and the pair.
    fn adapted(&self) -> impl Iterator<Item = (String, Target, &Pair)> {
        let modules = modules(&self.config).zip(&self.pairs);
        modules.filter_map(|((name, target), pair)| Some((name, target, pair.as_ref()?)))
    }

    /// Names and shapes in the order of [`Adapter::tensors`].
    fn layout(&self) -> Vec<(String, [usize; 2])> {
        let mut all = Vec::new();
        for (module, target, pair) in self.adapted() {
            let (inputs, outputs) = target.widths(&self.config);
            all.push((named(&module, "A"), [pair.rank, inputs]));
            all.push((named(&module, "B"), [outputs, pair.rank]));
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

    /// As [`Adapter::tensors`], to be changed by an optimizer.
    pub fn tensors_mut(&mut self) -> Vec<(String, &mut [f32])> {
        self.panels.forget();
        let names = self.layout().into_iter().map(|(n, _)| n);
        let values = self
            .pairs
            .iter_mut()
            .flatten()
            .flat_map(|p| [p.a.as_mut_slice(), p.b.as_mut_slice()]);
        names.zip(values).collect()
    }

    /// sha256 over shape, scale, names and values, hex: two adapters with the same digest serve the same.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.spec.alpha.to_le_bytes());
        for (module, _, pair) in self.adapted() {
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
            for value in values {
                hash.update(value.to_le_bytes());
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

/// Every module that can be adapted, in listing order, by the name that it has in a checkpoint.
fn modules(config: &ModelConfig) -> impl Iterator<Item = (String, Target)> {
    (0..config.num_hidden_layers).flat_map(|layer| {
        Target::ALL
            .into_iter()
            .map(move |target| (format!("model.layers.{layer}.{}", target.module()), target))
    })
}

/// PEFT's name of a module's tensor `A` or `B`.
fn named(module: &str, part: &str) -> String {
    format!("base_model.model.{module}.lora_{part}.weight")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::tiny;

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
    fn a_fresh_adapter_has_a_zero_b_and_its_seed_decides_a() {
        let config = tiny();
        let make = |seed| Adapter::init(&config, LoraSpec::default(), seed);
        assert_eq!(make(1).digest(), make(1).digest());
        assert_ne!(make(1).digest(), make(2).digest());
        let adapter = make(1);
        let mut pairs = adapter.pairs.iter().flatten();
        assert!(pairs.all(|p| p.b.iter().all(|v| *v == 0.0)));
    }
}
