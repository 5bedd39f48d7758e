//! The engine compared with candle: the forward pass with candle-transformers' Qwen3, and every gradient of every
//! family with candle's autograd over plain differentiable operations in f64.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    unreachable_pub,
    reason = "a test fails by panicking"
)]

mod plain;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use clawhost_cpu::{BatchRow, CpuModel, GradientTarget, Gradients};
use clawhost_engine::{
    Candidates, ForwardError, LossGradients, Sequence, SequenceScores, TrainLimits,
};
use clawhost_model::{Adapter, LoraSpec, Model, ModelConfig, Target};
use plain::{Plain, recorded};

/// Maximum distance of a gradient from the f64 reference, relative to its norm, per tensor.
const CLOSE: f64 = 1e-5;

fn tiny() -> ModelConfig {
    ModelConfig::parse(
        br#"{"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97,
            "max_position_embeddings": 512, "tie_word_embeddings": true, "eos_token_id": 1}"#,
    )
    .unwrap()
}

/// The families: norms on queries and keys; biases on queries, keys and values; neither, with scaled rotary frequencies
/// and an untied head; and biases on everything.
fn families() -> Vec<(&'static str, ModelConfig)> {
    let dressed = |change: serde_json::Value| {
        let mut config = serde_json::json!({
            "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97, "max_position_embeddings": 512,
            "tie_word_embeddings": true, "eos_token_id": 1
        });
        let change = change.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(change);
        ModelConfig::parse(config.to_string().as_bytes()).unwrap()
    };
    let llama = |biases: bool| {
        dressed(serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": biases, "rope_theta": 500_000.0,
            "attention_bias": biases, "mlp_bias": biases,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32
            }
        }))
    };
    vec![
        ("qwen3", tiny()),
        (
            "qwen2",
            dressed(serde_json::json!({"architectures": ["Qwen2ForCausalLM"]})),
        ),
        ("llama", llama(false)),
        ("llama with biases", llama(true)),
    ]
}

/// An adapter with a visible effect on the model.
fn random_adapter(config: &ModelConfig, rank: usize, seed: u64) -> Adapter {
    let spec = LoraSpec {
        rank,
        ..LoraSpec::default()
    };
    let mut adapter = Adapter::init(config, spec, seed);
    for (i, (_, values)) in adapter.tensors_mut().into_iter().enumerate() {
        for (j, v) in values.iter_mut().enumerate() {
            *v += 0.05 * ((i * 31 + j * 7 + seed as usize) as f32).sin();
        }
    }
    adapter
}

/// Random models are nearly linear at sigma 0.02; larger weights make every term matter.
fn model_with_large_weights(config: ModelConfig) -> Model {
    let mut model = Model::random(config, 21);
    for (i, (name, values)) in model.parameters_mut().into_iter().enumerate() {
        for (j, v) in values.iter_mut().enumerate() {
            *v = if name.contains("norm") {
                1.0 + 0.2 * ((i + j) as f32).sin()
            } else if name.ends_with(".bias") {
                0.3 * ((i * 5 + j) as f32).cos()
            } else {
                *v * 8.0
            };
        }
    }
    model
}

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32)
        .map(|i| (i * 29 + seed * 17 + i * i) % 97)
        .collect()
}

fn sequence(tokens: &[u32], start: usize, temperature: f32) -> Sequence<'_> {
    Sequence {
        tokens,
        start,
        temperature,
        candidates: Candidates::None,
    }
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor
        .flatten_all()
        .unwrap()
        .to_dtype(DType::F64)
        .unwrap()
        .to_vec1()
        .unwrap()
}

