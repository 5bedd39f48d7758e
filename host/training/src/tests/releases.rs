//! What is served is changed by steps and by a person, and the person's word counts.

use clawhost_journal::{Change, JournalError, StepOutcome};

use super::workshop::{Workshop, options};
use crate::TrainingOptions;
use crate::error::TrainingError;
use crate::trainer::{Due, Trainer};

/// A step that publishes, over fresh samples of what is served now.
fn step(shop: &mut Workshop, trainer: &mut Trainer) -> u64 {
    for reward in [1.0, -1.0, 1.0, -1.0] {
        shop.sample(reward);
    }
    let step = trainer.step(10).unwrap().unwrap();
    assert_eq!(step.outcome, StepOutcome::Published, "{:?}", step.reason);
    assert!(step.unserved.is_none());
    shop.journal
        .step(step.id)
        .unwrap()
        .unwrap()
        .adapter
        .unwrap()
}

fn parent(shop: &Workshop, version: u64) -> u64 {
    let rows = shop.journal.adapters().unwrap();
    rows.iter()
        .find(|row| row.version == version)
        .unwrap()
        .parent
}

/// Whether the engine serves this version, with the digest that is recorded.
fn serves(shop: &Workshop, version: u64) {
    let active = shop.engine.active();
    assert_eq!(active.version, version);
    if let Some(row) = shop.journal.active_adapter().unwrap() {
        assert_eq!((row.version, row.digest), (version, active.digest));
    } else {
        assert_eq!(version, 0);
        assert_eq!(active.digest, shop.engine.model().digest());
    }
}

#[test]
fn a_promoted_version_is_served_and_trained_from() {
    let mut shop = Workshop::new();
    let mut trainer = shop.trainer(&options());
    let releases = trainer.releases.clone();
    for expected in 1..=2 {
        assert_eq!(step(&mut shop, &mut trainer), expected);
    }
    let standing = releases.change(Change::Promote(1), Some("ops")).unwrap();
    assert_eq!((standing.version, standing.back), (1, Some(2)));
    serves(&shop, 1);
    assert_eq!(step(&mut shop, &mut trainer), 3);
    assert_eq!(parent(&shop, 3), 1);
    serves(&shop, 3);
    // The step, the promotion, and the steps before it.
    for expected in [1, 2, 1, 0] {
        let standing = releases.change(Change::Rollback, None).unwrap();
        assert_eq!(standing.version, expected);
        serves(&shop, expected);
    }
    let error = releases.change(Change::Rollback, None).unwrap_err();
    assert!(matches!(
        error,
        TrainingError::Journal(JournalError::NothingBefore)
    ));
    // The base is trained from anew.
    assert_eq!(step(&mut shop, &mut trainer), 4);
    assert_eq!(parent(&shop, 4), 0);
}

#[test]
fn what_is_pinned_stays_while_steps_go_on_until_they_are_too_far_away() {
    let mut shop = Workshop::new();
    let options = TrainingOptions {
        max_staleness: 1,
        ..options()
    };
    let mut trainer = shop.trainer(&options);
    let releases = trainer.releases.clone();
    for _ in 1..=2 {
        step(&mut shop, &mut trainer);
    }
    releases.change(Change::Pin(1), None).unwrap();
    for (made, of) in [(3, 1), (4, 3)] {
        assert_eq!(step(&mut shop, &mut trainer), made);
        assert_eq!(parent(&shop, made), of);
        serves(&shop, 1);
    }
    // What is served is two versions away from what would be trained: its samples wait, none is dropped.
    for reward in [1.0, -1.0, 1.0, -1.0] {
        shop.sample(reward);
    }
    let now = clawhost_journal::now_ms() + 10_000_000;
    assert_eq!(trainer.due(now).unwrap(), Due::Later);
    assert!(trainer.step(10).unwrap().is_none());
    assert_eq!(shop.journal.queued_count().unwrap(), 4);
    let why = releases.waits().unwrap().unwrap();
    assert!(
        why.contains("version 1 is pinned") && why.contains("max_staleness"),
        "{why}"
    );

    // A new process serves what is pinned and trains from what was made.
    shop.restart();
    let mut trainer = shop.trainer(&options);
    let releases = trainer.releases.clone();
    serves(&shop, 1);
    assert_eq!(trainer.version(), 4);

    let free = releases.change(Change::Unpin, None).unwrap();
    assert_eq!((free.version, free.head), (1, 4));
    serves(&shop, 1);
    // What waited has become too old, and says so; what is sampled from a promoted version trains.
    releases.change(Change::Promote(4), None).unwrap();
    assert_eq!(step(&mut shop, &mut trainer), 5);
    assert_eq!(parent(&shop, 5), 4);
    serves(&shop, 5);
}

