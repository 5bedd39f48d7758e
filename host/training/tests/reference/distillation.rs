//! Golden tests of distillation: log-prob gaps of recorded tokens, combined with rewards, and divergences over top-k tokens
//! with gradients to the policy's logits.

use clawhost_training::Float;
use clawhost_training::loss::{
    Aggregation, Cispo, DistillationDivergence, Dppo, OnPolicyDistillation, PpoClip,
    SequenceCoefficients, SequenceInputs, Surrogate, TopKDistillation,
};
use clawhost_training::optimizer::update_ema;
use serde_json::Value;

use super::{all_close, case, cases, close, counts, masks, numbers, objective, rows};

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// The teacher's values, none where the mask is false.
fn known<R: Float>(values: &[R], mask: &[bool]) -> Vec<Option<R>> {
    let pairs = values.iter().zip(mask);
    pairs
        .map(|(value, known)| known.then_some(*value))
        .collect()
}

fn or_zero<R: Float>(values: &[Option<R>]) -> Vec<R> {
    values.iter().map(|v| v.unwrap_or(R::ZERO)).collect()
}

pub(crate) fn gaps<R: Float>() {
    for (id, discount) in [("opd_adv", 0.0), ("opd_discounted_0.5", 0.5)] {
        let case = case("11", id);
        let inputs = &case["inputs"];
        let (teacher, student): (Vec<Vec<R>>, Vec<Vec<R>>) =
            (rows(&inputs["lp_teacher"]), rows(&inputs["lp_student"]));
        let distillation = OnPolicyDistillation {
            discount,
            ..OnPolicyDistillation::default()
        };
        let mut sum = 0.0;
        let mask = masks(&inputs["mask"]);
        for i in 0..teacher.len() {
            let gaps = distillation.gaps(&known(&teacher[i], &mask[i]), &student[i]);
            all_close(id, &or_zero(&gaps), &case["expected"]["A"][i]);
            sum -= or_zero(&gaps).iter().map(|gap| gap.to_f64()).sum::<f64>();
        }
        if id == "opd_adv" {
            let mean = sum / counts(&mask).iter().sum::<usize>() as f64;
            close::<R>(id, mean, number(&case["expected"]["mean_reverse_kl_k1"]));
        }
        case.done::<R>();
    }
}

/// Gaps as advantages of the clipped surrogate, alone and combined with rewards.
pub(crate) fn rewards_and_gaps<R: Float>() {
    for id in ["opd_ppo_loss", "combine_w1_w1"] {
        check_loss::<R>(id, Aggregation::SeqMeanTokenMean);
    }
}

