//! What a constraint forced is recorded, stands in the reply, and teaches nothing.

use clawhost_journal::{SampleId, SampleState, StepOutcome};
use clawhost_policy::{Answer, Constraint};

use super::workshop::{Workshop, options};
use crate::forced::FORCED;
use crate::options::{Learning, TrainingOptions};

const HINT: &str = "bcdefghijklmn";

/// Replies that part at the fourth letter alone; each letter is one token, and `a` is the end.
const TEXTS: [&str; 2] = ["bcdef", "bcdhg"];
const FREE: usize = 3;
const PLACES: [u32; 5] = [0, 1, 2, 4, 5];

fn held_to(texts: &[&str]) -> Workshop {
    let texts = texts.iter().map(|text| (*text).to_owned()).collect();
    let mut shop = Workshop::new();
    shop.constraint = Some(Constraint::answer(Answer::Choice(texts)));
    shop
}

fn learning(method: Learning) -> TrainingOptions {
    let mut options = TrainingOptions {
        method,
        ..options()
    };
    options.teacher.marker = String::new();
    options.teacher.top_k = 3;
    options
}

#[test]
fn the_places_where_a_form_left_one_token_are_recorded() {
    let mut shop = held_to(&TEXTS);
    let id = shop.sample(1.0);
    let sample = shop.found(id);
    assert_eq!(sample.token_ids.len(), 6);
    assert_eq!(sample.forced, PLACES);
    for (t, logprob) in sample.logprobs.iter().enumerate() {
        // Forced is certain; what the policy thought of it is recorded all the same.
        assert_eq!(*logprob == 0.0, t != FREE);
    }
    assert!(sample.full_logprobs.iter().all(|logprob| *logprob < -0.1));
    let mut free = Workshop::new();
    let id = free.sample(1.0);
    assert_eq!(free.found(id).forced, [0u32; 0]);
}

#[test]
fn only_what_the_policy_chose_trains_whatever_teaches() {
    for method in [
        Learning::Binary,
        Learning::Opd,
        Learning::OpdTopk,
        Learning::Hybrid,
        Learning::HybridTopk,
    ] {
        let mut shop = held_to(&TEXTS);
        let ids: Vec<SampleId> = [1.0, -1.0, 1.0, -1.0]
            .map(|reward| shop.taught(Some(reward), &[HINT]))
            .into();
        let step = shop.trainer(&learning(method)).step(10).unwrap().unwrap();
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
                .all(|id| shop.found(*id).state == SampleState::Trained)
        );
    }
}

/// The adapter that a step makes of four forced replies, one log-prob of which was recorded as something else.
fn learned(method: Learning, shifted: Option<usize>) -> String {
    let mut shop = held_to(&TEXTS);
    for reward in [1.0, -1.0, 1.0, -1.0] {
        shop.shifted = shifted;
        shop.taught(Some(reward), &[HINT]);
    }
    let mut options = learning(method);
    // Several updates, so that what was recorded as old takes part in the ratios.
    options.epochs = 2;
    let step = shop.trainer(&options).step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    shop.engine.active().digest
}

#[test]
fn no_number_of_a_forced_token_reaches_the_adapter() {
    for method in [Learning::Binary, Learning::HybridTopk] {
        let whole = learned(method, None);
        for place in PLACES {
            assert_eq!(
                learned(method, Some(place as usize)),
                whole,
                "{method:?} {place}"
            );
        }
        // The one that the policy chose does: the comparison can fail.
        assert_ne!(learned(method, Some(FREE)), whole, "{method:?}");
    }
}

#[test]
fn without_the_mark_the_step_is_another() {
    let whole = learned(Learning::Binary, None);
    let mut shop = held_to(&TEXTS);
    shop.unmarked = true;
    for reward in [1.0, -1.0, 1.0, -1.0] {
        shop.taught(Some(reward), &[HINT]);
    }
    let mut options = learning(Learning::Binary);
    options.epochs = 2;
    let step = shop.trainer(&options).step(10).unwrap().unwrap();
    assert_eq!(step.metrics["forced_tokens"], 0);
    assert_ne!(shop.engine.active().digest, whole);
}

#[test]
fn a_reply_that_was_forced_whole_leaves_the_queue_with_its_reason() {
    let mut shop = held_to(&["bcd"]);
    let ids: Vec<SampleId> = [1.0, -1.0].map(|reward| shop.sample(reward)).into();
    let step = shop
        .trainer(&learning(Learning::Binary))
        .step(10)
        .unwrap()
        .unwrap();
    assert_eq!(step.outcome, StepOutcome::NoSignal);
    assert_eq!(step.metrics["dropped_by"]["forced"], 2);
    for id in ids {
        let found = shop.found(id);
        assert_eq!(found.state, SampleState::Dropped);
        assert_eq!(found.reason.as_deref(), Some(FORCED));
    }
}