#[test]
fn logits_equal_candle_transformers() {
    let model = Model::random(tiny(), 11);
    let dir = tempfile::tempdir().unwrap();
    model.save(dir.path()).unwrap();
    let bytes = std::fs::read(dir.path().join("model.safetensors")).unwrap();
    let tensors = VarBuilder::from_buffered_safetensors(bytes, DType::F32, &Device::Cpu).unwrap();
    let config = serde_json::json!({
        "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 4, "head_dim": 16, "attention_bias": false, "num_key_value_heads": 2,
        "max_position_embeddings": 512, "sliding_window": null, "max_window_layers": 2,
        "tie_word_embeddings": true, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
        "use_sliding_window": false, "hidden_act": "silu"
    });
    let config = serde_json::from_value(config).unwrap();
    for n in [1, 2, 9, 130] {
        let ids = tokens(n, 3);
        let mut reference =
            candle_transformers::models::qwen3::ModelForCausalLM::new(&config, tensors.clone())
                .unwrap();
        let input = Tensor::new(ids.as_slice(), &Device::Cpu)
            .unwrap()
            .unsqueeze(0)
            .unwrap();
        let right = numbers(&reference.forward(&input, 0).unwrap());
        let mut cache = model.new_cache();
        let row = BatchRow {
            tokens: &ids,
            cache: &mut cache,
            adapter: None,
        };
        let ours = model.forward(&mut [row]).unwrap();
        let worst = ours
            .iter()
            .zip(&right)
            .map(|(a, b)| (f64::from(*a) - b).abs())
            .fold(0.0, f64::max);
        assert!(worst < 2e-5, "{n} tokens: {worst}");
    }
}

/// Arbitrary gradients that a loss might return for a sequence.
fn partials(index: usize, scored: &SequenceScores) -> LossGradients {
    let waves =
        |n: usize, k: f32| -> Vec<f32> { (0..n).map(|j| ((j + index) as f32 * k).sin()).collect() };
    let n = scored.logprobs.len();
    LossGradients {
        d_logprob: waves(n, 0.9),
        d_entropy: waves(n, 1.7),
        d_candidates: waves(scored.candidates.len(), 2.3),
    }
}

/// Checks the scores of one sequence and returns its share of the loss for these gradients.
fn loss(
    plain: &Plain,
    s: &Sequence<'_>,
    ours: &SequenceScores,
    partials: &LossGradients,
) -> Tensor {
    let all = plain.distribution(s);
    let lp = recorded(&all, s);
    let entropy = (all.exp().unwrap() * &all)
        .unwrap()
        .sum(1)
        .unwrap()
        .neg()
        .unwrap();
    let mut parts = vec![
        (lp, &ours.logprobs, &partials.d_logprob),
        (entropy, &ours.entropies, &partials.d_entropy),
    ];
    let n = ours.logprobs.len();
    if !ours.candidates.is_empty() {
        let shape = (n, ours.candidates.len() / n);
        let ids = Tensor::from_vec(ours.candidates.clone(), shape, &Device::Cpu).unwrap();
        let looked_at = all.gather(&ids, 1).unwrap().flatten_all().unwrap();
        parts.push((looked_at, &ours.candidate_logprobs, &partials.d_candidates));
    }
    let mut loss = Tensor::zeros((), DType::F64, &Device::Cpu).unwrap();
    for (right, ours, d) in parts {
        for (r, o) in numbers(&right).iter().zip(ours) {
            assert!((r - f64::from(*o)).abs() < 3e-5, "{r} {o}");
        }
        let d = Tensor::new(d.as_slice(), &Device::Cpu)
            .unwrap()
            .to_dtype(DType::F64)
            .unwrap();
        loss = (loss + (right * d).unwrap().sum_all().unwrap()).unwrap();
    }
    loss
}

