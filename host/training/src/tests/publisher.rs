//! Publishing: steps and operators change the active version, and operators take precedence.

use clawhost_journal::{JournalError, ReleaseChange, StepOutcome};

use super::fixture::{Fixture, options};
use crate::TrainingOptions;
use crate::error::TrainingError;
use crate::trainer::{Due, Trainer};

/// Runs a step on new samples of the active version; returns the version of its adapter.
fn step(fixture: &mut Fixture, trainer: &mut Trainer) -> u64 {
    for reward in [1.0, -1.0, 1.0, -1.0] {
        fixture.sample(reward);
    }
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    assert!(step.publish_error.is_none());
    fixture
        .journal
        .step(step.id)
        .unwrap()
        .unwrap()
        .adapter
        .unwrap()
}

fn parent(fixture: &Fixture, version: u64) -> u64 {
    let rows = fixture.journal.adapters().unwrap();
    rows.iter()
        .find(|row| row.version == version)
        .unwrap()
        .parent
}

/// Asserts that the engine serves this version with the recorded digest.
fn assert_serves(fixture: &Fixture, version: u64) {
    let active = fixture.engine.active();
    assert_eq!(active.version, version);
    if let Some(row) = fixture.journal.active_adapter().unwrap() {
        assert_eq!(
            (row.version, row.digest.as_str()),
            (version, active.digest())
        );
    } else {
        assert_eq!(version, 0);
        assert_eq!(active.digest(), fixture.engine.model().digest());
    }
}

#[test]
fn a_promoted_version_is_served_and_trained_from() {
    let mut fixture = Fixture::new();
    let mut trainer = fixture.trainer(&options());
    let publisher = trainer.publisher.clone();
    for expected in 1..=2 {
        assert_eq!(step(&mut fixture, &mut trainer), expected);
    }
    let state = publisher
        .apply(ReleaseChange::Promote(1), Some("ops"))
        .unwrap();
    assert_eq!((state.version, state.back), (1, Some(2)));
    assert_serves(&fixture, 1);
    assert_eq!(step(&mut fixture, &mut trainer), 3);
    assert_eq!(parent(&fixture, 3), 1);
    assert_serves(&fixture, 3);
    // Rolls back the step, the promotion, and the steps before it.
    for expected in [1, 2, 1, 0] {
        let state = publisher.apply(ReleaseChange::Rollback, None).unwrap();
        assert_eq!(state.version, expected);
        assert_serves(&fixture, expected);
    }
    let error = publisher.apply(ReleaseChange::Rollback, None).unwrap_err();
    assert!(matches!(
        error,
        TrainingError::Journal(JournalError::NoPreviousVersion)
    ));
    // Training starts from the base model again.
    assert_eq!(step(&mut fixture, &mut trainer), 4);
    assert_eq!(parent(&fixture, 4), 0);
}

#[test]
fn a_pinned_version_is_served_while_training_continues_up_to_max_staleness() {
    let mut fixture = Fixture::new();
    let options = TrainingOptions {
        max_staleness: 1,
        ..options()
    };
    let mut trainer = fixture.trainer(&options);
    let publisher = trainer.publisher.clone();
    for _ in 1..=2 {
        step(&mut fixture, &mut trainer);
    }
    publisher.apply(ReleaseChange::Pin(1), None).unwrap();
    for (made, from) in [(3, 1), (4, 3)] {
        assert_eq!(step(&mut fixture, &mut trainer), made);
        assert_eq!(parent(&fixture, made), from);
        assert_serves(&fixture, 1);
    }
    // The pinned version is two versions behind the newest candidate: its samples stay queued.
    for reward in [1.0, -1.0, 1.0, -1.0] {
        fixture.sample(reward);
    }
    let now = clawhost_journal::now_ms() + 10_000_000;
    assert_eq!(trainer.due(now).unwrap(), Due::Later);
    assert!(trainer.step(10).unwrap().is_none());
    assert_eq!(fixture.journal.queued_count().unwrap(), 4);
    let reason = publisher.wait_reason().unwrap().unwrap();
    assert!(
        reason.contains("version 1 is pinned") && reason.contains("max_staleness"),
        "{reason}"
    );

    // A new process serves the pinned version and trains from the newest candidate.
    fixture.restart();
    let mut trainer = fixture.trainer(&options);
    let publisher = trainer.publisher.clone();
    assert_serves(&fixture, 1);
    assert_eq!(trainer.version(), 4);

    let unpinned = publisher.apply(ReleaseChange::Unpin, None).unwrap();
    assert_eq!((unpinned.version, unpinned.head), (1, 4));
    assert_serves(&fixture, 1);
    // The waiting samples are stale now; samples of the promoted version train.
    publisher.apply(ReleaseChange::Promote(4), None).unwrap();
    assert_eq!(step(&mut fixture, &mut trainer), 5);
    assert_eq!(parent(&fixture, 5), 4);
    assert_serves(&fixture, 5);
}

#[test]
fn after_unpin_the_next_step_publishes_from_the_newest_candidate() {
    let mut fixture = Fixture::new();
    let mut trainer = fixture.trainer(&options());
    let publisher = trainer.publisher.clone();
    step(&mut fixture, &mut trainer);
    publisher.apply(ReleaseChange::Pin(1), None).unwrap();
    step(&mut fixture, &mut trainer);
    publisher.apply(ReleaseChange::Unpin, None).unwrap();
    assert_eq!(step(&mut fixture, &mut trainer), 3);
    assert_eq!((parent(&fixture, 2), parent(&fixture, 3)), (1, 2));
    assert_serves(&fixture, 3);
    assert_eq!(
        publisher
            .apply(ReleaseChange::Rollback, None)
            .unwrap()
            .version,
        1,
        "a rollback skips versions that were never served"
    );
}

