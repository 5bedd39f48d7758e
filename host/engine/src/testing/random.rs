//! Randomised scheduling: with any arrivals, cancellations and KV-cache sizes, all blocks are accounted for, every
//! request ends, and every reply matches running alone.

use std::collections::HashMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::block_table::BlockTable;

/// One request of a case and its reply.
struct TestRequest {
    request: GenerateRequest,
    generation: Option<Generation>,
    reply: Reply,
    /// The step at which it is cancelled.
    cancel_at: Option<usize>,
}

struct Case {
    engine: TestEngine,
    capacity: usize,
    chunk: usize,
}

impl Case {
    /// Checks the pool's counts against the block tables.
    fn check(&self) {
        let scheduler = &self.engine.scheduler.inner;
        let mut holders: HashMap<usize, usize> = HashMap::new();
        let caches = scheduler
            .running
            .iter()
            .filter_map(|one| one.cache.as_ref());
        for block in caches.flat_map(BlockTable::blocks) {
            *holders.entry(Arc::as_ptr(block) as usize).or_default() += 1;
        }
        let shared = holders.values().filter(|count| **count > 1).count();
        let pool = &scheduler.pool;
        assert_eq!((pool.active(), pool.shared()), (holders.len(), shared));
        assert_eq!(pool.free() + pool.active() + pool.cached(), self.capacity);
        let stats = &scheduler.stats;
        assert_eq!(
            stats.blocks_free + stats.blocks_cached + holders.len(),
            stats.blocks
        );
    }
}

fn requests(
    random: &mut ChaCha8Rng,
    capacity: usize,
    versions: &[LoadedVersion],
) -> Vec<TestRequest> {
    let max_tokens = capacity * BLOCK_TOKENS - 1;
    (0..random.random_range(4..16))
        .map(|_| {
            // Few prefixes and random suffixes, so that requests share long, short or no prefixes.
            let common = prompt(random.random_range(0..120), random.random_range(0..2));
            let own = prompt(random.random_range(1..60), random.random_range(0..4));
            let mut tokens = [common, own].concat();
            tokens.truncate(max_tokens);
            let mut request = request(tokens, random.random(), random.random_range(1..60));
            request.sampling.temperature = if random.random_bool(0.8) { 1.0 } else { 0.0 };
            request.priority = Priority::ALL[random.random_range(0..3)];
            request.version = versions[random.random_range(0..versions.len())].clone();
            let user = random.random_range(0..4);
            request.user = (user > 0).then(|| user.to_string());
            TestRequest {
                request,
                generation: None,
                reply: Reply::default(),
                cancel_at: random.random_bool(0.2).then(|| random.random_range(0..60)),
            }
        })
        .collect()
}

fn run(suite: Suite, seed: u64, versions: &[LoadedVersion]) -> (u64, u64, u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let capacity = random.random_range(2..14);
    let options = EngineOptions {
        max_num_seqs: random.random_range(1..12),
        max_num_batched_tokens: random.random_range(1..80),
        kv_cache_memory: suite.blocks(capacity),
        enable_prefix_caching: random.random_bool(0.8),
        ..EngineOptions::default()
    };
    let mut case = Case {
        capacity,
        chunk: options.max_num_batched_tokens,
        engine: suite.test_engine(options),
    };
    let mut requests = requests(&mut random, capacity, versions);
    let mut waiting: Vec<usize> = (0..requests.len()).rev().collect();
    for step in 0.. {
        assert!(step < 20_000, "seed {seed}: some request never ends");
        while !waiting.is_empty() && random.random_bool(0.4) {
            let one = &mut requests[waiting.pop().unwrap()];
            one.generation = Some(case.engine.submit(one.request.clone()).unwrap());
        }
        for one in &mut requests {
            if one.cancel_at.is_some_and(|at| at <= step) {
                one.generation = None;
            }
        }
        let before = case.engine.scheduler.inner.stats.clone();
        case.engine.step();
        case.check();
        let after = &case.engine.scheduler.inner.stats;
        assert!(after.prefill_tokens - before.prefill_tokens <= (case.chunk + 12) as u64);
        for one in &mut requests {
            if let Some(generation) = &mut one.generation {
                one.reply.poll(generation);
            }
        }
        if waiting.is_empty() && case.engine.is_idle() {
            break;
        }
    }
    for one in &requests {
        assert_eq!(one.reply.failed, None);
        if one.cancel_at.is_some() {
            continue;
        }
        let expected = suite.run_alone(one.request.clone());
        let finished = one.reply.finished.as_ref().expect("it ended");
        let mut expected_prefix = expected.clone();
        if one.reply.tokens.len() < expected.tokens.len() {
            // It ended at the capacity of the KV cache.
            assert_eq!(finished.reason, FinishReason::Length);
            let all = one.request.prompt.len() + one.reply.tokens.len();
            assert_eq!(all, capacity * BLOCK_TOKENS);
            expected_prefix.tokens.truncate(one.reply.tokens.len());
            expected_prefix.text.clone_from(&one.reply.text);
            assert!(
                expected
                    .text
                    .starts_with(one.reply.text.trim_end_matches('\u{fffd}'))
            );
        }
        one.reply.assert_agrees(&expected_prefix, suite.tolerance);
    }
    let scheduler = &mut case.engine.scheduler.inner;
    assert_eq!((scheduler.pool.active(), scheduler.stats.running), (0, 0));
    scheduler.prefix_cache.clear();
    assert_eq!(scheduler.pool.free(), capacity);
    let stats = &scheduler.stats;
    (stats.preemptions, stats.evictions, stats.prefix_hits)
}

pub fn random_cases_keep_blocks_balanced_and_match_running_alone(suite: Suite) {
    let versions = [base(), adapter_version(1), adapter_version(2)];
    let mut seen = (0, 0, 0);
    for seed in 0..80 {
        let (preemptions, evictions, hits) = run(suite, seed, &versions);
        seen = (seen.0 + preemptions, seen.1 + evictions, seen.2 + hits);
    }
    // The cases cover preemption, eviction and prefix hits.
    assert!(seen.0 > 40 && seen.1 > 100 && seen.2 > 40, "{seen:?}");
}
