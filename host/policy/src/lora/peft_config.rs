//! `adapter_config.json` as PEFT writes it: which modules an adapter changes, with which rank and scale. What it says beyond
//! plain LoRA on linear layers is refused by name, since an adapter that is read half would be served as if it were whole.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::spec::{mismatch, plain_alpha};
use super::{Adapter, LoraSpec, Pair, Target, modules};
use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::remade::Remade;

/// The keys that decide what is computed. Others, such as how training began or its dropout, do not matter for an adapter
/// that is finished.
#[derive(Debug, Deserialize)]
pub(super) struct Found {
    peft_type: String,
    r: usize,
    lora_alpha: f32,
    /// A list of names, or a pattern that they match.
    #[serde(default)]
    target_modules: Value,
    /// A list of names or a pattern of those that are not meant.
    #[serde(default)]
    exclude_modules: Value,
    /// Layers that are meant, one or many; the others are not.
    #[serde(default)]
    layers_to_transform: Value,
    #[serde(default)]
    use_rslora: bool,
    /// Ranks of modules that have another.
    #[serde(default)]
    rank_pattern: Option<Map<String, Value>>,
    /// Alphas of modules that have another.
    #[serde(default)]
    alpha_pattern: Option<Map<String, Value>>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// Keys of PEFT that say how training began, what it was fed or where it ran, and nothing about what is computed. Any
/// other key must have a value that means "no": a way of adapting that is not known here would be left out in silence.
const NO_MATTER: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "inference_mode",
    "layers_pattern",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
];

/// Ways to begin that leave the base model as it is; others train against a base that they have changed.
const BEGINNINGS: &[&str] = &["gaussian", "eva", "orthogonal"];

/// Whether a value of PEFT's means that something is not used.
fn unused(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text == "none" || text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Whether a module is the one that a name stands for: `q_proj`, `self_attn.q_proj` or a longer path to it.
fn is_meant(module: &str, name: &str) -> bool {
    let before = module.strip_suffix(name);
    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// The value of the first key that means a module. Keys are patterns, of which those are read that are names, with or
/// without escaped dots.
fn exception<'a>(pattern: &'a [(String, Value)], module: &str) -> Option<&'a Value> {
    let meant = pattern.iter().find(|(name, _)| is_meant(module, name));
    meant.map(|(_, value)| value)
}

/// A pattern with its keys as names.
fn names(
    key: &str,
    pattern: Option<Map<String, Value>>,
) -> Result<Vec<(String, Value)>, LoadError> {
    let mut all = Vec::new();
    for (name, value) in pattern.unwrap_or_default() {
        let plain = name.replace("\\.", ".");
        let known = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        if !plain.chars().all(known) {
            return Err(mismatch(format!(
                "{key} has the pattern {name}; names of modules are read, patterns are not: write the names out"
            )));
        }
        all.push((plain, value));
    }
    Ok(all)
}

