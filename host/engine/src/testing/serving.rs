//! The engine from its callers' point of view.

use super::*;
use crate::sampling::SamplingError;

pub fn reply_streams_and_ends_with_usage(suite: Suite) {
    let engine = suite.start(EngineOptions::default());
    let reply = Reply::collect(engine.generate(request(prompt(30, 1), 3, 12)).unwrap());
    let finished = reply.finished.clone().unwrap();
    assert_eq!(finished.completion_tokens, reply.tokens.len());
    assert_eq!((finished.prompt_tokens, finished.cached_tokens), (30, 0));
    let ids: Vec<u32> = reply.ids().into_iter().filter(|id| *id != EOS).collect();
    assert_eq!(reply.text, engine.tokenizer().decode(&ids));
    reply.assert_agrees(
        &suite.run_alone(request(prompt(30, 1), 3, 12)),
        suite.tolerance,
    );
}

pub fn eos_token_is_recorded_without_text(suite: Suite) {
    // One of 265 nearly uniform tokens is EOS: with some of these seeds the reply ends by itself.
    let mut ended = 0;
    let mut scheduler = suite.scheduler(EngineOptions::default());
    for seed in 0..20 {
        let reply = scheduler.reply(request(prompt(10, 1), seed, 60));
        let reason = reply.finished.as_ref().unwrap().reason;
        let last = reply.tokens.last().unwrap();
        assert_eq!(reason == FinishReason::Stop, last.id == EOS);
        assert_eq!(
            reply.ids().iter().filter(|id| **id == EOS).count(),
            usize::from(last.id == EOS)
        );
        if last.id == EOS {
            ended += 1;
            assert!(last.text.is_empty() && last.full_logprob < -3.0);
        } else {
            assert_eq!(reply.tokens.len(), 60);
        }
    }
    assert!(ended > 0);
}

pub fn recorded_logprobs_match_scoring(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions::default());
    let backend = suite.backend();
    let (mut sum, mut count, mut worst) = (0.0f64, 0usize, 0.0f64);
    for (seed, version) in [
        (1, base()),
        (2, adapter_version(1)),
        (3, adapter_version(2)),
    ] {
        for temperature in [0.6, 1.0, 1.7, 0.0] {
            let mut ask = request(prompt(40, seed as u32), seed, 40);
            ask.version = version.clone();
            ask.sampling.temperature = temperature;
            ask.sampling.top_p = 0.8;
            ask.sampling.frequency_penalty = 0.5;
            let reply = scheduler.reply(ask.clone());
            let mut tokens = ask.prompt.clone();
            tokens.extend(reply.ids());
            let sequence = backend::Sequence {
                tokens: &tokens,
                start: ask.prompt.len(),
                temperature: ask.sampling.full_temperature(),
                candidates: Candidates::None,
            };
            let scored = version.score(&*backend, &[sequence]).unwrap();
            for (token, scored) in reply.tokens.iter().zip(&scored[0].logprobs) {
                let delta = f64::from((token.full_logprob - scored).abs());
                (sum, count, worst) = (sum + delta, count + 1, worst.max(delta));
            }
        }
    }
    assert!(count > 300);
    assert!(
        sum / count as f64 <= suite.tolerance.recorded_mean
            && worst <= suite.tolerance.recorded_max,
        "mean {} worst {worst}",
        sum / count as f64
    );
}

pub fn stop_string_across_tokens_ends_the_reply_and_is_not_emitted(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions::default());
    let ask = request(prompt(10, 1), 4, 50);
    let free = scheduler.reply(ask.clone());
    let characters: Vec<char> = free.text.chars().collect();
    for at in [3, 10, 20] {
        let stop: String = characters[at..at + 3].iter().collect();
        let mut stopped = ask.clone();
        stopped.sampling.stop = vec!["never in it".to_owned(), stop.clone()];
        let reply = scheduler.reply(stopped);
        assert_eq!(reply.text, free.text.split(&stop).next().unwrap());
        assert_eq!(reply.finished.as_ref().unwrap().reason, FinishReason::Stop);
        // The tokens of the stop string are sampled, so they are recorded.
        assert_eq!(reply.ids(), free.ids()[..reply.tokens.len()]);
        assert!(reply.tokens.len() < free.tokens.len());
    }
}

