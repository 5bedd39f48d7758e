//! Replies of the remote backend are identical to those of the built-in engine, including the recorded log-probs.

use std::time::Duration;

use clawhost_engine::{
    CompletionOutput, Event, FinishReason, SampledToken, SamplingParams, SubmitError,
};
use clawhost_remote::{LogprobsMode, RemoteConfig};

use crate::server::{FakeServer, Fault, ReturnedLogprobs, collect, request, wait_until};

fn finished(event: Option<Event>) -> CompletionOutput {
    match event {
        Some(Event::Finished(finished)) => finished,
        other => panic!("{other:?}"),
    }
}

fn settings() -> Vec<SamplingParams> {
    let with = |change: fn(&mut SamplingParams)| {
        let mut sampling = SamplingParams {
            seed: Some(11),
            max_tokens: 24,
            ..SamplingParams::default()
        };
        change(&mut sampling);
        sampling
    };
    vec![
        with(|_| ()),
        with(|s| s.temperature = 0.7),
        with(|s| s.temperature = 0.0),
        with(|s| (s.temperature, s.top_k) = (1.3, 5)),
        with(|s| (s.temperature, s.top_p) = (0.8, 0.7)),
        with(|s| s.min_p = 0.2),
        with(|s| (s.temperature, s.top_k, s.top_p, s.min_p) = (1.1, 12, 0.9, 0.01)),
    ]
}

fn penalized() -> SamplingParams {
    SamplingParams {
        seed: Some(5),
        max_tokens: 24,
        presence_penalty: 0.4,
        repetition_penalty: 1.2,
        ..SamplingParams::default()
    }
}

fn near(what: &str, a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() < 1e-4, "{what}: {a} {b}");
    }
}

fn values(tokens: &[SampledToken], which: fn(&SampledToken) -> f32) -> Vec<f32> {
    tokens.iter().map(which).collect()
}

fn ids(tokens: &[SampledToken]) -> Vec<u32> {
    tokens.iter().map(|token| token.id).collect()
}

fn text(tokens: &[SampledToken], end: &CompletionOutput) -> String {
    let content: String = tokens.iter().map(|token| token.text.as_str()).collect();
    content + &end.text
}

#[test]
fn remote_replies_are_recorded_like_local_ones() {
    let own_engine = crate::server::engine();
    for fake in [
        FakeServer::vllm(ReturnedLogprobs::Raw),
        FakeServer::vllm(ReturnedLogprobs::Processed),
        FakeServer::sglang(ReturnedLogprobs::TemperatureScaled),
    ] {
        let (engine, remote) = fake.connect(fake.options());
        let mut all = settings();
        if remote.logprobs_mode() == LogprobsMode::Processed {
            all.push(penalized());
        }
        for sampling in all {
            let what = format!("{:?} {sampling:?}", remote.logprobs_mode());
            let local_request = request(&own_engine, sampling.clone());
            let (own, own_end) = collect(&mut own_engine.generate(local_request).unwrap());
            let mut there = engine.generate(request(&engine, sampling.clone())).unwrap();
            assert_eq!(Some(there.seed()), sampling.seed);
            let (there, end) = collect(&mut there);
            let (own_end, end) = (finished(own_end), finished(end));
            assert!(own.len() > 4, "{what}: {} tokens", own.len());
            assert_eq!(ids(&there), ids(&own), "{what}");
            assert_eq!(text(&there, &end), text(&own, &own_end), "{what}");
            // The server does not report forced tokens, so none are marked.
            assert!(there.iter().all(|token| !token.forced), "{what}");
            assert_eq!(end.reason, own_end.reason);
            assert_eq!(end.prompt_tokens, own_end.prompt_tokens);
            assert_eq!(end.completion_tokens, own_end.completion_tokens);
            // Log-probs in events are correct or NaN.
            let three: [fn(&SampledToken) -> f32; 3] =
                [|t| t.logprob, |t| t.full_logprob, |t| t.model_logprob];
            for which in three {
                let (returned, own) = (values(&there, which), values(&own, which));
                let known = returned
                    .iter()
                    .zip(&own)
                    .filter(|(returned, _)| !returned.is_nan());
                let (returned, own): (Vec<f32>, Vec<f32>) = known.map(|(a, b)| (*a, *b)).unzip();
                near(&what, &returned, &own);
            }
            // Recorded log-probs are complete.
            let (drawn, full) = match end.reply_logprobs {
                Some(recorded) => (recorded.logprobs, recorded.full_logprobs),
                None => (
                    values(&there, |t| t.logprob),
                    values(&there, |t| t.full_logprob),
                ),
            };
            near(&what, &drawn, &values(&own, |t| t.logprob));
            near(&what, &full, &values(&own, |t| t.full_logprob));
        }
    }
}

