//! KV-cache block allocation, eviction and preemption.
//!
//! A request starts when the pool has blocks for all of its tokens that no shared prefix covers, plus a reserve for
//! the requests that already run. To free blocks, the prefix cache is evicted first, then requests of lower priority
//! are preempted. When running requests outgrow the pool, the one last in precedence is preempted: it loses its blocks
//! and later recomputes its tokens, with its sampler state unchanged. The request first in precedence is never
//! preempted, and a request that the whole pool cannot hold is never admitted, so every request ends.

use std::collections::HashSet;
use std::sync::Arc;

use super::batch_slots::BatchSlots;
use super::options::Priority;
use super::prefix_cache::{self, MIN_SHARED_TOKENS};
use super::scheduler::Scheduler;
use super::sequence::Sequence;
use crate::cache::{BLOCK_TOKENS, KvCache};

/// When a request starts, one block per this many running requests stays free: each running request takes a new block
/// every [`BLOCK_TOKENS`] tokens.
const RUNNING_PER_RESERVED_BLOCK: usize = 4;

/// Result of allocating the blocks of one request.
enum Allocation {
    Ready,
    /// A request before it is prefilling a prefix that both share.
    WaitForPrefix,
    OutOfBlocks,
}

impl Scheduler {
    /// Assigns the batch slots of the next step, and allocates KV-cache blocks for requests that have none. The first
    /// request that gets no blocks blocks those after it that have none either, so that none overtakes it.
    pub(super) fn schedule_rows(&mut self) -> Vec<bool> {
        let mut slots = BatchSlots::new(&self.running, self.options.max_batch.max(1));
        let mut scheduled = vec![false; self.running.len()];
        let mut blocked = false;
        for index in 0..self.running.len() {
            let Some(sequence) = self.running.get(index) else {
                break;
            };
            let priority = sequence.priority;
            if !slots.has_free(priority) {
                continue;
            }
            let ready = match sequence.cache {
                Some(_) => true,
                None if blocked => false,
                None => match self.allocate(index) {
                    Allocation::Ready => true,
                    Allocation::WaitForPrefix => false,
                    Allocation::OutOfBlocks => {
                        blocked = true;
                        false
                    }
                },
            };
            if ready {
                slots.claim(priority);
            }
            if let Some(row) = scheduled.get_mut(index) {
                *row = ready;
            }
        }
        scheduled
    }

    /// Allocates blocks for all tokens of a request, sharing as long a prefix as possible with the prefix cache or a
    /// running request.
    fn allocate(&mut self, index: usize) -> Allocation {
        let (before, rest) = self.running.split_at_mut(index);
        let Some((sequence, after)) = rest.split_first_mut() else {
            return Allocation::WaitForPrefix;
        };
        let mut cache = KvCache::with_pool(&self.pool);
        let most = sequence.tokens.len() - 1;
        if self.options.prefix_caching && sequence.shares_prefix {
            let matched = self
                .prefix_cache
                .match_prefix(&sequence.version, &sequence.tokens, most);
            let (mut reusable, mut source, mut pending) = (matched.len(), None, 0);
            for (position, peer) in before.iter().chain(after.iter()).enumerate() {
                let Some(peer_cache) = peer
                    .cache
                    .as_ref()
                    .filter(|_| peer.shares_prefix && !peer.isolated)
                else {
                    continue;
                };
                if !peer.version.same_weights(&sequence.version) {
                    continue;
                }
                let shared =
                    prefix_cache::common_prefix_len(&peer.tokens, &sequence.tokens).min(most);
                if shared.min(peer_cache.len()) > reusable {
                    reusable = shared.min(peer_cache.len());
                    source = Some(peer_cache);
                }
                if position < index && peer.uncomputed_tokens() > 1 {
                    pending = pending.max(shared);
                }
            }
            if pending >= reusable + MIN_SHARED_TOKENS && !sequence.isolated {
                return Allocation::WaitForPrefix;
            }
            if reusable >= MIN_SHARED_TOKENS {
                cache = match source {
                    Some(peer_cache) => peer_cache.share_prefix(reusable),
                    None => self.prefix_cache.acquire(&matched, &self.pool),
                };
            }
        }
        let (tokens, priority) = (sequence.tokens.len(), sequence.priority);
        if !self.free_blocks_for(&mut cache, tokens, priority) {
            return Allocation::OutOfBlocks;
        }
        let uncomputed = tokens - cache.len();
        let reserved = cache.reserve(uncomputed).is_ok();
        let Some(sequence) = self.running.get_mut(index).filter(|_| reserved) else {
            return Allocation::OutOfBlocks;
        };
        if tokens == sequence.prompt_len {
            sequence.cached_tokens = cache.len();
            self.stats.cached_tokens += cache.len() as u64;
            self.stats.prefix_hits += u64::from(!cache.is_empty());
        }
        sequence.cache = Some(cache);
        Allocation::Ready
    }

