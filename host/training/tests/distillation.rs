//! Reference numbers of learning from a teacher: gaps of recorded tokens, rewards beside them, and distances
//! on the most likely tokens down to the policy's logits. f64 to 1e-6, f32 to 1e-5.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a reference number that is missing or misshapen must fail the test"
)]

use clawhost_training::Real;
use clawhost_training::loss::{
    Aggregation, Clip, Direction, Distillation, SequenceInputs, Surrogate, Teaching,
};
use serde_json::Value;

mod reference;

use reference::{all_close, case, cases, close, counts, masks, numbers, objective, rows};

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// The teacher's values where the mask says that there are any.
fn known<R: Real>(values: &[R], mask: &[bool]) -> Vec<Option<R>> {
    let pairs = values.iter().zip(mask);
    pairs
        .map(|(value, known)| known.then_some(*value))
        .collect()
}

fn or_zero<R: Real>(values: &[Option<R>]) -> Vec<R> {
    values.iter().map(|v| v.unwrap_or(R::ZERO)).collect()
}

fn gaps<R: Real>() {
    for (id, discount) in [("opd_adv", 0.0), ("opd_discounted_0.5", 0.5)] {
        let case = case("11", id);
        let inputs = &case["inputs"];
        let (teacher, student): (Vec<Vec<R>>, Vec<Vec<R>>) =
            (rows(&inputs["lp_teacher"]), rows(&inputs["lp_student"]));
        let teaching = Teaching {
            discount,
            ..Teaching::default()
        };
        let mut sum = 0.0;
        let mask = masks(&inputs["mask"]);
        for i in 0..teacher.len() {
            let gaps = teaching.gaps(&known(&teacher[i], &mask[i]), &student[i]);
            all_close(id, &or_zero(&gaps), &case["expected"]["A"][i]);
            sum -= or_zero(&gaps).iter().map(|gap| gap.wide()).sum::<f64>();
        }
        if id == "opd_adv" {
            let mean = sum / counts(&mask).iter().sum::<usize>() as f64;
            close::<R>(id, mean, number(&case["expected"]["mean_reverse_kl_k1"]));
        }
    }
}

#[test]
fn a_gap_is_teacher_less_policy() {
    gaps::<f64>();
    gaps::<f32>();
}

fn taught<R: Real>(id: &str, aggregation: Aggregation) {
    let case = case("11", id);
    let inputs = &case["inputs"];
    let read = |key: &str| -> Vec<Vec<R>> { rows(&inputs[key]) };
    let (new, old, teacher) = (read("lp_new"), read("lp_old"), read("lp_teacher"));
    let mask = masks(&inputs["mask"]);
    let coefficients = aggregation.coefficients(&counts(&mask));
    let objective = objective(Surrogate::Ppo(Clip::default()));
    let mut loss = 0.0;
    for i in 0..new.len() {
        // Rows without a hint have no teacher; those without a verdict no reward.
        let has_teacher = inputs["is_opd_row"][i].as_u64() != Some(0);
        let reward = (!has_teacher).then(|| R::of(number(&inputs["reward"][i])));
        let seen = match has_teacher {
            true => known(&teacher[i], &mask[i]),
            false => vec![None; new[i].len()],
        };
        let teaching = Teaching::default();
        let advantages = teaching.advantages(reward, &teaching.gaps(&seen, &old[i]));
        if let Some(expected) = case["expected"]["A"].get(i) {
            let masked: Vec<R> = or_zero(&advantages)
                .into_iter()
                .zip(&mask[i])
                .map(|(a, trains)| if *trains { a } else { R::ZERO })
                .collect();
            all_close(id, &masked, expected);
        }
        let sequence = objective
            .evaluate(
                &SequenceInputs {
                    logprobs: &new[i],
                    entropies: &[],
                    old: &old[i],
                    reference: &[],
                    weights: &[],
                    advantages: &or_zero(&advantages),
                    mask: &mask[i],
                },
                coefficients[i],
            )
            .unwrap();
        loss += sequence.loss;
        all_close(id, &sequence.d_logprob, &case["expected"]["grad"][i]);
    }
    close::<R>(id, loss, number(&case["expected"]["loss"]));
}

#[test]
fn gaps_pull_through_the_clipped_surrogate() {
    taught::<f64>("opd_ppo_loss", Aggregation::SeqMeanTokenMean);
    taught::<f32>("opd_ppo_loss", Aggregation::SeqMeanTokenMean);
}

#[test]
fn rewards_and_gaps_train_beside_each_other() {
    taught::<f64>("combine_w1_w1", Aggregation::SeqMeanTokenMean);
    taught::<f32>("combine_w1_w1", Aggregation::SeqMeanTokenMean);
}

