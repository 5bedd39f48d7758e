//! Errors of loading, tensors that are ignored, and tensors that are read without a copy of the model.

use super::*;
use crate::error::LoadError;
use crate::model::Model;
use crate::testing::tiny;
use serde_json::{Value, json};
use std::path::Path;

/// A checkpoint on disk, whose header and files the tests change.
struct Saved {
    dir: tempfile::TempDir,
    config: Value,
}

/// A tensor: its name, its shape, its values.
type Named = (String, Vec<usize>, Vec<f32>);

impl Saved {
    fn new(change: &Value) -> Self {
        let mut config = json!({
            "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97, "max_position_embeddings": 512,
            "tie_word_embeddings": true
        });
        let fields = config.as_object_mut().unwrap();
        fields.extend(change.as_object().unwrap().clone());
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Self { dir, config };
        Model::random(checkpoint.config(), 3)
            .save(checkpoint.path())
            .unwrap();
        checkpoint
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn config(&self) -> ModelConfig {
        ModelConfig::parse(self.config.to_string().as_bytes()).unwrap()
    }

    fn tensors(&self) -> Vec<Named> {
        let model = Model::random(self.config(), 3);
        let all = tensor_entries(model.config())
            .into_iter()
            .zip(model.parameters());
        all.map(|(entry, (name, values))| (name, entry.shape, values.to_vec()))
            .collect()
    }

    fn write(&self, file: &str, tensors: &[Named]) {
        let tensors = tensors
            .iter()
            .map(|(name, shape, values)| (name.as_str(), shape.as_slice(), values.as_slice()));
        crate::tensors::write_safetensors(&self.path().join(file), tensors).unwrap();
    }

    fn load(&self) -> Result<Model, LoadError> {
        Model::load(&ModelFiles::from_dir(self.path())?)
    }

    fn error(&self) -> String {
        self.load().map(|_| ()).unwrap_err().to_string()
    }
}

fn without_tensors<'a>(tensors: &'a [Named], part: &'a str) -> Vec<Named> {
    let kept = tensors.iter().filter(|(name, ..)| !name.contains(part));
    kept.cloned().collect()
}

const SINGLE_FILE: &str = "model.safetensors";

#[test]
fn saved_models_of_all_families_load_unchanged() {
    for change in [
        json!({}),
        json!({"tie_word_embeddings": false}),
        json!({"architectures": ["Qwen2ForCausalLM"]}),
        json!({"architectures": ["LlamaForCausalLM"], "attention_bias": true, "mlp_bias": true, "rope_scaling":
            {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}}),
        json!({"model_type": "mistral", "sliding_window": null}),
    ] {
        let checkpoint = Saved::new(&change);
        let model = Model::random(checkpoint.config(), 3);
        let read = checkpoint.load().unwrap();
        assert_eq!(read.digest(), model.digest());
        assert_eq!(read.config(), model.config());
        assert!(read.same_shape(&model));
        if !change.as_object().unwrap().is_empty() {
            assert!(!read.same_shape(&Model::random(tiny(), 3)), "{change}");
        }
    }
}

#[test]
fn biases_are_named_after_their_layers() {
    let checkpoint = Saved::new(&json!({"architectures": ["Qwen2ForCausalLM"]}));
    let model = Model::random(checkpoint.config(), 3);
    let biases: Vec<(String, usize)> = model
        .parameters()
        .into_iter()
        .filter(|(name, _)| name.ends_with(".bias") && name.contains("layers.1"))
        .map(|(name, values)| (name, values.len()))
        .collect();
    let named = |part: &str, len| (format!("model.layers.1.self_attn.{part}.bias"), len);
    let right = [
        named("q_proj", 64),
        named("k_proj", 32),
        named("v_proj", 32),
    ];
    assert_eq!(biases, right);
    assert!(
        model
            .parameters()
            .iter()
            .all(|(name, _)| !name.contains("q_norm"))
    );
}

