//! Golden tests of the clipped surrogate, KL estimators, importance weights and aggregations.

use std::num::NonZeroUsize;

use clawhost_training::Float;
use clawhost_training::loss::{
    Aggregation, ImportanceLevel, ImportanceSampling, KlEstimator, KlPenalty, KlTerm,
    LogprobMismatch, Objective, PpoClip, SequenceCoefficients, SequenceInputs, Surrogate,
    WeightBound,
};
use serde_json::Value;

use super::{all_close, case, cases, close, counts, masks, numbers, objective, rows};

fn clip_of(hyper: &Value) -> PpoClip {
    PpoClip {
        low: hyper["eps_low"].as_f64().unwrap(),
        high: hyper["eps_high"].as_f64().unwrap(),
        dual: hyper["dual_clip_c"].as_f64(),
    }
}

pub(crate) fn ppo_clip<R: Float>() {
    for case in cases("02") {
        let id = case["id"].as_str().unwrap();
        let clip = clip_of(&case["hyper"]);
        let (new, old): (Vec<Vec<R>>, Vec<Vec<R>>) = (
            rows(&case["inputs"]["lp_new"]),
            rows(&case["inputs"]["lp_old"]),
        );
        let advantages: Vec<R> = numbers(&case["inputs"]["A"]);
        let mask = masks(&case["inputs"]["mask"]);
        let coefficients = Aggregation::TokenMean.coefficients(&counts(&mask));
        let objective = objective(Surrogate::Ppo(clip));
        let (mut loss, mut clipped, mut tokens) = (0.0, 0, 0);
        for (i, row) in new.iter().enumerate() {
            for (t, &logprob) in row.iter().enumerate() {
                if mask[i][t] {
                    let token = clip.token(logprob, old[i][t], advantages[i]);
                    let expected = &case["expected"];
                    close::<R>(
                        id,
                        token.ratio.to_f64(),
                        expected["ratio"][i][t].as_f64().unwrap(),
                    );
                    close::<R>(
                        id,
                        token.loss.to_f64(),
                        expected["per_token_loss"][i][t].as_f64().unwrap(),
                    );
                }
            }
            let sequence = objective
                .evaluate(
                    &SequenceInputs {
                        logprobs: row,
                        entropies: &[],
                        old: &old[i],
                        reference: &[],
                        weights: &[],
                        advantages: &vec![advantages[i]; row.len()],
                        mask: &mask[i],
                    },
                    coefficients[i],
                )
                .unwrap();
            loss += sequence.loss;
            clipped += sequence.clipped;
            tokens += sequence.tokens;
            all_close(
                id,
                &sequence.d_logprob,
                &case["expected"]["dloss_dlp_new"][i],
            );
        }
        close::<R>(id, loss, case["expected"]["loss"].as_f64().unwrap());
        close::<R>(
            id,
            clipped as f64 / tokens as f64,
            case["expected"]["clipfrac"].as_f64().unwrap(),
        );
        case.done::<R>();
    }
}

