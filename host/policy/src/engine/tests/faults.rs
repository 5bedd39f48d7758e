//! A failure ends only the request that caused it.

use super::*;
use crate::error::ForwardError;

/// A token with which the model below fails.
const FAILING_TOKEN: u32 = 200;

fn failing_scheduler(fail: fn() -> Result<Vec<f32>, ForwardError>) -> TestScheduler {
    let model = model();
    let forward: Forward = Box::new(move |model, rows| {
        if rows.iter().any(|row| row.tokens.contains(&FAILING_TOKEN)) {
            return fail();
        }
        model.forward(rows)
    });
    TestScheduler::with(
        model,
        EngineOptions {
            prefill_chunk: 16,
            ..EngineOptions::default()
        },
        forward,
    )
}

fn clean(length: usize, salt: u32) -> Vec<u32> {
    prompt(length, salt)
        .into_iter()
        .map(|id| if id == FAILING_TOKEN { 1 } else { id })
        .collect()
}

#[test]
fn model_panic_or_error_fails_only_the_request_that_caused_it() {
    let panics: fn() -> Result<Vec<f32>, ForwardError> = || panic!("broken kernel");
    let errors: fn() -> Result<Vec<f32>, ForwardError> = || Err(ForwardError::Adapter);
    for (fail, reason) in [(panics, "broken kernel"), (errors, "another shape")] {
        let mut scheduler = failing_scheduler(fail);
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
                reply.assert_agrees(&run_alone(ask(salt)));
            }
        }
        assert!(scheduler.inner.stats.failed >= 1);
        let after = scheduler.reply(request(clean(30, 9), 9, 1));
        assert_eq!(after.tokens.len(), 1);
    }
}

#[test]
fn non_finite_logits_fail_only_their_request() {
    let mut scheduler = TestScheduler::new(EngineOptions::default());
    let adapter = nan_adapter();
    let version = LoadedVersion {
        version: 9,
        digest: "nan".to_owned(),
        weights: Some(Arc::new(adapter).into()),
    };
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
    Reply::collect(healthy).assert_agrees(&run_alone(request(prompt(20, 1), 2, 5)));
    // The KV cache of the failed request is not cached.
    assert_eq!(scheduler.inner.stats.prefix_cache_entries, 1);
}

#[test]
fn adapter_of_another_model_fails_only_its_request() {
    let mut scheduler = TestScheduler::new(EngineOptions::default());
    let other = random_adapter(
        &ModelConfig {
            hidden_size: 32,
            ..config()
        },
        1,
    );
    let version = LoadedVersion {
        version: 8,
        digest: "other".to_owned(),
        weights: Some(Arc::new(other).into()),
    };
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
    Reply::collect(healthy).assert_agrees(&run_alone(request(prompt(20, 3), 2, 5)));
}

#[test]
fn engine_thread_survives_a_panic() {
    let model = model();
    let forward: Forward = Box::new(move |model, rows| {
        assert!(
            rows.iter().all(|row| !row.tokens.contains(&FAILING_TOKEN)),
            "broken kernel"
        );
        model.forward(rows)
    });
    let defaults = (SamplingParams::default(), vec![EOS]);
    let engine = Engine::launch(
        model,
        tokenizer(),
        template(),
        defaults,
        EngineOptions::default(),
        forward,
    );
    let failed = Reply::collect(
        engine
            .generate(request(vec![1, FAILING_TOKEN], 1, 5))
            .unwrap(),
    );
    assert!(failed.failed.unwrap().contains("broken kernel"));
    let reply = Reply::collect(engine.generate(request(clean(20, 1), 1, 1)).unwrap());
    assert_eq!(reply.tokens.len(), 1);
}