impl Found {
    /// An adapter of zeros of this shape, when it is one that is served. `rank_of` tells the rank that a module has
    /// among the tensors, if it is there.
    pub(super) fn shape(
        mut self,
        config: &ModelConfig,
        rank_of: impl Fn(&str) -> Option<usize>,
    ) -> Result<Adapter, LoadError> {
        self.refuse_more_than_plain()?;
        let spec = LoraSpec {
            rank: self.r,
            alpha: plain_alpha(self.r, self.lora_alpha, self.use_rslora),
            targets: Target::ALL.to_vec(),
        };
        spec.check()?;
        let ranks = names("rank_pattern", self.rank_pattern.take())?;
        let alphas = names("alpha_pattern", self.alpha_pattern.take())?;
        let meant = self.meant(config)?;
        let mut pairs = Vec::new();
        let mut targets = Vec::new();
        for (at, (module, target)) in modules(config).enumerate() {
            let there = rank_of(&module);
            let is_meant = meant.as_ref().map_or(there.is_some(), |meant| {
                meant.get(at).copied().unwrap_or_default()
            });
            if !is_meant {
                if there.is_some() {
                    return Err(mismatch(format!(
                        "it has tensors for {module}, which target_modules, exclude_modules or layers_to_transform leave out"
                    )));
                }
                pairs.push(None);
                continue;
            }
            let wrong = |key: &str, value: &Value| {
                mismatch(format!("{key} has {value} for {module}, which cannot be"))
            };
            let rank = match exception(&ranks, &module) {
                None => self.r,
                Some(value) => value
                    .as_u64()
                    .and_then(|rank| usize::try_from(rank).ok())
                    .filter(|rank| (1..=1024).contains(rank))
                    .ok_or_else(|| wrong("rank_pattern", value))?,
            };
            if let Some(found) = there.filter(|found| *found != rank && !ranks.is_empty()) {
                return Err(mismatch(format!(
                    "{module} has rank {found}, but r and rank_pattern make it {rank}"
                )));
            }
            let alpha = match exception(&alphas, &module) {
                None => self.lora_alpha,
                Some(value) => value
                    .as_f64()
                    .filter(|alpha| alpha.is_finite())
                    .ok_or_else(|| wrong("alpha_pattern", value))?
                    as f32,
            };
            let alpha = plain_alpha(rank, alpha, self.use_rslora);
            pairs.push(Some(Pair::blank(target.widths(config), rank, alpha)));
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        let mut spec = LoraSpec { targets, ..spec };
        spec.targets = spec.ordered().collect();
        spec.check()?;
        Ok(Adapter {
            spec,
            config: config.clone(),
            pairs,
            panels: Remade::default(),
        })
    }

    fn refuse_more_than_plain(&self) -> Result<(), LoadError> {
        if self.peft_type != "LORA" {
            return Err(mismatch(format!(
                "peft_type is {}; only LORA is served",
                self.peft_type
            )));
        }
        for (key, value) in &self.others {
            let plain = match (key.as_str(), value) {
                ("init_lora_weights", Value::Bool(_)) => true,
                ("init_lora_weights", Value::String(way)) => BEGINNINGS.contains(&way.as_str()),
                _ => NO_MATTER.contains(&key.as_str()) || unused(value),
            };
            if !plain {
                return Err(mismatch(format!(
                    "{key} is {value}; only plain LoRA on linear layers is served: merge the adapter into its model, or train it without"
                )));
            }
        }
        Ok(())
    }

    /// Whether each module is meant, where the configuration has names; none where it has patterns, and the tensors
    /// tell.
    fn meant(&self, config: &ModelConfig) -> Result<Option<Vec<bool>>, LoadError> {
        let list =
            |value: &Value| -> Option<Vec<String>> { serde_json::from_value(value.clone()).ok() };
        let Some(names) = list(&self.target_modules) else {
            return Ok(None);
        };
        let modules: Vec<String> = modules(config).map(|(module, _)| module).collect();
        let unknown = |name: &&String| !modules.iter().any(|module| is_meant(module, name));
        if let Some(name) = names.iter().find(unknown) {
            let known: Vec<&str> = Target::ALL.iter().map(|t| t.module()).collect();
            return Err(mismatch(format!(
                "it changes {name}; layers that can be adapted are {}",
                known.join(", ")
            )));
        }
        let excluded = match &self.exclude_modules {
            Value::String(_) => return Ok(None),
            some => list(some).unwrap_or_default(),
        };
        let layers: Option<Vec<u64>> = match &self.layers_to_transform {
            Value::Null => None,
            Value::Number(one) => Some(one.as_u64().into_iter().collect()),
            many => Some(serde_json::from_value(many.clone()).map_err(|_| {
                mismatch(format!("layers_to_transform is {many}, which cannot be"))
            })?),
        };
        let layers = layers.filter(|layers| !layers.is_empty());
        let each = modules.iter().enumerate().map(|(at, module)| {
            let layer = (at / Target::ALL.len()) as u64;
            names.iter().any(|name| is_meant(module, name))
                && !excluded.iter().any(|name| is_meant(module, name))
                && layers.as_ref().is_none_or(|layers| layers.contains(&layer))
        });
        Ok(Some(each.collect()))
    }
}
