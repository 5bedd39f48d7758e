//! A base model in 16, 8 or 4 bits: the same results alone and in a batch, gradients of adapters, memory, and files in GGUF
//! served beside the checkpoint that they were made from.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod greedy;

use std::path::Path;

use clawhost_cpu::{BatchRow, CpuModel, CpuWeights, load_engine};
use clawhost_engine::{Candidates, EngineOptions, LossGradients, Sequence, TrainLimits};
use clawhost_model::testing::{GgufFile, random_adapter, tiny};
use clawhost_model::{
    Adapter, Model, ModelFiles, Quantization, QuantizedFormat, TrainedWeights, Weights,
};

const BOTH: [Quantization; 2] = [Quantization::Int8, Quantization::Int4];

fn load_in(model: &Model, format: Option<QuantizedFormat>) -> Model {
    let dir = tempfile::tempdir().unwrap();
    model.save(dir.path()).unwrap();
    let files = ModelFiles::from_dir(dir.path()).unwrap();
    Model::load_in(&files, format).unwrap()
}

fn quantized(model: &Model, quantization: Quantization) -> Model {
    load_in(model, QuantizedFormat::of(quantization))
}

fn tokens(count: usize, seed: usize) -> Vec<u32> {
    (0..count)
        .map(|i| ((i * 31 + seed * 17) % 97) as u32)
        .collect()
}

fn sequence(tokens: &[u32]) -> Sequence<'_> {
    Sequence {
        tokens,
        start: 1,
        temperature: 1.0,
        candidates: Candidates::None,
    }
}

#[test]
fn scores_are_those_of_the_restored_weights_and_near_those_of_f32() {
    let model = Model::random(tiny(), 4);
    let adapter = random_adapter(model.config(), 3);
    let all = tokens(90, 1);
    let scores = |model: &Model| {
        model
            .score(Some(&adapter), &[sequence(&all)])
            .unwrap()
            .remove(0)
            .logprobs
    };
    let plain = scores(&model);
    let far = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max)
    };
    let mut errors = Vec::new();
    for quantization in BOTH {
        let base = quantized(&model, quantization);
        let restored = base.weights().dequantized(base.config());
        let restored = Model::with_weights(base.config().clone(), restored);
        let own = scores(&base);
        assert!(far(&own, &scores(&restored)) < 1e-4);
        errors.push(far(&own, &plain));
    }
    assert!(errors[0] > 0.0 && errors[0] < 0.01, "{errors:?}");
    assert!(errors[1] > errors[0] && errors[1] < 0.1, "{errors:?}");
}

#[test]
fn a_model_in_bf16_is_the_same_in_half_the_memory() {
    let rounded = load_in(&Model::random(tiny(), 4), Some(QuantizedFormat::Bf16));
    let plain = rounded.weights().dequantized(rounded.config());
    let plain = Model::with_weights(rounded.config().clone(), plain);
    let base = load_in(&plain, Some(QuantizedFormat::Bf16));
    assert!(base.is_quantized() && !plain.is_quantized());
    assert_eq!(base.quantization(), Quantization::None);
    // Versions that were trained on one are those of the other.
    assert_eq!(base.digest(), plain.digest());
    let all = tokens(90, 1);
    let adapter = random_adapter(base.config(), 3);
    let scores = |model: &Model| model.score(Some(&adapter), &[sequence(&all)]).unwrap();
    let (own, right) = (&scores(&base)[0].logprobs, &scores(&plain)[0].logprobs);
    for (a, b) in own.iter().zip(right) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    let planned = Weights::planned_bytes_in(base.config(), Some(QuantizedFormat::Bf16));
    assert_eq!(base.weight_bytes(), planned);
    assert!(planned < plain.weight_bytes());
}

#[test]
fn a_batch_gives_the_same_bits_as_a_row_alone() {
    for format in [QuantizedFormat::Bf16, QuantizedFormat::Int4] {
        rows_do_not_depend_on_their_batch(&load_in(&Model::random(tiny(), 4), Some(format)));
    }
}