#[test]
fn a_missing_tensor_is_named_with_its_file() {
    let checkpoint = Saved::new(&json!({"architectures": ["Qwen2ForCausalLM"]}));
    let tensors = checkpoint.tensors();
    checkpoint.write(
        SINGLE_FILE,
        &without_tensors(&tensors, "layers.1.self_attn.k_proj.bias"),
    );
    let error = checkpoint.error();
    let right = "model.safetensors has no tensor model.layers.1.self_attn.k_proj.bias; it is incomplete or of another architecture";
    assert!(error.ends_with(right), "{error}");
}

#[test]
fn unexpected_tensors_are_rejected_by_name() {
    let checkpoint = Saved::new(&json!({"architectures": ["LlamaForCausalLM"]}));
    let own = checkpoint.tensors();
    for (name, shape, words) in [
        (
            "model.layers.0.self_attn.q_proj.bias",
            vec![64],
            "is a bias that config.json does not declare",
        ),
        (
            "model.layers.0.self_attn.q_norm.weight",
            vec![16],
            "is not part of the model that config.json describes",
        ),
        (
            "model.layers.2.mlp.up_proj.weight",
            vec![80, 48],
            "is not part of the model",
        ),
        (
            "model.layers.0.mlp.up_proj.weight_scale",
            vec![1],
            "belongs to quantized weights",
        ),
        (
            "model.layers.0.mlp.experts.0.up_proj.weight",
            vec![80, 48],
            "is not part of the model",
        ),
    ] {
        let mut tensors = own.clone();
        let values = vec![0.5; shape.iter().product()];
        tensors.push((name.to_owned(), shape, values));
        checkpoint.write(SINGLE_FILE, &tensors);
        let error = checkpoint.error();
        assert!(
            error.contains("model.safetensors: tensor")
                && error.contains(name)
                && error.contains(words),
            "{error}"
        );
    }
    let mut tensors = own;
    tensors.push((
        "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(),
        vec![8],
        vec![1.0; 8],
    ));
    checkpoint.write(SINGLE_FILE, &tensors);
    assert!(checkpoint.load().is_ok());
}

#[test]
fn a_head_next_to_a_tied_embedding_must_equal_it() {
    let checkpoint = Saved::new(&json!({}));
    let mut tensors = checkpoint.tensors();
    let (_, shape, values) = tensors[0].clone();
    tensors.push((HEAD.to_owned(), shape, values));
    checkpoint.write(SINGLE_FILE, &tensors);
    let digest = checkpoint.load().unwrap().digest().to_owned();
    assert_eq!(digest, Model::random(checkpoint.config(), 3).digest());
    tensors.last_mut().unwrap().2[5] += 1.0;
    checkpoint.write(SINGLE_FILE, &tensors);
    let error = checkpoint.error();
    let right = "tensor lm_head.weight differs from model.embed_tokens.weight, although config.json sets tie_word_embeddings; set it to false";
    assert!(error.contains(right), "{error}");
}