#[test]
fn top_logprobs_match_the_local_model() {
    let own_engine = crate::server::engine();
    for fake in [
        FakeServer::vllm(ReturnedLogprobs::Raw),
        FakeServer::sglang(ReturnedLogprobs::TemperatureScaled),
    ] {
        let (engine, _) = fake.connect(fake.options());
        let sampling = SamplingParams {
            seed: Some(3),
            max_tokens: 6,
            top_logprobs: 3,
            ..SamplingParams::default()
        };
        let local_request = request(&own_engine, sampling.clone());
        let (own, _) = collect(&mut own_engine.generate(local_request).unwrap());
        let (there, _) = collect(&mut engine.generate(request(&engine, sampling)).unwrap());
        assert_eq!(own.len(), there.len());
        for (own, there) in own.iter().zip(&there) {
            let ids = |token: &SampledToken| token.top.iter().map(|t| t.0).collect::<Vec<_>>();
            assert_eq!(ids(own), ids(there));
        }
    }
}

#[test]
fn unsupported_sampling_is_rejected_with_a_fix() {
    let fake = FakeServer::vllm(ReturnedLogprobs::Raw);
    let (engine, _) = fake.connect(fake.options());
    let refused = engine.generate(request(&engine, penalized())).unwrap_err();
    assert!(matches!(refused, SubmitError::Unsupported(_)), "{refused}");
    assert!(refused.to_string().contains("processed_logprobs"));
}

#[test]
fn stop_strings_and_cancellation_close_the_connection() {
    let fake = FakeServer::vllm(ReturnedLogprobs::Raw);
    let (engine, _) = fake.connect(fake.options());
    let long = SamplingParams {
        seed: Some(1),
        max_tokens: 40,
        ..SamplingParams::default()
    };
    let (all, end) = collect(&mut engine.generate(request(&engine, long.clone())).unwrap());
    let content = text(&all, &finished(end));
    let stop: String = content.chars().skip(3).take(2).collect();
    let stopping = SamplingParams {
        stop: vec![stop.clone()],
        ..long.clone()
    };
    let (tokens, end) = collect(&mut engine.generate(request(&engine, stopping)).unwrap());
    let end = finished(end);
    assert_eq!(
        Some(text(&tokens, &end).as_str()),
        content.split(&stop).next()
    );
    assert_eq!((end.reason, end.stop), (FinishReason::Stop, Some(stop)));

    fake.set_fault(Fault::SilentAfter(1));
    let mut generation = engine.generate(request(&engine, long)).unwrap();
    assert!(matches!(generation.blocking_next(), Some(Event::Token(_))));
    assert_eq!(engine.stats().running, 1);
    drop(generation);
    wait_until("its end", || engine.stats().running == 0);
    assert_eq!(engine.stats().cancelled, 1);
    wait_until("the server's noticing", || fake.stats().running == 0);
}

#[test]
fn an_interrupted_reply_keeps_its_tokens() {
    let mut fake = FakeServer::sglang(ReturnedLogprobs::TemperatureScaled);
    // Only the first reply waits for its timeout.
    let [impatient, engine] = [10, 3600].map(|seconds| {
        let (engine, _) = fake.connect(RemoteConfig {
            token_timeout: Duration::from_secs(seconds),
            ..fake.options()
        });
        engine
    });
    let sampling = SamplingParams {
        seed: Some(2),
        max_tokens: 12,
        ..SamplingParams::default()
    };
    fake.set_fault(Fault::SilentAfter(1));
    for (engine, leaves, part) in [
        (&impatient, false, "engine.remote.token_timeout"),
        (&engine, true, "connection"),
    ] {
        let mut generation = engine.generate(request(engine, sampling.clone())).unwrap();
        let first = generation.blocking_next();
        assert!(matches!(first, Some(Event::Token(_))), "{first:?}");
        if leaves {
            fake.stop();
        }
        let (_, end) = collect(&mut generation);
        let Some(Event::Failed(reason)) = end else {
            panic!("{end:?}");
        };
        assert!(reason.contains(part), "{reason}");
        assert!(reason.contains("http://"), "{reason}");
    }
    wait_until("its absence", || engine.ready().is_err());
    fake.start_listening();
    fake.set_fault(Fault::None);
    wait_until("readiness", || engine.ready().is_ok());
    let (_, end) = collect(&mut engine.generate(request(&engine, sampling)).unwrap());
    finished(end);
}

#[test]
fn a_busy_server_is_reported_with_retry_after() {
    let fake = FakeServer::vllm(ReturnedLogprobs::Raw);
    let (engine, _) = fake.connect(RemoteConfig {
        max_concurrent_requests: 1,
        ..fake.options()
    });
    fake.set_fault(Fault::Busy);
    let ask = || engine.generate(request(&engine, SamplingParams::default()));
    let refused = ask().unwrap_err();
    let SubmitError::Overloaded {
        reason,
        retry_after_s,
    } = &refused
    else {
        panic!("{refused}");
    };
    assert!(reason.contains("queue is full"), "{reason}");
    assert_eq!(*retry_after_s, 7);
    fake.set_fault(Fault::SilentAfter(1));
    wait_until("its end", || engine.stats().running == 0);
    let _one = ask().unwrap();
    let refused = ask().unwrap_err();
    assert_eq!(
        refused,
        SubmitError::Busy {
            waiting: 1,
            limit: 1
        }
    );
}
