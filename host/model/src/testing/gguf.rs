//! Writes GGUF files as llama.cpp's converter does, with candle's writer and quantizers: an implementation independent of
//! the reader under test.

use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use serde_json::Value as Json;

use crate::config::RopeScaling;
use crate::weights::tensor_entries;
use crate::{Model, ModelFiles, frequencies};

/// A GGUF file to write.
#[derive(Debug)]
pub struct GgufFile<'a> {
    model: &'a Model,
    dtype: GgmlDType,
    files: Option<&'a ModelFiles>,
    more: Vec<(String, Value)>,
}

impl<'a> GgufFile<'a> {
    /// The file of a model with its matrices in one of the formats F32, F16, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K.
    ///
    /// # Panics
    /// When the format is another one.
    pub fn new(model: &'a Model, format: &str) -> Self {
        let dtype = match format {
            "F32" => GgmlDType::F32,
            "F16" => GgmlDType::F16,
            "Q4_0" => GgmlDType::Q4_0,
            "Q4_1" => GgmlDType::Q4_1,
            "Q5_0" => GgmlDType::Q5_0,
            "Q8_0" => GgmlDType::Q8_0,
            "Q4_K" => GgmlDType::Q4K,
            "Q6_K" => GgmlDType::Q6K,
            other => unreachable!("{other} is not a format of test files"),
        };
        Self {
            model,
            dtype,
            files: None,
            more: Vec::new(),
        }
    }

    /// With the tokenizer, the template and the end tokens of this checkpoint, instead of made-up tokens.
    #[must_use]
    pub fn with_files(mut self, files: &'a ModelFiles) -> Self {
        self.files = Some(files);
        self
    }

    /// With another metadata text, in place of one of the same key.
    #[must_use]
    pub fn with_text(self, key: &str, value: &str) -> Self {
        self.with(key, Value::String(value.to_owned()))
    }

    /// With another metadata integer, in place of one of the same key.
    #[must_use]
    pub fn with_integer(self, key: &str, value: u32) -> Self {
        self.with(key, Value::U32(value))
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.more.push((key.to_owned(), value));
        self
    }