pub fn text_held_for_a_partial_stop_string_is_not_lost(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions::default());
    let ask = request(prompt(10, 1), 4, 30);
    let free = scheduler.reply(ask.clone());
    let mut with_stop = ask;
    with_stop.sampling.stop = vec![format!("{}!never", free.text.chars().last().unwrap())];
    let reply = scheduler.reply(with_stop);
    assert_eq!(reply.text, free.text);
    assert_eq!(reply.finished.unwrap().reason, FinishReason::Length);
}

pub fn reply_finishes_on_the_version_it_started_with(suite: Suite) {
    assert_finishes_on_its_version(suite, adapter_version);
}

/// A reply that began on version 1 finishes on it while others are published.
pub(super) fn assert_finishes_on_its_version(suite: Suite, version: fn(u64) -> LoadedVersion) {
    let (engine, permits) = suite.stepwise_engine(EngineOptions::default());
    let step = || permits.send(()).unwrap();
    let old = engine.publish(1, version(1).weights);
    assert_eq!(old.digest(), version(1).digest());
    let ask = |version: LoadedVersion| GenerateRequest {
        version,
        ..request(prompt(20, 1), 6, 20)
    };
    let mut before = engine.generate(ask(engine.active())).unwrap();
    let mut reply = Reply::default();
    for _ in 0..3 {
        step();
        reply.apply(before.blocking_next().unwrap());
    }
    engine.publish(2, version(2).weights);
    let after = engine.generate(ask(engine.active())).unwrap();
    engine.publish(0, None::<TrainedWeights>);
    assert_eq!(engine.active().digest(), engine.model().digest());
    drop(permits);
    while let Some(event) = before.blocking_next() {
        reply.apply(event);
    }
    reply.assert_agrees(&suite.run_alone(ask(version(1))), suite.tolerance);
    assert_eq!((before.version().version, after.version().version), (1, 2));
    Reply::collect(after).assert_agrees(&suite.run_alone(ask(version(2))), suite.tolerance);
}

pub fn old_adapter_is_dropped_with_its_last_request(suite: Suite) {
    let engine = suite.start(EngineOptions {
        enable_prefix_caching: false,
        ..EngineOptions::default()
    });
    let version = engine.publish(1, adapter_version(1).weights);
    let watch = Arc::downgrade(version.adapter().unwrap());
    let reply = Reply::collect(
        engine
            .generate(GenerateRequest {
                version,
                ..request(prompt(9, 1), 1, 3)
            })
            .unwrap(),
    );
    assert!(reply.finished.is_some() && watch.upgrade().is_some());
    engine.publish(2, adapter_version(2).weights);
    // The engine drops a request before it admits the next one.
    Reply::collect(engine.generate(request(prompt(9, 1), 1, 1)).unwrap());
    assert!(watch.upgrade().is_none());
}

pub fn full_queue_rejects_and_cancellation_makes_room(suite: Suite) {
    let options = EngineOptions {
        max_num_seqs: 1,
        max_waiting_requests: 2,
        ..EngineOptions::default()
    };
    let (engine, permits) = suite.stepwise_engine(options);
    let ask = |priority| GenerateRequest {
        priority,
        ..request(prompt(5, 1), 1, 50)
    };
    let mut running = engine.generate(ask(Priority::Interactive)).unwrap();
    permits.send(()).unwrap();
    running.blocking_next().unwrap();
    let waiting = engine.generate(ask(Priority::Interactive)).unwrap();
    let _other = engine.generate(ask(Priority::Interactive)).unwrap();
    let busy = engine.generate(ask(Priority::Interactive)).unwrap_err();
    assert_eq!(
        busy,
        SubmitError::Busy {
            waiting: 2,
            limit: 2
        }
    );
    // Judges have their own queue: neither priority can fill the other's.
    let _judge = engine.generate(ask(Priority::Judge)).unwrap();
    assert_eq!(engine.stats().waiting, 3);
    drop(waiting);
    for _ in 0..2 {
        permits.send(()).unwrap();
        running.blocking_next().unwrap();
    }
    assert!(engine.generate(ask(Priority::Interactive)).is_ok());
}

