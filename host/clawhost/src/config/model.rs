//! `[model]`: the served model and the formats of its replies.

use std::path::PathBuf;

use clawhost_policy::{EngineOptions, ReasoningFormat, ToolCallFormat};
use serde::{Deserialize, Serialize};

/// `[model]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSection {
    /// Model directory in Hugging Face layout. Default: the embedded model.
    #[serde(skip_serializing_if = "Option::is_none", rename = "path")]
    pub dir: Option<PathBuf>,
    /// PEFT directory of the initial adapter, used when the data directory has no adapter yet. Default none.
    #[serde(skip_serializing_if = "Option::is_none", rename = "initial_adapter")]
    pub adapter: Option<PathBuf>,
    /// Name under which the model is served. Default: the directory's name.
    #[serde(skip_serializing_if = "Option::is_none", rename = "served_model_name")]
    pub name: Option<String>,
    /// Tool call format of the model: `hermes`, `qwen-xml`, `llama`, or `auto` (from its chat template). Default auto.
    #[serde(rename = "tool_call_parser")]
    pub tool_calls: ToolCalls,
    /// Reasoning format of the model: `think` (between tags), `unopened` (only the closing tag is written), `none`, or
    /// `auto` (from its chat template). Default auto.
    #[serde(rename = "reasoning_parser")]
    pub reasoning: Reasoning,
}

/// Tool call format of a model.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names are the configuration's values")]
pub enum ToolCalls {
    #[default]
    Auto,
    Hermes,
    QwenXml,
    Llama,
}

/// Reasoning format of a model.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names are the configuration's values")]
pub enum Reasoning {
    #[default]
    Auto,
    Think,
    Unopened,
    None,
}

impl ModelSection {
    /// Engine options with the configured tool call and reasoning formats.
    pub(crate) fn engine_options(&self, options: EngineOptions) -> EngineOptions {
        EngineOptions {
            tool_call_format: match self.tool_calls {
                ToolCalls::Auto => None,
                ToolCalls::Hermes => Some(ToolCallFormat::Hermes),
                ToolCalls::QwenXml => Some(ToolCallFormat::QwenXml),
                ToolCalls::Llama => Some(ToolCallFormat::Llama),
            },
            reasoning_format: match self.reasoning {
                Reasoning::Auto => None,
                Reasoning::Think => Some(ReasoningFormat::Think),
                Reasoning::Unopened => Some(ReasoningFormat::Unopened),
                Reasoning::None => Some(ReasoningFormat::None),
            },
            ..options
        }
    }
}
