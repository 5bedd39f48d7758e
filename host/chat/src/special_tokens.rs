//! The special tokens that a checkpoint names for its chat template, such as `bos_token`.
//!
//! Templates print them, so a missing name would silently drop its token from every prompt.

use serde_json::Value;

/// All `*_token` entries of a `tokenizer_config.json`, in order, with their text. An entry is a string or an object
/// with `content`; null and flags such as `add_bos_token` are skipped.
pub fn named_tokens(tokenizer_config: &Value) -> Vec<(String, String)> {
    let fields = tokenizer_config.as_object().into_iter().flatten();
    fields
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| {
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((name.clone(), text.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_objects_are_tokens_and_flags_are_not() {
        let config = serde_json::json!({
            "add_bos_token": true,
            "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": false},
            "eos_token": "</s>",
            "unk_token": null,
            "image_token": "<image>",
            "tokenizer_class": "PreTrainedTokenizerFast",
        });
        let named = named_tokens(&config);
        let named: Vec<(&str, &str)> = named.iter().map(|(n, t)| (&**n, &**t)).collect();
        let right = [
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
            ("image_token", "<image>"),
        ];
        assert_eq!(named, right);
        assert!(named_tokens(&Value::Null).is_empty());
    }
}