pub fn requests_submitted_together_start_in_one_step(suite: Suite) {
    let (rows, steps) = mpsc::channel();
    let engine = suite.start_with(EngineOptions::default(), move |runner, batch| {
        let _closed = rows.send(batch.rows.len());
        runner.step(batch)
    });
    let asks = || (1..7).map(|seed| request(prompt(8, seed), seed.into(), 5));
    for generation in engine.generate_together(asks().collect()).unwrap() {
        assert!(Reply::collect(generation).finished.is_some());
    }
    assert_eq!(steps.recv().unwrap(), 6);
    // A request that is rejected keeps the others from running.
    let steps_before = engine.stats().steps;
    let asks = asks().chain([request(Vec::new(), 1, 5)]).collect();
    let error = engine.generate_together(asks).unwrap_err();
    assert_eq!(error, SubmitError::EmptyPrompt);
    let stats = engine.stats();
    assert_eq!(
        (stats.waiting, stats.running, stats.steps),
        (0, 0, steps_before)
    );
}

pub fn invalid_requests_are_rejected_before_running(suite: Suite) {
    let engine = suite.start(EngineOptions {
        max_model_len: Some(50),
        ..EngineOptions::default()
    });
    let rejection = |ask: GenerateRequest| engine.generate(ask).unwrap_err();
    // The context length is checked first, whatever else is wrong.
    let mut long = request(prompt(50, 1), 1, 5);
    long.sampling.top_p = 7.0;
    assert_eq!(
        rejection(long),
        SubmitError::ContextTooLong {
            prompt: 50,
            max: 50
        }
    );
    assert_eq!(rejection(request(vec![], 1, 5)), SubmitError::EmptyPrompt);
    assert_eq!(
        rejection(request(vec![265], 1, 5)),
        SubmitError::UnknownToken {
            id: 265,
            vocab: 265
        }
    );
    let bad = rejection(request(vec![1], 1, 0));
    assert!(matches!(
        bad,
        SubmitError::InvalidSampling(SamplingError {
            field: "max_tokens",
            ..
        })
    ));
    let reply = Reply::collect(engine.generate(request(prompt(45, 1), 1, 100)).unwrap());
    let finished = reply.finished.unwrap();
    assert!(finished.completion_tokens <= 5);
    assert!(finished.reason == FinishReason::Stop || finished.completion_tokens == 5);
    assert_eq!(engine.stats().finished + engine.stats().failed, 1);
}

pub fn shutdown_lets_replies_finish(suite: Suite) {
    block_on(async move {
        let options = EngineOptions {
            shutdown_grace: std::time::Duration::from_secs(3600),
            ..EngineOptions::default()
        };
        let (engine, permits) = suite.stepwise_engine(options);
        let expected =
            tokio::task::spawn_blocking(move || suite.run_alone(request(prompt(10, 1), 2, 8)));
        let mut generation = engine.generate(request(prompt(10, 1), 2, 8)).unwrap();
        permits.send(()).unwrap();
        let mut reply = Reply::default();
        reply.apply(generation.next().await.unwrap());
        engine.shutdown();
        assert_eq!(
            engine.generate(request(vec![1], 1, 5)).unwrap_err(),
            SubmitError::ShuttingDown
        );
        drop(permits);
        while let Some(event) = generation.next().await {
            reply.apply(event);
        }
        reply.assert_agrees(&expected.await.unwrap(), suite.tolerance);
        engine.wait_until_stopped().await;
        assert_eq!(engine.stats().running, 0);
    });
}

