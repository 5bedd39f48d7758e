//! Which replica gets a request: one that computed most of its prompt before, else the one with the fewest requests.
//!
//! What a replica has computed is known from the prompts that it got and the replies that it finished, not from its prefix
//! cache, which its engine thread owns: a cached prefix may have been evicted since. Then the request is only slower.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::BLOCK_TOKENS;
use crate::prefix_cache::MIN_SHARED_TOKENS;

/// Prefixes that are remembered, in two generations of this many: of about 32 million tokens of prompts.
const GENERATION: usize = 1 << 19;

/// Chooses replicas.
#[derive(Debug)]
pub(super) struct Dispatcher {
    /// Unfinished requests of each replica.
    requests: Vec<Arc<AtomicUsize>>,
    prefixes: Arc<Mutex<Prefixes>>,
}

/// A request of a replica, counted until this is dropped.
#[derive(Debug)]
pub(super) struct DispatchedRequest {
    requests: Arc<AtomicUsize>,
    replica: usize,
    /// None if there is one replica only.
    prefixes: Option<Arc<Mutex<Prefixes>>>,
}

impl DispatchedRequest {
    /// Remembers that the replica has computed these tokens with this version: the prompt and its reply, with which the next
    /// prompt of a conversation begins.
    pub(super) fn remember(&self, version: u64, tokens: &[u32]) {
        if let Some(known) = &self.prefixes {
            let prefixes = prefixes(version, tokens);
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert_all(prefixes, self.replica);
        }
    }
}

