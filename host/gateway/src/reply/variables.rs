//! Additional chat template variables, accepted in every dialect: `chat_template_kwargs` and `enable_thinking`, as in vLLM
//! and SGLang.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// Parses the template variables of a body. `effort` is the reasoning effort from the dialect's own field; `none` disables
/// thinking.
pub(crate) fn parse_template_variables(
    fields: Fields<'_, '_>,
    effort: Option<&str>,
) -> Result<Map<String, Value>, ApiError> {
    let mut out = Map::new();
    if let Some(effort) = effort {
        if effort == "none" {
            out.insert("enable_thinking".into(), false.into());
        }
        out.insert("reasoning_effort".into(), effort.into());
    }
    if let Some(thinking) = fields.flag("enable_thinking")? {
        out.insert("enable_thinking".into(), thinking.into());
    }
    match fields.value("chat_template_kwargs") {
        None => {}
        Some(Value::Object(kwargs)) => {
            for reserved in ["messages", "tools", "add_generation_prompt"] {
                if kwargs.contains_key(reserved) {
                    return Err(ApiError::invalid(
                        format!("chat_template_kwargs.{reserved}"),
                        format!(
                            "`{reserved}` is set from the request itself and cannot be replaced"
                        ),
                    ));
                }
            }
            out.extend(kwargs.clone());
        }
        Some(other) => return Err(wrong_type("chat_template_kwargs", "an object", other)),
    }
    Ok(out)
}
