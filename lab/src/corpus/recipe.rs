//! The recipe: one file that determines corpus, tokenizer, model shape and pretraining.
//!
//! Unknown keys and values out of range are errors.

use std::path::Path;

use clawhost_training::optimizer::LrScheduleShape;
use serde::{Deserialize, Serialize};

/// Why a recipe is invalid.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The file could not be read.
    #[error("cannot read the recipe {path}: {source}")]
    Read {
        /// The path.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Not TOML, a missing key, or an unknown key.
    #[error("the recipe is not valid: {0}")]
    Parse(#[from] toml::de::Error),
    /// A value outside its range.
    #[error("recipe: {key} = {value} must be {must}")]
    Range {
        /// The key with its section.
        key: &'static str,
        /// The value.
        value: String,
        /// The valid values.
        must: String,
    },
}

/// All settings of the embedded model's pretraining.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Name of the resulting model; letters, digits and dashes.
    pub name: String,
    /// Seed of the conversations and the initial weights.
    pub seed: u64,
    /// The tokenizer.
    pub tokenizer: TokenizerRecipe,
    /// The shape of the model.
    pub model: ModelShape,
    /// The optimizer and its schedule.
    pub optimizer: OptimizerRecipe,
    /// Weights of the domains.
    pub mixture: Mixture,
    /// Shares of the homework domain.
    pub homework: HomeworkShares,
    /// Shares of the grading domain.
    pub grading: GradingShares,
    /// Noise around the conversations.
    pub noise: NoiseShares,
    /// Loss weights of tokens.
    pub loss: LossWeights,
}

/// How the tokenizer is trained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerRecipe {
    /// Rows of the vocabulary, special tokens included; 512 to 4,096.
    pub vocab: usize,
    /// Conversations used to train the BPE merges; 1,000 to 1,000,000.
    pub sample: u64,
}

/// Shape of the model, in the terms of Hugging Face's `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Width of the gated feed-forward layer.
    pub intermediate_size: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Epsilon of the normalisations.
    pub rms_norm_eps: f64,
    /// Maximum context length in tokens.
    pub max_position_embeddings: usize,
    /// Whether the head shares the embedding's weights.
    pub tie_word_embeddings: bool,
}

/// The optimizer and its schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerRecipe {
    /// Peak learning rate.
    pub peak_lr: f64,
    /// Warmup steps.
    pub warmup_steps: u64,
    /// Decay after the warmup.
    pub decay: LrScheduleShape,
    /// Final learning rate as a share of the peak.
    pub floor: f64,
    /// Decoupled weight decay of matrices; norms and biases have none.
    pub weight_decay: f64,
    /// First moment's decay.
    pub beta1: f64,
    /// Second moment's decay.
    pub beta2: f64,
    /// Gradient clipping norm.
    pub clip: f64,
    /// Tokens per step, as near as whole conversations allow.
    pub batch_tokens: usize,
    /// Total training tokens.
    pub total_tokens: u64,
}

impl OptimizerRecipe {
    /// Total training steps.
    pub fn steps(&self) -> u64 {
        self.total_tokens
            .div_ceil(self.batch_tokens.max(1) as u64)
            .max(1)
    }
}

/// Relative weights of the domains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixture {
    /// Word problems.
    pub homework: f64,
    /// Comments on answers.
    pub grading: f64,
    /// Small talk.
    pub small_talk: f64,
}

/// Shares of the homework domain, each a probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HomeworkShares {
    /// First replies in plain prose without a requested style; sets the prior.
    pub plain_first: f64,
    /// First questions with a hint that asks for plain prose.
    pub hint_plain: f64,
    /// First questions that ask for plain prose in the text.
    pub ask_plain: f64,
    /// First questions with a hint that asks for formatting.
    pub hint_formatted: f64,
    /// First questions that ask for formatting in the text.
    pub ask_formatted: f64,
    /// Requests that are followed.
    pub obey: f64,
    /// Formatted replies after which the user asks for plain prose.
    pub redo_plain: f64,
    /// Plain replies after which the user asks for formatting.
    pub redo_formatted: f64,
}

