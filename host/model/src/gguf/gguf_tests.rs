//! Models written by candle's GGUF writer and read back.

use std::path::PathBuf;

use serde_json::json;

use crate::testing::{GgufFile, tiny};
use crate::{LoadError, Model, ModelConfig, ModelFiles, Quantization, QuantizedWeight, Weights};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("model.gguf")
    }

    fn load(&self, quantization: Quantization) -> Result<Model, LoadError> {
        Model::load_quantized(&ModelFiles::open(&self.path())?, quantization)
    }

    fn error(&self) -> String {
        self.load(Quantization::None)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    }
}

fn config(architecture: &str, change: &serde_json::Value) -> ModelConfig {
    let mut config = json!({"architectures": [architecture], "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 128,
        "max_position_embeddings": 512, "tie_word_embeddings": true, "eos_token_id": 1, "sliding_window": null,
        "rms_norm_eps": 1e-5, "rope_theta": 50000.0});
    let fields = config.as_object_mut().unwrap();
    fields.extend(change.as_object().unwrap().clone());
    ModelConfig::parse(config.to_string().as_bytes()).unwrap()
}

/// Random weights, biases too.
fn model(config: ModelConfig) -> Model {
    let mut model = Model::random(config, 11);
    for (name, values) in model.parameters_mut() {
        if name.ends_with("bias") || name.contains("norm") {
            for (i, value) in values.iter_mut().enumerate() {
                *value += 0.1 * (i as f32 * 0.3).sin();
            }
        }
    }
    model
}

#[test]
fn every_architecture_is_read_back_bit_for_bit() {
    let llama3 = json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    for (architecture, change) in [
        ("LlamaForCausalLM", json!({})),
        (
            "LlamaForCausalLM",
            json!({"tie_word_embeddings": false, "attention_bias": true, "mlp_bias": true}),
        ),
        (
            "LlamaForCausalLM",
            json!({"rope_scaling": llama3, "max_position_embeddings": 131_072}),
        ),
        (
            "LlamaForCausalLM",
            json!({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
        ),
        ("MistralForCausalLM", json!({"num_key_value_heads": 4})),
        ("Qwen2ForCausalLM", json!({})),
        (
            "Qwen3ForCausalLM",
            json!({"head_dim": 32, "tie_word_embeddings": false}),
        ),
    ] {
        let model = model(config(architecture, &change));
        let folder = Folder::new();
        GgufFile::new(&model, "F32").write(&folder.path());
        let read = folder
            .load(Quantization::None)
            .unwrap_or_else(|error| panic!("{architecture} {change}: {error}"));
        assert!(
            read.same_shape(&model),
            "{architecture} {change}: {:?}",
            read.config()
        );
        assert_eq!(
            read.config().max_position_embeddings,
            model.config().max_position_embeddings
        );
        assert_eq!(read.config().eos_token_ids, [1]);
        assert_eq!(read.digest(), model.digest(), "{architecture} {change}");
    }
}

#[test]
fn quantized_files_are_near_and_int8_and_int4_keep_their_blocks() {
    let model = model(config("LlamaForCausalLM", &json!({})));
    let largest = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max)
    };
    for (format, kept, error) in [
        ("F16", None, 5e-5),
        ("Q8_0", Some(Quantization::Int8), 5e-4),
        ("Q4_0", Some(Quantization::Int4), 1e-2),
        ("Q4_1", Some(Quantization::Int4), 8e-3),
        ("Q5_0", None, 5e-3),
        ("Q4_K", None, 8e-3),
        ("Q6_K", None, 3e-3),
    ] {
        let folder = Folder::new();
        GgufFile::new(&model, format).write(&folder.path());
        let read = folder.load(Quantization::None).unwrap();
        let mut worst = 0f32;
        for ((name, own), (_, values)) in model.parameters().iter().zip(read.parameters()) {
            let difference = largest(own, values);
            assert!(difference <= error, "{format} {name}: {difference}");
            if name.contains("_proj") {
                worst = worst.max(difference);
            }
        }
        assert!(worst > error / 30.0, "{format}: {worst}");
        for quantization in [Quantization::Int8, Quantization::Int4] {
            let quantized = folder.load(quantization).unwrap();
            assert!(quantized.is_quantized() && quantized.digest() != read.digest());
            assert_planned_bytes(&quantized, quantization);
            assert!(
                quantized.weights().bytes(read.config()) * 2 < read.weights().bytes(read.config())
            );
            let restored = quantized.weights().dequantized(read.config());
            let restored = Model::with_weights(read.config().clone(), restored);
            let change = restored.delta_norm(&read);
            assert_eq!(
                change == 0.0,
                Some(quantization) == kept,
                "{format} {quantization:?}: {change}"
            );
        }
    }
}

