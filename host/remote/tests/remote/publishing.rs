//! Versions: brought to the server, made sure of, let go; and a server that goes and comes back.

use std::sync::Arc;

use clawhost_policy::{Candidates, Event, Learned, Refused, Sampling, Sequence};

use crate::server::{Fake, Fault, Returns, busy_adapter, prompt, read, request, until};

fn sampling() -> Sampling {
    Sampling {
        seed: Some(4),
        max_tokens: 10,
        ..Sampling::default()
    }
}

#[test]
fn a_version_is_served_by_the_server_and_let_go_with_its_last_holder() {
    for fake in [Fake::vllm(Returns::Drawn), Fake::sglang(Returns::Tempered)] {
        let (engine, _) = fake.behind(fake.options());
        let first = engine.release(1, Some(busy_adapter(1, 0.05))).unwrap();
        assert_eq!(engine.active().digest, first.digest);
        let mut generation = engine.generate(request(&engine, sampling())).unwrap();
        let (tokens, end) = read(&mut generation);
        assert!(matches!(end, Some(Event::Finished(_))), "{end:?}");
        drop(generation);
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let all = [prompt(), ids.clone()].concat();
        let sequence = Sequence {
            tokens: &all,
            start: prompt().len(),
            temperature: 1.0,
            candidates: Candidates::None,
        };
        let own = first.score(engine.model(), &[sequence]).unwrap();
        for (token, own) in tokens.iter().zip(&own[0].logprobs) {
            assert!((token.full_logprob - own).abs() < 1e-4);
        }

        // A request that began with the first version ends with it.
        let mut late = request(&engine, sampling());
        drop(first);
        engine.release(2, Some(busy_adapter(2, 0.05))).unwrap();
        assert!(fake.inside.unloaded.lock().unwrap().is_empty());
        assert_eq!(late.served.version, 1);
        late.sampling = sampling();
        let mut generation = engine.generate(late).unwrap();
        let (again, _) = read(&mut generation);
        assert_eq!(again.iter().map(|t| t.id).collect::<Vec<_>>(), ids);
        drop(generation);
        until("unloading", || {
            !fake.inside.unloaded.lock().unwrap().is_empty()
        });
        let unloaded = fake.inside.unloaded.lock().unwrap().clone();
        assert!(unloaded[0].starts_with("clawhost-v1-"), "{unloaded:?}");
        until("removing", || {
            std::fs::read_dir(fake.written()).unwrap().count() == 1
        });
        // Back to the base, of which the server has no name but its own.
        engine.release(0, None::<Learned>).unwrap();
        let (_, end) = read(&mut engine.generate(request(&engine, sampling())).unwrap());
        assert!(matches!(end, Some(Event::Finished(_))));
    }
}

#[test]
fn a_version_that_the_server_does_not_serve_leaves_the_old_one() {
    let fake = Fake::vllm(Returns::Model);
    let (engine, _) = fake.behind(fake.options());
    engine.release(1, Some(busy_adapter(1, 0.05))).unwrap();
    for (fault, part) in [
        (Fault::NoAdapters, "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        (Fault::IgnoresAdapters, "the server at http://"),
    ] {
        fake.fault(fault);
        let error = engine.release(2, Some(busy_adapter(2, 0.05))).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(engine.active().version, 1);
    }
    fake.fault(Fault::None);
    let (_, end) = read(&mut engine.generate(request(&engine, sampling())).unwrap());
    assert!(matches!(end, Some(Event::Finished(_))), "{end:?}");
    let copy = Learned::Full(Arc::new(engine.model().as_ref().clone()));
    let error = engine.release(3, Some(copy)).unwrap_err();
    assert!(error.to_string().contains("training.parameters"), "{error}");
}

#[test]
fn a_small_change_is_told_from_none() {
    // The base model's answers are within what is allowed as well.
    let small = busy_adapter(3, 0.002);
    let fake = Fake::vllm(Returns::Model);
    let (engine, _) = fake.behind(fake.options());
    fake.fault(Fault::IgnoresAdapters);
    let error = engine.release(1, Some(small.clone())).unwrap_err();
    assert!(error.to_string().contains("with the base model"), "{error}");
    fake.fault(Fault::None);
    engine.release(1, Some(small)).unwrap();
}

#[test]
fn a_server_that_was_away_is_taken_up_again_with_its_adapters() {
    let mut fake = Fake::vllm(Returns::Model);
    let (engine, _) = fake.behind(fake.options());
    engine.release(1, Some(busy_adapter(1, 0.05))).unwrap();
    fake.down();
    let refused = engine.generate(request(&engine, sampling())).unwrap_err();
    assert!(matches!(refused, Refused::Unavailable(_)), "{refused}");
    let reason = engine.ready().unwrap_err();
    assert!(reason.contains("http://127.0.0.1"), "{reason}");
    // What is released meanwhile is served as soon as that can be.
    let error = engine.release(2, Some(busy_adapter(2, 0.05))).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
    assert_eq!(engine.active().version, 1);
    fake.up();
    until("the second version", || engine.active().version == 2);
    until("readiness", || engine.ready().is_ok());
    let (_, end) = read(&mut engine.generate(request(&engine, sampling())).unwrap());
    assert!(matches!(end, Some(Event::Finished(_))), "{end:?}");
}

#[test]
fn a_server_that_lost_an_adapter_gets_it_again_unnoticed() {
    let fake = Fake::vllm(Returns::Model);
    let (engine, _) = fake.behind(fake.options());
    engine.release(1, Some(busy_adapter(1, 0.05))).unwrap();
    fake.forget_adapters();
    let (_, end) = read(&mut engine.generate(request(&engine, sampling())).unwrap());
    assert!(matches!(end, Some(Event::Finished(_))), "{end:?}");
    assert_eq!(fake.inside.loaded.lock().unwrap().len(), 2);
}