    /// Writes the file.
    ///
    /// # Panics
    /// When it cannot be written, or a row is not a whole number of blocks.
    pub fn write(&self, path: &Path) {
        let mut metadata = self.metadata();
        for (key, value) in &self.more {
            metadata.retain(|(own, _)| own != key);
            metadata.push((key.clone(), value.clone()));
        }
        let tensors = self.tensors();
        let metadata: Vec<_> = metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value))
            .collect();
        let tensors: Vec<_> = tensors
            .iter()
            .map(|(name, tensor)| (name.as_str(), tensor))
            .collect();
        let mut file = std::fs::File::create(path).expect("the file can be created");
        gguf_file::write(&mut file, &metadata, &tensors).expect("the file can be written");
    }

    fn architecture(&self) -> &str {
        match self.model.config().model_type.as_str() {
            "mistral" => "llama",
            other => other,
        }
    }

    fn metadata(&self) -> Vec<(String, Value)> {
        let c = self.model.config();
        let architecture = self.architecture();
        let text = |text: &str| Value::String(text.to_owned());
        let number = |number: usize| Value::U32(u32::try_from(number).expect("a small number"));
        let mut own = vec![
            ("block_count", number(c.num_hidden_layers)),
            ("context_length", number(c.max_position_embeddings)),
            ("embedding_length", number(c.hidden_size)),
            ("feed_forward_length", number(c.intermediate_size)),
            ("attention.head_count", number(c.num_attention_heads)),
            ("attention.head_count_kv", number(c.num_key_value_heads)),
            ("attention.key_length", number(c.head_dim)),
            ("attention.value_length", number(c.head_dim)),
            ("rope.dimension_count", number(c.head_dim)),
            ("rope.freq_base", Value::F32(c.rope_theta)),
            (
                "attention.layer_norm_rms_epsilon",
                Value::F32(c.rms_norm_eps),
            ),
        ];
        if let Some(RopeScaling::Linear { factor }) = c.rope_scaling {
            own.push(("rope.scaling.type", text("linear")));
            own.push(("rope.scaling.factor", Value::F32(factor as f32)));
        }
        let mut all: Vec<_> = own
            .into_iter()
            .map(|(key, value)| (format!("{architecture}.{key}"), value))
            .collect();
        all.push(("general.architecture".to_owned(), text(architecture)));
        let (mut tokens, mut kinds) = (Vec::new(), Vec::new());
        let mut tokenizer = |key: &str, value| all.push((format!("tokenizer.{key}"), value));
        let listed = self
            .files
            .and_then(|files| files.tokenizer().ok())
            .map(|bytes| {
                let json: Json = serde_json::from_slice(bytes).expect("tokenizer.json is JSON");
                json
            });
        let mut ids = vec![String::new(); c.vocab_size];
        for (id, token) in ids.iter_mut().enumerate() {
            *token = format!("token{id}");
        }
        if let Some(json) = &listed {
            let vocabulary = json["model"]["vocab"].as_object().expect("a vocabulary");
            for (token, id) in vocabulary {
                ids[id.as_u64().expect("an id") as usize].clone_from(token);
            }
            tokenizer("huggingface.json", text(&json.to_string()));
        }
        for token in ids {
            tokens.push(Value::String(token));
            kinds.push(Value::I32(1));
        }
        tokenizer("ggml.model", text("gpt2"));
        tokenizer("ggml.pre", text("gpt-2"));
        tokenizer("ggml.tokens", Value::Array(tokens));
        tokenizer("ggml.token_type", Value::Array(kinds));
        if let Some(id) = c.eos_token_ids.first() {
            tokenizer("ggml.eos_token_id", Value::U32(*id));
        }
        if let Some(template) = self.files.and_then(|files| files.template().ok()) {
            tokenizer("chat_template", text(&String::from_utf8_lossy(template)));
        }
        all
    }

    fn tensors(&self) -> Vec<(String, QTensor)> {
        let c = self.model.config();
        let interleaved = self.architecture() == "llama";
        let weights = self.model.weights();
        let mut tensors = Vec::new();
        for entry in tensor_entries(c) {
            let values = weights.tensor(&entry);
            let rotated = entry.name.contains("q_proj") || entry.name.contains("k_proj");
            let values = if interleaved && rotated {
                interleave(values, entry.shape[0], c.head_dim)
            } else {
                values.to_vec()
            };
            let dtype = if entry.shape.len() == 1 {
                GgmlDType::F32
            } else {
                self.dtype
            };
            let tensor = Tensor::from_vec(values, entry.shape.as_slice(), &Device::Cpu);
            let tensor = QTensor::quantize(&tensor.expect("the shape fits"), dtype);
            tensors.push((
                gguf_name(&entry.name),
                tensor.expect("rows are whole blocks"),
            ));
        }
        if matches!(c.rope_scaling, Some(RopeScaling::Llama3 { .. })) {
            let mut unscaled = c.clone();
            unscaled.rope_scaling = None;
            let pairs = frequencies(&unscaled).0.into_iter().zip(frequencies(c).0);
            let factors: Vec<f32> = pairs.map(|(unscaled, scaled)| unscaled / scaled).collect();
            let factors = Tensor::new(factors, &Device::Cpu).expect("a vector");
            let factors = QTensor::quantize(&factors, GgmlDType::F32).expect("a vector");
            tensors.push(("rope_freqs.weight".to_owned(), factors));
        }
        tensors
    }
}

/// The rows of each head as llama.cpp stores them: pairs that are rotated together are adjacent.
fn interleave(values: &[f32], rows: usize, head: usize) -> Vec<f32> {
    let width = values.len() / rows;
    let row = |at: usize| &values[at * width..(at + 1) * width];
    (0..rows)
        .flat_map(|at| {
            let (first, place) = (at / head * head, at % head);
            row(first + place % 2 * (head / 2) + place / 2)
                .iter()
                .copied()
        })
        .collect()
}

fn gguf_name(name: &str) -> String {
    let renamed = [
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    renamed
        .iter()
        .fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}