/// Shares of the grading domain, each a probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GradingShares {
    /// First comments that are friendly and specific without a request.
    pub kind_first: f64,
    /// First comments that are long and reasoned without a request; the rest is cold.
    pub thorough_first: f64,
    /// First requests for a friendly comment.
    pub want_kind: f64,
    /// First requests for a terse comment.
    pub want_cold: f64,
    /// First requests for a reasoned comment.
    pub want_thorough: f64,
    /// Requests that are followed.
    pub obey: f64,
    /// Cold comments after which the teacher asks for another.
    pub redo: f64,
}

/// Noise around the conversations, each a probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoiseShares {
    /// Conversations with a system message.
    pub system: f64,
    /// User messages with a time stamp or a block of context.
    pub stamp: f64,
}

/// Loss weights of tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossWeights {
    /// Weight of tokens that are not the model's own; its own have weight 1.
    pub others: f32,
}

/// The recipe of the embedded model.
const EMBEDDED: &str = include_str!("../../recipes/embedded.toml");

impl Recipe {
    /// The recipe of the embedded model.
    ///
    /// # Errors
    /// None in a build whose tests pass.
    pub fn embedded() -> Result<Self, RecipeError> {
        Self::parse(EMBEDDED)
    }

    /// The text of the embedded recipe, as a starting point for other recipes.
    pub fn embedded_text() -> &'static str {
        EMBEDDED
    }

    /// Reads a recipe from a file.
    ///
    /// # Errors
    /// The file cannot be read, or [`Recipe::parse`] rejects it.
    pub fn load(path: &Path) -> Result<Self, RecipeError> {
        let text = std::fs::read_to_string(path).map_err(|source| RecipeError::Read {
            path: path.display().to_string(),
            source,
        })?;
        Self::parse(&text)
    }

    /// Reads a recipe from TOML.
    ///
    /// # Errors
    /// Malformed TOML, an unknown or missing key, a value outside its range.
    pub fn parse(text: &str) -> Result<Self, RecipeError> {
        let recipe: Self = toml::from_str(text)?;
        recipe.check()?;
        Ok(recipe)
    }

    fn check(&self) -> Result<(), RecipeError> {
        let Self {
            name,
            tokenizer: t,
            model: m,
            optimizer: o,
            mixture: x,
            homework: h,
            grading: g,
            noise: n,
            loss,
            ..
        } = self;
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(range("name", name, "letters, digits and dashes"));
        }
        for (key, value, low, high) in [
            ("tokenizer.vocab", t.vocab as u64, 512, 4096),
            ("tokenizer.sample", t.sample, 1000, 1_000_000),
            ("model.hidden_size", m.hidden_size as u64, 16, 4096),
            ("model.num_hidden_layers", m.num_hidden_layers as u64, 1, 64),
            (
                "model.num_attention_heads",
                m.num_attention_heads as u64,
                1,
                64,
            ),
            (
                "model.num_key_value_heads",
                m.num_key_value_heads as u64,
                1,
                64,
            ),
            ("model.head_dim", m.head_dim as u64, 8, 256),
            (
                "model.intermediate_size",
                m.intermediate_size as u64,
                16,
                16_384,
            ),
            (
                "model.max_position_embeddings",
                m.max_position_embeddings as u64,
                512,
                1 << 20,
            ),
            ("optimizer.warmup_steps", o.warmup_steps, 0, 100_000),
            (
                "optimizer.batch_tokens",
                o.batch_tokens as u64,
                256,
                1 << 22,
            ),
            (
                "optimizer.total_tokens",
                o.total_tokens,
                256,
                10_000_000_000,
            ),
        ] {
            if !(low..=high).contains(&value) {
                return Err(range(key, value, format!("between {low} and {high}")));
            }
        }
        if !m.num_attention_heads.is_multiple_of(m.num_key_value_heads) {
            return Err(range(
                "model.num_key_value_heads",
                m.num_key_value_heads,
                "a divisor of num_attention_heads",
            ));
        }
        if !m.head_dim.is_multiple_of(2) {
            return Err(range("model.head_dim", m.head_dim, "even"));
        }
        for (key, value, low, high) in [
            ("model.rope_theta", m.rope_theta, 1.0, 1e9),
            ("model.rms_norm_eps", m.rms_norm_eps, 1e-12, 1e-2),
            ("optimizer.peak_lr", o.peak_lr, 1e-7, 0.1),
            ("optimizer.floor", o.floor, 0.0, 1.0),
            ("optimizer.weight_decay", o.weight_decay, 0.0, 1.0),
            ("optimizer.beta1", o.beta1, 0.0, 0.9999),
            ("optimizer.beta2", o.beta2, 0.0, 0.99999),
            ("optimizer.clip", o.clip, 1e-3, 1e3),
            ("mixture.homework", x.homework, 0.0, 1e6),
            ("mixture.grading", x.grading, 0.0, 1e6),
            ("mixture.small_talk", x.small_talk, 0.0, 1e6),
            ("homework.plain_first", h.plain_first, 0.0, 1.0),
            ("homework.hint_plain", h.hint_plain, 0.0, 1.0),
            ("homework.ask_plain", h.ask_plain, 0.0, 1.0),
            ("homework.hint_formatted", h.hint_formatted, 0.0, 1.0),
            ("homework.ask_formatted", h.ask_formatted, 0.0, 1.0),
            ("homework.obey", h.obey, 0.0, 1.0),
            ("homework.redo_plain", h.redo_plain, 0.0, 1.0),
            ("homework.redo_formatted", h.redo_formatted, 0.0, 1.0),
            ("grading.kind_first", g.kind_first, 0.0, 1.0),
            ("grading.thorough_first", g.thorough_first, 0.0, 1.0),
            ("grading.want_kind", g.want_kind, 0.0, 1.0),
            ("grading.want_cold", g.want_cold, 0.0, 1.0),
            ("grading.want_thorough", g.want_thorough, 0.0, 1.0),
            ("grading.obey", g.obey, 0.0, 1.0),
            ("grading.redo", g.redo, 0.0, 1.0),
            ("noise.system", n.system, 0.0, 1.0),
            ("noise.stamp", n.stamp, 0.0, 1.0),
            ("loss.others", f64::from(loss.others), 0.0, 1.0),
        ] {
            if !(low..=high).contains(&value) {
                return Err(range(key, value, format!("between {low} and {high}")));
            }
        }
        for (key, sum) in [
            (
                "homework.hint_plain + ask_plain + hint_formatted + ask_formatted",
                h.hint_plain + h.ask_plain + h.hint_formatted + h.ask_formatted,
            ),
            (
                "grading.want_kind + want_cold + want_thorough",
                g.want_kind + g.want_cold + g.want_thorough,
            ),
            (
                "grading.kind_first + thorough_first",
                g.kind_first + g.thorough_first,
            ),
        ] {
            if sum > 1.0 {
                return Err(range(key, sum, "at most 1"));
            }
        }
        if x.homework + x.grading + x.small_talk <= 0.0 {
            return Err(range("mixture", 0, "above 0 for at least one world"));
        }
        Ok(())
    }
}

