//! Golden tests of the model's log-probs and entropies and their derivatives, from given logits.
//!
//! The model's layers are zero and its head holds the logits of each context token, so its forward pass returns them. The
//! tested pass is the one that serves and trains. It computes in f32 only, so both precisions check the same values.

use clawhost_cpu::{CpuModel, GradientTarget, Gradients};
use clawhost_engine::{Candidates, LossGradients, Sequence, SequenceScores, TrainLimits};
use clawhost_model::{Model, ModelConfig};
use clawhost_training::Float;
use serde_json::{Value, json};

use super::{Case, all_close, cases, numbers, rows};

/// Width of the residual stream; RMSNorm scales a one-hot row to the square root of the width.
const WIDTH: usize = 4;
const ROOT: f32 = 2.0;

/// A model whose logits after token i are row i.
fn model(logits: &[Vec<f32>]) -> Model {
    let config = json!({
        "hidden_size": WIDTH, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 4, "max_position_embeddings": 8,
        "tie_word_embeddings": false,
    });
    let config = ModelConfig::parse(config.to_string().as_bytes()).unwrap();
    let mut model = Model::random(config, 1);
    for (name, values) in model.parameters_mut() {
        if name.contains("norm") {
            continue;
        }
        values.fill(0.0);
        for (context, row) in logits.iter().enumerate() {
            if name == "model.embed_tokens.weight" {
                // Large, so that the epsilon of RMSNorm does not matter.
                values[context * WIDTH + context] = 1000.0;
            }
            if name == "lm_head.weight" {
                for (token, logit) in row.iter().enumerate() {
                    values[token * WIDTH + context] = logit / ROOT;
                }
            }
        }
    }
    model
}

/// The model's scores, and the derivatives of the sum of all log-probs (or entropies) with respect to the logits.
fn derivative(
    model: &Model,
    contexts: &[[u32; 2]],
    temperature: f32,
    entropy: bool,
) -> (Vec<SequenceScores>, Vec<Vec<f32>>) {
    let sequences: Vec<Sequence<'_>> = contexts
        .iter()
        .map(|tokens| Sequence {
            tokens,
            start: 1,
            temperature,
            candidates: Candidates::None,
        })
        .collect();
    let pass = model
        .forward_train(GradientTarget::Full, &sequences, TrainLimits::default())
        .unwrap();
    let scored = pass.scores().to_vec();
    let partials: Vec<LossGradients> = contexts
        .iter()
        .map(|_| LossGradients {
            d_logprob: vec![if entropy { 0.0 } else { 1.0 }],
            d_entropy: if entropy { vec![1.0] } else { Vec::new() },
            d_candidates: Vec::new(),
        })
        .collect();
    let mut gradients = Gradients::for_model(model);
    pass.backward(&partials, &mut gradients).unwrap();
    let head = gradients.tensors.last().unwrap();
    let rows = (0..contexts.len())
        .map(|context| {
            (0..4)
                .map(|token| head[token * WIDTH + context] / ROOT)
                .collect()
        })
        .collect();
    (scored, rows)
}

pub(crate) fn logprobs_and_entropies<R: Float>() {
    for case in cases("16") {
        check(&case);
        case.done::<R>();
    }
}

fn check(case: &Case) {
    let (inputs, expected) = (&case["inputs"], &case["expected"]);
    let logits: Vec<Vec<f32>> = rows(&inputs["logits"]);
    let model = model(&logits);
    let contexts: Vec<[u32; 2]> = numbers::<f64>(&inputs["tokens"])
        .iter()
        .enumerate()
        .map(|(context, token)| [context as u32, *token as u32])
        .collect();
    let temperature = case["hyper"]["temperature"].as_f64().unwrap_or(1.0) as f32;
    let (scored, by_logprob) = derivative(&model, &contexts, temperature, false);
    let logprobs: Vec<f32> = scored.iter().map(|s| s.logprobs[0]).collect();
    all_close("logprob", &logprobs, &expected["logprob"]);
    let slopes = |found: &[Vec<f32>], expected: &Value| {
        for (found, expected) in found.iter().zip(expected.as_array().unwrap()) {
            all_close("slope", found, expected);
        }
    };
    if expected["entropy"].is_array() {
        let entropies: Vec<f32> = scored.iter().map(|s| s.entropies[0]).collect();
        all_close("entropy", &entropies, &expected["entropy"]);
        slopes(&by_logprob, &expected["dsumlp_dlogits"]);
        let (_, by_entropy) = derivative(&model, &contexts, temperature, true);
        slopes(&by_entropy, &expected["dsumH_dlogits"]);
    }
}