fn rows_do_not_depend_on_their_batch(base: &Model) {
    // As many rows as are multiplied one by one, and more.
    let prompts: Vec<Vec<u32>> = (1..20).map(|n| tokens(n + 3, n)).collect();
    let cached = |tokens: &[u32]| {
        let (mut cache, tokens) = (base.new_cache(), &tokens[..tokens.len() - 1]);
        let row = BatchRow {
            tokens,
            cache: &mut cache,
            adapter: None,
        };
        base.forward(&mut [row]).unwrap();
        cache
    };
    let mut caches: Vec<_> = prompts.iter().map(|tokens| cached(tokens)).collect();
    let rows = prompts
        .iter()
        .zip(&mut caches)
        .map(|(tokens, cache)| BatchRow {
            tokens: &tokens[tokens.len() - 1..],
            cache,
            adapter: None,
        });
    let together = base.forward(&mut rows.collect::<Vec<_>>()).unwrap();
    for (tokens, together) in prompts
        .iter()
        .zip(together.chunks(base.config().vocab_size))
    {
        let mut cache = cached(tokens);
        let row = BatchRow {
            tokens: &tokens[tokens.len() - 1..],
            cache: &mut cache,
            adapter: None,
        };
        assert!(base.forward(&mut [row]).unwrap() == together);
    }
}

#[test]
fn gradients_of_an_adapter_are_those_on_the_restored_weights() {
    let model = Model::random(tiny(), 4);
    for format in [
        QuantizedFormat::Bf16,
        QuantizedFormat::Int8,
        QuantizedFormat::Int4,
    ] {
        let base = load_in(&model, Some(format));
        let restored = base.weights().dequantized(base.config());
        let restored = Model::with_weights(base.config().clone(), restored);
        let adapter: Adapter = random_adapter(model.config(), 3);
        let weights = TrainedWeights::Lora(std::sync::Arc::new(adapter));
        let (one, two) = (tokens(80, 2), tokens(30, 5));
        let sequences = [sequence(&one), sequence(&two)];
        let gradients = |base: &Model| {
            let mut gradients = weights.gradients();
            let pass = weights
                .forward_train(base, &sequences, TrainLimits::default())
                .unwrap();
            let partials: Vec<_> = pass
                .scores()
                .iter()
                .map(|scores| LossGradients {
                    d_logprob: vec![-1.0 / scores.logprobs.len() as f32; scores.logprobs.len()],
                    d_entropy: Vec::new(),
                    d_candidates: Vec::new(),
                })
                .collect();
            pass.backward(&partials, &mut gradients).unwrap();
            gradients
        };
        let (own, right) = (gradients(&base), gradients(&restored));
        let mut largest = 0f32;
        for (own, right) in own.tensors.iter().zip(&right.tensors) {
            for (a, b) in own.iter().zip(right.iter()) {
                largest = largest.max(b.abs());
                assert!((a - b).abs() < 1e-4, "{a} {b}");
            }
        }
        assert!(largest > 1e-2, "{largest}");
    }
}

#[test]
fn merging_restores_the_base_that_was_served() {
    let base = quantized(&Model::random(tiny(), 4), Quantization::Int4);
    let adapter = random_adapter(base.config(), 3);
    let merged = base.merge_adapter(&adapter).unwrap();
    assert!(!merged.is_quantized());
    let all = tokens(40, 1);
    let served = base.score(Some(&adapter), &[sequence(&all)]).unwrap();
    let merged = merged.score(None, &[sequence(&all)]).unwrap();
    for (a, b) in served[0].logprobs.iter().zip(&merged[0].logprobs) {
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
}

/// The greedy reply of a model to a prompt.
fn greedy(files: &ModelFiles, quantization: Quantization, prompt: &str) -> Vec<u32> {
    let options = EngineOptions {
        quantization,
        num_threads: 2,
        ..EngineOptions::default()
    };
    greedy::reply(&load_engine(files, options).unwrap(), prompt)
}

#[test]
fn a_gguf_file_of_the_embedded_policy_gives_the_same_reply() {
    let files = ModelFiles::embedded();
    let model = Model::load(&files).unwrap();
    let prompt = "<|im_start|>user\nWhat is 17 plus 25?<|im_end|>\n<|im_start|>assistant\n";
    let right = greedy(&files, Quantization::None, prompt);
    assert!(right.len() > 5, "{right:?}");
    let dir = tempfile::tempdir().unwrap();
    for format in ["F32", "F16", "Q8_0"] {
        let path = dir.path().join(format!("{format}.gguf"));
        GgufFile::new(&model, format)
            .with_files(&files)
            .write(&path);
        let gguf = ModelFiles::open(&path).unwrap();
        assert_eq!(greedy(&gguf, Quantization::None, prompt), right, "{format}");
    }
    // Blocks that are kept give the same values as blocks that are restored.
    let q8 = ModelFiles::open(Path::new(&dir.path().join("Q8_0.gguf"))).unwrap();
    assert_eq!(greedy(&q8, Quantization::Int8, prompt), right);
    assert_eq!(greedy(&files, Quantization::Int8, prompt), right);
}
