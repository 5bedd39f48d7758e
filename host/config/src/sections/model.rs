//! `[model]`: the served model and the formats of its replies.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[model]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSection {
    /// Model directory in Hugging Face layout, or a GGUF file. Default: the embedded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// PEFT directory of the initial adapter, used when the data directory has no adapter yet. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_adapter: Option<PathBuf>,
    /// Name under which the model is served. Default: the name of the directory or file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_model_name: Option<String>,
    /// Tool call format of the model: `hermes`, `qwen-xml`, `llama`, or `auto` (from its chat template). Default auto.
    pub tool_call_parser: ToolCallParser,
    /// Reasoning format of the model: `think` (between tags), `unopened` (only the closing tag is written), `none`, or
    /// `auto` (from its chat template). Default auto.
    pub reasoning_parser: ReasoningParser,
}

/// Tool call format of a model.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names are the configuration's values")]
pub enum ToolCallParser {
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
pub enum ReasoningParser {
    #[default]
    Auto,
    Think,
    Unopened,
    None,
}
