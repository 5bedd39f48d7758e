//! Requests with a common prefix share its KV cache, which does not change replies.

use super::*;

fn next_turn(first: &GenerateRequest, reply: &Reply, more: u32) -> GenerateRequest {
    let mut prompt = first.prompt.clone();
    prompt.extend(reply.ids());
    prompt.extend([EOS, 10, more, 3, 4]);
    GenerateRequest {
        prompt,
        ..request(Vec::new(), 99, 10)
    }
}

pub fn next_turn_prefills_only_new_tokens(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions::default());
    let first = request(prompt(60, 1), 1, 15);
    let reply = scheduler.reply(first.clone());
    let second = next_turn(&first, &reply, 7);
    let warm = scheduler.reply(second.clone());
    warm.assert_agrees(&suite.run_alone(second), suite.tolerance);
    let finished = warm.finished.unwrap();
    assert_eq!(finished.cached_tokens, 60 + reply.tokens.len() - 1);
    assert_eq!(finished.prompt_tokens, 60 + reply.tokens.len() + 5);
    assert_eq!(scheduler.inner.stats.prefill_tokens, 60 + 6);
    assert_eq!(
        scheduler.inner.stats.cached_tokens as usize,
        finished.cached_tokens
    );
    // The second turn extends the first: only one prefix is cached.
    assert_eq!(scheduler.inner.stats.prefix_cache_entries, 1);
}

pub fn edited_history_reuses_the_unchanged_prefix(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions::default());
    scheduler.reply(request(prompt(60, 1), 1, 15));
    let mut edited = prompt(60, 1);
    edited[40] = 3;
    let warm = scheduler.reply(request(edited.clone(), 2, 10));
    warm.assert_agrees(&suite.run_alone(request(edited, 2, 10)), suite.tolerance);
    assert_eq!(warm.finished.unwrap().cached_tokens, 40);
    // The first history is still cached.
    let again = scheduler.reply(request(prompt(60, 1), 1, 15));
    again.assert_agrees(
        &suite.run_alone(request(prompt(60, 1), 1, 15)),
        suite.tolerance,
    );
    assert_eq!(again.finished.unwrap().cached_tokens, 59);
}

pub fn versions_never_share_blocks(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions::default());
    let ask = |version: LoadedVersion| GenerateRequest {
        version,
        ..request(prompt(60, 1), 1, 10)
    };
    // Hold the version, otherwise its blocks are dropped.
    let held = adapter_version(1);
    scheduler.reply(ask(held.clone()));
    for version in [adapter_version(2), base()] {
        let reply = scheduler.reply(ask(version.clone()));
        reply.assert_agrees(&suite.run_alone(ask(version)), suite.tolerance);
        assert_eq!(reply.finished.unwrap().cached_tokens, 0);
    }
    let same = scheduler.reply(ask(adapter_version(1)));
    same.assert_agrees(&suite.run_alone(ask(adapter_version(1))), suite.tolerance);
    assert_eq!(same.finished.unwrap().cached_tokens, 59);
    drop(held);
}

pub fn identical_prompts_are_prefilled_once(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions {
        max_num_batched_tokens: 50,
        ..EngineOptions::default()
    });
    let generations: Vec<Generation> = (0..3)
        .map(|seed| scheduler.admit(request(prompt(100, 1), seed, 10)))
        .collect();
    scheduler.finish();
    assert_eq!(scheduler.inner.stats.prefill_tokens, 100 + 2);
    for (seed, reply) in (0..3).zip(generations) {
        let reply = Reply::collect(reply);
        reply.assert_agrees(
            &suite.run_alone(request(prompt(100, 1), seed, 10)),
            suite.tolerance,
        );
        assert_eq!(
            reply.finished.unwrap().cached_tokens,
            if seed == 0 { 0 } else { 99 }
        );
    }
}

pub fn choices_of_one_prompt_share_its_blocks(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions::default());
    let choices: Vec<Generation> = (0..8)
        .map(|seed| scheduler.admit(request(prompt(100, 1), seed, 20)))
        .collect();
    // One request prefills the prompt, then the others start from its blocks.
    scheduler.step();
    scheduler.step();
    let blocks = |scheduler: &TestScheduler| {
        let stats = &scheduler.inner.stats;
        (stats.blocks - stats.blocks_free, stats.blocks_shared)
    };
    // Three full blocks shared by all, and a partial block for each.
    assert_eq!(blocks(&scheduler), (3 + 8, 3));
    scheduler.finish();
    for (seed, choice) in (0..8).zip(choices) {
        Reply::collect(choice).assert_agrees(
            &suite.run_alone(request(prompt(100, 1), seed, 20)),
            suite.tolerance,
        );
    }
    assert_eq!(scheduler.inner.stats.prefix_hits, 7);
    assert_eq!(blocks(&scheduler).1, 0);
}

pub fn users_with_the_same_system_prompt_share_its_blocks(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions::default());
    let system = prompt(64, 1);
    for salt in 2..6 {
        let ask = GenerateRequest {
            user: Some(salt.to_string()),
            ..request([system.clone(), prompt(30, salt)].concat(), 1, 5)
        };
        let reply = scheduler.reply(ask.clone());
        reply.assert_agrees(&suite.run_alone(ask), suite.tolerance);
        let cached = if salt == 2 { 0 } else { 64 };
        assert_eq!(reply.finished.unwrap().cached_tokens, cached);
    }
    // Two blocks shared by all four, and two of each: 94 prompt tokens and up to 4 reply tokens.
    let stats = &scheduler.inner.stats;
    assert!(stats.blocks_cached <= 2 + 4 * 2 && stats.prefix_cache_entries == 4);
    assert_eq!(stats.prefix_hits, 3);
}

pub fn cancelled_prefill_does_not_block_requests_that_waited_for_its_prefix(suite: Suite) {
    let mut scheduler = suite.scheduler(EngineOptions {
        max_num_batched_tokens: 32,
        ..EngineOptions::default()
    });
    let first = scheduler.admit(request(prompt(100, 1), 1, 10));
    let second = scheduler.admit(request(prompt(100, 1), 2, 10));
    scheduler.step();
    drop(first);
    scheduler.finish();
    Reply::collect(second).assert_agrees(
        &suite.run_alone(request(prompt(100, 1), 2, 10)),
        suite.tolerance,
    );
}

pub fn prefix_caching_can_be_disabled(suite: Suite) {
    let options = EngineOptions {
        enable_prefix_caching: false,
        ..EngineOptions::default()
    };
    let mut scheduler = suite.scheduler(options);
    scheduler.reply(request(prompt(60, 1), 1, 5));
    let again = scheduler.reply(request(prompt(60, 1), 1, 5));
    assert_eq!(again.finished.unwrap().cached_tokens, 0);
    assert_eq!(scheduler.inner.stats.prefix_cache_bytes, 0);
}

pub fn kv_cache_budget_bounds_the_prefix_cache(suite: Suite) {
    let budget = 200_000;
    let mut scheduler = suite.scheduler(EngineOptions {
        kv_cache_memory: budget,
        ..EngineOptions::default()
    });
    for salt in 0..12 {
        scheduler.reply(request(prompt(100, salt), 1, 5));
        assert!(scheduler.inner.stats.prefix_cache_bytes <= budget);
    }
    assert!(scheduler.inner.stats.prefix_cache_entries >= 1);
}