fn check_loss<R: Float>(id: &str, aggregation: Aggregation) {
    let case = case("11", id);
    let inputs = &case["inputs"];
    let read = |key: &str| -> Vec<Vec<R>> { rows(&inputs[key]) };
    let (new, old, teacher) = (read("lp_new"), read("lp_old"), read("lp_teacher"));
    let mask = masks(&inputs["mask"]);
    let coefficients = aggregation.coefficients(&counts(&mask));
    let objective = objective(Surrogate::Ppo(PpoClip::default()));
    let mut loss = 0.0;
    for i in 0..new.len() {
        // Rows with a teacher have no reward, and the other way round.
        let has_teacher = inputs["is_opd_row"][i].as_u64() != Some(0);
        let reward =
            (!has_teacher).then(|| vec![R::from_f64(number(&inputs["reward"][i])); new[i].len()]);
        let teacher_logprobs = match has_teacher {
            true => known(&teacher[i], &mask[i]),
            false => vec![None; new[i].len()],
        };
        let distillation = OnPolicyDistillation::default();
        let gaps = distillation.gaps(&teacher_logprobs, &old[i]);
        let advantages = distillation.advantages(reward.as_deref(), &gaps);
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
    case.done::<R>();
}

/// Padding missing teacher values with 0.0 (probability 1) would reward every token; they are masked instead.
pub(crate) fn missing_teacher_values_are_masked<R: Float>() {
    let case = case("11", "TRAP_missing_teacher_padded_with_zero");
    let student: Vec<R> = numbers(&case["inputs"]["lp_student"]);
    let padded: Vec<R> = numbers(&case["inputs"]["lp_teacher_padded"]);
    let required = case["expected"]["A_required"].as_array().unwrap();
    let teacher: Vec<Option<R>> = padded
        .iter()
        .zip(required)
        .map(|(value, required)| required.is_number().then_some(*value))
        .collect();
    let distillation = OnPolicyDistillation::default();
    let advantages = distillation.advantages(None, &distillation.gaps(&teacher, &student));
    for (advantage, required) in advantages.iter().zip(required) {
        match required.as_f64() {
            Some(expected) => close::<R>("A", advantage.unwrap().to_f64(), expected),
            None => assert_eq!(*advantage, None),
        }
    }
    case.done::<R>();
}

fn log_softmax<R: Float>(logits: &[R]) -> Vec<R> {
    let top = logits.iter().fold(logits[0], |a, b| a.max(*b));
    let sum: R = logits.iter().map(|z| (*z - top).exp()).sum();
    logits.iter().map(|z| *z - top - sum.ln()).collect()
}

pub(crate) fn topk_divergences<R: Float>() {
    for case in cases("12") {
        let Some(alpha) = case["hyper"]["alpha"].as_f64() else {
            continue;
        };
        let id = case["id"].as_str().unwrap();
        let kind = TopKDistillation {
            direction: match alpha {
                1.0 => DistillationDivergence::Reverse,
                0.0 => DistillationDivergence::Forward,
                _ => DistillationDivergence::Jensen,
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
            close::<R>(
                id,
                value.to_f64(),
                number(&case["expected"]["per_token"][t]),
            );
            loss += value.to_f64() / policy.len() as f64;
            let total: R = partials.iter().copied().sum();
            let gradient: Vec<R> = (0..own.len())
                .map(|i| {
                    let index = ids.iter().position(|id| *id == i);
                    let partial = index.map_or(R::ZERO, |index| partials[index]);
                    (partial - own[i].exp() * total) / R::from_f64(policy.len() as f64)
                })
                .collect();
            all_close(id, &gradient, &case["expected"]["dloss_dstudent_logits"][t]);
        }
        close::<R>(id, loss, number(&case["expected"]["loss"]));
        case.done::<R>();
    }
}

/// The tail is clamped if the K tokens hold all of the mass.
pub(crate) fn tail_clamp<R: Float>() {
    let case = case("12", "tail_clamp_when_topk_mass_is_1");
    let full: Vec<R> = numbers(&case["inputs"]["logprobs"][0]);
    // The reverse KL to a teacher with a larger tail contains exactly the log of the clamped tail.
    let expected = number(&case["expected"]["tail_logprob"]);
    let teacher: Vec<R> = [-1.0, -2.0, -3.0].map(R::from_f64).to_vec();
    let mass: f64 = teacher.iter().map(|t| t.exp().to_f64()).sum();
    let bins: f64 = full
        .iter()
        .zip(&teacher)
        .map(|(p, t)| p.exp().to_f64() * (p.to_f64() - t.to_f64()))
        .sum();
    let found = TopKDistillation::default().token(&full, &teacher, &mut [R::ZERO; 3]);
    let tail = expected.exp() * (expected - (1.0 - mass).ln());
    close::<R>("tail", found.to_f64(), bins + tail);
    case.done::<R>();
}

/// Padding a position without teacher values with K zeros (probability 1 each) would give a gradient; such positions are
/// masked instead.
pub(crate) fn zero_padding_is_not_a_distribution<R: Float>() {
    let case = case("12", "TRAP_zero_padded_topk");
    let padded: Vec<R> = numbers(&case["inputs"]["padded_logprobs"][0]);
    let mass: R = padded.iter().map(|lp| lp.exp()).sum();
    close::<R>(
        "mass",
        mass.to_f64(),
        number(&case["expected"]["teacher_prob_mass"]),
    );
    close::<R>(
        "logsumexp",
        mass.ln().to_f64(),
        number(&case["expected"]["logsumexp"]),
    );
    let student = [-0.5, -1.5, -3.0].map(R::from_f64);
    let mut partials = [R::ZERO; 3];
    TopKDistillation::default().token(&student, &padded, &mut partials);
    assert!(
        partials.iter().any(|p| p.to_f64().abs() > 0.1),
        "{partials:?}"
    );
    let advantages = OnPolicyDistillation::default().advantages::<R>(None, &[None; 3]);
    assert_eq!(advantages, vec![None; 3]);
    case.done::<R>();
}

/// Distillation towards a reference with one-sided DPPO.
pub(crate) fn one_sided_dppo_to_the_reference<R: Float>() {
    let case = case("11", "prime_rl_ref_kl");
    let inputs = &case["inputs"];
    let read = |key: &str| -> Vec<Vec<R>> { rows(&inputs[key]) };
    let (new, engine, reference) = (read("lp_new"), read("lp_engine"), read("lp_ref"));
    let mask = masks(&inputs["mask"]);
    let coefficients = Aggregation::TokenMean.coefficients(&counts(&mask));
    let objective = objective(Surrogate::Dppo(Dppo {
        one_sided: true,
        ..Dppo::default()
    }));
    let mut loss = 0.0;
    for i in 0..new.len() {
        let gaps = OnPolicyDistillation::default().gaps(&known(&reference[i], &mask[i]), &new[i]);
        let sequence = objective
            .evaluate(
                &SequenceInputs {
                    logprobs: &new[i],
                    entropies: &[],
                    old: &engine[i],
                    reference: &[],
                    weights: &[],
                    advantages: &or_zero(&gaps),
                    mask: &mask[i],
                },
                coefficients[i],
            )
            .unwrap();
        loss += sequence.loss;
        all_close("ref_kl", &sequence.d_logprob, &case["expected"]["grad"][i]);
    }
    close::<R>("ref_kl", loss, number(&case["expected"]["loss"]));
    case.done::<R>();
}

/// Self-distillation on recorded tokens is CISPO on gaps without a lower bound.
pub(crate) fn self_distillation<R: Float>() {
    let case = case("12", "sdpo_token_level_isclip1.5");
    let inputs = &case["inputs"];
    let student: Vec<R> = numbers(&inputs["lp_student"]);
    let teacher: Vec<R> = numbers(&inputs["lp_teacher"]);
    let gaps = OnPolicyDistillation::default().gaps(&known(&teacher, &[true; 3]), &student);
    let sequence = objective(Surrogate::Cispo(Cispo {
        low: 0.0,
        high: number(&case["hyper"]["is_clip"]),
    }))
    .evaluate(
        &SequenceInputs {
            logprobs: &student,
            entropies: &[],
            old: &numbers(&inputs["lp_old"]),
            reference: &[],
            weights: &[],
            advantages: &or_zero(&gaps),
            mask: &[],
        },
        Aggregation::TokenMean.coefficients(&[3])[0],
    )
    .unwrap();
    all_close("sdpo", &sequence.d_logprob, &case["expected"]["grad"]);
    close::<R>("sdpo", sequence.loss, number(&case["expected"]["loss"]));
    case.done::<R>();
}

pub(crate) fn soft_cross_entropy<R: Float>() {
    let case = case("12", "tinker_sdft_topk_soft_ce");
    let inputs = &case["inputs"];
    let kind = TopKDistillation {
        direction: DistillationDivergence::CrossEntropy,
        tail: false,
    };
    let (policy, teacher): (Vec<Vec<R>>, Vec<Vec<R>>) = (
        rows(&inputs["student_logits"]),
        rows(&inputs["teacher_logits"]),
    );
    let ids: Vec<Vec<usize>> = rows::<f64>(&inputs["indices"])
        .into_iter()
        .map(|row| row.into_iter().map(|id| id as usize).collect())
        .collect();
    let mut loss = 0.0;
    for t in 0..policy.len() {
        let (own, theirs) = (log_softmax(&policy[t]), log_softmax(&teacher[t]));
        let look = |all: &[R]| -> Vec<R> { ids[t].iter().map(|id| all[*id]).collect() };
        let mut partials = vec![R::ZERO; ids[t].len()];
        loss += kind
            .token(&look(&own), &look(&theirs), &mut partials)
            .to_f64();
        let weights: Vec<R> = partials.iter().map(|partial| -*partial).collect();
        all_close(
            "weights",
            &weights,
            &case["expected"]["teacher_weights_renormalised"][t],
        );
        let total: R = partials.iter().copied().sum();
        let gradient: Vec<R> = (0..own.len())
            .map(|i| {
                let index = ids[t].iter().position(|id| *id == i);
                let partial = index.map_or(R::ZERO, |index| partials[index]);
                (partial - own[i].exp() * total) / R::from_f64(policy.len() as f64)
            })
            .collect();
        all_close(
            "soft",
            &gradient,
            &case["expected"]["dloss_dstudent_logits"][t],
        );
    }
    let mean = loss / policy.len() as f64;
    close::<R>("soft", mean, number(&case["expected"]["loss"]));
    case.done::<R>();
}

pub(crate) fn ema_teacher<R: Float>() {
    let case = case("12", "ema_teacher");
    let teacher: Vec<R> = numbers(&case["inputs"]["teacher"]);
    let student: Vec<R> = numbers(&case["inputs"]["student"]);
    let mut ema = Vec::new();
    let rate = number(&case["inputs"]["rate"]);
    update_ema(&mut ema, [&teacher[..]], rate);
    update_ema(&mut ema, [&student[..]], rate);
    all_close("ema", &ema[0], &case["expected"]["teacher_next"]);
    case.done::<R>();
}
