//! Versions that are full copies of the weights, together with adapter versions.

use super::*;

/// A full copy of the base model with all weights changed.
fn copy(version: u64) -> Arc<Model> {
    let mut model = Model::random(config(), 11);
    for (i, (name, values)) in model.parameters_mut().into_iter().enumerate() {
        let size = if name.contains("norm") { 0.2 } else { 0.05 };
        for (j, v) in values.iter_mut().enumerate() {
            *v += size * ((i * 13 + j * 5 + version as usize * 7) as f32).sin();
        }
    }
    Arc::new(model)
}

fn full(version: u64) -> LoadedVersion {
    let model = copy(version);
    LoadedVersion::new(version, model)
}

pub fn batch_of_full_copies_and_adapters_matches_running_alone(suite: Suite) {
    let versions = [
        full(1),
        adapter_version(2),
        full(3),
        base(),
        adapter_version(4),
    ];
    let requests: Vec<GenerateRequest> = (0..10)
        .map(|i| {
            let mut request = request(prompt(12 + 7 * (i / 5), (i / 5) as u32), 3, 20);
            request.version = versions[i % 5].clone();
            request.sampling.temperature = 0.7;
            request
        })
        .collect();
    let mut scheduler = suite.scheduler(EngineOptions {
        max_num_seqs: 10,
        ..EngineOptions::default()
    });
    let generations: Vec<Generation> = requests
        .iter()
        .map(|r| scheduler.admit(r.clone()))
        .collect();
    scheduler.step();
    // All of them run in one step.
    assert_eq!(scheduler.inner.stats.batch_sizes.len(), 11);
    scheduler.finish();
    let replies: Vec<Reply> = generations.into_iter().map(Reply::collect).collect();
    for (request, reply) in requests.iter().zip(&replies) {
        reply.assert_agrees(&suite.run_alone(request.clone()), suite.tolerance);
    }
    for (i, one) in replies.iter().take(5).enumerate() {
        assert!(replies.iter().take(i).all(|other| other.ids() != one.ids()));
    }
}

pub fn recorded_logprobs_of_a_full_copy_match_scoring(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions::default());
    let ask = GenerateRequest {
        version: full(1),
        ..request(prompt(40, 2), 5, 30)
    };
    let reply = scheduler.reply(ask.clone());
    let mut tokens = ask.prompt.clone();
    tokens.extend(reply.ids());
    let sequence = backend::Sequence {
        tokens: &tokens,
        start: ask.prompt.len(),
        temperature: ask.sampling.full_temperature(),
        candidates: Candidates::None,
    };
    let scored = ask.version.score(&*suite.backend(), &[sequence]).unwrap();
    assert_eq!(reply.tokens.len(), scored[0].logprobs.len());
    for (token, scored) in reply.tokens.iter().zip(&scored[0].logprobs) {
        suite.tolerance.assert_logprob(token.full_logprob, *scored);
    }
    let base = base().score(&*suite.backend(), &[sequence]).unwrap();
    assert!((base[0].logprobs[0] - scored[0].logprobs[0]).abs() > 1e-3);
}

pub fn reply_finishes_on_the_full_copy_it_started_with(suite: Suite) {
    serving::assert_finishes_on_its_version(suite, full);
}

pub fn prefix_cache_does_not_keep_a_full_copy_alive(suite: Suite) {
    let engine = suite.start(EngineOptions::default());
    let version = engine.publish(1, Some(copy(1)));
    let Some(TrainedWeights::Full(model)) = &version.weights else {
        panic!("a full copy was published");
    };
    let watch = Arc::downgrade(model);
    let ask = |version| GenerateRequest {
        version,
        ..request(prompt(30, 1), 1, 3)
    };
    Reply::collect(engine.generate(ask(version)).unwrap());
    assert!(watch.upgrade().is_some() && engine.stats().prefix_cache_entries == 1);
    engine.publish(2, adapter_version(2).weights);
    // The engine drops a request before it admits the next one.
    Reply::collect(engine.generate(ask(engine.active())).unwrap());
    assert!(watch.upgrade().is_none());
    // The cached blocks are dropped with the copy: only those of the second version are left.
    assert_eq!(engine.stats().prefix_cache_entries, 1);
}

pub fn full_copy_of_another_shape_fails_only_its_request(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions::default());
    let other = Model::random(tiny(), 1);
    let mismatched = scheduler.admit(GenerateRequest {
        version: LoadedVersion::new(7, Arc::new(other)),
        ..request(vec![1, 2, 3], 1, 5)
    });
    let healthy = scheduler.admit(request(prompt(20, 3), 2, 5));
    scheduler.finish();
    let reason = Reply::collect(mismatched).failed.unwrap();
    assert!(reason.contains("another shape"), "{reason}");
    Reply::collect(healthy).assert_agrees(
        &suite.run_alone(request(prompt(20, 3), 2, 5)),
        suite.tolerance,
    );
}