/// Checks that the size of the weights in memory follows from the configuration alone.
fn assert_planned_bytes(model: &Model, quantization: Quantization) {
    let weights = model.weights();
    let mut copy = weights.clone();
    let in_f32 = copy.tensors_mut(model.config());
    let in_f32: usize = in_f32.iter().map(|(_, values)| values.len()).sum();
    let quantized = weights.layers.iter().filter_map(|l| l.quantized.as_ref());
    let quantized: usize = quantized
        .flat_map(|l| [&l.qkv, &l.o, &l.gate_up, &l.down])
        .map(QuantizedWeight::bytes)
        .sum();
    let held = in_f32 * size_of::<f32>() + quantized;
    assert_eq!(weights.bytes(model.config()), held);
    assert_eq!(Weights::planned_bytes(model.config(), quantization), held);
}

#[test]
fn the_size_of_a_model_in_f32_follows_from_its_configuration() {
    for family in ["Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM"] {
        for tied in [true, false] {
            let config = config(family, &json!({"tie_word_embeddings": tied}));
            assert_planned_bytes(&model(config), Quantization::None);
        }
    }
}

#[test]
fn a_quantized_model_is_saved_in_f32() {
    let model = model(config("Qwen3ForCausalLM", &json!({})));
    let dir = tempfile::tempdir().unwrap();
    model.save(dir.path()).unwrap();
    let files = ModelFiles::open(dir.path()).unwrap();
    let quantized = Model::load_quantized(&files, Quantization::Int8).unwrap();
    assert_ne!(quantized.digest(), model.digest());
    let out = tempfile::tempdir().unwrap();
    quantized.save(out.path()).unwrap();
    let again = Model::load(&ModelFiles::open(out.path()).unwrap()).unwrap();
    let restored = quantized.weights().dequantized(model.config());
    assert_eq!(
        again.digest(),
        Model::with_weights(model.config().clone(), restored).digest()
    );
    // Rows of 48 values end inside a block.
    Model::random(tiny(), 2).save(dir.path()).unwrap();
    let files = ModelFiles::open(dir.path()).unwrap();
    assert!(
        Model::load_quantized(&files, Quantization::Int4)
            .unwrap()
            .is_quantized()
    );
}

#[test]
fn models_that_are_not_supported_are_rejected_by_name() {
    let model = model(config("LlamaForCausalLM", &json!({})));
    let file = || GgufFile::new(&model, "F32");
    for (file, words) in [
        (
            file().with_text("general.architecture", "gemma3"),
            "architecture gemma3, which is not supported; supported are llama",
        ),
        (
            file().with_integer("llama.expert_count", 8),
            "mixture of experts",
        ),
        (
            file().with_integer("llama.attention.sliding_window", 128),
            "sliding-window",
        ),
        (
            file().with_integer("llama.rope.dimension_count", 32),
            "rotates only part",
        ),
        (
            file().with_integer("llama.attention.head_count", 0),
            "num_attention_heads",
        ),
        (
            file().with_integer("llama.block_count", 3),
            "model.layers.2.",
        ),
        (
            file().with_text("llama.block_count", "2"),
            "llama.block_count is not a non-negative integer",
        ),
        (
            file().with_text("llama.rope.scaling.type", "longrope"),
            "longrope",
        ),
        (
            file().with_integer("split.count", 3),
            "llama-gguf-split --merge",
        ),
        (
            file().with_text("tokenizer.ggml.model", "bert"),
            "tokenizer is of kind bert",
        ),
        (
            file().with_text("tokenizer.ggml.pre", "grok-2"),
            "tokenizer.ggml.pre = grok-2, which is not supported; supported are gpt-2",
        ),
        (
            file().with_integer("tokenizer.ggml.eos_token_id", 999),
            "outside the vocabulary",
        ),
    ] {
        let folder = Folder::new();
        file.write(&folder.path());
        let error = folder.error();
        assert!(error.contains(words), "{error}");
    }
    // Other factors than those of Llama 3.1's parameters.
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let other = Model::random(
        config("LlamaForCausalLM", &json!({"rope_scaling": llama3})),
        1,
    );
    let folder = Folder::new();
    GgufFile::new(&other, "F32").write(&folder.path());
    assert!(
        folder.error().contains("rope_freqs.weight are not those"),
        "{}",
        folder.error()
    );
}

#[test]
fn a_directory_with_a_gguf_file_names_the_file() {
    let folder = Folder::new();
    GgufFile::new(&Model::random(tiny(), 1), "F16").write(&folder.path());
    let error = ModelFiles::open(folder.0.path()).unwrap_err().to_string();
    assert!(
        error.contains("pass the file itself") && error.contains("model.gguf"),
        "{error}"
    );
    assert_eq!(ModelFiles::open(&folder.path()).unwrap().name(), "model");
    let missing = ModelFiles::open(&folder.0.path().join("other.gguf"))
        .unwrap_err()
        .to_string();
    assert!(
        missing.contains("other.gguf") && missing.contains("GGUF file?"),
        "{missing}"
    );
    // A file that ends inside a tensor.
    let bytes = std::fs::read(folder.path()).unwrap();
    std::fs::write(folder.path(), &bytes[..bytes.len() - 1]).unwrap();
    assert!(
        folder.error().contains("truncated: download it again"),
        "{}",
        folder.error()
    );
}
