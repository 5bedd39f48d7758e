//! The engine as its callers see it.

use super::*;
use crate::grad;
use crate::sampling::SamplingError;

#[test]
fn a_reply_streams_and_ends_with_its_numbers() {
    let engine = start(EngineOptions::default());
    let reply = Reply::all(engine.generate(request(prompt(30, 1), 3, 12)).unwrap());
    let finished = reply.finished.clone().unwrap();
    assert_eq!(finished.completion_tokens, reply.tokens.len());
    assert_eq!((finished.prompt_tokens, finished.cached_tokens), (30, 0));
    let ids: Vec<u32> = reply.ids().into_iter().filter(|id| *id != END).collect();
    assert_eq!(reply.text, engine.tokenizer().decode(&ids));
    reply.agrees(&alone(request(prompt(30, 1), 3, 12)));
}

#[test]
fn the_end_token_is_recorded_and_gives_no_text() {
    // Of 265 nearly even tokens one is the end: among these seeds some reply ends by itself.
    let mut ended = 0;
    let mut bench = Bench::new(EngineOptions::default());
    for seed in 0..20 {
        let reply = bench.reply(request(prompt(10, 1), seed, 60));
        let reason = reply.finished.as_ref().unwrap().reason;
        let last = reply.tokens.last().unwrap();
        assert_eq!(reason == FinishReason::Stop, last.id == END);
        assert_eq!(
            reply.ids().iter().filter(|id| **id == END).count(),
            usize::from(last.id == END)
        );
        if last.id == END {
            ended += 1;
            assert!(last.text.is_empty() && last.full_logprob < -3.0);
        } else {
            assert_eq!(reply.tokens.len(), 60);
        }
    }
    assert!(ended > 0);
}

#[test]
fn recorded_logprobs_are_those_of_scoring_the_same_tokens() {
    let mut bench = Bench::new(EngineOptions::default());
    let model = model();
    let (mut sum, mut count, mut worst) = (0.0f64, 0usize, 0.0f64);
    for (seed, served) in [(1, base()), (2, version(1)), (3, version(2))] {
        for temperature in [0.6, 1.0, 1.7, 0.0] {
            let mut ask = request(prompt(40, seed as u32), seed, 40);
            ask.served = served.clone();
            ask.sampling.temperature = temperature;
            ask.sampling.top_p = 0.8;
            ask.sampling.frequency_penalty = 0.5;
            let reply = bench.reply(ask.clone());
            let mut tokens = ask.prompt.clone();
            tokens.extend(reply.ids());
            let sequence = grad::Sequence {
                tokens: &tokens,
                start: ask.prompt.len(),
                temperature: ask.sampling.full_temperature(),
                candidates: grad::Candidates::None,
            };
            let scored = served.score(&model, &[sequence]).unwrap();
            for (token, scored) in reply.tokens.iter().zip(&scored[0].logprobs) {
                let delta = f64::from((token.full_logprob - scored).abs());
                (sum, count, worst) = (sum + delta, count + 1, worst.max(delta));
            }
        }
    }
    assert!(count > 300);
    assert!(
        sum / count as f64 <= 1e-4 && worst <= 1e-3,
        "mean {} worst {worst}",
        sum / count as f64
    );
}

#[test]
fn a_stop_string_over_token_borders_ends_the_reply_and_never_shows() {
    let mut bench = Bench::new(EngineOptions::default());
    let ask = request(prompt(10, 1), 4, 50);
    let free = bench.reply(ask.clone());
    let characters: Vec<char> = free.text.chars().collect();
    for at in [3, 10, 20] {
        let stop: String = characters[at..at + 3].iter().collect();
        let mut stopped = ask.clone();
        stopped.sampling.stop = vec!["never in it".to_owned(), stop.clone()];
        let reply = bench.reply(stopped);
        assert_eq!(reply.text, free.text.split(&stop).next().unwrap());
        assert_eq!(reply.finished.as_ref().unwrap().reason, FinishReason::Stop);
        // Tokens of the stop string were sampled, so they are recorded.
        assert_eq!(reply.ids(), free.ids()[..reply.tokens.len()]);
        assert!(reply.tokens.len() < free.tokens.len());
    }
}

#[test]
fn text_held_for_a_stop_string_that_never_comes_is_not_lost() {
    let mut bench = Bench::new(EngineOptions::default());
    let ask = request(prompt(10, 1), 4, 30);
    let free = bench.reply(ask.clone());
    let mut hopeful = ask;
    hopeful.sampling.stop = vec![format!("{}!never", free.text.chars().last().unwrap())];
    let reply = bench.reply(hopeful);
    assert_eq!(reply.text, free.text);
    assert_eq!(reply.finished.unwrap().reason, FinishReason::Length);
}

