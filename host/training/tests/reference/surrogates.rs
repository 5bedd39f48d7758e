//! Reference numbers of the policy-gradient methods: loss, derivative and ratio, in f64 to 1e-6 and in f32 to
//! 1e-5, each through the objective that trains.

use std::num::NonZeroUsize;

use clawhost_training::Real;
use clawhost_training::loss::{
    Aggregation, Bound, Cispo, Clip, Divergence, Dppo, Gspo, Importance, Objective, Penalty, Sapo,
    SequenceInputs, Span, Surrogate,
};
use serde_json::Value;

use super::{Case, all_close, case, cases, close, counts, masks, numbers, objective, rows};

/// What one case gives: the loss, and the gradient of each row.
struct Found<R> {
    loss: f64,
    gradient: Vec<Vec<R>>,
    clipped: Vec<usize>,
}

/// Evaluates the rows of a case; `old` names the log-probs that the ratio is measured from.
fn evaluate<R: Real>(
    case: &Case,
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
fn agrees<R: Real>(case: &Case, found: &Found<R>) {
    let id = case["id"].as_str().unwrap();
    let expected = &case["expected"];
    close::<R>(id, found.loss, expected["loss"].as_f64().unwrap());
    for (i, row) in found.gradient.iter().enumerate() {
        all_close(&format!("{id} row {i}"), row, &expected["grad"][i]);
    }
    case.done::<R>();
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

pub(crate) fn decoupled<R: Real>() {
    for case in &cases("05") {
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

pub(crate) fn gspo<R: Real>() {
    for case in &cases("06") {
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

pub(crate) fn dapo<R: Real>() {
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

pub(crate) fn dr_grpo<R: Real>() {
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

pub(crate) fn cispo<R: Real>() {
    for case in &cases("10") {
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

pub(crate) fn dppo<R: Real>() {
    let case = case("14", "default");
    let hyper = &case["hyper"];
    let method = Surrogate::Dppo(Dppo {
        low: number(&hyper["mask_low"]),
        high: number(&hyper["mask_high"]),
        tau: number(&hyper["kl_tau"]),
        one_sided: false,
    });
    let found = evaluate(&case, "lp_engine", method, Aggregation::TokenMean, |_| {
        Vec::new()
    });
    agrees::<R>(&case, &found);
    for (i, left_out) in rows::<f64>(&case["expected"]["masked"]).iter().enumerate() {
        assert_eq!(found.clipped[i] as f64, left_out.iter().sum::<f64>());
    }
}

pub(crate) fn sapo<R: Real>() {
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

/// From logits to logits: the softmax is done here, so that loss and head are seen together.
pub(crate) fn down_to_the_logits<R: Real>() {
    let case = case("18", "toy");
    let inputs = &case["inputs"];
    let logits: Vec<Vec<R>> = rows(&inputs["logits"]);
    let actions: Vec<usize> = numbers::<f64>(&inputs["actions"])
        .iter()
        .map(|a| *a as usize)
        .collect();
    let softmax = |row: &[R]| -> Vec<R> {
        let sum: R = row.iter().map(|z| z.exp()).sum();
        row.iter().map(|z| z.exp() / sum).collect()
    };
    let logprobs: Vec<R> = logits
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
            old: &numbers::<R>(&inputs["lp_old"]),
            reference: &numbers::<R>(&inputs["lp_ref"]),
            weights: &[],
            advantages: &numbers::<R>(&inputs["A"]),
            mask: &[],
        },
        Aggregation::TokenMean.coefficients(&[2])[0],
    )
    .unwrap();
    close::<R>("loss", found.loss, number(&case["expected"]["loss"]));
    for (i, row) in logits.iter().enumerate() {
        let probabilities = softmax(row);
        let gradient: Vec<R> = probabilities
            .iter()
            .enumerate()
            .map(|(j, p)| found.d_logprob[i] * (R::of(f64::from(u8::from(j == actions[i]))) - *p))
            .collect();
        all_close("dlogits", &gradient, &case["expected"]["dloss_dlogits"][i]);
    }
    case.done::<R>();
}
