//! Requests that begin alike share the work, and nobody can tell from the reply.

use super::*;

fn continued(first: &GenerateRequest, reply: &Reply, more: u32) -> GenerateRequest {
    let mut prompt = first.prompt.clone();
    prompt.extend(reply.ids());
    prompt.extend([END, 10, more, 3, 4]);
    GenerateRequest {
        prompt,
        ..request(Vec::new(), 99, 10)
    }
}

#[test]
fn the_next_turn_runs_only_what_is_new() {
    let mut bench = Bench::new(EngineOptions::default());
    let first = request(prompt(60, 1), 1, 15);
    let reply = bench.reply(first.clone());
    let second = continued(&first, &reply, 7);
    let warm = bench.reply(second.clone());
    warm.agrees(&alone(second));
    let finished = warm.finished.unwrap();
    assert_eq!(finished.cached_tokens, 60 + reply.tokens.len() - 1);
    assert_eq!(finished.prompt_tokens, 60 + reply.tokens.len() + 5);
    assert_eq!(bench.batcher.stats.prefill_tokens, 60 + 6);
    assert_eq!(
        bench.batcher.stats.cached_tokens as usize,
        finished.cached_tokens
    );
    // The second turn continues the first: only one memory is kept.
    assert_eq!(bench.batcher.stats.cache_entries, 1);
}

#[test]
fn a_history_that_changed_in_the_middle_reuses_what_still_holds() {
    let mut bench = Bench::new(EngineOptions::default());
    bench.reply(request(prompt(60, 1), 1, 15));
    let mut edited = prompt(60, 1);
    edited[40] = 3;
    let warm = bench.reply(request(edited.clone(), 2, 10));
    warm.agrees(&alone(request(edited, 2, 10)));
    assert_eq!(warm.finished.unwrap().cached_tokens, 40);
    // The first history is still whole.
    let again = bench.reply(request(prompt(60, 1), 1, 15));
    again.agrees(&alone(request(prompt(60, 1), 1, 15)));
    assert_eq!(again.finished.unwrap().cached_tokens, 59);
}

#[test]
fn versions_never_share() {
    let mut bench = Bench::new(EngineOptions::default());
    let ask = |served: Served| GenerateRequest {
        served,
        ..request(prompt(60, 1), 1, 10)
    };
    // Somebody holds the version: else what it made would go.
    let held = version(1);
    bench.reply(ask(held.clone()));
    for served in [version(2), base()] {
        let reply = bench.reply(ask(served.clone()));
        reply.agrees(&alone(ask(served)));
        assert_eq!(reply.finished.unwrap().cached_tokens, 0);
    }
    let same = bench.reply(ask(version(1)));
    same.agrees(&alone(ask(version(1))));
    assert_eq!(same.finished.unwrap().cached_tokens, 59);
    drop(held);
}

#[test]
fn votes_on_one_prompt_run_it_once() {
    let mut bench = Bench::new(EngineOptions {
        prefill_chunk: 50,
        ..EngineOptions::default()
    });
    let votes: Vec<Generation> = (0..3)
        .map(|seed| bench.admit(request(prompt(100, 1), seed, 10)))
        .collect();
    bench.finish();
    assert_eq!(bench.batcher.stats.prefill_tokens, 100 + 2);
    for (seed, vote) in (0..3).zip(votes) {
        let vote = Reply::all(vote);
        vote.agrees(&alone(request(prompt(100, 1), seed, 10)));
        assert_eq!(
            vote.finished.unwrap().cached_tokens,
            if seed == 0 { 0 } else { 99 }
        );
    }
}

#[test]
fn choices_of_one_prompt_hold_its_blocks_once() {
    let mut bench = Bench::new(EngineOptions::default());
    let choices: Vec<Generation> = (0..8)
        .map(|seed| bench.admit(request(prompt(100, 1), seed, 20)))
        .collect();
    // One runs the prompt, then the others begin beside it.
    bench.step();
    bench.step();
    let blocks = |bench: &Bench| {
        let stats = &bench.batcher.stats;
        (stats.blocks - stats.blocks_free, stats.blocks_shared)
    };
    // Three whole blocks for all, and for each the one in which it goes on.
    assert_eq!(blocks(&bench), (3 + 8, 3));
    bench.finish();
    for (seed, choice) in (0..8).zip(choices) {
        Reply::all(choice).agrees(&alone(request(prompt(100, 1), seed, 20)));
    }
    assert_eq!(bench.batcher.stats.prefix_hits, 7);
    assert_eq!(blocks(&bench).1, 0);
}

#[test]
fn users_with_the_same_system_prompt_share_its_blocks() {
    let mut bench = Bench::new(EngineOptions::default());
    let system = prompt(64, 1);
    for salt in 2..6 {
        let ask = GenerateRequest {
            user: Some(salt.to_string()),
            ..request([system.clone(), prompt(30, salt)].concat(), 1, 5)
        };
        let reply = bench.reply(ask.clone());
        reply.agrees(&alone(ask));
        let cached = if salt == 2 { 0 } else { 64 };
        assert_eq!(reply.finished.unwrap().cached_tokens, cached);
    }
    // Two blocks of all four, and two of each: 94 tokens of prompt and up to 4 of reply.
    let stats = &bench.batcher.stats;
    assert!(stats.blocks_kept <= 2 + 4 * 2 && stats.cache_entries == 4);
    assert_eq!(stats.prefix_hits, 3);
}

#[test]
fn a_lender_that_goes_away_does_not_hold_up_those_who_waited_for_it() {
    let mut bench = Bench::new(EngineOptions {
        prefill_chunk: 32,
        ..EngineOptions::default()
    });
    let first = bench.admit(request(prompt(100, 1), 1, 10));
    let second = bench.admit(request(prompt(100, 1), 2, 10));
    bench.step();
    drop(first);
    bench.finish();
    Reply::all(second).agrees(&alone(request(prompt(100, 1), 2, 10)));
}

#[test]
fn reuse_can_be_switched_off() {
    let options = EngineOptions {
        prefix_reuse: false,
        ..EngineOptions::default()
    };
    let mut bench = Bench::new(options);
    bench.reply(request(prompt(60, 1), 1, 5));
    let again = bench.reply(request(prompt(60, 1), 1, 5));
    assert_eq!(again.finished.unwrap().cached_tokens, 0);
    assert_eq!(bench.batcher.stats.cache_bytes, 0);
}

#[test]
fn the_budget_bounds_what_is_kept() {
    let budget = 200_000;
    let mut bench = Bench::new(EngineOptions {
        cache_budget: budget,
        ..EngineOptions::default()
    });
    for salt in 0..12 {
        bench.reply(request(prompt(100, salt), 1, 5));
        assert!(bench.batcher.stats.cache_bytes <= budget);
    }
    assert!(bench.batcher.stats.cache_entries >= 1);
}
