//! Composition of steps: batching, chunked prefill, priorities.

use std::sync::Mutex;

use super::*;

/// Token counts of the rows of each step.
type Log = Arc<Mutex<Vec<Vec<usize>>>>;

fn with_log(suite: Suite, options: EngineOptions) -> (TestScheduler, Log) {
    let log = Log::default();
    let seen = Arc::clone(&log);
    let scheduler = suite.scheduler_with(options, move |runner, batch| {
        let rows = batch.rows.iter().map(|row| row.tokens.len());
        seen.lock().unwrap().push(rows.collect());
        runner.step(batch)
    });
    (scheduler, log)
}

fn admits(scheduler: &TestScheduler, priority: Priority) -> bool {
    scheduler.inner.admission_key(priority, &None).is_some()
}

pub fn batched_requests_match_running_alone(suite: Suite) {
    let requests: Vec<GenerateRequest> = (0..7)
        .map(|i| {
            let mut request = request(prompt(3 + 17 * i, i as u32), i as u64, 20);
            request.version = [base(), adapter_version(1), adapter_version(2)][i % 3].clone();
            request.sampling.temperature = [0.7, 1.0, 0.0][i % 3];
            request.sampling.top_p = if i % 2 == 0 { 0.9 } else { 1.0 };
            request.sampling.repetition_penalty = if i == 4 { 1.3 } else { 1.0 };
            request
        })
        .collect();
    let mut scheduler = suite.scheduler(EngineOptions {
        max_num_seqs: 7,
        max_num_batched_tokens: 40,
        ..EngineOptions::default()
    });
    let generations: Vec<Generation> = requests
        .iter()
        .map(|r| scheduler.admit(r.clone()))
        .collect();
    scheduler.finish();
    for (request, generation) in requests.into_iter().zip(generations) {
        Reply::collect(generation).assert_agrees(&suite.run_alone(request), suite.tolerance);
    }
    assert!(scheduler.inner.stats.mean_batch() > 4.0);
}

pub fn chunked_prefill_matches_unchunked(suite: Suite) {
    let whole = suite.run_alone(request(prompt(100, 1), 5, 12));
    for max_num_batched_tokens in [1, 7, 64, 99, 100] {
        let options = EngineOptions {
            max_num_batched_tokens,
            ..EngineOptions::default()
        };
        suite
            .scheduler(options)
            .reply(request(prompt(100, 1), 5, 12))
            .assert_agrees(&whole, suite.tolerance);
    }
}

pub fn decoding_never_waits_for_more_than_one_chunk(suite: Suite) {
    let options = EngineOptions {
        max_num_batched_tokens: 16,
        ..EngineOptions::default()
    };
    let (mut scheduler, log) = with_log(suite, options);
    let mut decoding = scheduler.admit(request(prompt(4, 1), 1, 60));
    scheduler.step();
    let _long = scheduler.admit(request(prompt(100, 2), 2, 5));
    let _short = scheduler.admit(request(prompt(9, 3), 3, 5));
    let mut reply = Reply::default();
    reply.poll(&mut decoding);
    for _ in 0..9 {
        let before = reply.tokens.len();
        scheduler.step();
        reply.poll(&mut decoding);
        assert_eq!(reply.tokens.len(), before + 1);
    }
    for rows in log.lock().unwrap().iter() {
        assert!(
            rows.iter().filter(|n| **n > 1).sum::<usize>() <= 16,
            "{rows:?}"
        );
    }
    // 109 prompt tokens at 16 per step are 7 steps; no part of a chunk is unused.
    assert_eq!(scheduler.inner.stats.prefill_tokens, 4 + 100 + 9);
    assert_eq!(
        log.lock().unwrap()[1..8]
            .iter()
            .map(|rows| rows.iter().sum::<usize>())
            .sum::<usize>(),
        109 + 7
    );
}

pub fn prefill_budget_grows_with_the_batch(suite: Suite) {
    for (replies, expected) in [(1, 32), (9, 32), (20, 63), (31, 96)] {
        let (mut scheduler, log) = with_log(
            suite,
            EngineOptions {
                max_num_seqs: 32,
                ..EngineOptions::default()
            },
        );
        let _decoding: Vec<Generation> = (0..replies)
            .map(|salt| scheduler.admit(request(prompt(4, salt), u64::from(salt), 60)))
            .collect();
        scheduler.step();
        let _long = scheduler.admit(request(prompt(300, 99), 2, 5));
        scheduler.step();
        let rows = log.lock().unwrap().pop().unwrap();
        let mut lengths = rows.clone();
        lengths.sort_unstable();
        assert_eq!(lengths.pop(), Some(expected), "{rows:?}");
        assert_eq!(lengths, vec![1; replies as usize]);
    }
}

