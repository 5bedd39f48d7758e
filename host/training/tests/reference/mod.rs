//! The reference numbers, and how near ours have to be.

#![allow(
    dead_code,
    reason = "each test binary uses its own part of what is shared"
)]

use clawhost_training::Real;
use clawhost_training::loss::{Divergence, Objective, Penalty, Surrogate};
use serde_json::Value;

const NAMES: &[(&str, &str)] = &[
    ("01", include_str!("../goldens/01_advantages.json")),
    ("02", include_str!("../goldens/02_ppo_clip.json")),
    ("03", include_str!("../goldens/03_kl_estimators.json")),
    ("04", include_str!("../goldens/04_tis_mismatch.json")),
    ("08", include_str!("../goldens/08_loss_aggregation.json")),
    ("05", include_str!("../goldens/05_decoupled_ppo.json")),
    ("06", include_str!("../goldens/06_gspo.json")),
    ("07", include_str!("../goldens/07_dapo.json")),
    ("09", include_str!("../goldens/09_dr_grpo.json")),
    ("10", include_str!("../goldens/10_cispo.json")),
    ("11", include_str!("../goldens/11_opd.json")),
    ("12", include_str!("../goldens/12_topk_distillation.json")),
    ("14", include_str!("../goldens/14_dppo_prime_rl.json")),
    ("17", include_str!("../goldens/17_adamw_lora.json")),
    ("18", include_str!("../goldens/18_end_to_end_logits.json")),
    ("19", include_str!("../goldens/19_sapo_staleness.json")),
];

pub(crate) fn cases(file: &str) -> Vec<Value> {
    let text = NAMES.iter().find(|(name, _)| *name == file).unwrap().1;
    let page: Value = serde_json::from_str(text).unwrap();
    page["cases"].as_array().unwrap().clone()
}

pub(crate) fn case(file: &str, id: &str) -> Value {
    cases(file)
        .into_iter()
        .find(|case| case["id"] == id)
        .unwrap_or_else(|| panic!("no case {id} in {file}"))
}

pub(crate) fn numbers<R: Real>(value: &Value) -> Vec<R> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("no list: {value}"))
        .iter()
        .map(|v| R::of(v.as_f64().unwrap()))
        .collect()
}

pub(crate) fn rows<R: Real>(value: &Value) -> Vec<Vec<R>> {
    value.as_array().unwrap().iter().map(numbers).collect()
}

pub(crate) fn masks(value: &Value) -> Vec<Vec<bool>> {
    rows::<f64>(value)
        .into_iter()
        .map(|row| row.into_iter().map(|m| m > 0.0).collect())
        .collect()
}

pub(crate) fn counts(mask: &[Vec<bool>]) -> Vec<usize> {
    mask.iter()
        .map(|row| row.iter().filter(|&&m| m).count())
        .collect()
}

#[track_caller]
pub(crate) fn close<R: Real>(what: &str, got: f64, expected: f64) {
    let bound = if size_of::<R>() == 8 { 1e-6 } else { 1e-5 };
    assert!(
        (got - expected).abs() <= bound * expected.abs().max(1.0),
        "{what}: {got}, expected {expected}"
    );
}

#[track_caller]
pub(crate) fn all_close<R: Real>(what: &str, got: &[R], expected: &Value) {
    let expected: Vec<f64> = numbers(expected);
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
        close::<R>(&format!("{what}[{i}]"), g.wide(), *e);
    }
}

/// The policy-gradient term alone: no penalty, no bonus.
pub(crate) fn objective(surrogate: Surrogate) -> Objective {
    Objective {
        surrogate,
        penalty: Penalty {
            divergence: Divergence::K3,
            coefficient: 0.0,
            weighted: false,
        },
        entropy_bonus: 0.0,
    }
}
