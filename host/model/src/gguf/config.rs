//! The `config.json` of a GGUF file: its architecture, from the metadata and from the tensors that are there.

use serde_json::{Map, Value, json};

use super::header::Header;
use super::tensors::{ROPE_FACTORS, tensors, vector};
use crate::config::{ModelConfig, frequencies};
use crate::error::LoadError;
use crate::stored::{FileData, ReadBuffer, StoredTensor};

/// Supported architectures, by their names in GGUF and in transformers. Mistral is stored as `llama`.
const ARCHITECTURES: [(&str, &str); 3] = [
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
];

/// Difference of two rotary factors that are the same.
const SAME_FACTOR: f32 = 1e-3;

/// Makes a `config.json` that [`ModelConfig`] parses.
///
/// # Errors
/// An unsupported architecture, or a metadata key that is missing or would change the outputs without being supported.
pub(super) fn config(header: &Header, path: &std::path::Path) -> Result<Value, LoadError> {
    let architecture = required(
        header,
        header.text("general.architecture")?,
        "general.architecture",
    )?;
    let Some((_, class)) = ARCHITECTURES.iter().find(|(own, _)| *own == architecture) else {
        let supported = ARCHITECTURES.map(|(own, _)| own).join(", ");
        return Err(header.error(format!(
            "it has a model of architecture {architecture}, which is not supported; supported are {supported}"
        )));
    };
    let key = |name: &str| format!("{architecture}.{name}");
    let integer = |name: &str| header.integer(&key(name));
    let needed = |name: &str| required(header, integer(name)?, &key(name));
    for name in ["expert_count", "expert_used_count"] {
        if integer(name)?.unwrap_or(0) > 0 {
            return Err(
                header.error("it has a mixture of experts; only dense models are supported")
            );
        }
    }
    let (hidden, heads) = (needed("embedding_length")?, needed("attention.head_count")?);
    let head_dim = match integer("attention.key_length")? {
        Some(width) => width,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(header.error(format!("it has {heads} heads for a width of {hidden}"))),
    };
    for (name, what) in [
        (
            "attention.value_length",
            "values of another width than keys",
        ),
        ("rope.dimension_count", "rotates only part of each head"),
    ] {
        if integer(name)?.is_some_and(|width| width != head_dim) {
            return Err(header.error(format!("its {} {what}, which is not supported", key(name))));
        }
    }
    let context = needed("context_length")?;
    if let Some(window) =
        integer("attention.sliding_window")?.filter(|window| (1..context).contains(window))
    {
        return Err(header.error(format!(
            "it has sliding-window attention of {window} tokens, which is not supported"
        )));
    }
    let has = |name: &str| header.tensors.contains_key(name);
    let vocabulary = header.tensors.get("token_embd.weight");
    let vocabulary = vocabulary.and_then(|entry| entry.shape.first());
    let vocabulary = required(header, vocabulary, "token_embd.weight")?;
    let mut fields = Map::new();
    for (name, value) in [
        ("architectures", json!([class])),
        ("model_type", json!(architecture)),
        ("hidden_size", json!(hidden)),
        ("intermediate_size", json!(needed("feed_forward_length")?)),
        ("num_hidden_layers", json!(needed("block_count")?)),
        ("num_attention_heads", json!(heads)),
        (
            "num_key_value_heads",
            json!(integer("attention.head_count_kv")?.unwrap_or(heads)),
        ),
        ("head_dim", json!(head_dim)),
        ("vocab_size", json!(vocabulary)),
        ("max_position_embeddings", json!(context)),
        ("tie_word_embeddings", json!(!has("output.weight"))),
        (
            "attention_bias",
            json!(architecture == "llama" && has("blk.0.attn_q.bias")),
        ),
        ("mlp_bias", json!(has("blk.0.ffn_gate.bias"))),
        ("hidden_act", json!("silu")),
        ("use_sliding_window", json!(false)),
        ("sliding_window", Value::Null),
    ] {
        fields.insert(name.to_owned(), value);
    }
    let eps = key("attention.layer_norm_rms_epsilon");
    fields.insert(
        "rms_norm_eps".to_owned(),
        json!(required(header, header.number(&eps)?, &eps)?),
    );
    let base = header.number(&key("rope.freq_base"))?.unwrap_or(10_000.0);
    fields.insert("rope_theta".to_owned(), json!(base));
    for (name, id) in [
        ("bos_token_id", "bos_token_id"),
        ("eos_token_id", "eos_token_id"),
        ("pad_token_id", "padding_token_id"),
    ] {
        if let Some(id) = header.integer(&format!("tokenizer.ggml.{id}"))? {
            fields.insert(name.to_owned(), json!(id));
        }
    }
    if let Some(scaling) = scaling(header, architecture)? {
        fields.insert("rope_scaling".to_owned(), scaling);
    }
    let mut config = Value::Object(fields);
    if has(ROPE_FACTORS) {
        config["rope_scaling"] = llama3_scaling(header, &config, path)?;
    }
    parse(header, &config)?;
    Ok(config)
}

