//! The KV cache is bounded, and preemption does not change replies.

use super::*;

fn small(suite: Suite, count: usize) -> EngineOptions {
    EngineOptions {
        kv_cache_memory: suite.blocks(count),
        ..EngineOptions::default()
    }
}

pub fn preempted_requests_resume_with_identical_tokens(suite: Suite) {
    // Two prompts of one block that both need three.
    let mut scheduler = suite.scheduler(small(suite, 5));
    let ask = |salt: u32| request(prompt(20, salt), u64::from(salt), 70);
    let mut first = scheduler.admit(ask(1));
    let mut second = scheduler.admit(ask(2));
    let (mut one, mut two) = (Reply::default(), Reply::default());
    while scheduler.inner.stats.preemptions == 0 {
        assert!(!scheduler.inner.is_idle(), "the pool was never full");
        scheduler.step();
        one.poll(&mut first);
        two.poll(&mut second);
    }
    // The later request is preempted; the earlier one continues.
    let sent = two.clone();
    assert!(sent.tokens.len() > 40 && scheduler.inner.stats.preempted == 1);
    scheduler.step();
    one.poll(&mut first);
    two.poll(&mut second);
    assert_eq!(two, sent);
    assert_eq!(one.tokens.len(), sent.tokens.len() + 2);
    scheduler.finish();
    one.poll(&mut first);
    two.poll(&mut second);
    one.assert_agrees(&suite.run_alone(ask(1)), suite.tolerance);
    two.assert_agrees(&suite.run_alone(ask(2)), suite.tolerance);
    assert_eq!(two.tokens[..sent.tokens.len()], sent.tokens[..]);
    assert_eq!(scheduler.inner.stats.preempted, 0);
}

pub fn interactive_request_preempts_a_judge(suite: Suite) {
    let mut scheduler = suite.scheduler(small(suite, 6));
    let ask = |priority, salt: u32| GenerateRequest {
        priority,
        ..request(prompt(100, salt), u64::from(salt), 20)
    };
    let judge = scheduler.admit(ask(Priority::Judge, 1));
    scheduler.step();
    scheduler.step();
    let mut interactive = scheduler.admit(ask(Priority::Interactive, 2));
    scheduler.step();
    assert!(matches!(interactive.events.try_recv(), Ok(Event::Token(_))));
    assert_eq!(
        (
            scheduler.inner.stats.preemptions,
            scheduler.inner.stats.preempted
        ),
        (1, 1)
    );
    // Another judge request waits for both.
    let late = scheduler.admit(ask(Priority::Judge, 3));
    scheduler.finish();
    Reply::collect(judge).assert_agrees(&suite.run_alone(ask(Priority::Judge, 1)), suite.tolerance);
    Reply::collect(late).assert_agrees(&suite.run_alone(ask(Priority::Judge, 3)), suite.tolerance);
}

pub fn requests_of_training_get_blocks_under_load(suite: Suite) {
    // Four blocks are left to training, which needs two and then three of them.
    let mut scheduler = suite.scheduler(small(suite, 32));
    let ask = |priority, salt: u32| GenerateRequest {
        priority,
        ..request(prompt(40, salt), u64::from(salt), 40)
    };
    // Sixteen people ask for more than the pool holds, and each asks again at once.
    let mut people: Vec<_> = (0..16)
        .map(|salt| scheduler.admit(ask(Priority::Interactive, salt)))
        .collect();
    for _ in 0..4 {
        scheduler.step();
    }
    let mut training = scheduler.admit(ask(Priority::Training, 100));
    let (mut reply, mut answered) = (Reply::default(), 0);
    while reply.finished.is_none() {
        assert!(answered < 200, "training got no blocks");
        scheduler.step();
        reply.poll(&mut training);
        for (salt, events) in (200 + answered..).zip(&mut people) {
            let mut seen = Reply::default();
            seen.poll(events);
            if seen.finished.is_some() {
                answered += 1;
                *events = scheduler.admit(ask(Priority::Interactive, salt));
            }
        }
    }
    scheduler.finish();
    let alone = suite.run_alone(ask(Priority::Training, 100));
    reply.assert_agrees(&alone, suite.tolerance);
}