#[test]
fn let_go_of_the_next_step_publishes_what_was_learned_meanwhile() {
    let mut shop = Workshop::new();
    let mut trainer = shop.trainer(&options());
    let releases = trainer.releases.clone();
    step(&mut shop, &mut trainer);
    releases.change(Change::Pin(1), None).unwrap();
    step(&mut shop, &mut trainer);
    releases.change(Change::Unpin, None).unwrap();
    assert_eq!(step(&mut shop, &mut trainer), 3);
    assert_eq!((parent(&shop, 2), parent(&shop, 3)), (1, 2));
    serves(&shop, 3);
    assert_eq!(
        releases.change(Change::Rollback, None).unwrap().version,
        1,
        "what nobody was served is not gone back to"
    );
}

#[test]
fn a_step_that_had_begun_does_not_undo_a_persons_word() {
    let mut shop = Workshop::new();
    let mut trainer = shop.trainer(&options());
    let releases = trainer.releases.clone();
    for _ in 1..=2 {
        step(&mut shop, &mut trainer);
    }
    for reward in [1.0, -1.0, 1.0, -1.0] {
        shop.sample(reward);
    }
    let prepared = trainer.prepare(10).unwrap().unwrap();
    releases.change(Change::Promote(1), None).unwrap();
    let recorded = trainer.record(prepared).unwrap();
    assert_eq!(recorded.outcome, StepOutcome::Published);
    serves(&shop, 1);
    assert_eq!(parent(&shop, 3), 2);
    assert_eq!(step(&mut shop, &mut trainer), 4);
    assert_eq!(parent(&shop, 4), 1);
    // What was kept can be served all the same.
    releases.change(Change::Promote(3), None).unwrap();
    serves(&shop, 3);
}

#[test]
fn what_cannot_be_served_is_refused_and_nothing_changes() {
    let mut shop = Workshop::new();
    let mut trainer = shop.trainer(&options());
    let releases = trainer.releases.clone();
    for _ in 1..=2 {
        step(&mut shop, &mut trainer);
    }
    let standing = releases.standing().unwrap();
    let refused = |change| releases.change(change, None).unwrap_err().to_string();
    assert!(refused(Change::Promote(7)).contains("no adapter version 7"));
    let file = shop
        .data()
        .join("adapters/v000001/adapter_model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[1..]).unwrap();
    assert!(refused(Change::Pin(1)).contains("recorded is"));
    std::fs::remove_file(&file).unwrap();
    assert!(refused(Change::Rollback).contains("v000001"));
    assert_eq!(releases.standing().unwrap(), standing);
    serves(&shop, 2);
    std::fs::write(&file, &bytes).unwrap();
    releases.change(Change::Pin(1), None).unwrap();
    assert!(refused(Change::Promote(2)).contains("DELETE /v1/adapters/pin"));
    serves(&shop, 1);
}

#[test]
fn what_a_rollback_returns_to_is_kept_whole() {
    let mut shop = Workshop::new();
    let options = TrainingOptions {
        keep_checkpoints: 1,
        keep_adapters: 1,
        ..options()
    };
    let mut trainer = shop.trainer(&options);
    let releases = trainer.releases.clone();
    for _ in 1..=3 {
        step(&mut shop, &mut trainer);
    }
    releases.change(Change::Promote(2), None).unwrap();
    releases.change(Change::Pin(2), None).unwrap();
    step(&mut shop, &mut trainer);
    step(&mut shop, &mut trainer);
    releases.change(Change::Unpin, None).unwrap();
    let standing = releases.change(Change::Rollback, None).unwrap();
    assert_eq!(standing.version, 3);
    let error = releases.change(Change::Promote(4), None).unwrap_err();
    assert!(
        matches!(error, TrainingError::LetGo { version: 4 }),
        "{error}"
    );
}

#[test]
fn changes_from_many_sides_leave_one_truth() {
    let mut shop = Workshop::new();
    let mut trainer = shop.trainer(&options());
    let releases = trainer.releases.clone();
    for _ in 1..=3 {
        step(&mut shop, &mut trainer);
    }
    for reward in [1.0, -1.0, 1.0, -1.0] {
        shop.sample(reward);
    }
    std::thread::scope(|scope| {
        for side in 0..3u64 {
            let releases = releases.clone();
            scope.spawn(move || {
                for round in 0..8 {
                    let change = Change::Promote((side + round) % 4);
                    releases.change(change, None).unwrap();
                }
            });
        }
        // A step that cannot know what is decided meanwhile.
        scope.spawn(|| trainer.step(10).unwrap());
    });
    let standing = releases.standing().unwrap();
    serves(&shop, standing.version);
    assert_eq!(
        shop.journal.releases(1).unwrap()[0].version,
        standing.version
    );
    let next = step(&mut shop, &mut trainer);
    assert_eq!(parent(&shop, next), standing.head);
    serves(&shop, next);
}
