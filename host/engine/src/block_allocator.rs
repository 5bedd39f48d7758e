//! KV-cache block allocation, eviction and preemption.
//!
//! A request starts when the pool has blocks for all of its tokens that no shared prefix covers, plus a reserve for
//! the requests that already run. To free blocks, the prefix cache is evicted first, then requests of lower priority
//! are preempted. When running requests outgrow the pool, the one last in precedence is preempted: it loses its blocks
//! and later recomputes its tokens, with its sampler state unchanged. The request first in precedence is never
//! preempted, and a request that the whole pool cannot hold is never admitted, so every request ends.
//!
//! As with batch slots, requests leave blocks to lower priorities that want them, so that judges and training slow down
//! under load but never starve: an eighth of the pool, or what the first of those requests needs, up to half of it.

use std::collections::HashSet;

use crate::backend::BLOCK_TOKENS;
use crate::batch_slots::{self, BatchSlots};
use crate::block_table::BlockTable;
use crate::options::Priority;
use crate::prefix_cache::{self, MIN_SHARED_TOKENS};
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;

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
    /// request that gets no blocks blocks those of its priority after it that have none either, so that none overtakes it.
    pub(super) fn schedule_rows(&mut self) -> Vec<bool> {
        let mut slots = BatchSlots::new(&self.running, self.options.max_num_seqs.max(1));
        let mut scheduled = vec![false; self.running.len()];
        let mut blocked = None;
        for (index, row) in scheduled.iter_mut().enumerate() {
            let sequence = &self.running[index];
            let priority = sequence.priority;
            if !slots.has_free(priority) {
                continue;
            }
            let ready = match sequence.cache {
                Some(_) => true,
                None if blocked == Some(priority) => false,
                None => match self.allocate(index) {
                    Allocation::Ready => true,
                    Allocation::WaitForPrefix => false,
                    Allocation::OutOfBlocks => {
                        blocked = Some(priority);
                        false
                    }
                },
            };
            if ready {
                slots.claim(priority);
            }
            *row = ready;
        }
        scheduled
    }

    /// Allocates blocks for all tokens of a request, sharing as long a prefix as possible with the prefix cache or a
    /// running request.
    fn allocate(&mut self, index: usize) -> Allocation {
        let sequence = &self.running[index];
        let mut cache = BlockTable::new(&self.pool);
        let most = sequence.tokens.len() - 1;
        if self.options.enable_prefix_caching && sequence.shares_prefix {
            let matched = self
                .prefix_cache
                .match_prefix(&sequence.version, &sequence.tokens, most);
            let (mut reusable, mut source, mut pending) = (matched.len(), None, 0);
            for (position, peer) in self.running.iter().enumerate() {
                // The request itself has no blocks.
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
        cache
            .reserve(uncomputed, &mut self.copies)
            .expect("enough blocks were freed");
        let sequence = &mut self.running[index];
        if tokens == sequence.prompt_len {
            sequence.cached_tokens = cache.len();
            self.stats.cached_tokens += cache.len() as u64;
            self.stats.prefix_hits += u64::from(!cache.is_empty());
        }
        sequence.cache = Some(cache);
        Allocation::Ready
    }

    /// Frees the blocks that `cache` needs to hold `tokens`: evicts the prefix cache, then preempts lower priorities.
    /// Returns false, with nothing evicted or preempted, if those cannot provide enough.
    fn free_blocks_for(
        &mut self,
        cache: &mut BlockTable,
        tokens: usize,
        priority: Priority,
    ) -> bool {
        // Lower priorities need no reserve: they are preempted for this request.
        let keeps_blocks = |one: &&Sequence| one.cache.is_some() && one.priority <= priority;
        let running = self.running.iter().filter(keeps_blocks).count();
        let available = self.pool.free() + self.pool.cached();
        let mut needed = cache.blocks_needed(tokens - cache.len());
        needed += running.div_ceil(RUNNING_PER_RESERVED_BLOCK);
        let reserved = self.blocks_reserved_below(priority);
        let is_short = (needed + reserved > available)
            && needed + reserved > available + self.blocks_held_below(priority, Some(cache));
        if is_short {
            if running > 0 {
                return false;
            }
            // The partial last block is shared with the prefix cache and would have to be copied.
            cache.truncate(cache.len() - cache.len() % BLOCK_TOKENS);
            needed = cache.blocks_needed(tokens - cache.len());
        }
        while self.pool.free() < needed {
            if self.pool.cached() > 0 && self.evict() {
                continue;
            }
            let below = |one: &Sequence| one.cache.is_some() && one.priority > priority;
            let victim = self.running.iter().rposition(below);
            self.preempt(victim.expect("the pool holds any admitted request"));
        }
        true
    }

    /// Number of blocks that only requests below this priority hold, and `cache` does not.
    fn blocks_held_below(&self, priority: Priority, cache: Option<&BlockTable>) -> usize {
        let tables = |below: bool| {
            let requests = self
                .running
                .iter()
                .filter(move |one| (one.priority > priority) == below);
            requests.filter_map(|one| one.cache.as_ref())
        };
        let ids = |table: &BlockTable| table.ids().to_vec();
        let below: HashSet<_> = tables(true).flat_map(ids).collect();
        let others = tables(false).chain(cache).flat_map(ids).collect();
        below.difference(&others).count()
    }

    /// Number of blocks that requests of this priority and above leave to those below.
    fn blocks_reserved_below(&self, priority: Priority) -> usize {
        let below = self.running.iter().filter(|one| one.priority > priority);
        let mut wanted = below.map(|one| (one.tokens.len() + 1).div_ceil(BLOCK_TOKENS));
        let Some(first) = wanted.next() else {
            return 0;
        };
        let capacity = self.pool.capacity();
        let most = (capacity / batch_slots::RESERVED_FRACTION).max(first.min(capacity / 2));
        most.min(first + wanted.sum::<usize>())
    }

    /// The request that is preempted when one of this priority needs another block: the last in precedence, but none of
    /// those for which blocks are reserved.
    fn preemption_victim(&self, requester: Priority) -> usize {
        let is_reserved = Priority::ALL.map(|priority| {
            let above = Priority::ALL.into_iter().rfind(|one| *one < priority);
            above.is_some_and(|above| {
                let reserved = self.blocks_reserved_below(above);
                let more = usize::from(requester > above);
                reserved > 0 && self.blocks_held_below(above, None) + more <= reserved
            })
        });
        let mut holders = self
            .running
            .iter()
            .enumerate()
            .filter(|(_, one)| one.cache.is_some());
        let (first, _) = holders.next().expect("the requester has blocks");
        let last = holders.clone().next_back();
        let unreserved = holders.rfind(|(_, one)| !is_reserved[one.priority as usize]);
        unreserved.or(last).map_or(first, |(index, _)| index)
    }

    /// Reserves blocks for the scheduled tokens, preempting requests when the pool is full. Sets the count of a
    /// preempted request to 0.
    pub(super) fn reserve_blocks(&mut self, counts: &mut [usize]) {
        for index in 0..counts.len() {
            while counts[index] > 0 {
                let cache = self.running[index].cache.as_mut();
                let cache = cache.expect("scheduled requests have blocks");
                if cache.reserve(counts[index], &mut self.copies).is_ok() {
                    break;
                }
                if self.pool.cached() > 0 && self.evict() {
                    continue;
                }
                let holders = || self.running.iter().filter(|one| one.cache.is_some());
                // A single holder can only fail because it shares its last block with the prefix cache.
                if holders().count() == 1 && self.evict() {
                    continue;
                }
                let victim = self.preemption_victim(self.running[index].priority);
                self.preempt(victim);
                counts[victim] = 0;
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
        self.running[index].cache = None;
        self.stats.preemptions += 1;
    }
}
