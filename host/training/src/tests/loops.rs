//! The training loop: starts steps promptly, waits for batches, and stops on request.

use std::time::Duration;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clawhost_engine::{GenerateRequest, Generation, Priority, SamplingParams};
use clawhost_journal::{Journal, StepOutcome};
use tokio::sync::watch;

use super::fixture::{Fixture, engine_with, options};
use crate::component::Components;
use crate::distillation::{RemoteTeacher, TeacherError, TeacherRequest, TeacherScores};
use crate::state::TrainingSnapshot;
use crate::training_loop::TrainingLoop;
use clawhost_config::{TeacherEndpoint, TeacherSource, TopKSource, TrainingMethod};

async fn until(
    state: &crate::TrainingState,
    what: impl Fn(&TrainingSnapshot) -> bool,
) -> TrainingSnapshot {
    let mut changes = state.watch();
    changes.wait_for(what).await.unwrap().clone()
}

fn training(fixture: &Fixture, options: crate::TrainingOptions) -> TrainingLoop {
    TrainingLoop::new(
        fixture.journal.clone(),
        fixture.engine.clone(),
        fixture.data(),
        options,
        Components::default(),
    )
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_that_arrive_while_the_loop_runs_are_trained_and_published() {
    let mut fixture = Fixture::new();
    let training = training(&fixture, options());
    let state = training.state();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(training.run(stopped));
    let fixture = tokio::task::spawn_blocking(move || {
        fixture.eight_samples();
        fixture
    })
    .await
    .unwrap();
    let all_trained = |s: &TrainingSnapshot| {
        let steps = fixture.journal.steps(100).unwrap().len() as u64;
        fixture.journal.queued_count().unwrap() == 0 && s.steps == steps
    };
    let seen = until(&state, all_trained).await;
    assert_eq!(seen.last_outcome.as_deref(), Some("published"));
    assert_eq!(seen.version, fixture.engine.active().version);
    assert_eq!(seen.digest, fixture.engine.active().digest());
    assert_eq!(seen.last_error, None);
    stop.send(true).unwrap();
    task.await.unwrap();
    let trained: usize = fixture
        .journal
        .steps(100)
        .unwrap()
        .iter()
        .map(|s| s.trained.len())
        .sum();
    assert_eq!(trained, 8);
    // A restarted loop counts the recorded steps.
    let again = TrainingLoop::new(
        fixture.journal.clone(),
        fixture.engine.clone(),
        fixture.data(),
        options(),
        Components::default(),
    )
    .unwrap();
    assert_eq!(again.state().snapshot().steps, seen.steps);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loop_waits_for_a_full_batch_up_to_max_wait() {
    let fixture = tokio::task::spawn_blocking(|| {
        let mut fixture = Fixture::new();
        fixture.sample(1.0);
        fixture
    })
    .await
    .unwrap();
    let waiting = crate::TrainingOptions {
        max_wait: Duration::from_secs_f64(0.2),
        ..options()
    };
    let training = training(&fixture, waiting);
    let state = training.state();
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(training.run(stopped));
    let seen = until(&state, |s| s.steps == 1).await;
    assert_eq!(seen.published, 1);
    let step = &fixture.journal.steps(1).unwrap()[0];
    assert_eq!(step.outcome, StepOutcome::Published);
    let sample = &fixture
        .journal
        .samples_of_turn(clawhost_journal::TurnId(1))
        .unwrap()[0];
    assert!(step.started_ms - sample.created_ms >= 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_cannot_be_recorded_keeps_its_samples_and_reports_the_error() {
    let fixture = tokio::task::spawn_blocking(|| {
        let mut fixture = Fixture::new();
        fixture.eight_samples();
        fixture
    })
    .await
    .unwrap();
    let training = training(&fixture, options());
    let state = training.state();
    // A file in place of the adapters directory: nothing can be written.
    let adapters = fixture.data().join("adapters");
    std::fs::remove_dir_all(&adapters).unwrap();
    std::fs::write(&adapters, b"in the way").unwrap();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(training.run(stopped));
    let seen = until(&state, |s| s.last_error.is_some()).await;
    assert!(seen.last_error.unwrap().contains("adapters"));
    assert_eq!(fixture.journal.queued_count().unwrap(), 8);
    assert_eq!(fixture.engine.active().version, 0);
    std::fs::remove_file(&adapters).unwrap();
    let seen = until(&state, |s| s.published > 0).await;
    assert_eq!(seen.last_error, None);
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_reports_stale_samples_and_the_settings_to_change() {
    let strict = crate::TrainingOptions {
        max_staleness: 0,
        batch_size: 2,
        ..options()
    };
    let made = strict.clone();
    let fixture = tokio::task::spawn_blocking(move || {
        let mut fixture = Fixture::new();
        let mut trainer = fixture.trainer(&made);
        fixture.sample(1.0);
        fixture.sample(-1.0);
        fixture.sample(1.0);
        trainer.step(10).unwrap().unwrap();
        fixture.sample(1.0);
        fixture
    });
    let fixture = fixture.await.unwrap();
    let training = training(&fixture, strict);
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

/// A teacher that panics once and then scores every token alike.
#[derive(Debug, Default)]
struct BrokenOnce(AtomicBool);

impl RemoteTeacher for BrokenOnce {
    fn score(&self, request: TeacherRequest<'_>) -> Result<TeacherScores, TeacherError> {
        assert!(self.0.swap(true, Ordering::SeqCst), "the teacher is broken");
        Ok(TeacherScores {
            logprobs: vec![-0.1; request.reply.len()],
            ..TeacherScores::default()
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_fails_its_step_only() {
    const HINT: &str = "bcdefghijklmn";
    let mut options = crate::TrainingOptions {
        method: TrainingMethod::Opd,
        ..options()
    };
    options.teacher.hint_marker = String::new();
    options.teacher.top_k_from = TopKSource::Teacher;
    options.teacher.source = TeacherSource::Endpoint;
    options.teacher.endpoint = Some(TeacherEndpoint {
        url: "http://127.0.0.1:1/v1".to_owned(),
        model: "t".to_owned(),
        api_key: None,
        timeout: Duration::from_secs(1),
    });
    let hinted = |mut fixture: Fixture| {
        tokio::task::spawn_blocking(move || {
            for _ in 0..4 {
                fixture.hinted_sample(None, &[HINT]);
            }
            fixture
        })
    };
    let mut fixture = Fixture::new();
    fixture.temperature = 1.0;
    let fixture = hinted(fixture).await.unwrap();
    let training = training(&fixture, options).with_teacher(Some(Arc::new(BrokenOnce::default())));
    let state = training.state();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(training.run(stopped));
    let seen = until(&state, |s| s.steps == 1).await;
    assert_eq!(seen.last_outcome.as_deref(), Some("failed"));
    let step = &fixture.journal.steps(1).unwrap()[0];
    assert_eq!((step.outcome, step.dropped_count), (StepOutcome::Failed, 4));
    let reason = step.reason.as_deref().unwrap();
    assert_eq!(reason, "the step panicked: the teacher is broken");
    // Serving goes on (the samples are generated by the engine), and so does training.
    let fixture = hinted(fixture).await.unwrap();
    let seen = until(&state, |s| s.published >= 1).await;
    assert_eq!(seen.last_error, None);
    assert!(fixture.engine.active().version >= 1);
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_cannot_be_read_is_reported_while_the_queue_is_empty() {
    let mut fixture = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    fixture.journal = Journal::open(folder.path()).unwrap();
    let training = training(&fixture, options());
    let state = training.state();
    let intruder = rusqlite::Connection::open(folder.path().join("journal.sqlite")).unwrap();
    intruder
        .execute_batch("ALTER TABLE releases RENAME TO lost")
        .unwrap();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(training.run(stopped));
    let seen = until(&state, |s| s.last_error.is_some()).await;
    assert!(seen.last_error.unwrap().contains("releases"));
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[tokio::test]
async fn the_loop_ends_when_the_stop_sender_is_dropped() {
    let fixture = Fixture::new();
    let training = training(&fixture, options());
    let (stop, stopped) = watch::channel(false);
    drop(stop);
    training.run(stopped).await;
}

/// A fixture with a full batch whose engine is held inside a forward pass, the flag that holds it, and the request.
async fn hold_engine() -> (Fixture, Arc<AtomicBool>, Generation) {
    let held = Arc::new(AtomicBool::new(false));
    let entered = Arc::new(AtomicBool::new(false));
    let (hold, enter) = (Arc::clone(&held), Arc::clone(&entered));
    let fixture = tokio::task::spawn_blocking(move || {
        let mut fixture = Fixture::new();
        fixture.engine = engine_with(7, move |runner, batch| {
            while hold.load(Ordering::SeqCst) {
                enter.store(true, Ordering::SeqCst);
                std::thread::yield_now();
            }
            runner.step(batch)
        });
        fixture.eight_samples();
        fixture
    })
    .await
    .unwrap();
    held.store(true, Ordering::SeqCst);
    let request = GenerateRequest {
        prompt: vec![1, 2, 3],
        sampling: SamplingParams::default(),
        version: fixture.engine.active(),
        priority: Priority::Interactive,
        user: None,
    };
    let running = fixture.engine.generate(request).unwrap();
    while !entered.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    (fixture, held, running)
}

async fn until_it_yields(fixture: &Fixture) {
    while fixture.engine.stats().yielding_threads == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_yields_between_layers_while_requests_are_running() {
    let (fixture, held, _running) = hold_engine().await;
    let yielding = crate::TrainingOptions {
        busy_share: Some(1e-9),
        ..options()
    };
    let training = training(&fixture, yielding);
    let state = training.state();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(training.run(stopped));
    until_it_yields(&fixture).await;
    assert!(fixture.journal.steps(1).unwrap().is_empty());
    held.store(false, Ordering::SeqCst);
    let seen = until(&state, |s| s.published > 0).await;
    assert_eq!(seen.last_error, None);
    stop.send(true).unwrap();
    task.await.unwrap();
    assert_eq!(fixture.engine.stats().yielding_threads, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_yielding_step_is_aborted_when_the_server_stops() {
    let (fixture, held, _running) = hold_engine().await;
    let yielding = crate::TrainingOptions {
        busy_share: Some(1e-9),
        // One micro-batch per sample, so that the step can be aborted between them.
        micro_batch_tokens: 1,
        ..options()
    };
    let training = training(&fixture, yielding);
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(training.run(stopped));
    until_it_yields(&fixture).await;
    stop.send(true).unwrap();
    task.await.unwrap();
    assert_eq!(fixture.journal.queued_count().unwrap(), 8);
    assert!(fixture.journal.steps(1).unwrap().is_empty());
    held.store(false, Ordering::SeqCst);
}
