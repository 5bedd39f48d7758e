//! The engine against candle: the forward pass against candle-transformers' Qwen3, and every gradient
//! against candle's autograd over plain differentiable operations.

mod plain;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;

use super::*;
use crate::lora::{Adapter, Target};
use crate::model::tests::{busy_adapter, tiny};
use crate::model::{Model, Row};
use crate::{ForwardError, ModelConfig};
use plain::Plain;

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32)
        .map(|i| (i * 29 + seed * 17 + i * i) % 97)
        .collect()
}

#[test]
fn logits_equal_candle_transformers() {
    let config = ModelConfig {
        tie_word_embeddings: true,
        ..tiny()
    };
    let model = Model::random(config, 11);
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
        let right: Vec<f32> = reference
            .forward(&input, 0)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap();
        let mut cache = model.new_cache();
        let row = Row {
            tokens: &ids,
            cache: &mut cache,
            adapter: None,
        };
        let ours = model.forward(&mut [row]).unwrap();
        let worst = ours
            .iter()
            .zip(&right)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(worst < 2e-5, "{n} tokens: {worst}");
    }
}

/// Runs both and compares values and every gradient.
fn compare(model: &Model, adapter: Option<&Adapter>, sequences: &[Sequence<'_>]) {
    let plain = Plain::new(model, adapter);
    let trained = adapter.map_or(Trained::Full, Trained::Lora);
    let pass = model.forward_train(trained, sequences).unwrap();
    let mut partials = Vec::new();
    let mut loss = Tensor::zeros((), DType::F32, &Device::Cpu).unwrap();
    for (i, (s, ours)) in sequences.iter().zip(pass.scored()).enumerate() {
        let (lp, entropy, all) = plain.scored(s);
        for (right, ours) in [(&lp, &ours.logprobs), (&entropy, &ours.entropies)] {
            for (r, o) in right.to_vec1::<f32>().unwrap().iter().zip(ours) {
                assert!((r - o).abs() < 3e-5, "{r} {o}");
            }
        }
        let n = ours.logprobs.len();
        let weights = |k: f32| -> Vec<f32> { (0..n).map(|j| ((j + i) as f32 * k).sin()).collect() };
        let (d_logprob, d_entropy) = (weights(0.9), weights(1.7));
        let d_candidates: Vec<f32> = (0..ours.candidates.len())
            .map(|j| ((j + i) as f32 * 2.3).sin())
            .collect();
        if !ours.candidates.is_empty() {
            let shape = (n, ours.candidates.len() / n);
            let ids = Tensor::from_vec(ours.candidates.clone(), shape, &Device::Cpu).unwrap();
            let looked_at = all.gather(&ids, 1).unwrap();
            let right: Vec<f32> = looked_at.flatten_all().unwrap().to_vec1().unwrap();
            for (r, o) in right.iter().zip(&ours.candidate_logprobs) {
                assert!((r - o).abs() < 3e-5, "{r} {o}");
            }
            let d = Tensor::from_vec(d_candidates.clone(), shape, &Device::Cpu).unwrap();
            loss = (loss + (looked_at * d).unwrap().sum_all().unwrap()).unwrap();
        }
        for (value, d) in [(lp, &d_logprob), (entropy, &d_entropy)] {
            let d = Tensor::new(d.as_slice(), &Device::Cpu).unwrap();
            loss = (loss + (value * d).unwrap().sum_all().unwrap()).unwrap();
        }
        partials.push(Partials {
            d_logprob,
            d_entropy,
            d_candidates,
        });
    }
    let right = loss.backward().unwrap();
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
    assert_eq!(model.score(adapter, sequences).unwrap(), pass.scored());
    pass.backward(&partials, &mut gradients).unwrap();
    for (name, ours) in names.iter().zip(&gradients.tensors) {
        let grad = right
            .get(&plain.vars[name])
            .unwrap_or_else(|| panic!("no gradient of {name}"));
        let grad: Vec<f32> = grad.flatten_all().unwrap().to_vec1().unwrap();
        let norm = grad.iter().map(|g| g * g).sum::<f32>().sqrt();
        let off = grad
            .iter()
            .zip(ours)
            .map(|(a, b)| (a - b).powi(2))
            .sum::<f32>()
            .sqrt();
        assert!(norm > 0.0, "{name} has no gradient");
        assert!(off <= 2e-5 * norm + 1e-7, "{name}: {off} of {norm}");
    }
}

/// Random models are nearly linear at sigma 0.02; larger weights make every term matter.
fn lively(config: ModelConfig) -> Model {
    let mut model = Model::random(config, 21);
    for (i, (name, values)) in model.parameters_mut().into_iter().enumerate() {
        for (j, v) in values.iter_mut().enumerate() {
            *v = if name.contains("norm") {
                1.0 + 0.2 * ((i + j) as f32).sin()
            } else {
                *v * 8.0
            };
        }
    }
    model
}

#[test]
fn lora_gradients_equal_autograd() {
    let model = lively(tiny());
    let adapter = busy_adapter(model.config(), 2);
    let (a, b, c) = (tokens(7, 1), tokens(80, 2), tokens(2, 3));
    compare(
        &model,
        Some(&adapter),
        &[
            Sequence {
                tokens: &a,
                start: 3,
                temperature: 1.0,
                candidates: Candidates::None,
            },
            Sequence {
                tokens: &b,
                start: 50,
                temperature: 0.7,
                candidates: Candidates::None,
            },
            Sequence {
                tokens: &c,
                start: 1,
                temperature: 1.3,
                candidates: Candidates::None,
            },
        ],
    );
}

#[test]
fn gradients_of_a_partial_adapter_equal_autograd() {
    let model = lively(tiny());
    let spec = crate::LoraSpec {
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
    compare(
        &model,
        Some(&adapter),
        &[Sequence {
            tokens: &a,
            start: 9,
            temperature: 1.0,
            candidates: Candidates::None,
        }],
    );
}

#[test]
fn full_gradients_equal_autograd_with_tied_and_untied_heads() {
    for tie_word_embeddings in [true, false] {
        let model = lively(ModelConfig {
            tie_word_embeddings,
            ..tiny()
        });
        let (a, b) = (tokens(12, 1), tokens(70, 5));
        compare(
            &model,
            None,
            &[
                Sequence {
                    tokens: &a,
                    start: 1,
                    temperature: 1.0,
                    candidates: Candidates::None,
                },
                Sequence {
                    tokens: &b,
                    start: 1,
                    temperature: 1.0,
                    candidates: Candidates::None,
                },
            ],
        );
    }
}

#[test]
fn gradients_through_candidates_equal_autograd() {
    let model = lively(tiny());
    let adapter = busy_adapter(model.config(), 11);
    let (a, b, c) = (tokens(9, 1), tokens(70, 2), tokens(5, 3));
    let given = [3, 90, 0, 41, 41, 7, 96, 12];
    let sequences = [
        Sequence {
            tokens: &a,
            start: 4,
            temperature: 0.7,
            candidates: Candidates::Top(6),
        },
        Sequence {
            tokens: &b,
            start: 3,
            temperature: 1.0,
            candidates: Candidates::None,
        },
        Sequence {
            tokens: &c,
            start: 1,
            temperature: 1.3,
            // One twice for the same token: both pull.
            candidates: Candidates::Given {
                ids: &given,
                per_token: 2,
            },
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
fn candidates_that_cannot_be_are_refused() {
    let model = Model::random(tiny(), 1);
    let score = |candidates| {
        let sequence = Sequence {
            tokens: &[1, 2, 3],
            start: 1,
            temperature: 1.0,
            candidates,
        };
        model.score(None, &[sequence])
    };
    let given = |ids, per_token| Candidates::Given { ids, per_token };
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
fn what_is_served_is_what_is_scored() {
    let model = lively(tiny());
    let adapter = busy_adapter(model.config(), 7);
    let ids = tokens(40, 9);
    let scored = model
        .score(
            Some(&adapter),
            &[Sequence {
                tokens: &ids,
                start: 10,
                temperature: 0.8,
                candidates: Candidates::None,
            }],
        )
        .unwrap();
    let mut cache = model.new_cache();
    let mut fed = 0;
    for (at, target) in ids.iter().enumerate().skip(10) {
        let row = Row {
            tokens: &ids[fed..at],
            cache: &mut cache,
            adapter: Some(&adapter),
        };
        let z: Vec<f64> = model
            .forward(&mut [row])
            .unwrap()
            .iter()
            .map(|z| f64::from(*z) / 0.8)
            .collect();
        fed = at;
        let top = z.iter().copied().fold(f64::MIN, f64::max);
        let lse = top + z.iter().map(|z| (z - top).exp()).sum::<f64>().ln();
        let served = z[*target as usize] - lse;
        assert!((served - f64::from(scored[0].logprobs[at - 10])).abs() < 1e-5);
    }
}

#[test]
fn impossible_requests_are_refused() {
    let model = Model::random(tiny(), 1);
    let score = |tokens: &[u32], start, temperature| {
        model
            .score(
                None,
                &[Sequence {
                    tokens,
                    start,
                    temperature,
                    candidates: Candidates::None,
                }],
            )
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
            Trained::Full,
            &[Sequence {
                tokens: &[1, 2, 3],
                start: 1,
                temperature: 1.0,
                candidates: Candidates::None,
            }],
        )
        .unwrap();
    let short = Partials {
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