#[test]
fn only_shards_listed_in_the_index_are_read() {
    let checkpoint = Saved::new(&json!({}));
    let tensors = checkpoint.tensors();
    std::fs::remove_file(checkpoint.path().join(SINGLE_FILE)).unwrap();
    let (one, two) = tensors.split_at(9);
    let (first, second) = (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    );
    checkpoint.write(first, one);
    checkpoint.write(second, two);
    // An unlisted file with the same tensor names and other values, and damaged.
    std::fs::write(checkpoint.path().join("consolidated.safetensors"), b"junk").unwrap();
    let index = |map: serde_json::Map<String, Value>| {
        let path = checkpoint.path().join("model.safetensors.index.json");
        std::fs::write(path, json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
    };
    let whole: serde_json::Map<String, Value> = one
        .iter()
        .map(|t| (t.0.clone(), json!(first)))
        .chain(two.iter().map(|t| (t.0.clone(), json!(second))))
        .collect();
    index(whole.clone());
    let digest = checkpoint.load().unwrap().digest().to_owned();
    assert_eq!(digest, Model::random(checkpoint.config(), 3).digest());

    let change = |name: &str, file: &str| {
        let mut map = whole.clone();
        map.insert(name.to_owned(), json!(file));
        index(map);
        checkpoint.error()
    };
    let error = change("model.norm.weight", first);
    assert!(
        error.contains("model-00001-of-00002.safetensors has no tensor model.norm.weight"),
        "{error}"
    );
    let error = change("model.norm.weight", "model-00003-of-00003.safetensors");
    assert!(
        error.contains("it lists model-00003-of-00003.safetensors, which does not exist"),
        "{error}"
    );
    let error = change("model.norm.weight", "../model.safetensors");
    assert!(
        error.contains("maps tensor model.norm.weight to \"../model.safetensors\""),
        "{error}"
    );
    let mut map = whole.clone();
    map.remove("model.norm.weight");
    index(map);
    assert!(
        checkpoint
            .error()
            .contains("has no tensor model.norm.weight")
    );

    // Without an index all files are read, and a tensor may be in one of them only.
    std::fs::remove_file(checkpoint.path().join("model.safetensors.index.json")).unwrap();
    std::fs::remove_file(checkpoint.path().join("consolidated.safetensors")).unwrap();
    assert_eq!(checkpoint.load().unwrap().digest(), digest);
    checkpoint.write(second, &tensors);
    assert!(
        checkpoint
            .error()
            .contains("model-00001-of-00002.safetensors; remove one of the files"),
        "{}",
        checkpoint.error()
    );
}

#[test]
fn damaged_files_are_reported_with_file_and_tensor() {
    let checkpoint = Saved::new(&json!({}));
    let path = checkpoint.path().join(SINGLE_FILE);
    let bytes = std::fs::read(&path).unwrap();
    let with = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = checkpoint.error();
        assert!(error.contains("model.safetensors"), "{error}");
        error
    };
    let error = with(&bytes[..bytes.len() - 100]);
    assert!(
        error.contains("the file is truncated: download it again"),
        "{error}"
    );
    for length in [0, 5, 8, 500] {
        let error = with(&bytes[..length]);
        assert!(
            error.contains(&format!("it ends after {length} bytes")),
            "{error}"
        );
    }
    let error = with(&[0xFF; 64]);
    assert!(error.contains("it is not a safetensors file"), "{error}");
    let header = |text: String| {
        let size = text.len() as u64;
        [
            &size.to_le_bytes()[..],
            text.as_bytes(),
            &bytes[bytes.len() - 48 * 97 * 4..],
        ]
        .concat()
    };
    assert!(with(&header("{".to_owned())).contains("its header is not JSON"));
    let norm = |what: Value| {
        let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
        let mut all: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        all["model.norm.weight"] = what;
        let text = all.to_string();
        let size = text.len() as u64;
        [
            &size.to_le_bytes()[..],
            text.as_bytes(),
            &bytes[8 + length..],
        ]
        .concat()
    };
    for (what, words) in [
        (
            json!({"dtype": "F32", "shape": [48]}),
            "has no valid entry for model.norm.weight",
        ),
        (
            json!({"dtype": "F32", "shape": [48], "data_offsets": [192, 0]}),
            "model.norm.weight ends before it begins",
        ),
        (
            json!({"dtype": "F32", "shape": [48], "data_offsets": [0, 1u64 << 60]}),
            "but tensor model.norm.weight would end at",
        ),
        (
            json!({"dtype": "F32", "shape": [48], "data_offsets": [0, 188]}),
            "tensor model.norm.weight has 188 bytes, but its shape is [48] of F32",
        ),
        (
            json!({"dtype": "F8_E4M3", "shape": [48], "data_offsets": [0, 48]}),
            "tensor model.norm.weight has dtype F8_E4M3; supported are bf16, f16 and f32",
        ),
        (
            json!({"dtype": "F32", "shape": [47], "data_offsets": [0, 188]}),
            "tensor model.norm.weight has shape [47], but the configuration implies [48]",
        ),
    ] {
        let error = with(&norm(what));
        assert!(error.contains(words), "{error}");
    }
    let mut tensors = checkpoint.tensors();
    tensors.last_mut().unwrap().2[3] = f32::INFINITY;
    checkpoint.write(SINGLE_FILE, &tensors);
    let opened = Checkpoint::open(&ModelFiles::from_dir(checkpoint.path()).unwrap()).unwrap();
    assert_eq!(opened.digest().unwrap_err().to_string(), checkpoint.error());
    let error = checkpoint.error();
    assert!(
        error.contains("tensor model.norm.weight holds a value that is not finite"),
        "{error}"
    );
}

