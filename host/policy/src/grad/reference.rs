//! The engine against candle: the forward pass against candle-transformers' Qwen3, and every gradient
//! against candle's autograd over plain differentiable operations.

use std::collections::HashMap;

use candle_core::{D, DType, Device, IndexOp, Tensor, Var};
use candle_nn::VarBuilder;

use super::*;
use crate::lora::{Adapter, Target};
use crate::model::tests::{busy_adapter, tiny};
use crate::model::{Model, Row};
use crate::{ForwardError, ModelConfig};

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

/// A plain decoder over candle variables.
struct Plain {
    vars: HashMap<String, Var>,
    config: ModelConfig,
    scale: f64,
}

impl Plain {
    fn new(model: &Model, adapter: Option<&Adapter>) -> Self {
        let c = model.config().clone();
        let mut vars = HashMap::new();
        for entry in crate::weights::entries(&c) {
            let values = model.weights.tensor(&entry);
            let t = Tensor::from_slice(values, entry.shape.as_slice(), &Device::Cpu).unwrap();
            vars.insert(entry.name.clone(), Var::from_tensor(&t).unwrap());
        }
        for (name, values) in adapter.map(Adapter::tensors).unwrap_or_default() {
            let rank = adapter.unwrap().spec().rank;
            let other = values.len() / rank;
            let shape = if name.contains("lora_A") {
                (rank, other)
            } else {
                (other, rank)
            };
            let t = Tensor::from_slice(values, shape, &Device::Cpu).unwrap();
            vars.insert(name, Var::from_tensor(&t).unwrap());
        }
        let scale = adapter.map_or(0.0, |a| f64::from(a.spec().scale()));
        Self {
            vars,
            config: c,
            scale,
        }
    }

    fn linear(&self, x: &Tensor, name: &str) -> Tensor {
        let y = x
            .matmul(&self.vars[&format!("{name}.weight")].t().unwrap())
            .unwrap();
        let part = |ab: &str| {
            self.vars
                .get(&format!("base_model.model.{name}.lora_{ab}.weight"))
        };
        match (part("A"), part("B")) {
            (Some(a), Some(b)) => {
                let update = x
                    .matmul(&a.t().unwrap())
                    .unwrap()
                    .matmul(&b.t().unwrap())
                    .unwrap();
                (y + (update * self.scale).unwrap()).unwrap()
            }
            _ => y,
        }
    }

    fn norm(&self, x: &Tensor, name: &str) -> Tensor {
        let mean = x.sqr().unwrap().mean_keepdim(D::Minus1).unwrap();
        let root = (mean + f64::from(self.config.rms_norm_eps))
            .unwrap()
            .sqrt()
            .unwrap();
        let gain = self.vars[&format!("{name}.weight")].as_tensor();
        x.broadcast_div(&root).unwrap().broadcast_mul(gain).unwrap()
    }

    /// `x [heads, t, dim]`.
    fn rotate(&self, x: &Tensor) -> Tensor {
        let (_, t, dim) = x.dims3().unwrap();
        let half = dim / 2;
        let angle = |p: usize, i: usize| {
            p as f32 * self.config.rope_theta.powf(-2.0 * i as f32 / dim as f32)
        };
        let table = |f: fn(f32) -> f32| {
            let v: Vec<f32> = (0..t)
                .flat_map(|p| (0..half).map(move |i| (p, i)))
                .map(|(p, i)| f(angle(p, i)))
                .collect();
            Tensor::from_vec(v, (1, t, half), &Device::Cpu).unwrap()
        };
        let (cos, sin) = (table(f32::cos), table(f32::sin));
        let low = x.narrow(2, 0, half).unwrap();
        let high = x.narrow(2, half, half).unwrap();
        let mul = |a: &Tensor, b: &Tensor| a.broadcast_mul(b).unwrap();
        let a = (mul(&low, &cos) - mul(&high, &sin)).unwrap();
        let b = (mul(&high, &cos) + mul(&low, &sin)).unwrap();
        Tensor::cat(&[a, b], 2).unwrap()
    }

