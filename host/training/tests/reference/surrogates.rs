//! Golden tests of the policy-gradient surrogates: loss, derivative and ratio, through the objective that trains.

use std::num::NonZeroUsize;

use clawhost_training::Float;
use clawhost_training::loss::{
    Aggregation, Cispo, Dppo, Gspo, ImportanceLevel, ImportanceSampling, KlEstimator, KlPenalty,
    Objective, PpoClip, Sapo, SequenceCoefficients, SequenceInputs, Surrogate, WeightBound,
};
use serde_json::Value;

use super::{Case, all_close, case, cases, close, counts, masks, numbers, objective, rows};

/// Loss and gradients of a case, per row.
struct Evaluation<R> {
    loss: f64,
    gradient: Vec<Vec<R>>,
    clipped: Vec<usize>,
}

/// Evaluates the rows of a case; `old` is the key of the old log-probs of the ratio.
fn evaluate<R: Float>(
    case: &Case,
    old: &str,
    surrogate: Surrogate,
    aggregation: Aggregation,
    weights: impl Fn(usize) -> Vec<R>,
) -> Evaluation<R> {
    let inputs = &case["inputs"];
    let (new, old): (Vec<Vec<R>>, Vec<Vec<R>>) = (rows(&inputs["lp_new"]), rows(&inputs[old]));
    let advantages: Vec<R> = numbers(&inputs["A"]);
    let mask = masks(&inputs["mask"]);
    let coefficients = aggregation.coefficients(&counts(&mask));
    let mut found = Evaluation {
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
                    weights: &weights(i),
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
fn assert_matches<R: Float>(case: &Case, found: &Evaluation<R>) {
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

pub(crate) fn decoupled_ppo<R: Float>() {
    for case in &cases("05") {
        let (hyper, inputs) = (&case["hyper"], &case["inputs"]);
        let bound = match hyper["action"].as_str().unwrap() {
            "mask" => WeightBound::Mask {
                low: number(&hyper["lower"]),
                high: number(&hyper["upper"]),
            },
            _ => WeightBound::Truncate {
                cap: number(&hyper["upper"]),
            },
        };
        let importance = ImportanceSampling {
            level: ImportanceLevel::Token,
            bound,
        };
        let (proximal, behaviour): (Vec<Vec<R>>, Vec<Vec<R>>) =
            (rows(&inputs["lp_prox"]), rows(&inputs["lp_behave"]));
        let mask = masks(&inputs["mask"]);
        for i in 0..proximal.len() {
            let raw = importance.raw(&proximal[i], &behaviour[i]);
            for (t, weight) in raw.iter().enumerate().filter(|(t, _)| mask[i][*t]) {
                let expected = number(&case["expected"]["behave_w"][i][t]);
                close::<R>("behave_w", weight.to_f64(), expected);
            }
        }
        // The denominator is the original mask: a token with weight 0 still counts.
        let found = evaluate(
            case,
            "lp_prox",
            Surrogate::Ppo(PpoClip::default()),
            Aggregation::TokenMean,
            |i| importance.weights(&proximal[i], &behaviour[i]),
        );
        assert_matches::<R>(case, &found);
    }
}

pub(crate) fn gspo<R: Float>() {
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
        assert_matches::<R>(case, &found);
        let inputs = &case["inputs"];
        let (new, old): (Vec<Vec<R>>, Vec<Vec<R>>) =
            (rows(&inputs["lp_new"]), rows(&inputs["lp_old"]));
        for (i, mask) in masks(&inputs["mask"]).iter().enumerate() {
            let ones = vec![R::ONE; new[i].len()];
            let terms = method.token_losses(&new[i], &old[i], &ones, mask);
            let expected = number(&case["expected"]["s_seq"][i]);
            close::<R>("s_seq", terms[0].ratio.to_f64(), expected);
        }
    }
}

pub(crate) fn dapo<R: Float>() {
    let case = case("07", "loss");
    let found = evaluate(
        &case,
        "lp_old",
        Surrogate::Ppo(PpoClip::default()),
        Aggregation::TokenMean,
        |_| Vec::new(),
    );
    assert_matches::<R>(&case, &found);
}

pub(crate) fn dr_grpo<R: Float>() {
    let case = case("09", "loss_Lmax8");
    let bound = number(&case["hyper"]["eps"]);
    let length = NonZeroUsize::new(case["hyper"]["L_max"].as_u64().unwrap() as usize).unwrap();
    let clip = PpoClip {
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
    assert_matches::<R>(&case, &found);
}

pub(crate) fn cispo<R: Float>() {
    for case in &cases("10") {
        let method = Surrogate::Cispo(Cispo {
            low: number(&case["hyper"]["ratio_lo"]),
            high: number(&case["hyper"]["ratio_hi"]),
        });
        let found = evaluate(case, "lp_old", method, Aggregation::TokenMean, |_| {
            Vec::new()
        });
        assert_matches::<R>(case, &found);
    }
}

pub(crate) fn dppo<R: Float>() {
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
    assert_matches::<R>(&case, &found);
    for (i, left_out) in rows::<f64>(&case["expected"]["masked"]).iter().enumerate() {
        assert_eq!(found.clipped[i] as f64, left_out.iter().sum::<f64>());
    }
}

pub(crate) fn sapo<R: Float>() {
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
    assert_matches::<R>(&case, &found);
}

/// Gradients with respect to the logits: the softmax is computed here, so that it is tested together with the loss.
pub(crate) fn gradients_to_logits<R: Float>() {
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
        penalty: KlPenalty {
            estimator: KlEstimator::K3,
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
            .map(|(j, p)| {
                found.d_logprob[i] * (R::from_f64(f64::from(u8::from(j == actions[i]))) - *p)
            })
            .collect();
        all_close("dlogits", &gradient, &case["expected"]["dloss_dlogits"][i]);
    }
    case.done::<R>();
}