/// All tensors read in pieces, in f32 and in bf16.
fn read_in_pieces(checkpoint: &Checkpoint, values: usize) -> (Vec<Vec<f32>>, Vec<Vec<u8>>) {
    let mut buffer = ReadBuffer::default();
    let count = tensor_entries(checkpoint.config()).len();
    let (mut exact, mut rounded) = (vec![Vec::new(); count], vec![Vec::new(); count]);
    for piece in checkpoint.pieces(values) {
        let tensor: &mut Vec<f32> = &mut exact[piece.tensor];
        assert_eq!(tensor.len(), piece.values.start);
        tensor.resize(piece.values.end, 0.0);
        let part = &mut tensor[piece.values.clone()];
        checkpoint.read_f32(&piece, &mut buffer, part).unwrap();
        let mut bytes = vec![0; 2 * piece.values.len()];
        checkpoint
            .read_bf16(&piece, &mut buffer, &mut bytes)
            .unwrap();
        rounded[piece.tensor].extend(bytes);
    }
    (exact, rounded)
}

#[test]
fn a_checkpoint_read_in_pieces_is_the_loaded_model() {
    let saved = Saved::new(&json!({"tie_word_embeddings": false}));
    let model = saved.load().unwrap();
    let files = ModelFiles::from_dir(saved.path()).unwrap();
    let checkpoint = Checkpoint::open(&files).unwrap();
    assert_eq!(checkpoint.config(), model.config());
    assert_eq!(checkpoint.digest().unwrap(), model.digest());
    let gguf = saved.path().join("model.gguf");
    // Its query and key projections are stored in another order.
    let llama = json!({"architectures": ["LlamaForCausalLM"]});
    let other = Saved::new(&llama).load().unwrap();
    crate::testing::GgufFile::new(&other, "F32").write(&gguf);
    let gguf = Checkpoint::open(&ModelFiles::open(&gguf).unwrap()).unwrap();
    assert_eq!(gguf.digest().unwrap(), other.digest());
    for (checkpoint, model) in [(checkpoint, model), (gguf, other)] {
        for values in [1, 100, 1 << 20] {
            let (exact, rounded) = read_in_pieces(&checkpoint, values);
            for ((name, right), (exact, rounded)) in
                model.parameters().iter().zip(exact.iter().zip(&rounded))
            {
                assert_eq!(exact, right, "{name}");
                let rounded = rounded.as_chunks::<2>().0.iter();
                let rounded = rounded.map(|b| u32::from(u16::from_le_bytes(*b)) << 16);
                for (value, bits) in right.iter().zip(rounded) {
                    let error = (value - f32::from_bits(bits)).abs();
                    assert!(error <= value.abs() / 256.0, "{name}: {value}");
                }
            }
        }
    }
}

#[test]
fn half_precisions_are_read_exactly() {
    use candle_core::{DType, Device, Tensor};
    let checkpoint = Saved::new(&json!({}));
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        let mut right = Vec::new();
        let mut written = std::collections::HashMap::new();
        for (name, shape, values) in checkpoint.tensors() {
            let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
            let tensor = tensor.to_dtype(dtype).unwrap();
            let back = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
            right.push((name.clone(), back.to_vec1::<f32>().unwrap()));
            written.insert(name, tensor);
        }
        candle_core::safetensors::save(&written, checkpoint.path().join(SINGLE_FILE)).unwrap();
        let model = checkpoint.load().unwrap();
        for ((name, ours), (_, right)) in model.parameters().into_iter().zip(right) {
            assert!(ours == right, "{name} in {dtype:?}");
        }
        let files = ModelFiles::from_dir(checkpoint.path()).unwrap();
        let opened = super::Checkpoint::open(&files).unwrap();
        assert_eq!(opened.digest().unwrap(), model.digest());
        if dtype == DType::BF16 {
            let rounded = read_in_pieces(&opened, 100).1;
            for (rounded, (name, values)) in rounded.iter().zip(model.parameters()) {
                let bits = |value: &f32| ((value.to_bits() >> 16) as u16).to_le_bytes();
                let right: Vec<u8> = values.iter().flat_map(bits).collect();
                assert!(*rounded == right, "{name}");
            }
        }
    }
}
