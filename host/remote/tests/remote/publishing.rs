//! Publishing versions to the server: loading, verifying and unloading adapters, and servers that go down and come
//! back.

use std::sync::Arc;

use clawhost_engine::{Candidates, Event, SamplingParams, Sequence, SubmitError};
use clawhost_model::TrainedWeights;

use crate::server::{
    FakeServer, Fault, ReturnedLogprobs, collect, prompt, random_adapter, request, wait_until,
};

fn sampling() -> SamplingParams {
    SamplingParams {
        seed: Some(4),
        max_tokens: 10,
        ..SamplingParams::default()
    }
}

#[test]
fn a_published_version_is_unloaded_with_its_last_holder() {
    for fake in [
        FakeServer::vllm(ReturnedLogprobs::Processed),
        FakeServer::sglang(ReturnedLogprobs::TemperatureScaled),
    ] {
        let (engine, _) = fake.connect(fake.options());
        let first = engine
            .try_publish(1, Some(random_adapter(1, 0.05)))
            .unwrap();
        assert_eq!(engine.active().digest(), first.digest());
        let mut generation = engine.generate(request(&engine, sampling())).unwrap();
        let (tokens, end) = collect(&mut generation);
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
        let own = engine.score(&first, &[sequence]).unwrap();
        for (token, own) in tokens.iter().zip(&own[0].logprobs) {
            assert!((token.full_logprob - own).abs() < 1e-4);
        }

        // A request that started with the first version finishes with it.
        let mut late = request(&engine, sampling());
        drop(first);
        engine
            .try_publish(2, Some(random_adapter(2, 0.05)))
            .unwrap();
        assert!(fake.state.unloaded.lock().unwrap().is_empty());
        assert_eq!(late.version.version, 1);
        late.sampling = sampling();
        let mut generation = engine.generate(late).unwrap();
        let (again, _) = collect(&mut generation);
        assert_eq!(again.iter().map(|t| t.id).collect::<Vec<_>>(), ids);
        drop(generation);
        wait_until("unloading", || {
            !fake.state.unloaded.lock().unwrap().is_empty()
        });
        let unloaded = fake.state.unloaded.lock().unwrap().clone();
        assert!(unloaded[0].starts_with("clawhost-v1-"), "{unloaded:?}");
        wait_until("removing", || {
            std::fs::read_dir(fake.adapter_dir()).unwrap().count() == 1
        });
        // Back to the base model, which the server has under its own name.
        engine.try_publish(0, None::<TrainedWeights>).unwrap();
        let (_, end) = collect(&mut engine.generate(request(&engine, sampling())).unwrap());
        assert!(matches!(end, Some(Event::Finished(_))));
    }
}

#[test]
fn a_failed_publish_keeps_the_active_version() {
    let fake = FakeServer::vllm(ReturnedLogprobs::Raw);
    let (engine, _) = fake.connect(fake.options());
    engine
        .try_publish(1, Some(random_adapter(1, 0.05)))
        .unwrap();
    for (fault, part) in [
        (Fault::NoAdapters, "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        (Fault::IgnoresAdapters, "the server at http://"),
    ] {
        fake.set_fault(fault);
        let error = engine
            .try_publish(2, Some(random_adapter(2, 0.05)))
            .unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(engine.active().version, 1);
    }
    fake.set_fault(Fault::None);
    let (_, end) = collect(&mut engine.generate(request(&engine, sampling())).unwrap());
    assert!(matches!(end, Some(Event::Finished(_))), "{end:?}");
    let copy = TrainedWeights::Full(Arc::new(engine.model().as_ref().clone()));
    let error = engine.try_publish(3, Some(copy)).unwrap_err();
    assert!(error.to_string().contains("training.parameters"), "{error}");
}

#[test]
fn a_small_adapter_is_distinguished_from_the_base_model() {
    // The base model's log-probs are within the allowed difference too.
    let small = random_adapter(3, 0.002);
    let fake = FakeServer::vllm(ReturnedLogprobs::Raw);
    let (engine, _) = fake.connect(fake.options());
    fake.set_fault(Fault::IgnoresAdapters);
    let error = engine.try_publish(1, Some(small.clone())).unwrap_err();
    assert!(error.to_string().contains("with the base model"), "{error}");
    fake.set_fault(Fault::None);
    engine.try_publish(1, Some(small)).unwrap();
}

#[test]
fn a_returning_server_gets_its_adapters_and_the_pending_version() {
    let mut fake = FakeServer::vllm(ReturnedLogprobs::Raw);
    let (engine, _) = fake.connect(fake.options());
    engine
        .try_publish(1, Some(random_adapter(1, 0.05)))
        .unwrap();
    fake.stop();
    let refused = engine.generate(request(&engine, sampling())).unwrap_err();
    assert!(matches!(refused, SubmitError::Unavailable(_)), "{refused}");
    let reason = engine.ready().unwrap_err();
    assert!(reason.contains("http://127.0.0.1"), "{reason}");
    // A version published in the meantime is served once the server is back.
    let error = engine
        .try_publish(2, Some(random_adapter(2, 0.05)))
        .unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
    assert_eq!(engine.active().version, 1);
    fake.start_listening();
    wait_until("the second version", || engine.active().version == 2);
    wait_until("readiness", || engine.ready().is_ok());
    let (_, end) = collect(&mut engine.generate(request(&engine, sampling())).unwrap());
    assert!(matches!(end, Some(Event::Finished(_))), "{end:?}");
}

#[test]
fn an_evicted_adapter_is_reloaded_transparently() {
    let fake = FakeServer::vllm(ReturnedLogprobs::Raw);
    let (engine, _) = fake.connect(fake.options());
    engine
        .try_publish(1, Some(random_adapter(1, 0.05)))
        .unwrap();
    fake.forget_adapters();
    let (_, end) = collect(&mut engine.generate(request(&engine, sampling())).unwrap());
    assert!(matches!(end, Some(Event::Finished(_))), "{end:?}");
    assert_eq!(fake.state.loaded.lock().unwrap().len(), 2);
}
