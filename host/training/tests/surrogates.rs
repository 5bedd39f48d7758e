//! Reference numbers of the policy-gradient methods: loss, derivative and ratio, in f64 to 1e-6 and in f32 to
//! 1e-5, each through the objective that trains.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a reference number that is missing or misshapen must fail the test"
)]

use std::num::NonZeroUsize;

use clawhost_training::Real;
use clawhost_training::loss::{
    Aggregation, Bound, Cispo, Clip, Divergence, Dppo, Gspo, Importance, Objective, Penalty, Sapo,
    SequenceInputs, Span, Surrogate,
};
use serde_json::Value;

mod reference;

use reference::{all_close, case, cases, close, counts, masks, numbers, objective, rows};

/// What one case gives: the loss, and the gradient of each row.
struct Found<R> {
    loss: f64,
    gradient: Vec<Vec<R>>,
    clipped: Vec<usize>,
}

/// Evaluates the rows of a case; `old` names the log-probs that the ratio is measured from.
fn evaluate<R: Real>(
    case: &Value,
    old: &str,
    surrogate: Surrogate,
    aggregation: Aggregation,
    weigh: impl Fn(usize) -> Vec<R>,
) -> Found<R> {
    let inputs = &case["inputs"];
    let (new, old): (Vec<Vec<R>>, Vec<Vec<R>>) = (rows(&inputs["lp_new"]), rows(&inputs[old]));
    let advantages: Vec<R> = numbers(&inputs["A"]);
    let mask = masks(&inputs["mask"]);
    let coefficients = aggregation.coefficients(&counts(&mask));
    let mut found = Found {
        loss: 0.0,
        gradient: Vec::new(),
        clipped: Vec::new(),
    };
    for (i, row) in new.iter().enumerate() {
        let sequence = objective(surrogate)
            .evaluate(
                &SequenceInputs {
                    logprobs: row,
                    entropies: &[],
                    old: &old[i],
                    reference: &[],
                    weights: &weigh(i),
                    advantages: &vec![advantages[i]; row.len()],
                    mask: &mask[i],
                },
                coefficients[i],
            )
            .unwrap();
        found.loss += sequence.loss;
        found.gradient.push(sequence.d_logprob);
        found.clipped.push(sequence.clipped);
    }
    found
}