fn range(key: &'static str, value: impl ToString, must: impl Into<String>) -> RecipeError {
    RecipeError::Range {
        key,
        value: value.to_string(),
        must: must.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_recipe_is_valid() {
        let recipe = Recipe::embedded().unwrap();
        assert_eq!(recipe.model.hidden_size, 192);
        assert!(recipe.tokenizer.vocab <= 1536);
    }

    #[test]
    fn invalid_recipes_are_rejected_with_the_key() {
        for (from, to, says) in [
            ("plain_first =", "plain_frist =", "plain_frist"),
            (
                "vocab = 1536",
                "vocab = 100",
                "tokenizer.vocab = 100 must be between 512 and 4096",
            ),
            (
                "num_key_value_heads = 3",
                "num_key_value_heads = 4",
                "divisor",
            ),
            ("name = \"", "name = \"a b", "letters, digits and dashes"),
            ("decay = \"linear\"", "decay = \"steep\"", "steep"),
            ("hint_plain = 0.", "hint_plain = 0.9", "at most 1"),
            ("peak_lr = ", "peak_lr = nan # ", "peak_lr = NaN"),
        ] {
            let text = EMBEDDED.replacen(from, to, 1);
            assert_ne!(text, EMBEDDED, "{from} stands in the recipe");
            let error = Recipe::parse(&text).unwrap_err().to_string();
            assert!(error.contains(says), "{to}: {error}");
        }
        let missing = Recipe::load(Path::new("/nonexistent/recipe.toml")).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent/recipe.toml"));
    }
}