#[test]
fn a_stream_ends_on_the_version_that_it_began_with() {
    let (engine, permits) = gated(EngineOptions::default());
    let step = || permits.send(()).unwrap();
    let old = engine.publish(1, version(1).learned);
    assert_eq!(old.digest, version(1).digest);
    let ask = |served: Served| GenerateRequest {
        served,
        ..request(prompt(20, 1), 6, 20)
    };
    let mut before = engine.generate(ask(engine.active())).unwrap();
    let mut reply = Reply::default();
    for _ in 0..3 {
        step();
        reply.add(before.blocking_next().unwrap());
    }
    engine.publish(2, version(2).learned);
    let after = engine.generate(ask(engine.active())).unwrap();
    engine.publish(0, None::<Learned>);
    assert_eq!(engine.active().digest, engine.model().digest());
    drop(permits);
    while let Some(event) = before.blocking_next() {
        reply.add(event);
    }
    reply.agrees(&alone(ask(version(1))));
    assert_eq!((before.served().version, after.served().version), (1, 2));
    Reply::all(after).agrees(&alone(ask(version(2))));
}

#[test]
fn an_old_adapter_is_dropped_with_its_last_request() {
    let engine = start(EngineOptions {
        prefix_reuse: false,
        ..EngineOptions::default()
    });
    let served = engine.publish(1, version(1).learned);
    let watch = Arc::downgrade(served.adapter().unwrap());
    let reply = Reply::all(
        engine
            .generate(GenerateRequest {
                served,
                ..request(prompt(9, 1), 1, 3)
            })
            .unwrap(),
    );
    assert!(reply.finished.is_some() && watch.upgrade().is_some());
    engine.publish(2, version(2).learned);
    // The engine lets go of a request before it takes on the next one.
    Reply::all(engine.generate(request(prompt(9, 1), 1, 1)).unwrap());
    assert!(watch.upgrade().is_none());
}

#[test]
fn a_full_queue_refuses_and_a_reader_that_goes_away_makes_room() {
    let options = EngineOptions {
        max_batch: 1,
        max_waiting: 2,
        ..EngineOptions::default()
    };
    let (engine, permits) = gated(options);
    let ask = |priority| GenerateRequest {
        priority,
        ..request(prompt(5, 1), 1, 50)
    };
    let mut running = engine.generate(ask(Priority::Person)).unwrap();
    permits.send(()).unwrap();
    running.blocking_next().unwrap();
    let waiting = engine.generate(ask(Priority::Person)).unwrap();
    let _other = engine.generate(ask(Priority::Person)).unwrap();
    let busy = engine.generate(ask(Priority::Person)).unwrap_err();
    assert_eq!(
        busy,
        Refused::Busy {
            waiting: 2,
            limit: 2
        }
    );
    // Judges have a queue of their own: they can neither crowd people out nor be crowded out.
    let _judge = engine.generate(ask(Priority::Judge)).unwrap();
    assert_eq!(engine.stats().waiting, 3);
    drop(waiting);
    for _ in 0..2 {
        permits.send(()).unwrap();
        running.blocking_next().unwrap();
    }
    assert!(engine.generate(ask(Priority::Person)).is_ok());
}

#[test]
fn what_cannot_be_served_is_refused_before_anything_is_done() {
    let engine = start(EngineOptions {
        context: Some(50),
        ..EngineOptions::default()
    });
    let refused = |ask: GenerateRequest| engine.generate(ask).unwrap_err();
    // The context comes first, whatever else is wrong.
    let mut long = request(prompt(50, 1), 1, 5);
    long.sampling.top_p = 7.0;
    assert_eq!(
        refused(long),
        Refused::ContextTooLong {
            prompt: 50,
            max: 50
        }
    );
    assert_eq!(refused(request(vec![], 1, 5)), Refused::EmptyPrompt);
    assert_eq!(
        refused(request(vec![265], 1, 5)),
        Refused::UnknownToken {
            id: 265,
            vocab: 265
        }
    );
    let bad = refused(request(vec![1], 1, 0));
    assert!(matches!(
        bad,
        Refused::BadSampling(SamplingError {
            field: "max_tokens",
            ..
        })
    ));
    let reply = Reply::all(engine.generate(request(prompt(45, 1), 1, 100)).unwrap());
    let finished = reply.finished.unwrap();
    assert!(finished.completion_tokens <= 5);
    assert!(finished.reason == FinishReason::Stop || finished.completion_tokens == 5);
    assert_eq!(engine.stats().finished + engine.stats().failed, 1);
}

