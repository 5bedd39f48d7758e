//! The supported model families, by their names in checkpoints.

use crate::error::LoadError;

/// A model family: what its class in transformers fixes beyond the keys of `config.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Qwen3,
    Qwen2,
    Llama,
    Mistral,
}

impl Family {
    const ALL: [Self; 4] = [Self::Qwen3, Self::Qwen2, Self::Llama, Self::Mistral];

    /// Its class name in transformers.
    pub(crate) fn architecture(self) -> &'static str {
        match self {
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
        }
    }

    /// Its `model_type`.
    pub(super) fn model_type(self) -> &'static str {
        match self {
            Self::Qwen3 => "qwen3",
            Self::Qwen2 => "qwen2",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
        }
    }

    /// The family of an architecture or, if none is given, of a `model_type`; Qwen3 if neither is given.
    pub(super) fn from_names(
        architecture: Option<&str>,
        model_type: Option<&str>,
    ) -> Result<Self, LoadError> {
        let (named, by): (_, fn(Self) -> &'static str) = match (architecture, model_type) {
            (Some(named), _) => (named, Self::architecture),
            (None, Some(named)) => (named, Self::model_type),
            (None, None) => return Ok(Self::Qwen3),
        };
        Self::ALL
            .into_iter()
            .find(|family| by(*family) == named)
            .ok_or_else(|| LoadError::Architecture {
                found: named.to_owned(),
                supported: "Qwen3ForCausalLM, Qwen2ForCausalLM, LlamaForCausalLM and MistralForCausalLM",
            })
    }

    /// The class's default of `head_dim`, if it has one.
    pub(super) fn head_dim(self) -> Option<usize> {
        (self == Self::Qwen3).then_some(128)
    }
}
