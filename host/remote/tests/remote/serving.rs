//! Replies: the same as those of the engine's own batcher, down to the recorded numbers.

use std::time::Duration;

use clawhost_policy::{Event, FinishReason, Finished, Refused, SampledToken, Sampling};
use clawhost_remote::{RemoteOptions, Reports};

use crate::server::{Fake, Fault, Returns, read, request, until};

fn finished(event: Option<Event>) -> Finished {
    match event {
        Some(Event::Finished(finished)) => finished,
        other => panic!("{other:?}"),
    }
}

fn settings() -> Vec<Sampling> {
    let with = |change: fn(&mut Sampling)| {
        let mut sampling = Sampling {
            seed: Some(11),
            max_tokens: 24,
            ..Sampling::default()
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

fn penalised() -> Sampling {
    Sampling {
        seed: Some(5),
        max_tokens: 24,
        presence_penalty: 0.4,
        repetition_penalty: 1.2,
        ..Sampling::default()
    }
}

fn near(what: &str, a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() < 1e-4, "{what}: {a} {b}");
    }
}

fn of(tokens: &[SampledToken], which: fn(&SampledToken) -> f32) -> Vec<f32> {
    tokens.iter().map(which).collect()
}

fn ids(tokens: &[SampledToken]) -> Vec<u32> {
    tokens.iter().map(|token| token.id).collect()
}

fn text(tokens: &[SampledToken], end: &Finished) -> String {
    let said: String = tokens.iter().map(|token| token.text.as_str()).collect();
    said + &end.text
}

#[test]
fn a_reply_is_recorded_as_the_own_batcher_records_it() {
    let own_engine = crate::server::engine();
    for fake in [
        Fake::vllm(Returns::Model),
        Fake::vllm(Returns::Drawn),
        Fake::sglang(Returns::Tempered),
    ] {
        let (engine, remote) = fake.behind(fake.options());
        let mut all = settings();
        if remote.reports() == Reports::Drawn {
            all.push(penalised());
        }
        for sampling in all {
            let what = format!("{:?} {sampling:?}", remote.reports());
            let asked = request(&own_engine, sampling.clone());
            let (own, own_end) = read(&mut own_engine.generate(asked).unwrap());
            let mut there = engine.generate(request(&engine, sampling.clone())).unwrap();
            assert_eq!(Some(there.seed()), sampling.seed);
            let (there, end) = read(&mut there);
            let (own_end, end) = (finished(own_end), finished(end));
            assert!(own.len() > 4, "{what}: {} tokens", own.len());
            assert_eq!(ids(&there), ids(&own), "{what}");
            assert_eq!(text(&there, &end), text(&own, &own_end), "{what}");
            // It cannot say what its constraints left, so nothing is taken for forced.
            assert!(there.iter().all(|token| !token.forced), "{what}");
            assert_eq!(end.reason, own_end.reason);
            assert_eq!(end.prompt_tokens, own_end.prompt_tokens);
            assert_eq!(end.completion_tokens, own_end.completion_tokens);
            // What is told at once is true or unknown.
            let three: [fn(&SampledToken) -> f32; 3] =
                [|t| t.logprob, |t| t.full_logprob, |t| t.model_logprob];
            for which in three {
                let (told, own) = (of(&there, which), of(&own, which));
                let known = told.iter().zip(&own).filter(|(told, _)| !told.is_nan());
                let (told, own): (Vec<f32>, Vec<f32>) = known.map(|(a, b)| (*a, *b)).unzip();
                near(&what, &told, &own);
            }
            // What is recorded is known.
            let (drawn, full) = match end.recorded {
                Some(recorded) => (recorded.logprobs, recorded.full_logprobs),
                None => (of(&there, |t| t.logprob), of(&there, |t| t.full_logprob)),
            };
            near(&what, &drawn, &of(&own, |t| t.logprob));
            near(&what, &full, &of(&own, |t| t.full_logprob));
        }
    }
}

#[test]
fn alternatives_are_those_of_the_model() {
    let own_engine = crate::server::engine();
    for fake in [Fake::vllm(Returns::Model), Fake::sglang(Returns::Tempered)] {
        let (engine, _) = fake.behind(fake.options());
        let sampling = Sampling {
            seed: Some(3),
            max_tokens: 6,
            top_logprobs: 3,
            ..Sampling::default()
        };
        let asked = request(&own_engine, sampling.clone());
        let (own, _) = read(&mut own_engine.generate(asked).unwrap());
        let (there, _) = read(&mut engine.generate(request(&engine, sampling)).unwrap());
        assert_eq!(own.len(), there.len());
        for (own, there) in own.iter().zip(&there) {
            let ids = |token: &SampledToken| token.top.iter().map(|t| t.0).collect::<Vec<_>>();
            assert_eq!(ids(own), ids(there));
        }
    }
}

#[test]
fn what_could_not_be_recorded_truly_is_refused_with_its_mend() {
    let fake = Fake::vllm(Returns::Model);
    let (engine, _) = fake.behind(fake.options());
    let refused = engine.generate(request(&engine, penalised())).unwrap_err();
    assert!(matches!(refused, Refused::Unsupported(_)), "{refused}");
    assert!(refused.to_string().contains("processed_logprobs"));
}

#[test]
fn a_stop_string_and_a_reader_that_goes_close_the_connection() {
    let fake = Fake::vllm(Returns::Model);
    let (engine, _) = fake.behind(fake.options());
    let long = Sampling {
        seed: Some(1),
        max_tokens: 40,
        ..Sampling::default()
    };
    let (all, end) = read(&mut engine.generate(request(&engine, long.clone())).unwrap());
    let said = text(&all, &finished(end));
    let stop: String = said.chars().skip(3).take(2).collect();
    let stopping = Sampling {
        stop: vec![stop.clone()],
        ..long.clone()
    };
    let (tokens, end) = read(&mut engine.generate(request(&engine, stopping)).unwrap());
    let end = finished(end);
    assert_eq!(Some(text(&tokens, &end).as_str()), said.split(&stop).next());
    assert_eq!((end.reason, end.stop), (FinishReason::Stop, Some(stop)));

    fake.fault(Fault::SilentAfter(1));
    let mut generation = engine.generate(request(&engine, long)).unwrap();
    assert!(matches!(generation.blocking_next(), Some(Event::Token(_))));
    assert_eq!(engine.stats().running, 1);
    drop(generation);
    until("its end", || engine.stats().running == 0);
    assert_eq!(engine.stats().cancelled, 1);
    until("the server's noticing", || fake.stats().running == 0);
}

#[test]
fn a_reply_that_breaks_off_keeps_what_came() {
    let mut fake = Fake::sglang(Returns::Tempered);
    let (engine, _) = fake.behind(RemoteOptions {
        idle: Duration::from_secs(2),
        ..fake.options()
    });
    let sampling = Sampling {
        seed: Some(2),
        max_tokens: 12,
        ..Sampling::default()
    };
    fake.fault(Fault::SilentAfter(1));
    for (leaves, part) in [(false, "engine.remote.idle_seconds"), (true, "connection")] {
        let mut generation = engine.generate(request(&engine, sampling.clone())).unwrap();
        let first = generation.blocking_next();
        assert!(matches!(first, Some(Event::Token(_))), "{first:?}");
        if leaves {
            fake.down();
        }
        let (_, end) = read(&mut generation);
        let Some(Event::Failed(reason)) = end else {
            panic!("{end:?}");
        };
        assert!(reason.contains(part), "{reason}");
        assert!(reason.contains("http://"), "{reason}");
    }
    until("its absence", || engine.ready().is_err());
    fake.up();
    fake.fault(Fault::None);
    until("readiness", || engine.ready().is_ok());
    let (_, end) = read(&mut engine.generate(request(&engine, sampling)).unwrap());
    finished(end);
}

#[test]
fn a_busy_server_says_when_to_come_back() {
    let fake = Fake::vllm(Returns::Model);
    let (engine, _) = fake.behind(RemoteOptions {
        max_running: 1,
        ..fake.options()
    });
    fake.fault(Fault::Busy);
    let ask = || engine.generate(request(&engine, Sampling::default()));
    let refused = ask().unwrap_err();
    let Refused::Overloaded {
        reason,
        retry_after_s,
    } = &refused
    else {
        panic!("{refused}");
    };
    assert!(reason.contains("queue is full"), "{reason}");
    assert_eq!(*retry_after_s, 7);
    fake.fault(Fault::SilentAfter(1));
    until("its end", || engine.stats().running == 0);
    let _one = ask().unwrap();
    let refused = ask().unwrap_err();
    assert_eq!(
        refused,
        Refused::Busy {
            waiting: 1,
            limit: 1
        }
    );
}
