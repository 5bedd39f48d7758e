//! Parses `adapter_config.json` of PEFT: which modules an adapter changes, with which rank and scale. Anything beyond
//! plain LoRA on linear layers is rejected by name, because ignoring it would serve a different adapter without notice.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::spec::{check, sorted_targets};
use super::spec::{mismatch, plain_alpha};
use super::{Adapter, LoraPair, modules};
use crate::config::ModelConfig;
use crate::config::TargetLayer;
use crate::derived::Derived;
use crate::error::LoadError;
use clawhost_config::{LoraSpec, Target};

/// The keys that affect the computation. Others, such as the initialization or dropout, do not matter for a finished
/// adapter.
#[derive(Debug, Deserialize)]
pub(super) struct PeftConfig {
    peft_type: String,
    r: usize,
    lora_alpha: f32,
    /// A list of module names, or a pattern.
    #[serde(default)]
    target_modules: Value,
    /// A list of names, or a pattern, of modules that are not adapted.
    #[serde(default)]
    exclude_modules: Value,
    /// The adapted layers, one or many; null for all.
    #[serde(default)]
    layers_to_transform: Value,
    #[serde(default)]
    use_rslora: bool,
    /// Per-module ranks.
    #[serde(default)]
    rank_pattern: Option<Map<String, Value>>,
    /// Per-module alphas.
    #[serde(default)]
    alpha_pattern: Option<Map<String, Value>>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// PEFT keys about initialization, data or the environment, which do not affect the computation. Any other key must
/// have a value that means "disabled", because ignoring an unknown adaptation method would change the outputs without
/// notice.
const IGNORED_KEYS: &[&str] = &[
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

/// Initializations that leave the base model unchanged; others train against a modified base model.
const SUPPORTED_INITS: &[&str] = &["gaussian", "eva", "orthogonal"];

/// Whether a PEFT value means that the feature is disabled.
fn is_disabled(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text == "none" || text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Whether a name refers to a module: `q_proj`, `self_attn.q_proj` or a longer path to it.
fn matches_module(module: &str, name: &str) -> bool {
    let before = module.strip_suffix(name);
    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// The value of the first key that matches a module. Keys are regular expressions in PEFT; only plain names are
/// supported, with or without escaped dots.
fn override_for<'a>(pattern: &'a [(String, Value)], module: &str) -> Option<&'a Value> {
    let selected = pattern
        .iter()
        .find(|(name, _)| matches_module(module, name));
    selected.map(|(_, value)| value)
}

/// Parses a `rank_pattern` or `alpha_pattern`, whose keys must be plain names.
fn override_names(
    key: &str,
    pattern: Option<Map<String, Value>>,
) -> Result<Vec<(String, Value)>, LoadError> {
    let mut all = Vec::new();
    for (name, value) in pattern.unwrap_or_default() {
        let plain = name.replace("\\.", ".");
        let known = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        if !plain.chars().all(known) {
            return Err(mismatch(format!(
                "{key} has the pattern {name}; only module names are supported, not patterns: list the names"
            )));
        }
        all.push((plain, value));
    }
    Ok(all)
}

impl PeftConfig {
    /// Builds an adapter of zeros with this shape if it is supported. `rank_of` returns the rank of a module's tensors,
    /// if it has any.
    pub(super) fn build_adapter(
        mut self,
        config: &ModelConfig,
        rank_of: impl Fn(&str) -> Option<usize>,
    ) -> Result<Adapter, LoadError> {
        self.check_plain_lora()?;
        let spec = LoraSpec {
            rank: self.r,
            alpha: plain_alpha(self.r, self.lora_alpha, self.use_rslora),
            targets: Target::ALL.to_vec(),
        };
        check(&spec)?;
        let ranks = override_names("rank_pattern", self.rank_pattern.take())?;
        let alphas = override_names("alpha_pattern", self.alpha_pattern.take())?;
        let selected = self.selected_modules(config)?;
        let mut pairs = Vec::new();
        let mut targets = Vec::new();
        for (at, (module, target)) in modules(config).enumerate() {
            let there = rank_of(&module);
            let is_selected = selected.as_ref().map_or(there.is_some(), |selected| {
                selected.get(at).copied().unwrap_or_default()
            });
            if !is_selected {
                if there.is_some() {
                    return Err(mismatch(format!(
                        "it has tensors for {module}, which target_modules, exclude_modules or layers_to_transform leave out"
                    )));
                }
                pairs.push(None);
                continue;
            }
            let invalid = |key: &str, value: &Value| {
                mismatch(format!("{key} has the invalid value {value} for {module}"))
            };
            let rank = match override_for(&ranks, &module) {
                None => self.r,
                Some(value) => value
                    .as_u64()
                    .and_then(|rank| usize::try_from(rank).ok())
                    .filter(|rank| (1..=1024).contains(rank))
                    .ok_or_else(|| invalid("rank_pattern", value))?,
            };
            if let Some(found) = there.filter(|found| *found != rank && !ranks.is_empty()) {
                return Err(mismatch(format!(
                    "{module} has rank {found}, but r and rank_pattern make it {rank}"
                )));
            }
            let alpha = match override_for(&alphas, &module) {
                None => self.lora_alpha,
                Some(value) => value
                    .as_f64()
                    .filter(|alpha| alpha.is_finite())
                    .ok_or_else(|| invalid("alpha_pattern", value))?
                    as f32,
            };
            let alpha = plain_alpha(rank, alpha, self.use_rslora);
            pairs.push(Some(LoraPair::zeros(target.widths(config), rank, alpha)));
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        let mut spec = LoraSpec { targets, ..spec };
        spec.targets = sorted_targets(&spec).collect();
        check(&spec)?;
        Ok(Adapter {
            spec,
            config: config.clone(),
            pairs,
            derived: Derived::default(),
            digest: Derived::default(),
        })
    }

    fn check_plain_lora(&self) -> Result<(), LoadError> {
        if self.peft_type != "LORA" {
            return Err(mismatch(format!(
                "peft_type is {}; only LORA is supported",
                self.peft_type
            )));
        }
        for (key, value) in &self.others {
            let plain = match (key.as_str(), value) {
                ("init_lora_weights", Value::Bool(_)) => true,
                ("init_lora_weights", Value::String(way)) => {
                    SUPPORTED_INITS.contains(&way.as_str())
                }
                _ => IGNORED_KEYS.contains(&key.as_str()) || is_disabled(value),
            };
            if !plain {
                return Err(mismatch(format!(
                    "{key} is {value}; only plain LoRA on linear layers is supported: merge the adapter into its model, or train it without this option"
                )));
            }
        }
        Ok(())
    }

    /// Whether each module is adapted, if the configuration lists names; `None` if it has patterns, and the tensors
    /// decide.
    fn selected_modules(&self, config: &ModelConfig) -> Result<Option<Vec<bool>>, LoadError> {
        let list =
            |value: &Value| -> Option<Vec<String>> { serde_json::from_value(value.clone()).ok() };
        let Some(names) = list(&self.target_modules) else {
            return Ok(None);
        };
        let modules: Vec<String> = modules(config).map(|(module, _)| module).collect();
        let unknown = |name: &&String| !modules.iter().any(|module| matches_module(module, name));
        if let Some(name) = names.iter().find(unknown) {
            let known: Vec<&str> = Target::ALL.iter().map(|t| t.module()).collect();
            return Err(mismatch(format!(
                "it changes {name}; supported layers are {}",
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
                mismatch(format!(
                    "layers_to_transform is {many}, which is neither a layer nor a list of layers"
                ))
            })?),
        };
        let layers = layers.filter(|layers| !layers.is_empty());
        let each = modules.iter().enumerate().map(|(at, module)| {
            let layer = (at / Target::ALL.len()) as u64;
            names.iter().any(|name| matches_module(module, name))
                && !excluded.iter().any(|name| matches_module(module, name))
                && layers.as_ref().is_none_or(|layers| layers.contains(&layer))
        });
        Ok(Some(each.collect()))
    }
}
