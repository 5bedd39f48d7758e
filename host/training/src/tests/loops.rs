//! The loop: prompt, patient, and it stops when told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clawhost_journal::StepOutcome;
use clawhost_policy::{GenerateRequest, Generation, Priority, Sampling};
use tokio::sync::watch;

use super::workshop::{Workshop, engine_with, options};
use crate::component::Components;
use crate::state::TrainingSnapshot;
use crate::training::Training;

async fn until(
    state: &crate::TrainingState,
    what: impl Fn(&TrainingSnapshot) -> bool,
) -> TrainingSnapshot {
    let mut changes = state.watch();
    changes.wait_for(what).await.unwrap().clone()
}

fn training(shop: &Workshop, options: crate::TrainingOptions) -> Training {
    Training::new(
        shop.journal.clone(),
        shop.engine.clone(),
        shop.data(),
        options,
        Components::default(),
    )
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_that_come_while_it_runs_are_trained_and_published() {
    let mut shop = Workshop::new();
    let training = training(&shop, options());
    let state = training.state();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(training.run(stopped));
    let shop = tokio::task::spawn_blocking(move || {
        shop.eight();
        shop
    })
    .await
    .unwrap();
    let all_told = |s: &TrainingSnapshot| {
        let steps = shop.journal.steps(100).unwrap().len() as u64;
        shop.journal.queued_count().unwrap() == 0 && s.steps == steps
    };
    let seen = until(&state, all_told).await;
    assert_eq!(seen.last_outcome.as_deref(), Some("published"));
    assert_eq!(seen.version, shop.engine.active().version);
    assert_eq!(seen.digest, shop.engine.active().digest);
    assert_eq!(seen.last_error, None);
    stop.send(true).unwrap();
    task.await.unwrap();
    let trained: usize = shop
        .journal
        .steps(100)
        .unwrap()
        .iter()
        .map(|s| s.trained.len())
        .sum();
    assert_eq!(trained, 8);
    // What was recorded is counted again after a restart.
    let again = Training::new(
        shop.journal.clone(),
        shop.engine.clone(),
        shop.data(),
        options(),
        Components::default(),
    )
    .unwrap();
    assert_eq!(again.state().snapshot().steps, seen.steps);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_waits_for_the_rest_of_a_batch_until_the_time_is_up() {
    let shop = tokio::task::spawn_blocking(|| {
        let mut shop = Workshop::new();
        shop.sample(1.0);
        shop
    })
    .await
    .unwrap();
    let patient = crate::TrainingOptions {
        max_wait_seconds: 0.2,
        ..options()
    };
    let training = training(&shop, patient);
    let state = training.state();
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(training.run(stopped));
    let seen = until(&state, |s| s.steps == 1).await;
    assert_eq!(seen.published, 1);
    let step = &shop.journal.steps(1).unwrap()[0];
    assert_eq!(step.outcome, StepOutcome::Published);
    let sample = &shop
        .journal
        .samples_of(clawhost_journal::TurnId(1))
        .unwrap()[0];
    assert!(step.started_ms - sample.created_ms >= 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_cannot_be_recorded_keeps_its_samples_and_says_why() {
    let shop = tokio::task::spawn_blocking(|| {
        let mut shop = Workshop::new();
        shop.eight();
        shop
    })
    .await
    .unwrap();
    let training = training(&shop, options());
    let state = training.state();
    // A file where the folder of adapters should be: nothing can be written.
    let adapters = shop.data().join("adapters");
    std::fs::remove_dir_all(&adapters).unwrap();
    std::fs::write(&adapters, b"in the way").unwrap();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(training.run(stopped));
    let seen = until(&state, |s| s.last_error.is_some()).await;
    assert!(seen.last_error.unwrap().contains("adapters"));
    assert_eq!(shop.journal.queued_count().unwrap(), 8);
    assert_eq!(shop.engine.active().version, 0);
    std::fs::remove_file(&adapters).unwrap();
    let seen = until(&state, |s| s.published > 0).await;
    assert_eq!(seen.last_error, None);
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_says_how_many_samples_went_stale_and_what_changes_that() {
    let strict = crate::TrainingOptions {
        max_staleness: 0,
        batch: 2,
        ..options()
    };
    let made = strict.clone();
    let shop = tokio::task::spawn_blocking(move || {
        let mut shop = Workshop::new();
        let mut trainer = shop.trainer(&made);
        shop.sample(1.0);
        shop.sample(-1.0);
        shop.sample(1.0);
        trainer.step(10).unwrap().unwrap();
        shop.sample(1.0);
        shop
    });
    let shop = shop.await.unwrap();
    let training = training(&shop, strict);
    let state = training.state();
    assert_eq!((state.snapshot().samples, state.snapshot().stale), (4, 0));
    assert_eq!(state.snapshot().stale_note, None);
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(training.run(stopped));
    let seen = until(&state, |s| s.stale > 0).await;
    let note = seen.stale_note.unwrap();
    assert!(
        note.starts_with("1 of 4 judged samples went stale"),
        "{note}"
    );
    assert!(note.contains("training.max_staleness"), "{note}");
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[tokio::test]
async fn it_ends_when_the_one_who_could_stop_it_is_gone() {
    let shop = Workshop::new();
    let training = training(&shop, options());
    let (stop, stopped) = watch::channel(false);
    drop(stop);
    training.run(stopped).await;
}

/// A workshop with a full batch whose engine is in the middle of a step of its own, and what holds it there.
async fn held() -> (Workshop, Arc<AtomicBool>, Generation) {
    let held = Arc::new(AtomicBool::new(false));
    let entered = Arc::new(AtomicBool::new(false));
    let (hold, enter) = (Arc::clone(&held), Arc::clone(&entered));
    let shop = tokio::task::spawn_blocking(move || {
        let mut shop = Workshop::new();
        shop.engine = engine_with(7, move |model, rows| {
            while hold.load(Ordering::SeqCst) {
                enter.store(true, Ordering::SeqCst);
                std::thread::yield_now();
            }
            model.forward(rows)
        });
        shop.eight();
        shop
    })
    .await
    .unwrap();
    held.store(true, Ordering::SeqCst);
    let request = GenerateRequest {
        prompt: vec![1, 2, 3],
        sampling: Sampling::default(),
        served: shop.engine.active(),
        priority: Priority::Person,
        user: None,
    };
    let running = shop.engine.generate(request).unwrap();
    while !entered.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    (shop, held, running)
}

async fn until_it_yields(shop: &Workshop) {
    while shop.engine.stats().yielding == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_waits_between_layers_while_requests_are_running() {
    let (shop, held, _running) = held().await;
    let yielding = crate::TrainingOptions {
        busy_share: 1e-9,
        ..options()
    };
    let training = training(&shop, yielding);
    let state = training.state();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(training.run(stopped));
    until_it_yields(&shop).await;
    assert!(shop.journal.steps(1).unwrap().is_empty());
    held.store(false, Ordering::SeqCst);
    let seen = until(&state, |s| s.published > 0).await;
    assert_eq!(seen.last_error, None);
    stop.send(true).unwrap();
    task.await.unwrap();
    assert_eq!(shop.engine.stats().yielding, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_waits_for_requests_is_given_up_when_the_server_stops() {
    let (shop, held, _running) = held().await;
    let yielding = crate::TrainingOptions {
        busy_share: 1e-9,
        // Each sample has a pass of its own, so that there is a place at which the step is given up.
        pass_tokens: 1,
        ..options()
    };
    let training = training(&shop, yielding);
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(training.run(stopped));
    until_it_yields(&shop).await;
    stop.send(true).unwrap();
    task.await.unwrap();
    assert_eq!(shop.journal.queued_count().unwrap(), 8);
    assert!(shop.journal.steps(1).unwrap().is_empty());
    held.store(false, Ordering::SeqCst);
}
