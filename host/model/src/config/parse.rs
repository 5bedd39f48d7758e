//! Parses `config.json`, in any of the forms that transformers has written, into [`ModelConfig`].

use serde_json::{Map, Value};

use super::{Family, ModelConfig, RopeScaling};
use crate::error::{LoadError, invalid};

/// Keys of checkpoints that compute something else than the family's plain decoder. Null, false, zero and empty values
/// mean that they do not.
const UNSUPPORTED_KEYS: &[(&str, &str)] = &[
    (
        "quantization_config",
        "its weights are quantized; use the checkpoint in bf16, f16 or f32",
    ),
    (
        "compression_config",
        "its weights are compressed; use the checkpoint in bf16, f16 or f32",
    ),
    ("num_experts", MIXTURE),
    ("num_local_experts", MIXTURE),
    ("n_routed_experts", MIXTURE),
    ("num_experts_per_tok", MIXTURE),
    ("moe_intermediate_size", MIXTURE),
    ("attn_logit_softcapping", UNSUPPORTED_DECODER),
    ("final_logit_softcapping", UNSUPPORTED_DECODER),
    ("embedding_multiplier", UNSUPPORTED_DECODER),
    ("residual_multiplier", UNSUPPORTED_DECODER),
    ("attention_multiplier", UNSUPPORTED_DECODER),
    ("logits_scaling", UNSUPPORTED_DECODER),
];

const MIXTURE: &str = "belongs to a mixture of experts; only dense models are supported";
const UNSUPPORTED_DECODER: &str = "belongs to a decoder architecture that is not supported";

impl ModelConfig {
    /// Parses and validates `config.json`.
    ///
    /// # Errors
    /// Malformed JSON, an unsupported architecture, a key that changes the architecture, or an invalid dimension.
    pub fn parse(text: &[u8]) -> Result<Self, LoadError> {
        let malformed = |reason: String| LoadError::Malformed {
            file: "config.json".to_owned(),
            reason,
        };
        let mut fields: Map<String, Value> =
            serde_json::from_slice(text).map_err(|e| malformed(e.to_string()))?;
        // Null keys are treated as missing: the classes give them the same default.
        let no_head_dim = fields.get("head_dim").is_some_and(Value::is_null);
        let no_window = fields.get("sliding_window").is_some_and(Value::is_null);
        fields.retain(|_, value| !value.is_null());
        let family = family(&fields)?;
        for (key, problem) in UNSUPPORTED_KEYS {
            if let Some(value) = fields.get(*key).filter(|value| !is_disabled(value)) {
                return Err(invalid(key, value, problem));
            }
        }
        let own = [
            ("architectures", Value::from(vec![family.architecture()])),
            ("model_type", family.model_type().into()),
        ];
        for (key, value) in own {
            fields.insert(key.to_owned(), value);
        }
        rope(&mut fields)?;
        if !no_window && family != Family::Llama {
            fields.entry("sliding_window").or_insert(4096.into());
        }
        window(&mut fields, family)?;
        let heads = fields.get("num_attention_heads").and_then(Value::as_u64);
        if let Some(heads) = heads {
            fields.entry("num_key_value_heads").or_insert(heads.into());
        }
        if !fields.contains_key("head_dim") {
            let hidden = fields.get("hidden_size").and_then(Value::as_u64);
            let divided = hidden
                .zip(heads)
                .and_then(|(h, n)| h.is_multiple_of(n).then(|| h.checked_div(n))?);
            let own = family.head_dim().filter(|_| !no_head_dim);
            if let Some(dim) = own.map(|dim| dim as u64).or(divided) {
                fields.insert("head_dim".to_owned(), dim.into());
            }
        }
        let config: Self =
            serde_json::from_value(Value::Object(fields)).map_err(|e| malformed(e.to_string()))?;
        config.check()?;
        Ok(config)
    }
}

fn family(fields: &Map<String, Value>) -> Result<Family, LoadError> {
    let first = fields.get("architectures").and_then(|all| all.get(0));
    let model_type = fields.get("model_type").and_then(Value::as_str);
    Family::from_names(first.and_then(Value::as_str), model_type)
}

fn is_disabled(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::String(_) => false,
    }
}

/// Normalizes `rope_parameters` of transformers 5 to `rope_theta` and `rope_scaling` of earlier versions.
fn rope(fields: &mut Map<String, Value>) -> Result<(), LoadError> {
    let context = fields
        .get("max_position_embeddings")
        .and_then(Value::as_u64);
    let context = context.and_then(|tokens| usize::try_from(tokens).ok());
    let original = fields.remove("original_max_position_embeddings");
    if let Some(part) = fields
        .get("partial_rotary_factor")
        .filter(|part| part.as_f64() != Some(1.0))
    {
        return Err(invalid(
            "partial_rotary_factor",
            part,
            "is not supported; expected 1",
        ));
    }
    let new = fields.remove("rope_parameters");
    let old = fields.remove("rope_scaling");
    let (key, given) = match (new, old) {
        (None, None) => return Ok(()),
        (Some(new), Some(old)) if new != old => {
            return Err(invalid(
                "rope_scaling",
                old,
                "differs from rope_parameters; remove one of them",
            ));
        }
        (Some(new), _) => ("rope_parameters", new),
        (None, Some(old)) => ("rope_scaling", old),
    };
    let Value::Object(mut given) = given else {
        return Err(invalid(key, given, "must be an object"));
    };
    if let Some(original) = original {
        given
            .entry("original_max_position_embeddings")
            .or_insert(original);
    }
    if let Some(theta) = given.get("rope_theta") {
        fields.insert("rope_theta".to_owned(), theta.clone());
    }
    if let Some(scaling) = RopeScaling::read(key, &given, context)? {
        let scaling =
            serde_json::to_value(scaling).map_err(|e| invalid(key, e, "cannot be written"))?;
        fields.insert("rope_scaling".to_owned(), scaling);
    }
    Ok(())
}

/// Removes a sliding window that is never active; the validation rejects others by key.
fn window(fields: &mut Map<String, Value>, family: Family) -> Result<(), LoadError> {
    let layers = fields.get("num_hidden_layers").and_then(Value::as_u64);
    let context = fields
        .get("max_position_embeddings")
        .and_then(Value::as_u64);
    let width = fields.get("sliding_window").and_then(Value::as_u64);
    let kinds: Option<Vec<&str>> = fields
        .get("layer_types")
        .and_then(Value::as_array)
        .map(|kinds| kinds.iter().filter_map(Value::as_str).collect());
    let other = |kind: &&&str| !matches!(**kind, "full_attention" | "sliding_attention");
    if let Some(kind) = kinds.iter().flatten().find(other) {
        return Err(invalid(
            "layer_types",
            kind,
            "is not supported; expected full_attention",
        ));
    }
    let used = fields.get("use_sliding_window").and_then(Value::as_bool) == Some(true);
    let from = fields.get("max_window_layers").and_then(Value::as_u64);
    let is_active = match (&kinds, family) {
        (_, Family::Llama) => false,
        (_, Family::Qwen2 | Family::Qwen3) if !used => false,
        (Some(kinds), Family::Qwen2 | Family::Qwen3) => kinds.contains(&"sliding_attention"),
        (None, Family::Qwen2 | Family::Qwen3) => from.unwrap_or(28) < layers.unwrap_or(0),
        (_, Family::Mistral) => true,
    };
    if !is_active || width.is_none() || width >= context {
        fields.remove("sliding_window");
        fields.insert("use_sliding_window".to_owned(), false.into());
    }
    Ok(())
}