pub(crate) fn kl_estimators<R: Float>() {
    let point = case("03", "pointwise");
    let slope = case("03", "gradients");
    let weighted = case("03", "is_weighted_k3");
    let lp: Vec<R> = numbers(&point["inputs"]["lp"]);
    let reference: Vec<R> = numbers(&point["inputs"]["lp_ref"]);
    for (kind, name) in [
        (KlEstimator::K1, "k1"),
        (KlEstimator::K2, "k2"),
        (KlEstimator::K3, "k3"),
    ] {
        let got: Vec<_> = lp
            .iter()
            .zip(&reference)
            .map(|(&l, &r)| kind.token(l, r))
            .collect();
        let value: Vec<R> = got.iter().map(|e| e.value).collect();
        let derivative: Vec<R> = got.iter().map(|e| e.d_logprob).collect();
        all_close(name, &value, &point["expected"][name]);
        all_close(name, &derivative, &slope["expected"][format!("d{name}")]);
    }
    let old: Vec<R> = numbers(&weighted["inputs"]["lp_old"]);
    let got: Vec<R> = (0..lp.len())
        .map(|i| KlEstimator::K3.weighted(lp[i], reference[i], old[i]).value)
        .collect();
    all_close("weighted", &got, &weighted["expected"]["value"]);
    let clamp = case("03", "low_var_clamp");
    let (l, r): (Vec<R>, Vec<R>) = (
        numbers(&clamp["inputs"]["lp"]),
        numbers(&clamp["inputs"]["lp_ref"]),
    );
    all_close(
        "k3",
        &[KlEstimator::K3.token(l[0], r[0]).value],
        &clamp["expected"]["k3"],
    );
    all_close(
        "clamped",
        &[KlEstimator::K3Clamped.token(l[0], r[0]).value],
        &clamp["expected"]["low_var_kl"],
    );
    let expectation = case("03", "expectation_under_p");
    let (p, q): (Vec<R>, Vec<R>) = (
        numbers(&expectation["inputs"]["p"]),
        numbers(&expectation["inputs"]["q"]),
    );
    for (kind, name) in [
        (KlEstimator::K1, "E_k1"),
        (KlEstimator::K2, "E_k2"),
        (KlEstimator::K3, "E_k3"),
    ] {
        let mean: f64 = p
            .iter()
            .zip(&q)
            .map(|(&p, &q)| {
                p.to_f64()
                    * kind
                        .token(R::from_f64(p.to_f64().ln()), R::from_f64(q.to_f64().ln()))
                        .value
                        .to_f64()
            })
            .sum();
        close::<R>(name, mean, expectation["expected"][name].as_f64().unwrap());
    }
    let whole = case("03", "grpo_loss_with_kl");
    let mask = masks(&whole["inputs"]["mask"]);
    let coefficients = Aggregation::TokenMean.coefficients(&counts(&mask));
    let (new, reference): (Vec<Vec<R>>, Vec<Vec<R>>) = (
        rows(&whole["inputs"]["lp_new"]),
        rows(&whole["inputs"]["lp_ref"]),
    );
    let surrogate = case("02", "clip_higher_0.2_0.28");
    let old: Vec<Vec<R>> = rows(&surrogate["inputs"]["lp_old"]);
    let advantages: Vec<R> = numbers(&surrogate["inputs"]["A"]);
    let objective = Objective {
        surrogate: Surrogate::default(),
        penalty: KlPenalty {
            estimator: KlEstimator::K3,
            coefficient: whole["hyper"]["beta"].as_f64().unwrap(),
            weighted: false,
        },
        entropy_bonus: 0.0,
    };
    let (mut loss, mut kl, mut tokens) = (0.0, 0.0, 0);
    for i in 0..new.len() {
        let sequence = objective
            .evaluate(
                &SequenceInputs {
                    logprobs: &new[i],
                    entropies: &[],
                    old: &old[i],
                    reference: &reference[i],
                    weights: &[],
                    advantages: &vec![advantages[i]; new[i].len()],
                    mask: &mask[i],
                },
                coefficients[i],
            )
            .unwrap();
        loss += sequence.loss;
        kl += sequence.kl_penalty;
        tokens += sequence.tokens;
    }
    close::<R>("loss", loss, whole["expected"]["loss"].as_f64().unwrap());
    close::<R>(
        "kl",
        kl / tokens as f64,
        whole["expected"]["kl_mean"].as_f64().unwrap(),
    );
    for case in [point, slope, weighted, clamp, expectation, whole] {
        case.done::<R>();
    }
}