#[track_caller]
fn agrees<R: Real>(case: &Value, found: &Found<R>) {
    let id = case["id"].as_str().unwrap();
    let expected = &case["expected"];
    close::<R>(id, found.loss, expected["loss"].as_f64().unwrap());
    for (i, row) in found.gradient.iter().enumerate() {
        all_close(&format!("{id} row {i}"), row, &expected["grad"][i]);
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn both(check: impl Fn(bool)) {
    check(true);
    check(false);
}

/// Runs a generic check in both precisions.
macro_rules! in_both {
    ($check:ident) => {
        both(|wide| {
            if wide {
                $check::<f64>();
            } else {
                $check::<f32>();
            }
        })
    };
}

fn decoupled<R: Real>() {
    let all = cases("05");
    assert_eq!(all.len(), 3);
    for case in &all {
        let (hyper, inputs) = (&case["hyper"], &case["inputs"]);
        let bound = match hyper["action"].as_str().unwrap() {
            "mask" => Bound::Mask {
                low: number(&hyper["lower"]),
                high: number(&hyper["upper"]),
            },
            _ => Bound::Truncate {
                cap: number(&hyper["upper"]),
            },
        };
        let importance = Importance {
            span: Span::Token,
            bound,
        };
        let (proximal, behaviour): (Vec<Vec<R>>, Vec<Vec<R>>) =
            (rows(&inputs["lp_prox"]), rows(&inputs["lp_behave"]));
        let mask = masks(&inputs["mask"]);
        for i in 0..proximal.len() {
            let raw = importance.raw(&proximal[i], &behaviour[i]);
            for (t, weight) in raw.iter().enumerate().filter(|(t, _)| mask[i][*t]) {
                let expected = number(&case["expected"]["behave_w"][i][t]);
                close::<R>("behave_w", weight.wide(), expected);
            }
        }
        // Its denominator is the original mask: a weight of zero leaves a token in every count.
        let found = evaluate(
            case,
            "lp_prox",
            Surrogate::Ppo(Clip::default()),
            Aggregation::TokenMean,
            |i| importance.weights(&proximal[i], &behaviour[i]),
        );
        agrees::<R>(case, &found);
    }
}

#[test]
fn decoupled_ppo() {
    in_both!(decoupled);
}

fn gspo<R: Real>() {
    let all = cases("06");
    assert_eq!(all.len(), 2);
    for case in &all {
        let method = Surrogate::Gspo(Gspo {
            low: number(&case["hyper"]["eps_low"]),
            high: number(&case["hyper"]["eps_high"]),
        });
        let found = evaluate(
            case,
            "lp_old",
            method,
            Aggregation::SeqMeanTokenMean,
            |_| Vec::new(),
        );
        agrees::<R>(case, &found);
        let inputs = &case["inputs"];
        let (new, old): (Vec<Vec<R>>, Vec<Vec<R>>) =
            (rows(&inputs["lp_new"]), rows(&inputs["lp_old"]));
        for (i, mask) in masks(&inputs["mask"]).iter().enumerate() {
            let ones = vec![R::ONE; new[i].len()];
            let terms = method.terms(&new[i], &old[i], &ones, mask);
            let expected = number(&case["expected"]["s_seq"][i]);
            close::<R>("s_seq", terms[0].ratio.wide(), expected);
        }
    }
}

#[test]
fn gspo_clips_the_whole_reply() {
    in_both!(gspo);
}

fn dapo<R: Real>() {
    let case = case("07", "loss");
    let found = evaluate(
        &case,
        "lp_old",
        Surrogate::Ppo(Clip::default()),
        Aggregation::TokenMean,
        |_| Vec::new(),
    );
    agrees::<R>(&case, &found);
}

#[test]
fn dapo_is_clip_higher_over_all_tokens() {
    in_both!(dapo);
}

fn dr_grpo<R: Real>() {
    let case = case("09", "loss_Lmax8");
    let bound = number(&case["hyper"]["eps"]);
    let length = NonZeroUsize::new(case["hyper"]["L_max"].as_u64().unwrap() as usize).unwrap();
    let clip = Clip {
        low: bound,
        high: bound,
        dual: None,
    };
    let found = evaluate(
        &case,
        "lp_old",
        Surrogate::Ppo(clip),
        Aggregation::SeqConstant(length),
        |_| Vec::new(),
    );
    agrees::<R>(&case, &found);
}

#[test]
fn dr_grpo_divides_by_a_constant() {
    in_both!(dr_grpo);
}

fn cispo<R: Real>() {
    let all = cases("10");
    assert_eq!(all.len(), 3);
    for case in &all {
        let method = Surrogate::Cispo(Cispo {
            low: number(&case["hyper"]["ratio_lo"]),
            high: number(&case["hyper"]["ratio_hi"]),
        });
        let found = evaluate(case, "lp_old", method, Aggregation::TokenMean, |_| {
            Vec::new()
        });
        agrees::<R>(case, &found);
    }
}

#[test]
fn cispo_keeps_every_gradient() {
    in_both!(cispo);
}

fn dppo<R: Real>() {
    let case = case("14", "default");
    let hyper = &case["hyper"];
    let method = Surrogate::Dppo(Dppo {
        low: number(&hyper["mask_low"]),
        high: number(&hyper["mask_high"]),
        tau: number(&hyper["kl_tau"]),
    });
    let found = evaluate(&case, "lp_engine", method, Aggregation::TokenMean, |_| {
        Vec::new()
    });
    agrees::<R>(&case, &found);
    for (i, left_out) in rows::<f64>(&case["expected"]["masked"]).iter().enumerate() {
        assert_eq!(found.clipped[i] as f64, left_out.iter().sum::<f64>());
    }
}

#[test]
fn dppo_looks_at_probabilities() {
    in_both!(dppo);
}

fn sapo<R: Real>() {
    let case = case("19", "sapo_1.0_1.05");
    let method = Surrogate::Sapo(Sapo {
        positive: number(&case["hyper"]["tau_pos"]),
        negative: number(&case["hyper"]["tau_neg"]),
    });
    let found = evaluate(
        &case,
        "lp_old",
        method,
        Aggregation::SeqMeanTokenMean,
        |_| Vec::new(),
    );
    agrees::<R>(&case, &found);
}

#[test]
fn sapo_is_a_smooth_gate() {
    in_both!(sapo);
}

/// From logits to logits: the softmax is done here, so that loss and head are seen together.
#[test]
fn a_clipped_loss_with_kl_down_to_the_logits() {
    let case = case("18", "toy");
    let inputs = &case["inputs"];
    let logits: Vec<Vec<f64>> = rows(&inputs["logits"]);
    let actions: Vec<usize> = numbers::<f64>(&inputs["actions"])
        .iter()
        .map(|a| *a as usize)
        .collect();
    let softmax = |row: &[f64]| -> Vec<f64> {
        let sum: f64 = row.iter().map(|z| z.exp()).sum();
        row.iter().map(|z| z.exp() / sum).collect()
    };
    let logprobs: Vec<f64> = logits
        .iter()
        .zip(&actions)
        .map(|(row, &a)| softmax(row)[a].ln())
        .collect();
    let found = Objective {
        penalty: Penalty {
            divergence: Divergence::K3,
            coefficient: number(&case["hyper"]["beta"]),
            weighted: false,
        },
        ..objective(Surrogate::default())
    }
    .evaluate(
        &SequenceInputs {
            logprobs: &logprobs,
            entropies: &[],
            old: &numbers::<f64>(&inputs["lp_old"]),
            reference: &numbers::<f64>(&inputs["lp_ref"]),
            weights: &[],
            advantages: &numbers::<f64>(&inputs["A"]),
            mask: &[],
        },
        Aggregation::TokenMean.coefficients(&[2])[0],
    )
    .unwrap();
    close::<f64>("loss", found.loss, number(&case["expected"]["loss"]));
    for (i, row) in logits.iter().enumerate() {
        let probabilities = softmax(row);
        let gradient: Vec<f64> = probabilities
            .iter()
            .enumerate()
            .map(|(j, p)| found.d_logprob[i] * (f64::from(u8::from(j == actions[i])) - p))
            .collect();
        all_close("dlogits", &gradient, &case["expected"]["dloss_dlogits"][i]);
    }
}
