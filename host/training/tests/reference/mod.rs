//! The golden files and their tolerances.

pub(crate) mod advantages;
pub(crate) mod distillation;
pub(crate) mod engine;
pub(crate) mod objective;
pub(crate) mod optimizer;
pub(crate) mod surrogates;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Deref;

use clawhost_training::Float;
use clawhost_training::loss::{KlEstimator, KlPenalty, Objective, Surrogate};
use serde_json::Value;

const FILES: &[(&str, &str)] = &[
    ("01", include_str!("../goldens/01_advantages.json")),
    ("02", include_str!("../goldens/02_ppo_clip.json")),
    ("03", include_str!("../goldens/03_kl_estimators.json")),
    ("04", include_str!("../goldens/04_tis_mismatch.json")),
    ("05", include_str!("../goldens/05_decoupled_ppo.json")),
    ("06", include_str!("../goldens/06_gspo.json")),
    ("07", include_str!("../goldens/07_dapo.json")),
    ("08", include_str!("../goldens/08_loss_aggregation.json")),
    ("09", include_str!("../goldens/09_dr_grpo.json")),
    ("10", include_str!("../goldens/10_cispo.json")),
    ("11", include_str!("../goldens/11_opd.json")),
    ("12", include_str!("../goldens/12_topk_distillation.json")),
    ("13", include_str!("../goldens/13_gae_returns.json")),
    ("14", include_str!("../goldens/14_dppo_prime_rl.json")),
    (
        "15",
        include_str!("../../../judging/tests/goldens/15_votes_hints.json"),
    ),
    ("16", include_str!("../goldens/16_logprob_entropy.json")),
    ("17", include_str!("../goldens/17_adamw_lora.json")),
    ("18", include_str!("../goldens/18_end_to_end_logits.json")),
    ("19", include_str!("../goldens/19_sapo_staleness.json")),
];

/// Cases that unit tests of private code check, with the source of those tests.
const CHECKED_IN_UNIT_TESTS: &[(&str, &str, &str)] = &[
    ("15", "vote", VOTES),
    ("15", "hint", include_str!("../../src/hints.rs")),
    ("17", "lora_merge_r1_alpha2", MERGING),
    ("17", "scaling", SCALING),
];

/// Cases about another program's format of judge responses. Our format differs; `plugins/asking` parses and tests it, and
/// treats the other format as an injection attempt.
const OTHER_RESPONSE_FORMAT: &[(&str, &str)] = &[
    ("15", "parse"),
    ("15", "parse_out_of_range"),
    ("15", "parse_none"),
];

const VOTES: &str = include_str!("../../../judging/src/votes.rs");
const MERGING: &str = include_str!("../../../cpu/src/merge.rs");
const SCALING: &str = include_str!("../../../model/src/lora/spec.rs");

/// File, case id and size of the float type in bytes.
type Check = (&'static str, String, usize);

thread_local! {
    static DONE: RefCell<BTreeMap<Check, usize>> = const { RefCell::new(BTreeMap::new()) };
}

/// One case of a golden file.
pub(crate) struct Case {
    file: &'static str,
    value: Value,
}

impl Deref for Case {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

impl Case {
    fn id(&self) -> String {
        self.value["id"].as_str().unwrap().to_owned()
    }

    /// Marks this case as checked in this precision.
    pub(crate) fn done<R: Float>(&self) {
        let check = (self.file, self.id(), size_of::<R>());
        DONE.with_borrow_mut(|done| *done.entry(check).or_default() += 1);
    }
}

/// Cases without a check on this thread, and cases missing from the unit tests that should check them.
pub(crate) fn missing() -> Vec<String> {
    let mut wanted: BTreeMap<Check, usize> = BTreeMap::new();
    let mut missing = Vec::new();
    for (file, _) in FILES {
        for case in cases(file) {
            let id = case.id();
            if OTHER_RESPONSE_FORMAT.contains(&(*file, id.as_str())) {
                continue;
            }
            match CHECKED_IN_UNIT_TESTS
                .iter()
                .find(|(f, i, _)| f == file && *i == id)
            {
                Some((.., text)) if text.contains("goldens") && text.contains(&id) => {}
                Some(_) => missing.push(format!("{file} {id}: not in the unit tests")),
                None => {
                    for bytes in [4, 8] {
                        *wanted.entry((file, id.clone(), bytes)).or_default() += 1;
                    }
                }
            }
        }
    }
    DONE.with_borrow(|done| {
        for ((file, id, bytes), count) in wanted {
            let checked = done.get(&(file, id.clone(), bytes)).copied().unwrap_or(0);
            if checked < count {
                missing.push(format!(
                    "{file} {id} in f{}: {checked} of {count}",
                    bytes * 8
                ));
            }
        }
    });
    missing
}

pub(crate) fn cases(file: &str) -> Vec<Case> {
    let (file, text) = FILES.iter().find(|(name, _)| *name == file).unwrap();
    let goldens: Value = serde_json::from_str(text).unwrap();
    let cases = goldens["cases"].as_array().unwrap().clone();
    let case = |value| Case { file, value };
    cases.into_iter().map(case).collect()
}

pub(crate) fn case(file: &str, id: &str) -> Case {
    cases(file)
        .into_iter()
        .find(|case| case["id"] == id)
        .unwrap_or_else(|| panic!("no case {id} in {file}"))
}

pub(crate) fn numbers<R: Float>(value: &Value) -> Vec<R> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("no list: {value}"))
        .iter()
        .map(|v| R::from_f64(v.as_f64().unwrap()))
        .collect()
}

pub(crate) fn rows<R: Float>(value: &Value) -> Vec<Vec<R>> {
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
pub(crate) fn close<R: Float>(what: &str, got: f64, expected: f64) {
    let bound = if size_of::<R>() == 8 { 1e-6 } else { 1e-5 };
    assert!(
        (got - expected).abs() <= bound * expected.abs().max(1.0),
        "{what}: {got}, expected {expected}"
    );
}

#[track_caller]
pub(crate) fn all_close<R: Float>(what: &str, got: &[R], expected: &Value) {
    let expected: Vec<f64> = numbers(expected);
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
        close::<R>(&format!("{what}[{i}]"), g.to_f64(), *e);
    }
}

/// An objective of the surrogate alone: no KL penalty, no entropy bonus.
pub(crate) fn objective(surrogate: Surrogate) -> Objective {
    Objective {
        surrogate,
        penalty: KlPenalty {
            estimator: KlEstimator::K3,
            coefficient: 0.0,
            weighted: false,
        },
        entropy_bonus: 0.0,
    }
}
