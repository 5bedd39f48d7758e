//! Attention memory of finished requests, for those that begin with the same tokens: the next turn
//! of a conversation runs only what is new.
//!
//! Memory belongs to the weights that made it: nothing is ever lent across adapter versions.

use super::served::Served;
use crate::cache::KvCache;

/// Common tokens below which lending is not worth a copy.
pub(super) const LEAST: usize = 8;

/// Which weights made a memory, without keeping them alive.
#[derive(Debug)]
struct Weights {
    version: u64,
    digest: String,
}

impl Weights {
    fn are(&self, served: &Served) -> bool {
        self.version == served.version && self.digest == served.digest
    }
}

/// Memory of one finished request.
#[derive(Debug)]
struct Entry {
    weights: Weights,
    tokens: Vec<u32>,
    cache: KvCache,
    bytes: usize,
    used: u64,
}

/// Finished requests, the least recently used given up first when they exceed the budget.
#[derive(Debug)]
pub(super) struct PrefixStore {
    budget: usize,
    entries: Vec<Entry>,
    clock: u64,
}

impl PrefixStore {
    /// A store of at most `budget` bytes; 0 keeps nothing.
    pub(super) fn new(budget: usize) -> Self {
        Self {
            budget,
            entries: Vec::new(),
            clock: 0,
        }
    }

    /// Keeps the memory of `tokens`. Entries that it continues are given up: it serves them too.
    pub(super) fn keep(&mut self, served: &Served, mut tokens: Vec<u32>, cache: KvCache) {
        tokens.truncate(cache.len());
        let bytes = cache.bytes();
        if tokens.len() < LEAST || bytes > self.budget {
            return;
        }
        self.entries
            .retain(|entry| !(entry.weights.are(served) && tokens.starts_with(&entry.tokens)));
        self.clock += 1;
        self.entries.push(Entry {
            weights: Weights {
                version: served.version,
                digest: served.digest.clone(),
            },
            tokens,
            bytes,
            cache,
            used: self.clock,
        });
        while self.bytes() > self.budget {
            let oldest = self
                .entries
                .iter()
                .enumerate()
                .min_by_key(|(_, entry)| entry.used);
            let Some((index, _)) = oldest else { break };
            self.entries.swap_remove(index);
        }
    }

    /// Most tokens of the beginning of `tokens` that an entry holds.
    pub(super) fn longest(&self, served: &Served, tokens: &[u32]) -> usize {
        let same = self
            .entries
            .iter()
            .filter(|entry| entry.weights.are(served));
        same.map(|entry| common(&entry.tokens, tokens))
            .max()
            .unwrap_or(0)
    }

    /// Memory of the longest beginning of `tokens` that an entry holds, at most `most` tokens. The
    /// entry itself is handed out when it is used up entirely, a copy otherwise.
    pub(super) fn lend(&mut self, served: &Served, tokens: &[u32], most: usize) -> Option<KvCache> {
        self.clock += 1;
        let candidates = self.entries.iter_mut().enumerate();
        let (index, entry) = candidates
            .filter(|(_, entry)| entry.weights.are(served))
            .max_by_key(|(_, entry)| (common(&entry.tokens, tokens), entry.used))?;
        let length = common(&entry.tokens, tokens).min(most);
        if length == entry.tokens.len() {
            return Some(self.entries.swap_remove(index).cache);
        }
        entry.used = self.clock;
        Some(copy(&entry.cache, length))
    }

    /// Gives up everything.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.bytes).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// A copy of the first `length` tokens' memory, without the room of the rest.
pub(super) fn copy(cache: &KvCache, length: usize) -> KvCache {
    let mut copy = cache.clone();
    copy.truncate(length);
    if length < cache.len() / 2 {
        copy.clone()
    } else {
        copy
    }
}

/// Number of tokens with which both begin.
pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::tiny;
    use crate::model::{Model, Row};

    fn base(version: u64) -> Served {
        Served {
            version,
            digest: format!("d{version}"),
            learned: None,
        }
    }

    fn memory(model: &Model, tokens: &[u32]) -> KvCache {
        let mut cache = model.new_cache();
        model
            .forward(&mut [Row {
                tokens,
                cache: &mut cache,
                adapter: None,
            }])
            .unwrap();
        cache
    }

    #[test]
    fn the_longest_common_beginning_is_lent_and_never_across_versions() {
        let model = Model::random(tiny(), 1);
        let mut store = PrefixStore::new(1 << 20);
        let tokens: Vec<u32> = (0..20).collect();
        store.keep(&base(1), tokens.clone(), memory(&model, &tokens));
        let mut other = tokens.clone();
        other[12] = 90;
        assert_eq!(store.longest(&base(1), &other), 12);
        assert_eq!(store.longest(&base(2), &other), 0);
        assert_eq!(store.lend(&base(1), &other, 19).unwrap().len(), 12);
        assert!(store.lend(&base(2), &other, 19).is_none());
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn an_entry_that_is_continued_moves_and_is_replaced_by_its_continuation() {
        let model = Model::random(tiny(), 1);
        let mut store = PrefixStore::new(1 << 20);
        let tokens: Vec<u32> = (0..30).collect();
        store.keep(
            &base(1),
            tokens[..20].to_vec(),
            memory(&model, &tokens[..20]),
        );
        assert_eq!(store.lend(&base(1), &tokens, 29).unwrap().len(), 20);
        assert_eq!(store.len(), 0);
        store.keep(
            &base(1),
            tokens[..20].to_vec(),
            memory(&model, &tokens[..20]),
        );
        store.keep(&base(1), tokens.clone(), memory(&model, &tokens));
        assert_eq!(store.len(), 1);
        // The whole prompt again: one token must still be run, so the entry stays.
        assert_eq!(store.lend(&base(1), &tokens, 29).unwrap().len(), 29);
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn the_budget_holds_and_the_least_recently_used_goes_first() {
        let model = Model::random(tiny(), 1);
        let conversation = |first: u32| (0..16).map(|i| first + i).collect::<Vec<u32>>();
        let one = memory(&model, &conversation(0)).clone().bytes();
        let mut store = PrefixStore::new(2 * one + one / 2);
        for first in [0, 20] {
            store.keep(
                &base(1),
                conversation(first),
                memory(&model, &conversation(first)).clone(),
            );
        }
        store.lend(&base(1), &conversation(0), 15).unwrap();
        store.keep(
            &base(1),
            conversation(40),
            memory(&model, &conversation(40)).clone(),
        );
        assert!(store.bytes() <= 2 * one + one / 2);
        let held = [0, 20, 40].map(|first| store.longest(&base(1), &conversation(first)));
        assert_eq!(held, [16, 0, 16]);
    }

    #[test]
    fn nothing_is_kept_without_a_budget() {
        let model = Model::random(tiny(), 1);
        let tokens: Vec<u32> = (0..20).collect();
        let mut store = PrefixStore::new(0);
        store.keep(&base(1), tokens.clone(), memory(&model, &tokens));
        assert_eq!(store.len(), 0);
    }
}
