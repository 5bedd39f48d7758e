//! Forced tokens are recorded, stay in the reply and do not train.

use clawhost_engine::{Constraint, ResponseFormat};
use clawhost_journal::{SampleId, SampleState, StepOutcome};

use super::fixture::{Fixture, options};
use crate::forced_tokens::DROP_FORCED;
use clawhost_config::{TrainingMethod, TrainingOptions};

const HINT: &str = "bcdefghijklmn";

/// Replies with a choice only at the fourth letter; each letter is one token, and `a` is the end token.
const TEXTS: [&str; 2] = ["bcdef", "bcdhg"];
const FREE: usize = 3;
const FORCED: [u32; 5] = [0, 1, 2, 4, 5];

fn constrained_to(texts: &[&str]) -> Fixture {
    let texts = texts.iter().map(|text| (*text).to_owned()).collect();
    let mut fixture = Fixture::new();
    fixture.constraint = Some(Constraint::response_format(ResponseFormat::Choice(texts)));
    fixture
}

fn method_options(method: TrainingMethod) -> TrainingOptions {
    let mut options = TrainingOptions {
        method,
        ..options()
    };
    options.teacher.hint_marker = String::new();
    options.teacher.top_k = 3;
    options
}

#[test]
fn forced_tokens_are_recorded() {
    let mut fixture = constrained_to(&TEXTS);
    let id = fixture.sample(1.0);
    let sample = fixture.sample_record(id);
    assert_eq!(sample.token_ids.len(), 6);
    assert_eq!(sample.forced, FORCED);
    for (t, logprob) in sample.logprobs.iter().enumerate() {
        // A forced token has log-prob 0 under the grammar; its full log-prob is recorded as well.
        assert_eq!(*logprob == 0.0, t != FREE);
    }
    assert!(sample.full_logprobs.iter().all(|logprob| *logprob < -0.1));
    let mut free = Fixture::new();
    let id = free.sample(1.0);
    assert_eq!(free.sample_record(id).forced, [0u32; 0]);
}

#[test]
fn forced_tokens_are_masked_with_every_method() {
    for method in [
        TrainingMethod::Binary,
        TrainingMethod::Opd,
        TrainingMethod::OpdTopk,
        TrainingMethod::Hybrid,
        TrainingMethod::HybridTopk,
        TrainingMethod::HybridDivergence,
    ] {
        let mut fixture = constrained_to(&TEXTS);
        let ids: Vec<SampleId> = [1.0, -1.0, 1.0, -1.0]
            .map(|reward| fixture.hinted_sample(Some(reward), &[HINT]))
            .into();
        let step = fixture
            .trainer(&method_options(method))
            .step(10)
            .unwrap()
            .unwrap();
        assert_eq!(
            step.outcome,
            StepOutcome::Published,
            "{method:?} {:?}",
            step.reason
        );
        let metrics = &step.metrics;
        assert_eq!(metrics["reply_tokens"], 24);
        assert_eq!(metrics["forced_tokens"], 20);
        for row in metrics["samples_moved"].as_array().unwrap() {
            assert_eq!(row["tokens"], 1, "{method:?} {row}");
        }
        assert_eq!(metrics["samples_moved"].as_array().unwrap().len(), 4);
        assert!(
            ids.iter()
                .all(|id| fixture.sample_record(*id).state == SampleState::Trained)
        );
    }
}

/// Digest of the adapter after a step on four constrained replies with one changed log-prob.
fn trained_digest(method: TrainingMethod, shifted: Option<usize>) -> String {
    let mut fixture = constrained_to(&TEXTS);
    for reward in [1.0, -1.0, 1.0, -1.0] {
        fixture.shifted = shifted;
        fixture.hinted_sample(Some(reward), &[HINT]);
    }
    let mut options = method_options(method);
    // Several updates, so that the recorded log-probs affect the ratios.
    options.num_epochs = 2;
    let step = fixture.trainer(&options).step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    fixture.engine.active().digest().to_owned()
}

#[test]
fn log_probs_of_forced_tokens_do_not_affect_the_adapter() {
    for method in [TrainingMethod::Binary, TrainingMethod::HybridTopk] {
        let whole = trained_digest(method, None);
        for index in FORCED {
            assert_eq!(
                trained_digest(method, Some(index as usize)),
                whole,
                "{method:?} {index}"
            );
        }
        // The log-prob of the free token does.
        assert_ne!(trained_digest(method, Some(FREE)), whole, "{method:?}");
    }
}

#[test]
fn unrecorded_forced_tokens_change_the_adapter() {
    let whole = trained_digest(TrainingMethod::Binary, None);
    let mut fixture = constrained_to(&TEXTS);
    fixture.omit_forced = true;
    for reward in [1.0, -1.0, 1.0, -1.0] {
        fixture.hinted_sample(Some(reward), &[HINT]);
    }
    let mut options = method_options(TrainingMethod::Binary);
    options.num_epochs = 2;
    let step = fixture.trainer(&options).step(10).unwrap().unwrap();
    assert_eq!(step.metrics["forced_tokens"], 0);
    assert_ne!(fixture.engine.active().digest(), whole);
}

#[test]
fn a_fully_forced_reply_is_dropped_with_the_reason() {
    let mut fixture = constrained_to(&["bcd"]);
    let ids: Vec<SampleId> = [1.0, -1.0].map(|reward| fixture.sample(reward)).into();
    let step = fixture
        .trainer(&method_options(TrainingMethod::Binary))
        .step(10)
        .unwrap()
        .unwrap();
    assert_eq!(step.outcome, StepOutcome::NoSignal);
    assert_eq!(step.metrics["dropped_by"]["forced"], 2);
    for id in ids {
        let found = fixture.sample_record(id);
        assert_eq!(found.state, SampleState::Dropped);
        assert_eq!(found.reason.as_deref(), Some(DROP_FORCED));
    }
}
