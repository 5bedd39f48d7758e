//! Whatever arrives, goes away or grows, and however little memory there is: every block is accounted for, every
//! request ends, and each gets what it would have got alone.

use std::collections::HashMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::cache::KvCache;

/// One request of a case, and what came of it.
struct Asked {
    request: GenerateRequest,
    generation: Option<Generation>,
    reply: Reply,
    /// The step at which its reader goes away.
    leaves: Option<usize>,
}

struct Case {
    counter: Counter,
    memory: usize,
    chunk: usize,
}

impl Case {
    /// What the pool says is what the tables say.
    fn check(&self) {
        let batcher = &self.counter.bench.batcher;
        let mut holders: HashMap<usize, usize> = HashMap::new();
        let caches = batcher.active.iter().filter_map(|one| one.cache.as_ref());
        for block in caches.flat_map(KvCache::blocks) {
            *holders.entry(Arc::as_ptr(block) as usize).or_default() += 1;
        }
        let shared = holders.values().filter(|count| **count > 1).count();
        let pool = &batcher.pool;
        assert_eq!((pool.held(), pool.shared()), (holders.len(), shared));
        assert_eq!(pool.free() + pool.held() + pool.kept(), self.memory);
        let stats = &batcher.stats;
        assert_eq!(
            stats.blocks_free + stats.blocks_kept + holders.len(),
            stats.blocks
        );
    }
}

fn requests(random: &mut ChaCha8Rng, memory: usize, versions: &[Served]) -> Vec<Asked> {
    let most = memory * BLOCK_TOKENS - 1;
    (0..random.random_range(4..16))
        .map(|_| {
            // Few beginnings and random ends, so that some share much, some a little, and some nothing.
            let common = prompt(random.random_range(0..120), random.random_range(0..2));
            let own = prompt(random.random_range(1..60), random.random_range(0..4));
            let mut tokens = [common, own].concat();
            tokens.truncate(most);
            let mut request = request(tokens, random.random(), random.random_range(1..60));
            request.sampling.temperature = if random.random_bool(0.8) { 1.0 } else { 0.0 };
            request.priority = Priority::ALL[random.random_range(0..3)];
            request.served = versions[random.random_range(0..versions.len())].clone();
            let user = random.random_range(0..4);
            request.user = (user > 0).then(|| user.to_string());
            Asked {
                request,
                generation: None,
                reply: Reply::default(),
                leaves: random.random_bool(0.2).then(|| random.random_range(0..60)),
            }
        })
        .collect()
}

fn run(seed: u64, versions: &[Served]) -> (u64, u64, u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let memory = random.random_range(2..14);
    let options = EngineOptions {
        max_batch: random.random_range(1..12),
        prefill_chunk: random.random_range(1..80),
        cache_budget: blocks(memory),
        prefix_reuse: random.random_bool(0.8),
        ..EngineOptions::default()
    };
    let mut case = Case {
        memory,
        chunk: options.prefill_chunk,
        counter: Counter::new(options),
    };
    let mut asked = requests(&mut random, memory, versions);
    let mut waiting: Vec<usize> = (0..asked.len()).rev().collect();
    for step in 0.. {
        assert!(step < 20_000, "seed {seed}: some request never ends");
        while !waiting.is_empty() && random.random_bool(0.4) {
            let one = &mut asked[waiting.pop().unwrap()];
            one.generation = Some(case.counter.ask(one.request.clone()).unwrap());
        }
        for one in &mut asked {
            if one.leaves.is_some_and(|at| at <= step) {
                one.generation = None;
            }
        }
        let before = case.counter.bench.batcher.stats.clone();
        case.counter.step();
        case.check();
        let after = &case.counter.bench.batcher.stats;
        assert!(after.prefill_tokens - before.prefill_tokens <= (case.chunk + 12) as u64);
        for one in &mut asked {
            if let Some(generation) = &mut one.generation {
                one.reply.poll(generation);
            }
        }
        if waiting.is_empty() && case.counter.is_idle() {
            break;
        }
    }
    for one in &asked {
        assert_eq!(one.reply.failed, None);
        if one.leaves.is_some() {
            continue;
        }
        let right = alone(one.request.clone());
        let finished = one.reply.finished.as_ref().expect("it ended");
        let mut right_until = right.clone();
        if one.reply.tokens.len() < right.tokens.len() {
            // It was cut where the memory ends.
            assert_eq!(finished.reason, FinishReason::Length);
            let all = one.request.prompt.len() + one.reply.tokens.len();
            assert_eq!(all, memory * BLOCK_TOKENS);
            right_until.tokens.truncate(one.reply.tokens.len());
            right_until.text.clone_from(&one.reply.text);
            assert!(
                right
                    .text
                    .starts_with(one.reply.text.trim_end_matches('\u{fffd}'))
            );
        }
        one.reply.agrees(&right_until);
    }
    let batcher = &mut case.counter.bench.batcher;
    assert_eq!((batcher.pool.held(), batcher.stats.running), (0, 0));
    batcher.store.clear();
    assert_eq!(batcher.pool.free(), memory);
    let stats = &batcher.stats;
    (stats.pauses, stats.evictions, stats.prefix_hits)
}

#[test]
fn blocks_add_up_every_request_ends_and_each_gets_what_it_gets_alone() {
    let versions = [base(), version(1), version(2)];
    let mut seen = (0, 0, 0);
    for seed in 0..80 {
        let (pauses, evictions, hits) = run(seed, &versions);
        seen = (seen.0 + pauses, seen.1 + evictions, seen.2 + hits);
    }
    // The cases are not all easy ones.
    assert!(seen.0 > 40 && seen.1 > 100 && seen.2 > 40, "{seen:?}");
}