pub fn shutdown_fails_replies_at_the_deadline(suite: Suite) {
    block_on(async move {
        let grace = std::time::Duration::ZERO;
        let options = EngineOptions {
            max_num_seqs: 1,
            shutdown_grace: grace,
            ..EngineOptions::default()
        };
        let (engine, permits) = suite.stepwise_engine(options);
        let mut running = engine.generate(request(prompt(10, 1), 2, 400)).unwrap();
        permits.send(()).unwrap();
        assert!(matches!(running.next().await, Some(Event::Token(_))));
        let mut waiting = engine.generate(request(prompt(10, 1), 3, 400)).unwrap();
        engine.shutdown();
        drop(permits);
        engine.wait_until_stopped().await;
        let mut events = Vec::new();
        while let Some(event) = running.next().await {
            events.push(event);
        }
        assert!(
            matches!(events.last(), Some(Event::Failed(reason)) if reason.contains("shut down"))
        );
        assert!(events.len() <= 3, "{}", events.len());
        assert!(matches!(waiting.next().await, Some(Event::Failed(_))));
    });
}

pub fn engine_thread_stops_with_the_last_handle(suite: Suite) {
    block_on(async move {
        let engine = suite.start(EngineOptions::default());
        let mut generation = engine
            .clone()
            .generate(request(prompt(10, 1), 2, 5))
            .unwrap();
        let watching = tokio::spawn({
            let engine = engine.clone();
            async move {
                let (waiting, handle) = (engine.stopped_signal(), engine);
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
    });
}

pub fn generated_seed_reproduces_the_reply(suite: Suite) {
    let engine = suite.start(EngineOptions::default());
    let mut ask = request(prompt(10, 1), 0, 20);
    ask.sampling.seed = None;
    let first = engine.generate(ask.clone()).unwrap();
    ask.sampling.seed = Some(first.seed());
    let again = engine.generate(ask).unwrap();
    assert_eq!(first.seed(), again.seed());
    Reply::collect(first).assert_agrees(&Reply::collect(again), suite.tolerance);
}

pub fn benchmark_runs_until_every_reply_is_long_enough(suite: Suite) {
    let engine = suite.start(EngineOptions::default());
    let load = measure::ServeWorkload {
        streams: 3,
        prompt_tokens: 9,
        reply_tokens: 7,
        rounds: 2,
        seed: 1,
    };
    let measured = measure::measure_serving(&engine, &load).unwrap();
    assert!(measured.tokens >= 2 * 3 * 7 * 2);
    // Three rounds of uncached prompts, and of prompts that are prefilled and then cached except for their last token.
    let stats = engine.stats();
    assert_eq!(stats.prefill_tokens, 3 * 3 * (9 + 9 + 1));
    assert_eq!(stats.cached_tokens, 3 * 3 * 8);
    assert!(
        measured.first_token_ms.low > 0.0
            && measured.first_token_ms.high >= measured.first_token_ms.median
    );
    let too_long = measure::ServeWorkload {
        prompt_tokens: 600,
        ..load
    };
    assert!(matches!(
        measure::measure_serving(&engine, &too_long),
        Err(measure::MeasureError::Submit(_))
    ));
}

pub fn benchmark_fails_if_the_kv_cache_cannot_hold_all_streams(suite: Suite) {
    let load = measure::ServeWorkload {
        streams: 12,
        prompt_tokens: 40,
        reply_tokens: 30,
        rounds: 1,
        seed: 1,
    };
    let options = EngineOptions::default();
    let enough = load.kv_cache_bytes(suite.blocks(1), options.max_num_batched_tokens);
    let with = |kv_cache_memory| {
        let engine = suite.start(EngineOptions {
            kv_cache_memory,
            ..options.clone()
        });
        measure::measure_serving(&engine, &load)
    };
    assert!(with(enough).unwrap().tokens >= 12 * 30 * 2);
    let error = with(enough - 1).unwrap_err();
    assert!(
        matches!(error, measure::MeasureError::Memory { streams: 12, .. }),
        "{error}"
    );
}