/// Rows per head of an architecture whose query and key projections are interleaved.
pub(super) fn interleaved(config: &ModelConfig) -> Option<usize> {
    (config.model_type == "llama").then_some(config.head_dim)
}

/// Parses the configuration; an error names the file.
pub(super) fn parse(header: &Header, config: &Value) -> Result<ModelConfig, LoadError> {
    ModelConfig::parse(config.to_string().as_bytes())
        .map_err(|error| header.error(format!("its metadata gives an unsupported model: {error}")))
}

fn required<T>(header: &Header, value: Option<T>, key: &str) -> Result<T, LoadError> {
    value.ok_or_else(|| {
        header.error(format!(
            "it has no {key}; it is incomplete or not a language model"
        ))
    })
}

/// The scaling of the rotary frequencies that the metadata describes.
fn scaling(header: &Header, architecture: &str) -> Result<Option<Value>, LoadError> {
    let key = |name: &str| format!("{architecture}.rope.scaling.{name}");
    let kind = header.text(&key("type"))?.unwrap_or("none");
    if kind == "none" {
        return Ok(None);
    }
    let mut fields = Map::new();
    fields.insert("rope_type".to_owned(), json!(kind));
    for (name, own) in [
        ("factor", "factor"),
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
        ("attention_factor", "attn_factor"),
    ] {
        // An attention factor of 1 multiplies YaRN's own in llama.cpp; in transformers it would replace it.
        let value = header
            .number(&key(own))?
            .filter(|value| own != "attn_factor" || *value != 1.0);
        if let Some(value) = value {
            fields.insert(name.to_owned(), json!(value));
        }
    }
    if fields.contains_key("attention_factor") {
        return Err(header.error(format!(
            "its {} is not 1, which is not supported",
            key("attn_factor")
        )));
    }
    if let Some(length) = header.integer(&key("original_context_length"))? {
        fields.insert("original_max_position_embeddings".to_owned(), json!(length));
    }
    Ok(Some(Value::Object(fields)))
}

/// The parameters of Llama 3.1's scaling whose factors the file has: it stores one factor per pair of a head's values,
/// not the parameters from which they were computed.
fn llama3_scaling(
    header: &Header,
    config: &Value,
    path: &std::path::Path,
) -> Result<Value, LoadError> {
    let entry = header.tensors.get(ROPE_FACTORS);
    let unscaled = parse(header, config)?;
    let mut factors: Vec<f32> = Vec::new();
    if let Some(entry) = entry.filter(|entry| entry.shape == [unscaled.head_dim / 2]) {
        let tensor = vector(header, entry);
        factors.resize(tensor.row_values(), 0.0);
        std::fs::File::open(path)
            .and_then(|file| {
                let (data, mut buffer) = (FileData::Disk(file), ReadBuffer::default());
                tensor.read_f32(&data, 0..1, &mut buffer, &mut factors)
            })
            .map_err(|source| LoadError::Read {
                path: path.to_owned(),
                source,
            })?;
    }
    let factor = factors.iter().copied().fold(1.0, f32::max);
    let scaling = json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let mut scaled = config.clone();
    scaled["rope_scaling"] = scaling.clone();
    let scaled = parse(header, &scaled)?;
    let pairs = frequencies(&unscaled)
        .0
        .into_iter()
        .zip(frequencies(&scaled).0);
    let own = pairs.map(|(unscaled, scaled)| unscaled / scaled);
    let same = |(own, stored): (f32, &f32)| (own / stored - 1.0).abs() < SAME_FACTOR;
    if factors.len() == unscaled.head_dim / 2 && own.zip(&factors).all(same) {
        return Ok(scaling);
    }
    Err(header.error(format!(
        "its {ROPE_FACTORS} are not those of Llama 3.1's rope scaling, and other factors are not supported"
    )))
}

/// The checkpoint's tensors, for its configuration.
pub(super) fn checkpoint_tensors(
    header: &Header,
    config: &ModelConfig,
) -> Result<std::collections::BTreeMap<String, (StoredTensor, Vec<usize>)>, LoadError> {
    tensors(header, interleaved(config))
}