impl Drop for DispatchedRequest {
    fn drop(&mut self) {
        self.requests.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The replicas that got a prompt with a prefix, as bits, by the prefix's hash. When a generation is full, the one before it
/// is dropped.
#[derive(Debug, Default)]
struct Prefixes {
    current: HashMap<u64, u64>,
    previous: HashMap<u64, u64>,
}

impl Prefixes {
    fn replicas(&self, hash: u64) -> u64 {
        let get = |generation: &HashMap<u64, u64>| generation.get(&hash).copied().unwrap_or(0);
        get(&self.current) | get(&self.previous)
    }

    fn insert(&mut self, hash: u64, replica: usize) {
        let replicas = self.replicas(hash) | 1 << replica;
        if self.current.len() >= GENERATION {
            self.previous = std::mem::take(&mut self.current);
        }
        self.current.insert(hash, replicas);
    }

    fn insert_all(&mut self, prefixes: Vec<(usize, u64)>, replica: usize) {
        for (_, hash) in prefixes {
            self.insert(hash, replica);
        }
    }
}

/// The lengths and hashes of the prefixes of a prompt at block boundaries, and of the whole prompt.
fn prefixes(version: u64, prompt: &[u32]) -> Vec<(usize, u64)> {
    let mut hasher = DefaultHasher::new();
    version.hash(&mut hasher);
    let mut length = 0;
    let blocks = prompt.chunks(BLOCK_TOKENS).map(|block| {
        block.hash(&mut hasher);
        length += block.len();
        (length, hasher.finish())
    });
    blocks.collect()
}

impl Dispatcher {
    /// # Panics
    /// With more than 64 replicas.
    pub(super) fn new(replicas: usize) -> Self {
        assert!((1..=64).contains(&replicas), "{replicas} replicas");
        Self {
            requests: (0..replicas).map(|_| Arc::default()).collect(),
            prefixes: Arc::default(),
        }
    }

    /// Chooses the replica of a request with this prompt for this version, and counts the request there. `shares_prefix`:
    /// whether the request uses the KV cache of earlier ones.
    pub(super) fn dispatch(
        &self,
        version: u64,
        prompt: &[u32],
        shares_prefix: bool,
    ) -> (usize, DispatchedRequest) {
        if self.requests.len() == 1 {
            return (0, self.count(0));
        }
        // Locked until the request is counted, so that requests that arrive together spread.
        let mut known = self.prefixes.lock().unwrap_or_else(PoisonError::into_inner);
        let prefixes = match shares_prefix {
            true => prefixes(version, prompt),
            false => Vec::new(),
        };
        let load = |replica: &usize| self.requests[*replica].load(Ordering::SeqCst);
        let least = (0..self.requests.len()).min_by_key(load);
        let least = least.expect("there is at least one replica");
        let longest = prefixes.iter().rev().find_map(|(length, hash)| {
            let replicas = known.replicas(*hash);
            (replicas != 0).then_some((*length, replicas))
        });
        // A prefix that most of the prompt does not share, such as a system prompt, is computed again wherever it is cheap.
        // Half of the prompt in whole blocks, because only those are known.
        let half = prompt.len() / 2 / BLOCK_TOKENS * BLOCK_TOKENS;
        let replica = longest
            .filter(|(length, _)| *length >= MIN_SHARED_TOKENS.max(half))
            .and_then(|(_, replicas)| {
                let holders = (0..self.requests.len()).filter(|one| replicas >> one & 1 == 1);
                holders.min_by_key(load)
            })
            .filter(|holder| load(holder) <= load(&least) + load(&least) / 4 + 2)
            .unwrap_or(least);
        known.insert_all(prefixes, replica);
        (replica, self.count(replica))
    }

    /// Counts a request of this replica.
    pub(super) fn count(&self, replica: usize) -> DispatchedRequest {
        let requests = Arc::clone(&self.requests[replica]);
        requests.fetch_add(1, Ordering::SeqCst);
        DispatchedRequest {
            requests,
            replica,
            prefixes: (self.requests.len() > 1).then(|| Arc::clone(&self.prefixes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(length: u32, salt: u32) -> Vec<u32> {
        (0..length).map(|at| at * 7 + salt * 1000).collect()
    }

    #[test]
    fn requests_spread_over_the_replicas_with_the_fewest() {
        let dispatcher = Dispatcher::new(3);
        let mut running = Vec::new();
        for salt in 0..9 {
            let (replica, request) = dispatcher.dispatch(0, &prompt(40, salt), true);
            assert_eq!(replica, salt as usize % 3);
            running.push(request);
        }
        drop(running.remove(4));
        assert_eq!(dispatcher.dispatch(0, &prompt(40, 9), true).0, 1);
    }

    #[test]
    fn a_conversation_stays_where_its_prefix_is() {
        let dispatcher = Dispatcher::new(2);
        let first = dispatcher.dispatch(0, &prompt(100, 1), true);
        let other = dispatcher.dispatch(0, &prompt(100, 2), true);
        assert_eq!((first.0, other.0), (0, 1));
        drop((first, other));
        // The next turn of the second conversation, whose prompt begins with that of its first one.
        let turn = |length, version| dispatcher.dispatch(version, &prompt(length, 2), true).0;
        assert_eq!((turn(150, 0), turn(200, 0)), (1, 1));
        // Another version has computed nothing, and less than half is not worth waiting for.
        assert_eq!((turn(150, 5), turn(900, 0)), (0, 0));
        assert_eq!(dispatcher.dispatch(0, &prompt(150, 2), false).0, 0);
    }

    #[test]
    fn a_conversation_stays_where_its_reply_was_computed() {
        let dispatcher = Dispatcher::new(2);
        let first = dispatcher.dispatch(0, &prompt(100, 1), true);
        let (replica, request) = dispatcher.dispatch(0, &prompt(40, 2), true);
        request.remember(0, &prompt(300, 2));
        drop((first, request));
        assert_eq!(replica, 1);
        assert_eq!(dispatcher.dispatch(0, &prompt(310, 2), true).0, 1);
    }

    #[test]
    fn a_shared_prefix_does_not_keep_requests_from_idle_replicas() {
        let dispatcher = Dispatcher::new(2);
        let mut running = Vec::new();
        let mut counts = [0, 0];
        for _ in 0..40 {
            let (replica, request) = dispatcher.dispatch(0, &prompt(64, 1), true);
            counts[replica] += 1;
            running.push(request);
        }
        assert!(counts.iter().all(|count| *count >= 15), "{counts:?}");
    }

    #[test]
    fn old_prefixes_are_forgotten() {
        let mut prefixes = Prefixes::default();
        for hash in 0..3 * GENERATION as u64 {
            prefixes.insert(hash, 1);
        }
        assert!(prefixes.current.len() + prefixes.previous.len() <= 2 * GENERATION);
        assert_eq!(prefixes.replicas(0), 0);
        assert_eq!(prefixes.replicas(3 * GENERATION as u64 - 1), 2);
    }
}
