//! How fast a checkpoint is read: `cargo run --release -p clawhost-model --example checkpoint_speed -- DIR [LAYERS]`.
//!
//! With LAYERS it first writes a checkpoint in bf16 with random weights to DIR, in the shape of Qwen3-4B with that many layers
//! (36 are 4 billion parameters), and the tokenizer of the embedded model with more tokens.

#![allow(clippy::print_stdout, reason = "a benchmark program")]

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use clawhost_model::{Checkpoint, Model, ModelFiles, Quantization, ReadBuffer};
use serde_json::{Map, Value, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("which directory?")?;
    let dir = Path::new(&dir);
    if let Some(layers) = arguments.next() {
        write(dir, layers.parse()?)?;
    }
    let files = ModelFiles::from_dir(dir)?;
    let checkpoint = Checkpoint::open(&files)?;
    let values: usize = checkpoint.pieces(1 << 20).map(|p| p.values.len()).sum();
    let report = |what: &str, started: Instant| {
        let seconds = started.elapsed().as_secs_f64();
        let rate = 2.0 * values as f64 / seconds / 1e9;
        println!("{what}: {seconds:.2} s, {rate:.2} GB/s of bf16");
    };
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    // The first pass fills the page cache.
    for threads in [all, 1, all] {
        let started = Instant::now();
        read(&checkpoint, threads)?;
        report(&format!("read to bf16 with {threads} threads"), started);
    }
    let started = Instant::now();
    println!("{}", checkpoint.digest()?);
    report("hash in f32", started);
    for quantization in [Quantization::Int8, Quantization::Int4] {
        let started = Instant::now();
        let model = Model::load_quantized(&files, quantization)?;
        report(&format!("load in {}", quantization.name()), started);
        drop(model);
    }
    Ok(())
}

fn read(checkpoint: &Checkpoint, threads: usize) -> Result<()> {
    let pieces = Mutex::new(checkpoint.pieces(2 << 20));
    let next = || pieces.lock().map(|mut pieces| pieces.next()).ok().flatten();
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            let (mut buffer, mut bytes) = (ReadBuffer::default(), Vec::new());
            while let Some(piece) = next() {
                bytes.resize(2 * piece.values.len(), 0);
                checkpoint.read_bf16(&piece, &mut buffer, &mut bytes)?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut results = threads.into_iter().map(|thread| thread.join());
        results.try_for_each(|result| result.map_err(|_| "a thread panicked")?)
    })
}

/// Writes a checkpoint with random weights.
fn write(dir: &Path, layers: usize) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": layers,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "rope_theta": 1e6,
        "max_position_embeddings": 40960, "tie_word_embeddings": true, "rms_norm_eps": 1e-6, "eos_token_id": 151_645,
    });
    std::fs::write(dir.join("config.json"), config.to_string())?;
    ModelFiles::embedded().save_tokenizer_and_templates(dir)?;
    let path = dir.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut();
    let vocabulary = vocabulary.ok_or("the tokenizer has no vocabulary")?;
    // Every token that may be sampled has text, so that a stream has an event for it. No prompt is encoded with these.
    for id in vocabulary.len()..151_936 {
        vocabulary.insert(format!("t{id}."), id.into());
    }
    std::fs::write(path, tokenizer.to_string())?;
    let mut tensors: Vec<(String, Vec<usize>)> =
        vec![("model.embed_tokens.weight".to_owned(), vec![151_936, 2560])];
    for layer in 0..layers {
        for (name, shape) in [
            ("input_layernorm", vec![2560]),
            ("self_attn.q_proj", vec![4096, 2560]),
            ("self_attn.k_proj", vec![1024, 2560]),
            ("self_attn.v_proj", vec![1024, 2560]),
            ("self_attn.q_norm", vec![128]),
            ("self_attn.k_norm", vec![128]),
            ("self_attn.o_proj", vec![2560, 4096]),
            ("post_attention_layernorm", vec![2560]),
            ("mlp.gate_proj", vec![9728, 2560]),
            ("mlp.up_proj", vec![9728, 2560]),
            ("mlp.down_proj", vec![2560, 9728]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    tensors.push(("model.norm.weight".to_owned(), vec![2560]));
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in &tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::new(File::create(dir.join("model.safetensors"))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    // Uniform in [-0.02, 0.02).
    let mut state = 1u64;
    let number = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let unit = (state >> 40) as f32 / (1u64 << 24) as f32;
        let bits = (0.04 * unit - 0.02).to_bits() >> 16;
        (bits as u16).to_le_bytes()
    };
    let numbers: Vec<u8> = (0..1 << 21).flat_map(number).collect();
    let ones: Vec<u8> = (0..9728).flat_map(|_| 0x3f80u16.to_le_bytes()).collect();
    for (name, shape) in &tensors {
        let from = if name.contains("norm") {
            &ones
        } else {
            &numbers
        };
        let mut left = 2 * shape.iter().product::<usize>();
        while left > 0 {
            let part = left.min(from.len());
            file.write_all(&from[..part])?;
            left -= part;
        }
    }
    file.flush()?;
    Ok(())
}