/// Runs both and compares the scores and every gradient.
fn compare(model: &Model, adapter: Option<&Adapter>, sequences: &[Sequence<'_>]) {
    let plain = Plain::new(model, adapter, DType::F64);
    let trained = adapter.map_or(GradientTarget::Full, GradientTarget::Lora);
    let pass = model
        .forward_train(trained, sequences, TrainLimits::default())
        .unwrap();
    let given: Vec<LossGradients> = pass
        .scores()
        .iter()
        .enumerate()
        .map(|(i, s)| partials(i, s))
        .collect();
    let losses = sequences.iter().zip(pass.scores()).zip(&given);
    let total = losses
        .map(|((s, ours), partials)| loss(&plain, s, ours, partials))
        .reduce(|a, b| (a + b).unwrap())
        .unwrap();
    let right = total.backward().unwrap();
    let (names, mut gradients): (Vec<String>, _) = match adapter {
        Some(a) => (
            a.tensors().into_iter().map(|(n, _)| n).collect(),
            Gradients::for_adapter(a),
        ),
        None => (
            model.parameters().into_iter().map(|(n, _)| n).collect(),
            Gradients::for_model(model),
        ),
    };
    assert_eq!(model.score(adapter, sequences).unwrap(), pass.scores());
    pass.backward(&given, &mut gradients).unwrap();
    assert_eq!(names.len(), plain.trained.len());
    let mut worst: f64 = 0.0;
    for (name, ours) in names.iter().zip(&gradients.tensors) {
        let grad = right
            .get(&plain.trained[name])
            .unwrap_or_else(|| panic!("no gradient of {name}"));
        let grad = numbers(grad);
        assert_eq!(grad.len(), ours.len());
        let norm = grad.iter().map(|g| g * g).sum::<f64>().sqrt();
        let off = grad
            .iter()
            .zip(ours)
            .map(|(a, b)| (a - f64::from(*b)).powi(2))
            .sum::<f64>()
            .sqrt();
        assert!(norm > 0.0, "{name} has no gradient");
        assert!(
            off <= CLOSE * norm,
            "{name}: {off:e} of {norm:e} is {:e}",
            off / norm
        );
        worst = worst.max(off / norm);
    }
    println!(
        "gradients of {} tensors are within {worst:.1e} of their norm",
        names.len()
    );
}

#[test]
fn lora_gradients_equal_autograd() {
    for (family, config) in families() {
        println!("{family}");
        let model = model_with_large_weights(config);
        let adapter = random_adapter(model.config(), 4, 2);
        let (a, b, c) = (tokens(7, 1), tokens(80, 2), tokens(2, 3));
        compare(
            &model,
            Some(&adapter),
            &[
                sequence(&a, 3, 1.0),
                sequence(&b, 50, 0.7),
                sequence(&c, 1, 1.3),
            ],
        );
    }
}

#[test]
fn gradients_of_a_partial_adapter_equal_autograd() {
    for (family, config) in families() {
        println!("{family}");
        let model = model_with_large_weights(config);
        let spec = LoraSpec {
            rank: 2,
            alpha: 8.0,
            targets: vec![Target::V, Target::Gate],
        };
        let mut adapter = Adapter::init(model.config(), spec, 5);
        for (_, values) in adapter.tensors_mut() {
            values
                .iter_mut()
                .enumerate()
                .for_each(|(i, v)| *v += 0.1 * (i as f32).cos());
        }
        let a = tokens(20, 4);
        compare(&model, Some(&adapter), &[sequence(&a, 9, 1.0)]);
    }
}

#[test]
fn full_gradients_equal_autograd_with_tied_and_untied_heads() {
    for (family, config) in families() {
        for tie_word_embeddings in [true, false] {
            println!("{family}, tied: {tie_word_embeddings}");
            let model = model_with_large_weights(ModelConfig {
                tie_word_embeddings,
                ..config.clone()
            });
            let (a, b) = (tokens(12, 1), tokens(70, 5));
            compare(&model, None, &[sequence(&a, 1, 1.0), sequence(&b, 1, 1.0)]);
        }
    }
}

/// The depth and width of the memory test, with partly filled attention blocks.
#[test]
fn gradients_of_six_layers_equal_autograd() {
    let config = ModelConfig {
        hidden_size: 256,
        intermediate_size: 768,
        num_hidden_layers: 6,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 64,
        ..tiny()
    };
    let model = model_with_large_weights(config);
    let adapter = random_adapter(model.config(), 16, 3);
    let (a, b) = (tokens(150, 1), tokens(67, 2));
    let sequences = [sequence(&a, 1, 1.0), sequence(&b, 20, 1.0)];
    compare(&model, Some(&adapter), &sequences);
    compare(&model, None, &sequences);
}

/// Enough sequences for several micro-batches.
#[test]
fn gradients_of_many_sequences_equal_autograd_for_any_number_of_threads() {
    let adapter = random_adapter(&tiny(), 4, 5);
    let all: Vec<Vec<u32>> = (0..9).map(|i| tokens(30 + 23 * i, i as u32)).collect();
    let given = [7, 90, 12, 41];
    let sequences: Vec<Sequence<'_>> = all
        .iter()
        .enumerate()
        .map(|(i, tokens)| Sequence {
            candidates: match i {
                1 => Candidates::Top(3),
                8 => Candidates::Fixed {
                    ids: &given,
                    per_token: 2,
                },
                _ => Candidates::None,
            },
            ..sequence(tokens, if i == 8 { tokens.len() - 2 } else { 5 + i }, 1.0)
        })
        .collect();
    compare(
        &model_with_large_weights(tiny()),
        Some(&adapter),
        &sequences,
    );
    compare(&model_with_large_weights(tiny()), None, &sequences);
    let run = |threads| {
        let model = model_with_large_weights(tiny()).with_threads(threads);
        let mut gradients = Gradients::for_adapter(&adapter);
        let pass = model
            .forward_train(
                GradientTarget::Lora(&adapter),
                &sequences,
                TrainLimits::default(),
            )
            .unwrap();
        let scored = pass.scores().to_vec();
        let given: Vec<LossGradients> = (0..).zip(&scored).map(|(i, s)| partials(i, s)).collect();
        pass.backward(&given, &mut gradients).unwrap();
        (scored, gradients)
    };
    let one = run(1);
    for threads in [2, 3, 16] {
        assert!(run(threads) == one, "{threads} threads differ");
    }
}

#[test]
fn stored_and_recomputed_activations_give_the_same_bits() {
    let ids = tokens(60, 2);
    let sequences = [sequence(&ids[..25], 3, 1.0), sequence(&ids, 40, 0.7)];
    for (family, config) in families() {
        let adapter = random_adapter(&config, 4, 9);
        for target in [GradientTarget::Lora(&adapter), GradientTarget::Full] {
            let run = |bytes| {
                let model = model_with_large_weights(config.clone());
                let mut gradients = match target {
                    GradientTarget::Lora(adapter) => Gradients::for_adapter(adapter),
                    GradientTarget::Full => Gradients::for_model(&model),
                };
                let limits = TrainLimits {
                    activation_memory: bytes,
                };
                let pass = model.forward_train(target, &sequences, limits).unwrap();
                let given = pass.scores().iter().enumerate();
                let given: Vec<LossGradients> = given.map(|(i, s)| partials(i, s)).collect();
                pass.backward(&given, &mut gradients).unwrap();
                gradients
            };
            let recomputed = run(0);
            // Enough for one of the two layers, and for both.
            for bytes in [200 << 10, 1 << 30] {
                assert!(run(bytes) == recomputed, "{family}, {bytes} bytes");
            }
        }
    }
}

/// A vocabulary of many blocks, whose logits do not exist at once.
#[test]
fn gradients_of_a_streamed_head_equal_those_of_whole_logits() {
    let large = |hidden_size, vocab_size| ModelConfig {
        hidden_size,
        vocab_size,
        num_hidden_layers: 1,
        ..tiny()
    };
    // Above the size up to which weights are packed.
    let model = Model::random(large(64, 1_050_000), 3);
    let adapter = random_adapter(model.config(), 4, 2);
    let ids: Vec<u32> = (0..40).map(|i| i * 26_249 % 1_050_000).collect();
    let sequences = [sequence(&ids, 3, 0.8)];
    let run = |d_entropy: f32| {
        let mut gradients = Gradients::for_adapter(&adapter);
        let target = GradientTarget::Lora(&adapter);
        let pass = model
            .forward_train(target, &sequences, TrainLimits::default())
            .unwrap();
        assert_eq!(
            model.score(Some(&adapter), &sequences).unwrap(),
            pass.scores()
        );
        let count = pass.scores()[0].logprobs.len();
        let given = LossGradients {
            d_logprob: (0..count).map(|i| (i as f32).cos()).collect(),
            d_entropy: vec![d_entropy; count],
            d_candidates: Vec::new(),
        };
        pass.backward(&[given], &mut gradients).unwrap();
        gradients
    };
    // The smallest entropy gradient takes the way over all logits, and changes nothing else.
    let (stored, logits) = (run(0.0), run(f32::MIN_POSITIVE));
    let mut difference = stored.clone();
    difference.scale(-1.0);
    difference.add(&logits);
    assert!(stored.norm() > 0.0);
    assert!(
        difference.norm() <= 1e-5 * stored.norm(),
        "{}",
        difference.norm() / stored.norm()
    );
}

#[test]
fn gradients_through_candidates_equal_autograd() {
    let model = model_with_large_weights(tiny());
    let adapter = random_adapter(model.config(), 4, 11);
    let (a, b, c) = (tokens(9, 1), tokens(70, 2), tokens(5, 3));
    let given = [3, 90, 0, 41, 41, 7, 96, 12];
    let sequences = [
        Sequence {
            candidates: Candidates::Top(6),
            ..sequence(&a, 4, 0.7)
        },
        sequence(&b, 3, 1.0),
        // The same token twice: both gradients count.
        Sequence {
            candidates: Candidates::Fixed {
                ids: &given,
                per_token: 2,
            },
            ..sequence(&c, 1, 1.3)
        },
    ];
    compare(&model, Some(&adapter), &sequences);
    compare(&model, None, &sequences);
    let scored = model.score(Some(&adapter), &sequences).unwrap();
    assert_eq!(scored[0].candidates.len(), 5 * 6);
    for row in scored[0].candidate_logprobs.chunks(6) {
        assert!(row.is_sorted_by(|a, b| a >= b), "{row:?}");
        assert!(row.iter().map(|lp| lp.exp()).sum::<f32>() <= 1.0 + 1e-5);
    }
    assert!(scored[1].candidates.is_empty() && scored[1].candidate_logprobs.is_empty());
    assert_eq!(scored[2].candidates, given);
}

#[test]
fn invalid_candidates_are_rejected() {
    let model = Model::random(tiny(), 1);
    let score = |candidates| {
        let sequence = Sequence {
            candidates,
            ..sequence(&[1, 2, 3], 1, 1.0)
        };
        model.score(None, &[sequence])
    };
    let given = |ids, per_token| Candidates::Fixed { ids, per_token };
    assert!(score(Candidates::Top(97)).is_ok());
    assert!(matches!(
        score(Candidates::Top(98)),
        Err(ForwardError::Length { .. })
    ));
    assert!(matches!(
        score(given(&[1, 2, 3], 2)),
        Err(ForwardError::Length { .. })
    ));
    assert!(matches!(
        score(given(&[1, 97], 1)),
        Err(ForwardError::Token { id: 97, vocab: 97 })
    ));
    let most_likely = score(Candidates::Top(1)).unwrap();
    assert_eq!(most_likely[0].candidates.len(), 2);
}

#[test]
fn serving_and_scoring_give_the_same_logprobs() {
    let model = model_with_large_weights(tiny());
    let adapter = random_adapter(model.config(), 4, 7);
    let ids = tokens(40, 9);
    let scored = model
        .score(Some(&adapter), &[sequence(&ids, 10, 0.8)])
        .unwrap();
    let mut cache = model.new_cache();
    let mut fed = 0;
    for (at, target) in ids.iter().enumerate().skip(10) {
        let row = BatchRow {
            tokens: &ids[fed..at],
            cache: &mut cache,
            adapter: Some(&adapter),
        };
        let logits = model.forward(&mut [row]).unwrap();
        let z: Vec<f64> = logits.iter().map(|z| f64::from(*z) / 0.8).collect();
        fed = at;
        let top = z.iter().copied().fold(f64::MIN, f64::max);
        let lse = top + z.iter().map(|z| (z - top).exp()).sum::<f64>().ln();
        let served = z[*target as usize] - lse;
        assert!((served - f64::from(scored[0].logprobs[at - 10])).abs() < 1e-5);
    }
}

#[test]
fn invalid_requests_are_rejected() {
    let model = Model::random(tiny(), 1);
    let score = |tokens: &[u32], start, temperature| {
        model
            .score(None, &[sequence(tokens, start, temperature)])
            .unwrap_err()
    };
    assert_eq!(
        score(&[1, 2], 0, 1.0),
        ForwardError::Start { start: 0, len: 2 }
    );
    assert_eq!(
        score(&[1, 2], 2, 1.0),
        ForwardError::Start { start: 2, len: 2 }
    );
    assert_eq!(
        score(&[1, 99], 1, 1.0),
        ForwardError::Token { id: 99, vocab: 97 }
    );
    assert!(matches!(
        score(&[1, 2], 1, 0.0),
        ForwardError::Temperature(_)
    ));
    let pass = model
        .forward_train(
            GradientTarget::Full,
            &[sequence(&[1, 2, 3], 1, 1.0)],
            TrainLimits::default(),
        )
        .unwrap();
    let short = LossGradients {
        d_logprob: vec![1.0],
        d_entropy: Vec::new(),
        d_candidates: Vec::new(),
    };
    let mut gradients = Gradients::for_model(&model);
    assert!(matches!(
        pass.backward(&[short], &mut gradients),
        Err(ForwardError::Length { .. })
    ));
    assert_eq!(gradients.norm(), 0.0);
}
