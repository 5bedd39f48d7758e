//! Who gets attention memory, and who gives it back.
//!
//! A request begins when there are blocks for all of its tokens that nobody lends it, and a few more for those that
//! run already. What is kept of finished requests goes first, then what requests of lower priority hold. When those
//! that run outgrow the pool, the last in precedence is paused: it loses its blocks and later runs its recorded
//! tokens again, with its random stream where it was. The first in precedence never loses anything, and no
//! request is taken on that the whole pool could not hold; so every request comes to an end.

use std::collections::HashSet;
use std::sync::Arc;

use super::batcher::Batcher;
use super::options::Priority;
use super::places::Places;
use super::prefix::{self, LEAST};
use super::sequence::Sequence;
use crate::cache::{BLOCK_TOKENS, KvCache};

/// Running requests for each block that stays free when another one begins: each takes a block every
/// [`BLOCK_TOKENS`] tokens.
const PER_SPARE_BLOCK: usize = 4;

/// How beginning went.
enum Begun {
    Ready,
    /// One before it is just running the prompt that they share.
    Waits,
    NoRoom,
}

impl Batcher {
    /// Gives out the places of the next step, and memory to those that have none yet: the first whose memory is not
    /// there holds up those after it that have not begun.
    pub(super) fn seat(&mut self) -> Vec<bool> {
        let mut places = Places::new(&self.active, self.options.max_batch.max(1));
        let mut seated = vec![false; self.active.len()];
        let mut blocked = false;
        for index in 0..self.active.len() {
            let Some(sequence) = self.active.get(index) else {
                break;
            };
            let priority = sequence.priority;
            if !places.has(priority) {
                continue;
            }
            let ready = match sequence.cache {
                Some(_) => true,
                None if blocked => false,
                None => match self.begin(index) {
                    Begun::Ready => true,
                    Begun::Waits => false,
                    Begun::NoRoom => {
                        blocked = true;
                        false
                    }
                },
            };
            if ready {
                places.take(priority);
            }
            if let Some(seat) = seated.get_mut(index) {
                *seat = ready;
            }
        }
        seated
    }

    /// Gives a request memory for all its tokens, as much of it as others can lend.
    fn begin(&mut self, index: usize) -> Begun {
        let (before, rest) = self.active.split_at_mut(index);
        let Some((sequence, after)) = rest.split_first_mut() else {
            return Begun::Waits;
        };
        let mut cache = KvCache::within(&self.pool);
        let most = sequence.tokens.len() - 1;
        if self.options.prefix_reuse && sequence.shares {
            let found = self.store.find(&sequence.served, &sequence.tokens, most);
            let (mut held, mut lender, mut coming) = (found.len(), None, 0);
            for (place, peer) in before.iter().chain(after.iter()).enumerate() {
                let Some(memory) = peer.cache.as_ref().filter(|_| peer.shares && !peer.suspect)
                else {
                    continue;
                };
                if !peer.served.same_weights(&sequence.served) {
                    continue;
                }
                let shared = prefix::common(&peer.tokens, &sequence.tokens).min(most);
                if shared.min(memory.len()) > held {
                    held = shared.min(memory.len());
                    lender = Some(memory);
                }
                if place < index && peer.unseen() > 1 {
                    coming = coming.max(shared);
                }
            }
            if coming >= held + LEAST && !sequence.suspect {
                return Begun::Waits;
            }
            if held >= LEAST {
                cache = match lender {
                    Some(memory) => memory.share(held),
                    None => self.store.lend(&found, &self.pool),
                };
            }
        }
        let (tokens, priority) = (sequence.tokens.len(), sequence.priority);
        if !self.make_room(&mut cache, tokens, priority) {
            return Begun::NoRoom;
        }
        let unseen = tokens - cache.len();
        let reserved = cache.reserve(unseen).is_ok();
        let Some(sequence) = self.active.get_mut(index).filter(|_| reserved) else {
            return Begun::NoRoom;
        };
        if tokens == sequence.prompt {
            sequence.reused = cache.len();
            self.stats.cached_tokens += cache.len() as u64;
            self.stats.prefix_hits += u64::from(!cache.is_empty());
        }
        sequence.cache = Some(cache);
        Begun::Ready
    }

    /// Frees what `cache` needs to hold `tokens`, if that can be had from what is kept and from lower priorities.
    fn make_room(&mut self, cache: &mut KvCache, tokens: usize, priority: Priority) -> bool {
        // Lower priorities do not count: they give what they have.
        let stays = |one: &&Sequence| one.cache.is_some() && one.priority <= priority;
        let running = self.active.iter().filter(stays).count();
        let kept = self.pool.free() + self.pool.kept();
        let has = |wanted: usize| wanted <= kept || wanted <= kept + self.held_below(priority);
        let mut wanted = cache.missing(tokens - cache.len());
        if running > 0 {
            wanted += running.div_ceil(PER_SPARE_BLOCK);
            if !has(wanted) {
                return false;
            }
        } else if !has(wanted) {
            // The border block is lent by what is kept and would have to be there twice.
            cache.truncate(cache.len() - cache.len() % BLOCK_TOKENS);
            wanted = cache.missing(tokens - cache.len());
        }
        while self.pool.free() < wanted {
            if self.pool.kept() > 0 && self.evict() {
                continue;
            }
            let below = |one: &Sequence| one.cache.is_some() && one.priority > priority;
            match self.active.iter().rposition(below) {
                Some(victim) => self.pause(victim),
                None => return false,
            }
        }
        true
    }

    /// Blocks that only requests below this priority hold.
    fn held_below(&self, priority: Priority) -> usize {
        let of = |below: bool| {
            let caches = self
                .active
                .iter()
                .filter(|one| (one.priority > priority) == below);
            let blocks = caches
                .filter_map(|one| one.cache.as_ref())
                .flat_map(KvCache::blocks);
            blocks.map(Arc::as_ptr).collect::<HashSet<_>>()
        };
        of(true).difference(&of(false)).count()
    }

    /// Makes room for the tokens that are planned; who cannot have it sits out.
    pub(super) fn grow(&mut self, counts: &mut [usize]) {
        for index in 0..counts.len() {
            let count = counts.get(index).copied().unwrap_or(0);
            if count == 0 {
                continue;
            }
            let reserve = |active: &mut Vec<Sequence>| -> Option<bool> {
                let cache = active.get_mut(index)?.cache.as_mut()?;
                Some(cache.reserve(count).is_ok())
            };
            while reserve(&mut self.active) == Some(false) {
                if self.pool.kept() > 0 && self.evict() {
                    continue;
                }
                let last = self.active.iter().rposition(|one| one.cache.is_some());
                let holders = self.active.iter().filter(|one| one.cache.is_some()).count();
                // Alone, it can only be that it shares its last block with what is kept.
                if holders == 1 && self.evict() {
                    continue;
                }
                let victim = last.unwrap_or(index);
                self.pause(victim);
                if let Some(count) = counts.get_mut(victim) {
                    *count = 0;
                }
            }
        }
    }

    /// Gives up the least recently used of what is kept.
    fn evict(&mut self) -> bool {
        let evicted = self.store.evict();
        self.stats.evictions += u64::from(evicted);
        evicted
    }

    /// Takes a request's memory; it begins again when there is enough.
    fn pause(&mut self, index: usize) {
        if let Some(sequence) = self.active.get_mut(index) {
            sequence.cache = None;
            self.stats.pauses += 1;
        }
    }
}