    fn logits(&self, ids: &[u32]) -> Tensor {
        let c = &self.config;
        let (t, heads, groups, dim) = (
            ids.len(),
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
        );
        let ids = Tensor::new(ids, &Device::Cpu).unwrap();
        let embed = &self.vars["model.embed_tokens.weight"];
        let mut x = embed.index_select(&ids, 0).unwrap();
        let mask: Vec<f32> = (0..t)
            .flat_map(|i| (0..t).map(move |j| if j <= i { 0.0 } else { f32::NEG_INFINITY }))
            .collect();
        let mask = Tensor::from_vec(mask, (1, t, t), &Device::Cpu).unwrap();
        for l in 0..c.num_hidden_layers {
            let at = |part: &str| format!("model.layers.{l}.{part}");
            let y = self.norm(&x, &at("input_layernorm"));
            let split = |x: Tensor, n: usize| {
                x.reshape((t, n, dim))
                    .unwrap()
                    .transpose(0, 1)
                    .unwrap()
                    .contiguous()
                    .unwrap()
            };
            let q = split(self.linear(&y, &at("self_attn.q_proj")), heads);
            let k = split(self.linear(&y, &at("self_attn.k_proj")), groups);
            let v = split(self.linear(&y, &at("self_attn.v_proj")), groups);
            let q = self.rotate(&self.norm(&q, &at("self_attn.q_norm")));
            let k = self.rotate(&self.norm(&k, &at("self_attn.k_norm")));
            let spread = |x: Tensor| {
                let all: Vec<Tensor> = (0..heads)
                    .map(|h| x.i(h * groups / heads).unwrap())
                    .collect();
                Tensor::stack(&all, 0).unwrap()
            };
            let (k, v) = (spread(k), spread(v));
            let scores = q
                .matmul(&k.transpose(1, 2).unwrap().contiguous().unwrap())
                .unwrap();
            let scores = (scores * (1.0 / (dim as f64).sqrt())).unwrap();
            let p = candle_nn::ops::softmax(&scores.broadcast_add(&mask).unwrap(), 2).unwrap();
            let y = p
                .matmul(&v)
                .unwrap()
                .transpose(0, 1)
                .unwrap()
                .reshape((t, heads * dim))
                .unwrap();
            x = (x + self.linear(&y, &at("self_attn.o_proj"))).unwrap();
            let y = self.norm(&x, &at("post_attention_layernorm"));
            let gate = self.linear(&y, &at("mlp.gate_proj")).silu().unwrap();
            let y = (gate * self.linear(&y, &at("mlp.up_proj"))).unwrap();
            x = (x + self.linear(&y, &at("mlp.down_proj"))).unwrap();
        }
        let head = if c.tie_word_embeddings {
            "model.embed_tokens.weight"
        } else {
            "lm_head.weight"
        };
        let x = self.norm(&x, "model.norm");
        x.matmul(&self.vars[head].t().unwrap()).unwrap()
    }

    /// Log-probabilities and entropies of one sequence's scored tokens.
    fn scored(&self, s: &Sequence<'_>) -> (Tensor, Tensor) {
        let n = s.tokens.len() - s.start;
        let z = self.logits(s.tokens).narrow(0, s.start - 1, n).unwrap();
        let z = (z / f64::from(s.temperature)).unwrap();
        let lp = candle_nn::ops::log_softmax(&z, 1).unwrap();
        let targets = Tensor::new(&s.tokens[s.start..], &Device::Cpu)
            .unwrap()
            .unsqueeze(1)
            .unwrap();
        let picked = lp.gather(&targets, 1).unwrap().squeeze(1).unwrap();
        let entropy = (lp.exp().unwrap() * &lp)
            .unwrap()
            .sum(1)
            .unwrap()
            .neg()
            .unwrap();
        (picked, entropy)
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
        let (lp, entropy) = plain.scored(s);
        for (right, ours) in [(&lp, &ours.logprobs), (&entropy, &ours.entropies)] {
            for (r, o) in right.to_vec1::<f32>().unwrap().iter().zip(ours) {
                assert!((r - o).abs() < 3e-5, "{r} {o}");
            }
        }
        let n = ours.logprobs.len();
        let weights = |k: f32| -> Vec<f32> { (0..n).map(|j| ((j + i) as f32 * k).sin()).collect() };
        let (d_logprob, d_entropy) = (weights(0.9), weights(1.7));
        for (value, d) in [(lp, &d_logprob), (entropy, &d_entropy)] {
            let d = Tensor::new(d.as_slice(), &Device::Cpu).unwrap();
            loss = (loss + (value * d).unwrap().sum_all().unwrap()).unwrap();
        }
        partials.push(Partials {
            d_logprob,
            d_entropy,
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
            },
            Sequence {
                tokens: &b,
                start: 50,
                temperature: 0.7,
            },
            Sequence {
                tokens: &c,
                start: 1,
                temperature: 1.3,
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
                },
                Sequence {
                    tokens: &b,
                    start: 1,
                    temperature: 1.0,
                },
            ],
        );
    }
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
            }],
        )
        .unwrap();
    let short = Partials {
        d_logprob: vec![1.0],
        d_entropy: Vec::new(),
    };
    let mut gradients = Gradients::for_model(&model);
    assert!(matches!(
        pass.backward(&[short], &mut gradients),
        Err(ForwardError::Length { .. })
    ));
    assert_eq!(gradients.norm(), 0.0);
}
