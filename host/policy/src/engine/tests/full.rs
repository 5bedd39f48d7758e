//! Versions that are whole copies of the weights, beside ones that are adapters over the base.

use std::sync::Mutex;

use super::*;
use crate::grad;

/// A copy of the base that was changed everywhere.
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

fn full(version: u64) -> Served {
    let model = copy(version);
    Served {
        version,
        digest: model.digest().to_owned(),
        learned: Some(model.into()),
    }
}

/// Which model each pass ran on, and how many rows.
type Log = Arc<Mutex<Vec<(usize, usize)>>>;

fn logged(options: EngineOptions) -> (Bench, Log) {
    let log = Log::default();
    let seen = Arc::clone(&log);
    let forward: Forward = Box::new(move |model, rows| {
        let pass = (std::ptr::from_ref(model) as usize, rows.len());
        seen.lock().unwrap().push(pass);
        model.forward(rows)
    });
    (Bench::with(model(), options, forward), log)
}

#[test]
fn copies_and_adapters_in_one_batch_give_each_request_what_it_gets_alone() {
    let versions = [full(1), version(2), full(3), base(), version(4)];
    let requests: Vec<GenerateRequest> = (0..10)
        .map(|i| {
            let mut request = request(prompt(12 + 7 * (i / 5), (i / 5) as u32), 3, 20);
            request.served = versions[i % 5].clone();
            request.sampling.temperature = 0.7;
            request
        })
        .collect();
    let (mut bench, log) = logged(EngineOptions {
        max_batch: 10,
        ..EngineOptions::default()
    });
    let generations: Vec<Generation> = requests.iter().map(|r| bench.admit(r.clone())).collect();
    bench.step();
    // Both copies have a pass to themselves; the base and both adapters share the third.
    let mut rows: Vec<usize> = log.lock().unwrap().iter().map(|pass| pass.1).collect();
    rows.sort_unstable();
    assert_eq!(rows, [2, 2, 6]);
    bench.finish();
    let replies: Vec<Reply> = generations.into_iter().map(Reply::all).collect();
    for (request, reply) in requests.iter().zip(&replies) {
        reply.agrees(&alone(request.clone()));
    }
    for (i, one) in replies.iter().take(5).enumerate() {
        assert!(replies.iter().take(i).all(|other| other.ids() != one.ids()));
    }
}

#[test]
fn recorded_logprobs_of_a_copy_are_those_of_scoring_with_it() {
    let mut bench = Bench::new(EngineOptions::default());
    let ask = GenerateRequest {
        served: full(1),
        ..request(prompt(40, 2), 5, 30)
    };
    let reply = bench.reply(ask.clone());
    let mut tokens = ask.prompt.clone();
    tokens.extend(reply.ids());
    let sequence = grad::Sequence {
        tokens: &tokens,
        start: ask.prompt.len(),
        temperature: ask.sampling.full_temperature(),
        candidates: grad::Candidates::None,
    };
    let scored = ask.served.score(&model(), &[sequence]).unwrap();
    assert_eq!(reply.tokens.len(), scored[0].logprobs.len());
    for (token, scored) in reply.tokens.iter().zip(&scored[0].logprobs) {
        assert!((token.full_logprob - scored).abs() < 1e-5);
    }
    let base = base().score(&model(), &[sequence]).unwrap();
    assert!((base[0].logprobs[0] - scored[0].logprobs[0]).abs() > 1e-3);
}

#[test]
fn a_stream_ends_on_the_copy_that_it_began_with() {
    let (engine, permits) = gated(EngineOptions::default());
    let published = engine.publish(1, full(1).learned);
    assert_eq!(published.digest, full(1).digest);
    let ask = |served: Served| GenerateRequest {
        served,
        ..request(prompt(20, 1), 6, 20)
    };
    let mut before = engine.generate(ask(engine.active())).unwrap();
    let mut reply = Reply::default();
    for _ in 0..3 {
        permits.send(()).unwrap();
        reply.add(before.blocking_next().unwrap());
    }
    engine.publish(2, Some(copy(2)));
    let after = engine.generate(ask(engine.active())).unwrap();
    drop(permits);
    while let Some(event) = before.blocking_next() {
        reply.add(event);
    }
    reply.agrees(&alone(ask(full(1))));
    Reply::all(after).agrees(&alone(ask(full(2))));
}

#[test]
fn attention_memory_that_is_kept_keeps_no_copy_alive() {
    let engine = start(EngineOptions::default());
    let served = engine.publish(1, Some(copy(1)));
    let Some(Learned::Full(model)) = &served.learned else {
        panic!("a copy was published");
    };
    let watch = Arc::downgrade(model);
    let ask = |served| GenerateRequest {
        served,
        ..request(prompt(30, 1), 1, 3)
    };
    Reply::all(engine.generate(ask(served)).unwrap());
    assert!(watch.upgrade().is_some() && engine.stats().cache_entries == 1);
    engine.publish(2, version(2).learned);
    // The engine lets go of a request before it takes on the next one.
    Reply::all(engine.generate(ask(engine.active())).unwrap());
    assert!(watch.upgrade().is_none());
    // Nor does it outlive the copy: only what the second version made is left.
    assert_eq!(engine.stats().cache_entries, 1);
}

#[test]
fn a_copy_of_another_shape_fails_only_its_own_request() {
    let mut bench = Bench::new(EngineOptions::default());
    let other = Model::random(tiny(), 1);
    let misfit = bench.admit(GenerateRequest {
        served: Served {
            version: 7,
            digest: other.digest().to_owned(),
            learned: Some(Arc::new(other).into()),
        },
        ..request(vec![1, 2, 3], 1, 5)
    });
    let healthy = bench.admit(request(prompt(20, 3), 2, 5));
    bench.finish();
    let said = Reply::all(misfit).failed.unwrap();
    assert!(said.contains("version 7") && said.contains("another shape"));
    Reply::all(healthy).agrees(&alone(request(prompt(20, 3), 2, 5)));
}
