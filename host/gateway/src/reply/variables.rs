//! Additional chat template variables, accepted in every dialect: `chat_template_kwargs` and `enable_thinking`, as in vLLM
//! and SGLang.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::parse::parse;

/// Fields with template variables.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct TemplateFields {
    /// Whether the model thinks before it replies. Default: the chat template decides.
    enable_thinking: Option<bool>,
    /// Variables of the chat template.
    chat_template_kwargs: Option<Map<String, Value>>,
}

/// Parses the template variables of a body. `effort` is the reasoning effort from the dialect's own field; `none` disables
/// thinking.
pub(crate) fn parse_template_variables(
    body: &Value,
    effort: Option<&str>,
) -> Result<Map<String, Value>, ApiError> {
    let fields: TemplateFields = parse(body)?;
    let mut out = Map::new();
    if let Some(effort) = effort {
        if effort == "none" {
            out.insert("enable_thinking".into(), false.into());
        }
        out.insert("reasoning_effort".into(), effort.into());
    }
    if let Some(thinking) = fields.enable_thinking {
        out.insert("enable_thinking".into(), thinking.into());
    }
    let kwargs = fields.chat_template_kwargs.unwrap_or_default();
    for reserved in ["messages", "tools", "add_generation_prompt"] {
        if kwargs.contains_key(reserved) {
            return Err(ApiError::invalid(
                format!("chat_template_kwargs.{reserved}"),
                format!("`{reserved}` is set from the request itself and cannot be replaced"),
            ));
        }
    }
    out.extend(kwargs);
    Ok(out)
}