/// A peer fills up with 0.0, the log of certainty, which rewards whatever was said.
#[test]
fn a_missing_teacher_value_is_masked_and_never_zero() {
    let case = case("11", "TRAP_missing_teacher_padded_with_zero");
    let student: Vec<f64> = numbers(&case["inputs"]["lp_student"]);
    let padded: Vec<f64> = numbers(&case["inputs"]["lp_teacher_padded"]);
    let required = case["expected"]["A_required"].as_array().unwrap();
    let teacher: Vec<Option<f64>> = padded
        .iter()
        .zip(required)
        .map(|(value, required)| required.is_number().then_some(*value))
        .collect();
    let teaching = Teaching::default();
    let advantages = teaching.advantages(None, &teaching.gaps(&teacher, &student));
    for (advantage, required) in advantages.iter().zip(required) {
        match required.as_f64() {
            Some(expected) => close::<f64>("A", advantage.unwrap(), expected),
            None => assert_eq!(*advantage, None),
        }
    }
}

fn log_softmax<R: Real>(logits: &[R]) -> Vec<R> {
    let top = logits.iter().fold(logits[0], |a, b| a.larger(*b));
    let sum: R = logits.iter().map(|z| (*z - top).exp()).sum();
    logits.iter().map(|z| *z - top - sum.ln()).collect()
}

fn distances<R: Real>() {
    let mut seen = 0;
    for case in cases("12") {
        let Some(alpha) = case["hyper"]["alpha"].as_f64() else {
            continue;
        };
        seen += 1;
        let id = case["id"].as_str().unwrap();
        let kind = Distillation {
            direction: match alpha {
                1.0 => Direction::Reverse,
                0.0 => Direction::Forward,
                _ => Direction::Jensen,
            },
            tail: case["hyper"]["tail"].as_bool().unwrap(),
        };
        let (policy, teacher): (Vec<Vec<R>>, Vec<Vec<R>>) = (
            rows(&case["inputs"]["student_logits"]),
            rows(&case["inputs"]["teacher_logits"]),
        );
        let mut loss = 0.0;
        for t in 0..policy.len() {
            let ids: Vec<usize> = match case["inputs"]["indices"][t].as_array() {
                Some(ids) if !id.starts_with("full") => {
                    ids.iter().map(|id| id.as_u64().unwrap() as usize).collect()
                }
                _ => (0..policy[t].len()).collect(),
            };
            let (own, theirs) = (log_softmax(&policy[t]), log_softmax(&teacher[t]));
            let look = |all: &[R]| -> Vec<R> { ids.iter().map(|id| all[*id]).collect() };
            let mut partials = vec![R::ZERO; ids.len()];
            let value = kind.token(&look(&own), &look(&theirs), &mut partials);
            close::<R>(id, value.wide(), number(&case["expected"]["per_token"][t]));
            loss += value.wide() / policy.len() as f64;
            let pull: R = partials.iter().copied().sum();
            let gradient: Vec<R> = (0..own.len())
                .map(|i| {
                    let at = ids.iter().position(|id| *id == i);
                    let own_partial = at.map_or(R::ZERO, |at| partials[at]);
                    (own_partial - own[i].exp() * pull) / R::of(policy.len() as f64)
                })
                .collect();
            all_close(id, &gradient, &case["expected"]["dloss_dstudent_logits"][t]);
        }
        close::<R>(id, loss, number(&case["expected"]["loss"]));
    }
    assert_eq!(seen, 7);
}

#[test]
fn distances_on_the_most_likely_tokens() {
    distances::<f64>();
    distances::<f32>();
}

#[test]
fn the_rest_of_a_full_distribution_has_a_logarithm() {
    let case = case("12", "tail_clamp_when_topk_mass_is_1");
    let full: Vec<f64> = numbers(&case["inputs"]["logprobs"][0]);
    // Reverse distance to a teacher with the same K tokens and a rest of 1e-7 as well is nothing; to one
    // whose rest is larger it holds exactly the logarithm of what is left.
    let expected = number(&case["expected"]["tail_logprob"]);
    let teacher = [-1.0f64, -2.0, -3.0];
    let mass: f64 = teacher.iter().map(|t| t.exp()).sum();
    let bins: f64 = full
        .iter()
        .zip(&teacher)
        .map(|(p, t)| p.exp() * (p - t))
        .sum();
    let found = Distillation::default().token(&full, &teacher, &mut [0.0; 3]);
    let rest = expected.exp() * (expected - (1.0 - mass).ln());
    assert!((found - bins - rest).abs() < 1e-9, "{found} {bins} {rest}");
}