pub(crate) fn importance_weights<R: Float>() {
    for case in cases("04") {
        let id = case["id"].as_str().unwrap();
        let expected = &case["expected"];
        if id == "top_p_bias" {
            // Renormalized log-probs would weight every token by the kept mass.
            let engine: R = R::from_f64(expected["lp_engine_renorm"].as_f64().unwrap());
            let full = R::from_f64(case["inputs"]["lp_full"].as_f64().unwrap());
            let w = ImportanceSampling::default().raw(&[full], &[engine]);
            close::<R>(id, w[0].to_f64(), expected["w"].as_f64().unwrap());
            case.done::<R>();
            continue;
        }
        let inputs = &case["inputs"];
        let mask = masks(&inputs["mask"]);
        // The trainer has no padding, so it is removed.
        let cut = |key: &str| -> Vec<Vec<R>> {
            rows::<R>(&inputs[key])
                .into_iter()
                .zip(counts(&mask))
                .map(|(row, n)| row[..n].to_vec())
                .collect()
        };
        let new = cut("lp_new");
        let recomputed = cut("lp_old(trainer recompute)");
        let recorded = cut("lp_rollout(engine)");
        let advantages: Vec<R> = numbers(&inputs["A"]);
        let hyper = |key: &str| case["hyper"][key].as_f64().unwrap();
        let importance = match id {
            "token_tis_cap2" => ImportanceSampling {
                level: ImportanceLevel::Token,
                bound: WeightBound::Truncate { cap: hyper("cap") },
            },
            "icepop_0.5_1.5" => ImportanceSampling {
                level: ImportanceLevel::Token,
                bound: WeightBound::Mask {
                    low: hyper("low"),
                    high: hyper("high"),
                },
            },
            "sequence_truncate_cap3" => ImportanceSampling {
                level: ImportanceLevel::Sequence,
                bound: WeightBound::Truncate { cap: hyper("cap") },
            },
            "sequence_mask_cap1.5" => ImportanceSampling {
                level: ImportanceLevel::Sequence,
                bound: WeightBound::Mask {
                    low: 0.0,
                    high: hyper("cap"),
                },
            },
            "geometric_mask_0.9_1.1" => ImportanceSampling {
                level: ImportanceLevel::Geometric,
                bound: WeightBound::Mask {
                    low: hyper("low"),
                    high: hyper("high"),
                },
            },
            "mismatch_metrics" => {
                let mut mismatch = LogprobMismatch::default();
                for (lo, lb) in recomputed.iter().zip(&recorded) {
                    mismatch.add(lo, lb);
                }
                close::<R>(
                    id,
                    mismatch.mean(),
                    expected["abs_diff_mean"].as_f64().unwrap(),
                );
                close::<R>(id, mismatch.kl(), expected["k3_mismatch"].as_f64().unwrap());
                close::<R>(
                    id,
                    mismatch.max_weight(),
                    expected["max_w"].as_f64().unwrap(),
                );
                case.done::<R>();
                continue;
            }
            other => panic!("a case without a test: {other}"),
        };
        let coefficients = Aggregation::TokenMean.coefficients(&counts(&mask));
        let objective = objective(Surrogate::Ppo(clip_of(inputs)));
        let mut loss = 0.0;
        for i in 0..new.len() {
            let weights = importance.weights(&recomputed[i], &recorded[i]);
            let raw = importance.raw(&recomputed[i], &recorded[i]);
            let expected_at = |key: &str, t: usize| {
                let value = &expected[key][i];
                value.as_f64().or_else(|| value[t].as_f64())
            };
            for t in 0..weights.len() {
                match id {
                    "token_tis_cap2" => {
                        close::<R>(id, raw[t].to_f64(), expected_at("w", t).unwrap());
                        close::<R>(id, weights[t].to_f64(), expected_at("w_trunc", t).unwrap());
                    }
                    "icepop_0.5_1.5" => {
                        close::<R>(id, weights[t].to_f64(), expected_at("w", t).unwrap())
                    }
                    "sequence_truncate_cap3" => {
                        close::<R>(id, raw[t].to_f64(), expected_at("w_seq", t).unwrap());
                        close::<R>(
                            id,
                            weights[t].to_f64(),
                            expected_at("w_seq_trunc", t).unwrap(),
                        );
                    }
                    "sequence_mask_cap1.5" => {
                        close::<R>(id, weights[t].to_f64(), expected_at("w_seq", t).unwrap());
                    }
                    _ => {
                        close::<R>(id, raw[t].to_f64(), expected_at("w_geo", t).unwrap());
                        assert_eq!(
                            weights[t].to_f64() > 0.0,
                            expected_at("kept", t).unwrap() > 0.0
                        );
                    }
                }
            }
            let sequence = objective
                .evaluate(
                    &SequenceInputs {
                        logprobs: &new[i],
                        entropies: &[],
                        old: &recomputed[i],
                        reference: &[],
                        weights: &weights,
                        advantages: &vec![advantages[i]; new[i].len()],
                        mask: &[],
                    },
                    coefficients[i],
                )
                .unwrap();
            loss += sequence.loss;
        }
        if let Some(whole) = expected["loss_token_mean"].as_f64() {
            close::<R>(id, loss, whole);
        }
        case.done::<R>();
    }
}

pub(crate) fn aggregations<R: Float>() {
    for case in cases("08") {
        let id = case["id"].as_str().unwrap();
        let losses = rows::<R>(&case["inputs"]["per_token_loss"]);
        let mask = masks(&case["inputs"]["mask"]);
        let length = NonZeroUsize::new(case["hyper"]["L_const"].as_u64().unwrap_or(1) as usize);
        let (aggregation, key) = match id {
            "token-mean" => (Aggregation::TokenMean, "loss"),
            "seq-mean-token-mean" => (Aggregation::SeqMeanTokenMean, "loss"),
            "seq-mean-token-sum" => (Aggregation::SeqMeanTokenSum, "loss"),
            "seq-mean-token-sum-norm" => (Aggregation::Constant(length.unwrap()), "loss"),
            "dr_grpo_trl" => (Aggregation::SeqConstant(length.unwrap()), "loss"),
            "fully_masked_row_excluded" => (Aggregation::SeqMeanTokenMean, "seq-mean-token-mean"),
            other => panic!("a case without a test: {other}"),
        };
        let coefficients = aggregation.coefficients(&counts(&mask));
        let mut loss = R::ZERO;
        for i in 0..losses.len() {
            for t in 0..losses[i].len() {
                if mask[i][t] {
                    loss += R::from_f64(coefficients[i]) * losses[i][t];
                }
            }
        }
        close::<R>(id, loss.to_f64(), case["expected"][key].as_f64().unwrap());
        case.done::<R>();
    }
}
