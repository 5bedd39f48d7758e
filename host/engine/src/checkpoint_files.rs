//! What an engine reads from the files of a checkpoint besides the weights: tokenizer, chat template, sampling defaults and
//! the tokens that end a reply. Starts nothing.

use clawhost_chat::{ChatTemplate, Tokenizer, named_tokens};
use clawhost_model::{LoadError, ModelConfig, ModelFiles};

use crate::sampling::SamplingParams;

/// What an engine reads from the files of a checkpoint besides the weights.
pub(crate) struct CheckpointFiles {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: ChatTemplate,
    pub(crate) defaults: SamplingParams,
    pub(crate) eos_token_ids: Vec<u32>,
}

impl CheckpointFiles {
    /// Parses the files.
    ///
    /// # Errors
    /// The missing or malformed file.
    pub(crate) fn new(files: &ModelFiles, config: &ModelConfig) -> Result<Self, LoadError> {
        let malformed = |file: &str, reason: String| LoadError::Malformed {
            file: file.to_owned(),
            reason,
        };
        let tokenizer = Tokenizer::from_bytes(files.tokenizer()?)
            .map_err(|error| malformed("tokenizer.json", error.to_string()))?;
        let vocab = config.vocab_size;
        if tokenizer.vocab_size() > vocab {
            let size = tokenizer.vocab_size();
            let reason = format!(
                "it has {size} tokens, but the model's vocabulary has {vocab}; use the tokenizer of this checkpoint"
            );
            return Err(malformed("tokenizer.json", reason));
        }
        let mut eos_token_ids = config.eos_token_ids.clone();
        let mut defaults = SamplingParams::default();
        if let Some(bytes) = files.generation_config() {
            let config: serde_json::Value = serde_json::from_slice(bytes)
                .map_err(|error| malformed("generation_config.json", error.to_string()))?;
            defaults = SamplingParams::from_generation_config(&config);
            let listed = config.get("eos_token_id");
            let single = listed.and_then(serde_json::Value::as_u64);
            let several = listed.and_then(serde_json::Value::as_array);
            let several = several
                .into_iter()
                .flatten()
                .filter_map(serde_json::Value::as_u64);
            eos_token_ids.extend(
                single
                    .into_iter()
                    .chain(several)
                    .filter_map(|id| u32::try_from(id).ok()),
            );
            eos_token_ids.sort_unstable();
            eos_token_ids.dedup();
        }
        let source = std::str::from_utf8(files.template()?)
            .map_err(|error| malformed("chat template", error.to_string()))?;
        // The last of equal names wins: tokenizer_config.json overrides the name derived from the EOS id.
        let eos_token = eos_token_ids.first().and_then(|id| tokenizer.token(*id));
        let mut variables: Vec<_> = eos_token
            .map(|token| ("eos_token".to_owned(), token))
            .into_iter()
            .collect();
        if let Some(bytes) = files.tokenizer_config() {
            let config = serde_json::from_slice(bytes)
                .map_err(|error| malformed("tokenizer_config.json", error.to_string()))?;
            variables.extend(named_tokens(&config));
        }
        let mut template = ChatTemplate::new(source, variables)
            .map_err(|error| malformed("chat template", error.to_string()))?;
        if let Some(bytes) = files.tool_template() {
            let source = std::str::from_utf8(bytes)
                .map_err(|error| malformed("chat template tool_use", error.to_string()))?;
            template = template
                .with_tool_template(source)
                .map_err(|error| malformed("chat template tool_use", error.to_string()))?;
        }
        Ok(Self {
            tokenizer,
            template,
            defaults,
            eos_token_ids,
        })
    }
}