#[test]
fn a_running_step_does_not_undo_a_promotion() {
    let mut fixture = Fixture::new();
    let mut trainer = fixture.trainer(&options());
    let publisher = trainer.publisher.clone();
    for _ in 1..=2 {
        step(&mut fixture, &mut trainer);
    }
    for reward in [1.0, -1.0, 1.0, -1.0] {
        fixture.sample(reward);
    }
    let prepared = trainer.prepare(10).unwrap().unwrap();
    publisher.apply(ReleaseChange::Promote(1), None).unwrap();
    let recorded = trainer.record(prepared).unwrap();
    assert_eq!(recorded.outcome, StepOutcome::Published);
    assert_serves(&fixture, 1);
    assert_eq!(parent(&fixture, 3), 2);
    assert_eq!(step(&mut fixture, &mut trainer), 4);
    assert_eq!(parent(&fixture, 4), 1);
    // The kept candidate can be promoted.
    publisher.apply(ReleaseChange::Promote(3), None).unwrap();
    assert_serves(&fixture, 3);
}

#[test]
fn a_version_that_cannot_be_served_is_rejected() {
    let mut fixture = Fixture::new();
    let mut trainer = fixture.trainer(&options());
    let publisher = trainer.publisher.clone();
    for _ in 1..=2 {
        step(&mut fixture, &mut trainer);
    }
    let state = publisher.release_state().unwrap();
    let error = |change| publisher.apply(change, None).unwrap_err().to_string();
    assert!(error(ReleaseChange::Promote(7)).contains("no adapter version 7"));
    let file = fixture
        .data()
        .join("adapters/v000001/adapter_model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[1..]).unwrap();
    assert!(error(ReleaseChange::Pin(1)).contains("recorded is"));
    std::fs::remove_file(&file).unwrap();
    assert!(error(ReleaseChange::Rollback).contains("v000001"));
    assert_eq!(publisher.release_state().unwrap(), state);
    assert_serves(&fixture, 2);
    std::fs::write(&file, &bytes).unwrap();
    publisher.apply(ReleaseChange::Pin(1), None).unwrap();
    assert!(error(ReleaseChange::Promote(2)).contains("DELETE /v1/adapters/pin"));
    assert_serves(&fixture, 1);
}

#[test]
fn retention_keeps_the_rollback_target() {
    let mut fixture = Fixture::new();
    let options = TrainingOptions {
        keep_checkpoints: 1,
        keep_adapters: 1,
        ..options()
    };
    let mut trainer = fixture.trainer(&options);
    let publisher = trainer.publisher.clone();
    for _ in 1..=3 {
        step(&mut fixture, &mut trainer);
    }
    publisher.apply(ReleaseChange::Promote(2), None).unwrap();
    publisher.apply(ReleaseChange::Pin(2), None).unwrap();
    step(&mut fixture, &mut trainer);
    step(&mut fixture, &mut trainer);
    publisher.apply(ReleaseChange::Unpin, None).unwrap();
    let state = publisher.apply(ReleaseChange::Rollback, None).unwrap();
    assert_eq!(state.version, 3);
    let error = publisher
        .apply(ReleaseChange::Promote(4), None)
        .unwrap_err();
    assert!(
        matches!(error, TrainingError::CheckpointRemoved { version: 4 }),
        "{error}"
    );
}

#[test]
fn an_empty_checkpoint_directory_is_damage_and_not_retention() {
    let mut fixture = Fixture::new();
    let mut trainer = fixture.trainer(&options());
    let publisher = trainer.publisher.clone();
    for _ in 1..=2 {
        step(&mut fixture, &mut trainer);
    }
    let checkpoint = fixture.data().join("adapters/v000001");
    for entry in std::fs::read_dir(&checkpoint).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let error = publisher
        .apply(ReleaseChange::Promote(1), None)
        .unwrap_err();
    assert!(
        matches!(&error, TrainingError::CorruptCheckpoint { reason, .. } if reason.contains("missing")),
        "{error}"
    );
    assert_serves(&fixture, 2);
}

#[test]
fn concurrent_changes_leave_engine_and_journal_consistent() {
    let mut fixture = Fixture::new();
    let mut trainer = fixture.trainer(&options());
    let publisher = trainer.publisher.clone();
    for _ in 1..=3 {
        step(&mut fixture, &mut trainer);
    }
    for reward in [1.0, -1.0, 1.0, -1.0] {
        fixture.sample(reward);
    }
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let publisher = publisher.clone();
            scope.spawn(move || {
                for round in 0..8 {
                    let change = ReleaseChange::Promote((thread + round) % 4);
                    publisher.apply(change, None).unwrap();
                }
            });
        }
        // A step that runs concurrently.
        scope.spawn(|| trainer.step(10).unwrap());
    });
    let state = publisher.release_state().unwrap();
    assert_serves(&fixture, state.version);
    assert_eq!(
        fixture.journal.releases(1).unwrap()[0].version,
        state.version
    );
    let next = step(&mut fixture, &mut trainer);
    assert_eq!(parent(&fixture, next), state.head);
    assert_serves(&fixture, next);
}
