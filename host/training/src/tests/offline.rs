//! Offline training: same steps as the training loop, and a preview that writes nothing.

use std::time::Duration;

use clawhost_journal::{Journal, SampleState, StepOutcome};

use super::fixture::{Fixture, engine, options};
use crate::component::Components;
use crate::offline::OfflineTrainer;
use clawhost_config::{ExperienceOptions, TrainingOptions};

fn offline(fixture: &Fixture, options: &TrainingOptions) -> OfflineTrainer {
    OfflineTrainer::open(
        fixture.journal.clone(),
        engine(7),
        fixture.data(),
        options.clone(),
        Components::default(),
    )
    .unwrap()
}

/// Digests of all adapters, oldest first.
fn adapter_digests(journal: &Journal) -> Vec<String> {
    let rows = journal.adapters().unwrap();
    rows.into_iter().map(|row| row.digest).collect()
}

#[test]
fn steps_run_until_the_queue_is_below_min_batch() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    for reward in [1.0, -1.0] {
        fixture.sample(reward);
    }
    let options = TrainingOptions {
        min_batch_size: 3,
        ..options()
    };
    let mut offline = offline(&fixture, &options);
    assert_eq!((offline.queued().unwrap(), offline.version()), (10, 0));
    for version in 1..=2 {
        let step = offline.step(false).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published);
        assert_eq!(
            (step.version, step.digest.as_str()),
            (version, offline.digest())
        );
    }
    assert!(
        offline.step(false).unwrap().is_none(),
        "two samples are fewer than min_batch"
    );
    assert_eq!(offline.queued().unwrap(), 2);
    assert_eq!(offline.step(true).unwrap().unwrap().version, 3);
    assert!(offline.step(true).unwrap().is_none());
    assert_eq!(adapter_digests(&fixture.journal).len(), 3);
}

#[test]
fn the_loop_and_offline_training_give_the_same_adapters() {
    let adapters = |by_loop: bool| {
        let mut fixture = Fixture::new();
        fixture.eight_samples();
        if by_loop {
            let mut trainer = fixture.trainer(&options());
            while trainer.step(i64::MAX / 2).unwrap().is_some() {}
        } else {
            let mut offline = offline(&fixture, &options());
            while offline.step(false).unwrap().is_some() {}
        }
        adapter_digests(&fixture.journal)
    };
    let made = adapters(true);
    assert_eq!(made.len(), 2);
    assert_eq!(made, adapters(false));
}

#[test]
fn offline_training_does_not_wait_for_groups() {
    let mut fixture = Fixture::new();
    fixture.eight_samples();
    let options = TrainingOptions {
        estimator: crate::advantage::Estimator::Group,
        group_wait: Duration::from_secs_f64(3600.0),
        ..options()
    };
    let step = offline(&fixture, &options).step(false).unwrap().unwrap();
    // Each sample is the only one of its group, which is known without waiting.
    assert_eq!(step.outcome, StepOutcome::NoSignal);
    assert_eq!(fixture.journal.queued_count().unwrap(), 0);
}

#[test]
fn a_preview_matches_the_next_step_and_writes_nothing() {
    let mut fixture = Fixture::new();
    let ids = fixture.eight_samples();
    let incomplete = fixture.data().join("adapters/.v000009");
    std::fs::create_dir_all(&incomplete).unwrap();
    let preview = || {
        OfflineTrainer::preview(
            fixture.journal.clone(),
            engine(7),
            fixture.data(),
            (options(), ExperienceOptions::default()),
            Components::default(),
        )
        .unwrap()
    };
    let commits = *fixture.journal.watch().borrow();
    let previewed = preview().unwrap();
    assert_eq!(*fixture.journal.watch().borrow(), commits);
    assert!(
        incomplete.exists(),
        "a directory that another process may be writing is left alone"
    );
    let entries = std::fs::read_dir(fixture.data().join("adapters")).unwrap();
    assert_eq!(entries.count(), 1);
    assert!(
        ids.iter()
            .all(|id| fixture.sample_record(*id).state == SampleState::Queued)
    );
    let mut offline = offline(&fixture, &options());
    let made = offline.step(false).unwrap().unwrap();
    let step = fixture.journal.step(made.id).unwrap().unwrap();
    assert_eq!(previewed.trained, step.trained);
    assert_eq!(previewed.adapter.unwrap().digest, made.digest);
    for key in ["loss_first", "gradient_norm", "change_norm"] {
        assert_eq!(previewed.metrics[key], step.metrics[key], "{key}");
    }
    let row = &previewed.metrics["samples_moved"][0];
    assert!(row["logprob_after"].as_f64().unwrap() > row["logprob_before"].as_f64().unwrap());
    while offline.step(false).unwrap().is_some() {}
    drop(offline);
    assert!(preview().is_none(), "the queue is empty");
}
