//! A failure costs the request that caused it, and no other.

use super::*;
use crate::error::ForwardError;

/// Marks the prompt that the model below cannot stand.
const CURSED: u32 = 200;

fn fragile(fail: fn() -> Result<Vec<f32>, ForwardError>) -> Bench {
    let model = model();
    let forward: Forward = Box::new(move |model, rows| {
        if rows.iter().any(|row| row.tokens.contains(&CURSED)) {
            return fail();
        }
        model.forward(rows)
    });
    Bench::with(
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
        .map(|id| if id == CURSED { 1 } else { id })
        .collect()
}

#[test]
fn a_panic_or_error_of_the_model_fails_only_the_request_to_blame() {
    let panics: fn() -> Result<Vec<f32>, ForwardError> = || panic!("broken kernel");
    let errors: fn() -> Result<Vec<f32>, ForwardError> = || Err(ForwardError::Adapter);
    for (fail, reason) in [(panics, "broken kernel"), (errors, "another shape")] {
        let mut bench = fragile(fail);
        let ask = |salt| GenerateRequest {
            sampling: Sampling {
                top_k: 40,
                ..request(vec![], u64::from(salt), 25).sampling
            },
            ..request(clean(40, salt), u64::from(salt), 25)
        };
        let talking = bench.admit(ask(1));
        for _ in 0..5 {
            bench.step();
        }
        let mut cursed = clean(8, 2);
        cursed.push(CURSED);
        let culprit = bench.admit(request(cursed, 3, 25));
        let bystander = bench.admit(ask(4));
        bench.finish();
        let culprit = Reply::all(culprit);
        assert!(culprit.failed.unwrap().contains(reason));
        assert!(culprit.tokens.is_empty() && culprit.finished.is_none());
        for (generation, salt) in [(talking, 1), (bystander, 4)] {
            let reply = Reply::all(generation);
            // A token that was drawn may itself be the cursed one.
            if !reply.ids().contains(&CURSED) {
                reply.agrees(&alone(ask(salt)));
            }
        }
        assert!(bench.batcher.stats.failed >= 1);
        let after = bench.reply(request(clean(30, 9), 9, 1));
        assert_eq!(after.tokens.len(), 1);
    }
}

#[test]
fn logits_that_are_not_finite_fail_their_own_request() {
    let mut bench = Bench::new(EngineOptions::default());
    let adapter = nan_adapter();
    let served = Served {
        version: 9,
        digest: "nan".to_owned(),
        learned: Some(Arc::new(adapter).into()),
    };
    let poisoned = bench.admit(GenerateRequest {
        served,
        ..request(prompt(20, 1), 1, 5)
    });
    let healthy = bench.admit(request(prompt(20, 1), 2, 5));
    bench.finish();
    let poisoned = Reply::all(poisoned);
    assert!(
        poisoned.failed.as_deref().unwrap().contains("NaN"),
        "{poisoned:?}"
    );
    Reply::all(healthy).agrees(&alone(request(prompt(20, 1), 2, 5)));
    // The memory of the failed request is not lent to anyone.
    assert_eq!(bench.batcher.stats.cache_entries, 1);
}

#[test]
fn an_adapter_of_another_model_fails_its_own_request() {
    let mut bench = Bench::new(EngineOptions::default());
    let other = busy_adapter(
        &ModelConfig {
            hidden_size: 32,
            ..config()
        },
        1,
    );
    let served = Served {
        version: 8,
        digest: "other".to_owned(),
        learned: Some(Arc::new(other).into()),
    };
    let misfit = bench.admit(GenerateRequest {
        served,
        ..request(prompt(20, 1), 1, 5)
    });
    let healthy = bench.admit(request(prompt(20, 3), 2, 5));
    bench.finish();
    assert!(Reply::all(misfit).failed.unwrap().contains("another shape"));
    Reply::all(healthy).agrees(&alone(request(prompt(20, 3), 2, 5)));
}

#[test]
fn the_thread_outlives_a_panic() {
    let model = model();
    let forward: Forward = Box::new(move |model, rows| {
        assert!(
            rows.iter().all(|row| !row.tokens.contains(&CURSED)),
            "broken kernel"
        );
        model.forward(rows)
    });
    let own = (Sampling::default(), vec![END]);
    let engine = Engine::launch(
        model,
        tokenizer(),
        template(),
        own,
        EngineOptions::default(),
        forward,
    );
    let failed = Reply::all(engine.generate(request(vec![1, CURSED], 1, 5)).unwrap());
    assert!(failed.failed.unwrap().contains("broken kernel"));
    let reply = Reply::all(engine.generate(request(clean(20, 1), 1, 1)).unwrap());
    assert_eq!(reply.tokens.len(), 1);
}