    /// Frees the blocks that `cache` needs to hold `tokens`: evicts the prefix cache, then preempts lower priorities.
    /// Returns false if those cannot provide enough.
    fn free_blocks_for(&mut self, cache: &mut KvCache, tokens: usize, priority: Priority) -> bool {
        // Lower priorities need no reserve: they are preempted for this request.
        let keeps_blocks = |one: &&Sequence| one.cache.is_some() && one.priority <= priority;
        let running = self.running.iter().filter(keeps_blocks).count();
        let available = self.pool.free() + self.pool.cached();
        let can_free = |needed: usize| {
            needed <= available || needed <= available + self.blocks_held_below(priority)
        };
        let mut needed = cache.blocks_needed(tokens - cache.len());
        if running > 0 {
            needed += running.div_ceil(RUNNING_PER_RESERVED_BLOCK);
            if !can_free(needed) {
                return false;
            }
        } else if !can_free(needed) {
            // The partial last block is shared with the prefix cache and would have to be copied.
            cache.truncate(cache.len() - cache.len() % BLOCK_TOKENS);
            needed = cache.blocks_needed(tokens - cache.len());
        }
        while self.pool.free() < needed {
            if self.pool.cached() > 0 && self.evict() {
                continue;
            }
            let below = |one: &Sequence| one.cache.is_some() && one.priority > priority;
            match self.running.iter().rposition(below) {
                Some(victim) => self.preempt(victim),
                None => return false,
            }
        }
        true
    }

    /// Number of blocks that only requests below this priority hold.
    fn blocks_held_below(&self, priority: Priority) -> usize {
        let blocks_of = |below: bool| {
            let caches = self
                .running
                .iter()
                .filter(|one| (one.priority > priority) == below);
            let blocks = caches
                .filter_map(|one| one.cache.as_ref())
                .flat_map(KvCache::blocks);
            blocks.map(Arc::as_ptr).collect::<HashSet<_>>()
        };
        blocks_of(true).difference(&blocks_of(false)).count()
    }

    /// Reserves blocks for the scheduled tokens, preempting requests when the pool is full. Sets the count of a
    /// preempted request to 0.
    pub(super) fn reserve_blocks(&mut self, counts: &mut [usize]) {
        for index in 0..counts.len() {
            let count = counts.get(index).copied().unwrap_or(0);
            if count == 0 {
                continue;
            }
            let reserve = |running: &mut Vec<Sequence>| -> Option<bool> {
                let cache = running.get_mut(index)?.cache.as_mut()?;
                Some(cache.reserve(count).is_ok())
            };
            while reserve(&mut self.running) == Some(false) {
                if self.pool.cached() > 0 && self.evict() {
                    continue;
                }
                let last = self.running.iter().rposition(|one| one.cache.is_some());
                let holders = self
                    .running
                    .iter()
                    .filter(|one| one.cache.is_some())
                    .count();
                // A single holder can only fail because it shares its last block with the prefix cache.
                if holders == 1 && self.evict() {
                    continue;
                }
                let victim = last.unwrap_or(index);
                self.preempt(victim);
                if let Some(count) = counts.get_mut(victim) {
                    *count = 0;
                }
            }
        }
    }

    /// Evicts the least recently used block of the prefix cache.
    fn evict(&mut self) -> bool {
        let evicted = self.prefix_cache.evict();
        self.stats.evictions += u64::from(evicted);
        evicted
    }

    /// Preempts a request: drops its blocks. It recomputes its tokens once blocks are free.
    fn preempt(&mut self, index: usize) {
        if let Some(sequence) = self.running.get_mut(index) {
            sequence.cache = None;
            self.stats.preemptions += 1;
        }
    }
}