pub fn request_waits_for_its_blocks_and_is_not_overtaken(suite: Suite) {
    let mut scheduler = suite.scheduler(small(suite, 8));
    let ask = |length, salt: u32| request(prompt(length, salt), u64::from(salt), 12);
    let mut running = scheduler.admit(ask(130, 1));
    scheduler.step();
    // Five blocks are in use; this request needs six, the next one a single block.
    let mut large = scheduler.admit(ask(170, 2));
    let mut little = scheduler.admit(ask(5, 3));
    let mut replies = [Reply::default(), Reply::default(), Reply::default()];
    while replies[0].finished.is_none() {
        scheduler.step();
        replies[0].poll(&mut running);
        replies[1].poll(&mut large);
        replies[2].poll(&mut little);
        if replies[0].finished.is_none() {
            assert!(replies[1].tokens.is_empty() && replies[2].tokens.is_empty());
        }
    }
    scheduler.finish();
    replies[1].poll(&mut large);
    replies[2].poll(&mut little);
    for (reply, (length, salt)) in replies.iter().zip([(130, 1), (170, 2), (5, 3)]) {
        reply.assert_agrees(&suite.run_alone(ask(length, salt)), suite.tolerance);
    }
    assert_eq!(scheduler.inner.stats.preemptions, 0);
}

pub fn prefix_cache_is_evicted_for_running_requests(suite: Suite) {
    let mut scheduler = suite.scheduler(small(suite, 6));
    for salt in 0..5 {
        let ask = request(prompt(60, salt), u64::from(salt), 5);
        scheduler
            .reply(ask.clone())
            .assert_agrees(&suite.run_alone(ask), suite.tolerance);
        let stats = &scheduler.inner.stats;
        assert_eq!(stats.kv_cache_bytes, 0);
        assert!(stats.prefix_cache_bytes <= suite.blocks(6));
    }
    // Two blocks of each request are cached; the latest are still there.
    assert!(scheduler.inner.stats.evictions >= 4);
    let again = scheduler.reply(request(prompt(60, 4), 4, 5));
    assert_eq!(again.finished.unwrap().cached_tokens, 59);
}

pub fn prompt_larger_than_the_kv_cache_is_rejected_and_replies_end_at_its_capacity(suite: Suite) {
    let engine = suite.start(small(suite, 3));
    let max = 3 * BLOCK_TOKENS;
    let error = engine.generate(request(prompt(max, 1), 1, 5)).unwrap_err();
    assert_eq!(error, SubmitError::KvCacheTooSmall { prompt: max, max });
    assert!(error.to_string().contains("engine.kv_cache_memory"));
    let mut ask = request(prompt(max - 10, 1), 1, 50);
    ask.sampling.temperature = 0.0;
    let reply = Reply::collect(engine.generate(ask.clone()).unwrap());
    assert_eq!(reply.finished.unwrap().reason, FinishReason::Length);
    assert_eq!(reply.tokens.len(), 10);
    // The same request again shares its last block with the prefix cache, and no other block is free.
    let again = Reply::collect(engine.generate(ask).unwrap());
    assert_eq!(again.tokens, reply.tokens);
}

pub fn cancelling_waiting_or_preempted_requests_frees_everything(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions {
        enable_prefix_caching: false,
        ..small(suite, 5)
    });
    let ask = |salt: u32| request(prompt(20, salt), u64::from(salt), 70);
    let first = scheduler.admit(ask(1));
    let preempted = scheduler.admit(ask(2));
    while scheduler.inner.stats.preemptions == 0 {
        scheduler.step();
    }
    let waiting = scheduler.admit(request(prompt(90, 3), 3, 5));
    scheduler.step();
    assert_eq!(
        (
            scheduler.inner.stats.running,
            scheduler.inner.stats.preempted
        ),
        (3, 2)
    );
    drop(preempted);
    drop(waiting);
    scheduler.step();
    let stats = &scheduler.inner.stats;
    assert_eq!((stats.running, stats.preempted, stats.cancelled), (1, 0, 2));
    scheduler.finish();
    Reply::collect(first).assert_agrees(&suite.run_alone(ask(1)), suite.tolerance);
    assert_eq!(scheduler.inner.stats.blocks_free, 5);
}