#[tokio::test]
async fn shutdown_lets_replies_finish() {
    let (engine, permits) = gated(EngineOptions::default());
    let expected = tokio::task::spawn_blocking(|| alone(request(prompt(10, 1), 2, 8)));
    let mut generation = engine.generate(request(prompt(10, 1), 2, 8)).unwrap();
    permits.send(()).unwrap();
    let mut reply = Reply::default();
    reply.add(generation.next().await.unwrap());
    engine.shutdown();
    assert_eq!(
        engine.generate(request(vec![1], 1, 5)).unwrap_err(),
        Refused::ShuttingDown
    );
    drop(permits);
    while let Some(event) = generation.next().await {
        reply.add(event);
    }
    reply.agrees(&expected.await.unwrap());
    engine.stopped().await;
    assert_eq!(engine.stats().running, 0);
}

#[tokio::test]
async fn shutdown_cuts_replies_at_the_deadline_and_says_so() {
    let grace = std::time::Duration::ZERO;
    let options = EngineOptions {
        max_batch: 1,
        shutdown_grace: grace,
        ..EngineOptions::default()
    };
    let (engine, permits) = gated(options);
    let mut running = engine.generate(request(prompt(10, 1), 2, 400)).unwrap();
    permits.send(()).unwrap();
    assert!(matches!(running.next().await, Some(Event::Token(_))));
    let mut waiting = engine.generate(request(prompt(10, 1), 3, 400)).unwrap();
    engine.shutdown();
    drop(permits);
    engine.stopped().await;
    let mut events = Vec::new();
    while let Some(event) = running.next().await {
        events.push(event);
    }
    assert!(matches!(events.last(), Some(Event::Failed(reason)) if reason.contains("shut down")));
    assert!(events.len() <= 3, "{}", events.len());
    assert!(matches!(waiting.next().await, Some(Event::Failed(_))));
}

#[tokio::test]
async fn the_thread_ends_with_the_last_handle() {
    let engine = start(EngineOptions::default());
    let mut generation = engine
        .clone()
        .generate(request(prompt(10, 1), 2, 5))
        .unwrap();
    let watching = tokio::spawn({
        let engine = engine.clone();
        async move {
            let (waiting, handle) = (engine.stopping(), engine);
            drop(handle);
            waiting.await;
        }
    });
    drop(engine);
    watching.await.unwrap();
    let mut last = None;
    while let Some(event) = generation.next().await {
        last = Some(event);
    }
    assert!(matches!(last, Some(Event::Finished(_))));
}

#[test]
fn without_a_seed_the_one_that_was_drawn_repeats_the_reply() {
    let engine = start(EngineOptions::default());
    let mut ask = request(prompt(10, 1), 0, 20);
    ask.sampling.seed = None;
    let first = engine.generate(ask.clone()).unwrap();
    ask.sampling.seed = Some(first.seed());
    let again = engine.generate(ask).unwrap();
    assert_eq!(first.seed(), again.seed());
    Reply::all(first).agrees(&Reply::all(again));
}

#[test]
fn measuring_goes_on_until_every_reply_is_long_enough() {
    let engine = start(EngineOptions::default());
    let load = measure::ServeLoad {
        streams: 3,
        prompt_tokens: 9,
        reply_tokens: 7,
        rounds: 2,
        seed: 1,
    };
    let measured = measure::serve(&engine, &load).unwrap();
    assert!(measured.tokens >= 2 * 3 * 7 * 2);
    // Three rounds of prompts that nobody has seen, and of others that are run and then found but for their last token.
    let stats = engine.stats();
    assert_eq!(stats.prefill_tokens, 3 * 3 * (9 + 9 + 1));
    assert_eq!(stats.cached_tokens, 3 * 3 * 8);
    assert!(measured.decode_tokens_per_second.low > 0.0);
    assert!(
        measured.first_token_ms.low > 0.0
            && measured.first_token_ms.high >= measured.first_token_ms.median
    );
    let too_long = measure::ServeLoad {
        prompt_tokens: 600,
        ..load
    };
    assert!(matches!(
        measure::serve(&engine, &too_long),
        Err(measure::MeasureError::Refused(_))
    ));
}

#[test]
fn measuring_does_not_wait_for_streams_that_cannot_all_be_in_memory() {
    let load = measure::ServeLoad {
        streams: 12,
        prompt_tokens: 40,
        reply_tokens: 30,
        rounds: 1,
        seed: 1,
    };
    let options = EngineOptions::default();
    let enough = load.cache_budget(model().config(), options.prefill_chunk);
    let with = |cache_budget| {
        let engine = start(EngineOptions {
            cache_budget,
            ..options.clone()
        });
        measure::serve(&engine, &load)
    };
    assert!(with(enough).unwrap().tokens >= 12 * 30 * 2);
    let error = with(enough - 1).unwrap_err();
    assert!(
        matches!(error, measure::MeasureError::Memory { streams: 12, .. }),
        "{error}"
    );
}