pub fn prompts_have_the_whole_chunk_beside_replies_that_nobody_reads_as_they_grow(suite: Suite) {
    for (priority, expected) in [
        (Priority::Interactive, 32),
        (Priority::Judge, 300),
        (Priority::Training, 300),
    ] {
        let (mut scheduler, log) = with_log(suite, EngineOptions::default());
        let _decoding = scheduler.admit(GenerateRequest {
            priority,
            ..request(prompt(4, 1), 1, 60)
        });
        scheduler.step();
        let _long = scheduler.admit(request(prompt(300, 2), 2, 5));
        scheduler.step();
        let mut rows = log.lock().unwrap().pop().unwrap();
        rows.sort_unstable();
        assert_eq!(rows, [1, expected], "{priority:?}");
    }
}

pub fn interactive_requests_preempt_teachers_which_then_resume(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions {
        max_num_seqs: 1,
        ..EngineOptions::default()
    });
    let ask = |priority, salt: u32| GenerateRequest {
        priority,
        ..request(prompt(20, salt), u64::from(salt), 10)
    };
    let mut teacher = scheduler.admit(ask(Priority::Training, 1));
    scheduler.step();
    scheduler.step();
    let mut reply = Reply::default();
    reply.poll(&mut teacher);
    let so_far = reply.tokens.len();
    assert_eq!(so_far, 2);
    assert!(admits(&scheduler, Priority::Judge) && admits(&scheduler, Priority::Interactive));
    assert!(!admits(&scheduler, Priority::Training));
    let interactive = scheduler.admit(ask(Priority::Interactive, 2));
    assert!(!admits(&scheduler, Priority::Interactive) && !admits(&scheduler, Priority::Judge));
    while interactive.events.len() < 5 {
        scheduler.step();
    }
    reply.poll(&mut teacher);
    assert_eq!(reply.tokens.len(), so_far);
    scheduler.finish();
    reply.poll(&mut teacher);
    reply.assert_agrees(
        &suite.run_alone(ask(Priority::Training, 1)),
        suite.tolerance,
    );
    Reply::collect(interactive).assert_agrees(
        &suite.run_alone(ask(Priority::Interactive, 2)),
        suite.tolerance,
    );
    assert_eq!(scheduler.inner.stats.prefill_tokens, 40);
}

pub fn requests_of_one_priority_run_in_order_of_arrival(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions {
        max_num_seqs: 1,
        ..EngineOptions::default()
    });
    let mut generations: Vec<Generation> = (0..3)
        .map(|i| scheduler.admit(request(prompt(5, i), u64::from(i), 4)))
        .collect();
    let mut replies = vec![Reply::default(); 3];
    let mut order = Vec::new();
    while !scheduler.inner.is_idle() {
        scheduler.step();
        for (index, (generation, reply)) in generations.iter_mut().zip(&mut replies).enumerate() {
            let before = reply.finished.is_some();
            reply.poll(generation);
            if reply.finished.is_some() != before {
                order.push(index);
            }
        }
    }
    assert_eq!(order, [0, 1, 2]);
}

pub fn cancelled_request_frees_its_blocks_before_the_next_step(suite: Suite) {
    let (mut scheduler, log) = with_log(suite, EngineOptions::default());
    let gone = scheduler.admit(request(prompt(80, 1), 1, 100));
    let stays = scheduler.admit(request(prompt(10, 2), 2, 6));
    scheduler.step();
    let both = scheduler.inner.stats.kv_cache_bytes;
    drop(gone);
    scheduler.step();
    let stats = &scheduler.inner.stats;
    assert_eq!(
        (stats.cancelled, stats.running, stats.prefix_cache_entries),
        (1, 1, 0)
    );
    assert!(stats.kv_cache_bytes < both / 2);
    assert_eq!(log.lock().unwrap().last().unwrap(), &[1]);
    scheduler.finish();
    assert_eq!(Reply::collect(stays).tokens.len(), 6);
}
