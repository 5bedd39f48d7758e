//! A failure ends only the request that caused it.

use std::sync::atomic::Ordering;

use super::*;
use crate::backend::{ForwardError, RowOutput};

/// A token with which the model below fails.
const FAILING_TOKEN: u32 = 200;

type Outputs = Result<Vec<RowOutput>, ForwardError>;

fn failing_scheduler(suite: Suite, fail: fn() -> Outputs) -> TestScheduler {
    let options = EngineOptions {
        max_num_batched_tokens: 16,
        ..EngineOptions::default()
    };
    suite.scheduler_with(options, move |runner, batch| {
        let fails = |row: &Row<'_>| row.tokens.contains(&FAILING_TOKEN);
        if batch.rows.iter().any(fails) {
            return fail();
        }
        runner.step(batch)
    })
}

fn clean(length: usize, salt: u32) -> Vec<u32> {
    prompt(length, salt)
        .into_iter()
        .map(|id| if id == FAILING_TOKEN { 1 } else { id })
        .collect()
}

pub fn model_panic_or_error_fails_only_the_request_that_caused_it(suite: Suite) {
    let panics: fn() -> Outputs = || panic!("broken kernel");
    let errors: fn() -> Outputs = || Err(ForwardError::Adapter);
    for (fail, reason) in [(panics, "broken kernel"), (errors, "another shape")] {
        let mut scheduler = failing_scheduler(suite, fail);
        let ask = |salt| GenerateRequest {
            sampling: SamplingParams {
                top_k: 40,
                ..request(vec![], u64::from(salt), 25).sampling
            },
            ..request(clean(40, salt), u64::from(salt), 25)
        };
        let decoding = scheduler.admit(ask(1));
        for _ in 0..5 {
            scheduler.step();
        }
        let mut failing = clean(8, 2);
        failing.push(FAILING_TOKEN);
        let failing_request = scheduler.admit(request(failing, 3, 25));
        let bystander = scheduler.admit(ask(4));
        scheduler.finish();
        let failing_request = Reply::collect(failing_request);
        assert!(failing_request.failed.unwrap().contains(reason));
        assert!(failing_request.tokens.is_empty() && failing_request.finished.is_none());
        for (generation, salt) in [(decoding, 1), (bystander, 4)] {
            let reply = Reply::collect(generation);
            // A sampled token may itself be the failing one.
            if !reply.ids().contains(&FAILING_TOKEN) {
                reply.assert_agrees(&suite.run_alone(ask(salt)), suite.tolerance);
            }
        }
        assert!(scheduler.inner.stats.failed >= 1);
        let after = scheduler.reply(request(clean(30, 9), 9, 1));
        assert_eq!(after.tokens.len(), 1);
    }
}

pub fn non_finite_logits_fail_only_their_request(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions::default());
    let adapter = nan_adapter();
    let version = LoadedVersion::new(9, Arc::new(adapter));
    let poisoned = scheduler.admit(GenerateRequest {
        version,
        ..request(prompt(20, 1), 1, 5)
    });
    let healthy = scheduler.admit(request(prompt(20, 1), 2, 5));
    scheduler.finish();
    let poisoned = Reply::collect(poisoned);
    assert!(
        poisoned.failed.as_deref().unwrap().contains("NaN"),
        "{poisoned:?}"
    );
    Reply::collect(healthy).assert_agrees(
        &suite.run_alone(request(prompt(20, 1), 2, 5)),
        suite.tolerance,
    );
    // The KV cache of the failed request is not cached.
    assert_eq!(scheduler.inner.stats.prefix_cache_entries, 1);
}

pub fn adapter_of_another_model_fails_only_its_request(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions::default());
    let other = random_adapter(
        &ModelConfig {
            hidden_size: 32,
            ..config()
        },
        1,
    );
    let version = LoadedVersion::new(8, Arc::new(other));
    let mismatched = scheduler.admit(GenerateRequest {
        version,
        ..request(prompt(20, 1), 1, 5)
    });
    let healthy = scheduler.admit(request(prompt(20, 3), 2, 5));
    scheduler.finish();
    assert!(
        Reply::collect(mismatched)
            .failed
            .unwrap()
            .contains("another shape")
    );
    Reply::collect(healthy).assert_agrees(
        &suite.run_alone(request(prompt(20, 3), 2, 5)),
        suite.tolerance,
    );
}

pub fn engine_thread_survives_a_panic(suite: Suite) {
    let engine = suite.start_with(EngineOptions::default(), |runner, batch| {
        let fails = |row: &Row<'_>| row.tokens.contains(&FAILING_TOKEN);
        assert!(!batch.rows.iter().any(fails), "broken kernel");
        runner.step(batch)
    });
    let failed = Reply::collect(
        engine
            .generate(request(vec![1, FAILING_TOKEN], 1, 5))
            .unwrap(),
    );
    assert!(failed.failed.unwrap().contains("broken kernel"));
    let reply = Reply::collect(engine.generate(request(clean(20, 1), 1, 1)).unwrap());
    assert_eq!(reply.tokens.len(), 1);
}

/// A request may start in a copy of a block that another one still extends. If the step with that copy fails, both
/// recompute, whichever of them caused it.
pub fn failed_step_with_a_copy_recomputes_both_requests(suite: Suite) {
    let mut failures = 1;
    let mut scheduler = suite.scheduler_with(EngineOptions::default(), move |runner, batch| {
        if failures > 0 && !batch.copies.is_empty() {
            failures -= 1;
            return Err(ForwardError::Empty);
        }
        runner.step(batch)
    });
    let ask = |seed| request(clean(40, 1), seed, 12);
    let first = scheduler.admit(ask(1));
    scheduler.step();
    scheduler.step();
    let second = scheduler.admit(ask(2));
    scheduler.finish();
    Reply::collect(first).assert_agrees(&suite.run_alone(ask(1)), suite.tolerance);
    Reply::collect(second).assert_agrees(&suite.run_alone(ask(2)), suite.tolerance);
    assert_eq!(scheduler.inner.stats.failed, 0);
}

pub fn device_without_memory_rejects_weights_and_keeps_serving(suite: Suite) {
    let backend = WrappedBackend::new(suite.backend(), |runner, batch| runner.step(batch));
    let full = backend.out_of_memory();
    let options = EngineOptions::default();
    let engine = Engine::new(Arc::new(backend), tokenizer(), template(), options).unwrap();
    full.store(true, Ordering::SeqCst);
    let reason = "the device is out of memory";
    let weights = || adapter_version(1).weights;
    let error = engine.try_publish(1, weights()).unwrap_err();
    assert_eq!((error.version, error.reason.as_str()), (1, reason));
    let error = engine.load_candidate(1, weights().unwrap()).unwrap_err();
    assert_eq!(error.reason, reason);
    assert_eq!(engine.active().version, 0);
    let mut ask = request(prompt(20, 1), 2, 5);
    let reply = Reply::collect(engine.generate(ask.clone()).unwrap());
    reply.assert_agrees(&suite.run_alone(ask.clone()), suite.tolerance);
    ask.version = adapter_version(1);
    let error = engine.generate(ask.clone()).unwrap_err();
    assert_eq!(error, SubmitError::Unavailable(reason.to_owned()));
    full.store(false, Ordering::SeqCst);
    let reply = Reply::collect(engine.generate(ask.clone()).unwrap());
    reply.assert_agrees(&suite.run_alone(ask), suite.tolerance);
}
