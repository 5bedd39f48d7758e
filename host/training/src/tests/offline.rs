//! Offline steps are the steps of the loop, and a preview is the next one without a trace.

use clawhost_journal::{Journal, SampleState, StepOutcome};

use super::workshop::{Workshop, engine, options};
use crate::component::Components;
use crate::offline::Offline;
use crate::options::TrainingOptions;

fn offline(shop: &Workshop, options: &TrainingOptions) -> Offline {
    Offline::open(
        shop.journal.clone(),
        engine(7),
        shop.data(),
        options.clone(),
        Components::default(),
    )
    .unwrap()
}

/// Digests of all adapters, oldest first.
fn chain(journal: &Journal) -> Vec<String> {
    let rows = journal.adapters().unwrap();
    rows.into_iter().map(|row| row.digest).collect()
}

#[test]
fn steps_are_made_until_the_queue_holds_too_little() {
    let mut shop = Workshop::new();
    shop.eight();
    for reward in [1.0, -1.0] {
        shop.sample(reward);
    }
    let options = TrainingOptions {
        min_batch: 3,
        ..options()
    };
    let mut offline = offline(&shop, &options);
    assert_eq!((offline.queued().unwrap(), offline.version()), (10, 0));
    for version in 1..=2 {
        let step = offline.step(false).unwrap().unwrap();
        assert_eq!(step.outcome, StepOutcome::Published);
        assert_eq!(
            (step.version, step.digest.as_str()),
            (version, offline.digest())
        );
    }
    assert!(offline.step(false).unwrap().is_none(), "two are too few");
    assert_eq!(offline.queued().unwrap(), 2);
    assert_eq!(offline.step(true).unwrap().unwrap().version, 3);
    assert!(offline.step(true).unwrap().is_none());
    assert_eq!(chain(&shop.journal).len(), 3);
}

#[test]
fn the_loop_and_offline_steps_make_the_same_adapters() {
    let adapters = |by_loop: bool| {
        let mut shop = Workshop::new();
        shop.eight();
        if by_loop {
            let mut trainer = shop.trainer(&options());
            while trainer.step(i64::MAX / 2).unwrap().is_some() {}
        } else {
            let mut offline = offline(&shop, &options());
            while offline.step(false).unwrap().is_some() {}
        }
        chain(&shop.journal)
    };
    let made = adapters(true);
    assert_eq!(made.len(), 2);
    assert_eq!(made, adapters(false));
}

#[test]
fn groups_are_not_waited_for() {
    let mut shop = Workshop::new();
    shop.eight();
    let options = TrainingOptions {
        estimator: crate::advantage::Estimator::Group,
        group_wait_seconds: 3600.0,
        ..options()
    };
    let step = offline(&shop, &options).step(false).unwrap().unwrap();
    // Each is alone in its group; that is found out at once.
    assert_eq!(step.outcome, StepOutcome::NoSignal);
    assert_eq!(shop.journal.queued_count().unwrap(), 0);
}

#[test]
fn a_preview_tells_the_next_step_and_writes_nothing() {
    let mut shop = Workshop::new();
    let ids = shop.eight();
    let half = shop.data().join("adapters/.v000009");
    std::fs::create_dir_all(&half).unwrap();
    let preview = || {
        Offline::preview(
            shop.journal.clone(),
            engine(7),
            shop.data(),
            options(),
            Components::default(),
        )
        .unwrap()
    };
    let commits = *shop.journal.watch().borrow();
    let told = preview().unwrap();
    assert_eq!(*shop.journal.watch().borrow(), commits);
    assert!(half.exists(), "what another may be writing is left alone");
    let left = std::fs::read_dir(shop.data().join("adapters")).unwrap();
    assert_eq!(left.count(), 1);
    assert!(
        ids.iter()
            .all(|id| shop.found(*id).state == SampleState::Queued)
    );
    let mut offline = offline(&shop, &options());
    let made = offline.step(false).unwrap().unwrap();
    let step = shop.journal.step(made.id).unwrap().unwrap();
    assert_eq!(told.trained, step.trained);
    assert_eq!(told.adapter.unwrap().digest, made.digest);
    for key in ["loss_first", "gradient_norm", "change_norm"] {
        assert_eq!(told.metrics[key], step.metrics[key], "{key}");
    }
    let row = &told.metrics["samples_moved"][0];
    assert!(row["logprob_after"].as_f64().unwrap() > row["logprob_before"].as_f64().unwrap());
    while offline.step(false).unwrap().is_some() {}
    drop(offline);
    assert!(preview().is_none(), "the queue is empty");
}
