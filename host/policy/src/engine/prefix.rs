//! Attention memory of finished requests, for those that begin with the same tokens: the next turn
//! of a conversation runs only what is new, and everybody shares a system prompt.
//!
//! It is a tree of blocks for each version: a path from the root is a beginning, and those that begin alike share
//! its first blocks. Memory belongs to the weights that made it: nothing is ever lent across adapter versions, and
//! what a version made goes when nobody holds that version any more.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Weak};

use super::served::Served;
use crate::cache::{BLOCK_TOKENS, Block, KvCache, Pool};
use crate::learned::Learned;
use crate::lora::Adapter;
use crate::model::Model;

/// Common tokens below which lending is not worth a copy of the block in which they end.
pub(super) const LEAST: usize = 8;

/// Which weights made a memory, without keeping them alive.
#[derive(Debug)]
struct Weights {
    version: u64,
    digest: String,
    learned: Alive,
}

/// Whether somebody still holds them.
#[derive(Debug)]
enum Alive {
    Base,
    Lora(Weak<Adapter>),
    Full(Weak<Model>),
}

impl Weights {
    fn of(served: &Served) -> Self {
        Self {
            version: served.version,
            digest: served.digest.clone(),
            learned: match &served.learned {
                None => Alive::Base,
                Some(Learned::Lora(adapter)) => Alive::Lora(Arc::downgrade(adapter)),
                Some(Learned::Full(model)) => Alive::Full(Arc::downgrade(model)),
            },
        }
    }

    fn are(&self, served: &Served) -> bool {
        self.version == served.version && self.digest == served.digest
    }

    fn are_held(&self) -> bool {
        match &self.learned {
            Alive::Base => true,
            Alive::Lora(adapter) => adapter.strong_count() > 0,
            Alive::Full(model) => model.strong_count() > 0,
        }
    }
}

/// Number of a node.
type Id = u64;

/// A block and the tokens in it: [`BLOCK_TOKENS`] of them, or fewer at the end of a path.
#[derive(Debug)]
struct Node {
    /// None for a root.
    parent: Option<Id>,
    tokens: Arc<[u32]>,
    /// None for a root.
    block: Option<Arc<Block>>,
    children: BTreeMap<Arc<[u32]>, Id>,
    /// When it was used last; no two nodes have the same.
    used: u64,
}

/// Where a beginning lies.
#[derive(Debug, Default)]
pub(super) struct Found {
    path: Vec<Id>,
    len: usize,
}

impl Found {
    /// Tokens that are there.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// What is kept, the least recently used given up first.
#[derive(Debug, Default)]
pub(super) struct PrefixStore {
    roots: Vec<(Weights, Id)>,
    nodes: HashMap<Id, Node>,
    /// Nodes without children that are no roots, by when they were used.
    leaves: BTreeMap<u64, Id>,
    clock: u64,
    last: Id,
}

impl PrefixStore {
    /// The longest beginning of `tokens` that is there, at most `most` tokens.
    pub(super) fn find(&self, served: &Served, tokens: &[u32], most: usize) -> Found {
        let mut found = Found::default();
        let Some(mut at) = self.root(served) else {
            return found;
        };
        while found.len < most {
            let rest = tokens.get(found.len..).unwrap_or_default();
            let chunk = rest.get(..BLOCK_TOKENS).unwrap_or(rest);
            let Some((child, shared)) = self.nodes.get(&at).and_then(|node| nearest(node, chunk))
            else {
                break;
            };
            found.path.push(child);
            found.len += shared;
            at = child;
            if shared < BLOCK_TOKENS {
                break;
            }
        }
        found.len = found.len.min(most);
        found.path.truncate(found.len.div_ceil(BLOCK_TOKENS));
        found
    }

    /// What was found, to be gone on from. It counts as used now.
    pub(super) fn lend(&mut self, found: &Found, pool: &Arc<Pool>) -> KvCache {
        for id in &found.path {
            self.touch(*id);
        }
        let nodes = found.path.iter().filter_map(|id| self.nodes.get(id));
        let blocks = nodes.filter_map(|node| node.block.clone());
        KvCache::of(pool, blocks, found.len)
    }

    /// Keeps the memory of `tokens`, as many of them as the cache holds. What is there already is not kept twice.
    pub(super) fn keep(&mut self, served: &Served, tokens: &[u32], cache: &KvCache) {
        let tokens = tokens.get(..cache.len()).unwrap_or(tokens);
        if tokens.len() < LEAST {
            return;
        }
        let mut at = self.plant(served);
        for (chunk, block) in tokens.chunks(BLOCK_TOKENS).zip(cache.blocks()) {
            let known = self.nodes.get(&at).and_then(|node| nearest(node, chunk));
            at = match known {
                Some((child, shared)) if shared == chunk.len() => child,
                // What ends inside this block is served by it too.
                Some((child, shared)) if self.ends_at(child, shared) => {
                    let longer = self.add(at, chunk, block);
                    self.remove(child);
                    longer
                }
                _ => self.add(at, chunk, block),
            };
            self.touch(at);
        }
    }

    /// Gives up the least recently used end of a path; one that a running request reads only when there is no
    /// other. False when nothing is kept.
    pub(super) fn evict(&mut self) -> bool {
        let idle = |id: &Id| {
            let block = self.nodes.get(id).and_then(|node| node.block.as_ref());
            block.is_some_and(|block| !block.is_held())
        };
        let oldest = self.leaves.values().find(|id| idle(id));
        let Some(id) = oldest.or_else(|| self.leaves.values().next()).copied() else {
            return false;
        };
        self.remove(id);
        true
    }

    /// Gives up what versions made that nobody holds any more.
    pub(super) fn sweep(&mut self) {
        let dead = |(weights, _): &mut (Weights, Id)| !weights.are_held();
        let roots: Vec<(Weights, Id)> = self.roots.extract_if(.., dead).collect();
        for (_, root) in roots {
            let mut below = vec![root];
            while let Some(id) = below.pop() {
                if let Some(node) = self.nodes.remove(&id) {
                    self.leaves.remove(&node.used);
                    below.extend(node.children.into_values());
                }
            }
        }
    }

    /// Gives up everything.
    pub(super) fn clear(&mut self) {
        self.roots.clear();
        self.nodes.clear();
        self.leaves.clear();
    }

    /// Beginnings that are not the beginning of a longer one.
    pub(super) fn len(&self) -> usize {
        self.leaves.len()
    }

    fn root(&self, served: &Served) -> Option<Id> {
        let root = self.roots.iter().find(|(weights, _)| weights.are(served));
        root.map(|(_, id)| *id)
    }

    /// The root of this version.
    fn plant(&mut self, served: &Served) -> Id {
        if let Some(id) = self.root(served) {
            return id;
        }
        let id = self.insert(None, Arc::new([]), None);
        self.roots.push((Weights::of(served), id));
        id
    }

    fn add(&mut self, parent: Id, tokens: &[u32], block: &Arc<Block>) -> Id {
        let tokens: Arc<[u32]> = tokens.into();
        let id = self.insert(Some(parent), Arc::clone(&tokens), Some(Arc::clone(block)));
        if let Some(parent) = self.nodes.get_mut(&parent) {
            self.leaves.remove(&parent.used);
            parent.children.insert(tokens, id);
        }
        id
    }

    fn insert(&mut self, parent: Option<Id>, tokens: Arc<[u32]>, block: Option<Arc<Block>>) -> Id {
        self.last += 1;
        self.clock += 1;
        let node = Node {
            parent,
            tokens,
            block,
            children: BTreeMap::new(),
            used: self.clock,
        };
        if parent.is_some() {
            self.leaves.insert(self.clock, self.last);
        }
        self.nodes.insert(self.last, node);
        self.last
    }

    /// Takes out a node without children. What it hung from may become an end itself; a root goes with its last.
    fn remove(&mut self, id: Id) {
        let Some(node) = self.nodes.remove(&id) else {
            return;
        };
        self.leaves.remove(&node.used);
        let Some(above) = node.parent else { return };
        let Some(parent) = self.nodes.get_mut(&above) else {
            return;
        };
        parent.children.remove(&node.tokens);
        if !parent.children.is_empty() {
            return;
        }
        if parent.parent.is_some() {
            self.leaves.insert(parent.used, above);
        } else {
            self.nodes.remove(&above);
            self.roots.retain(|(_, root)| *root != above);
        }
    }

    fn touch(&mut self, id: Id) {
        self.clock += 1;
        if let Some(node) = self.nodes.get_mut(&id) {
            if self.leaves.remove(&node.used).is_some() {
                self.leaves.insert(self.clock, id);
            }
            node.used = self.clock;
        }
    }

    /// Whether a node holds only its first `shared` tokens and nothing goes on from it.
    fn ends_at(&self, id: Id, shared: usize) -> bool {
        let node = self.nodes.get(&id);
        node.is_some_and(|node| node.tokens.len() == shared && node.children.is_empty())
    }
}

/// The child that has most in common with `chunk`, and how much that is; none when it is nothing. Among sorted
/// keys it is one of the two between which `chunk` belongs.
fn nearest(node: &Node, chunk: &[u32]) -> Option<(Id, usize)> {
    let below = (Bound::Unbounded, Bound::Excluded(chunk));
    let above = (Bound::Included(chunk), Bound::Unbounded);
    let below = node.children.range::<[u32], _>(below).next_back();
    let above = node.children.range::<[u32], _>(above).next();
    above
        .into_iter()
        .chain(below)
        .map(|(tokens, id)| (*id, common(tokens, chunk)))
        .filter(|(_, shared)| *shared > 0)
        .reduce(|one, other| if other.1 > one.1 { other } else { one })
}

/// Number of tokens with which both begin.
pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::BlockShape;
    use crate::model::tests::{busy_adapter, tiny};

    fn base(version: u64) -> Served {
        Served {
            version,
            digest: format!("d{version}"),
            learned: None,
        }
    }

    fn pool(blocks: usize) -> Arc<Pool> {
        Pool::new(BlockShape::new(&tiny()), blocks)
    }

    /// Memory of so many tokens; what is in it does not matter here.
    fn memory(pool: &Arc<Pool>, tokens: &[u32]) -> KvCache {
        let mut cache = KvCache::within(pool);
        cache.reserve(tokens.len()).unwrap();
        cache.advance(tokens.len());
        cache
    }

    fn keep(store: &mut PrefixStore, pool: &Arc<Pool>, version: u64, tokens: &[u32]) {
        store.keep(&base(version), tokens, &memory(pool, tokens));
    }

    fn conversation(count: u32, salt: u32) -> Vec<u32> {
        (0..count).map(|i| (i * 37 + salt * 11 + 5) % 97).collect()
    }

    #[test]
    fn the_longest_common_beginning_is_lent_and_never_across_versions() {
        let (pool, mut store) = (pool(16), PrefixStore::default());
        for length in [20, 32, 33, 64, 90] {
            let tokens = conversation(length, length);
            keep(&mut store, &pool, 1, &tokens);
            for changed in [0, 5, 12, 31, 32, 70, 89] {
                let mut other = tokens.clone();
                if let Some(token) = other.get_mut(changed) {
                    *token += 100;
                }
                let expected = changed.min(tokens.len());
                let found = store.find(&base(1), &other, usize::MAX);
                assert_eq!(found.len(), expected);
                let lent = store.lend(&found, &pool);
                assert_eq!(lent.len(), expected);
                assert_eq!(lent.blocks().count(), expected.div_ceil(BLOCK_TOKENS));
                assert_eq!(store.find(&base(2), &other, usize::MAX).len(), 0);
            }
            let most = store.find(&base(1), &tokens, tokens.len() - 1);
            assert_eq!(most.len(), tokens.len() - 1);
        }
        let other = Served {
            digest: "other".to_owned(),
            ..base(1)
        };
        assert_eq!(store.find(&other, &conversation(90, 90), 90).len(), 0);
    }

    #[test]
    fn conversations_that_begin_alike_share_blocks() {
        let (pool, mut store) = (pool(16), PrefixStore::default());
        let system = conversation(64, 1);
        for salt in 2..5 {
            let tokens = [system.clone(), conversation(20, salt)].concat();
            keep(&mut store, &pool, 1, &tokens);
        }
        assert_eq!((store.len(), pool.kept(), pool.free()), (3, 2 + 3, 11));
        // The same again takes nothing, nor does a part of it.
        keep(
            &mut store,
            &pool,
            1,
            &[system.clone(), conversation(20, 2)].concat(),
        );
        keep(&mut store, &pool, 1, &system[..50]);
        assert_eq!((store.len(), pool.kept()), (3, 5));
        // What goes on replaces the end that it goes on from.
        let longer = [system, conversation(20, 3), conversation(30, 9)].concat();
        keep(&mut store, &pool, 1, &longer);
        assert_eq!((store.len(), pool.kept()), (3, 6));
        assert_eq!(store.find(&base(1), &longer, 200).len(), longer.len());
    }

    #[test]
    fn the_least_recently_used_end_goes_first_and_what_is_read_goes_last() {
        let (pool, mut store) = (pool(8), PrefixStore::default());
        let talks = [1, 2, 3].map(|salt| conversation(64, salt));
        for tokens in &talks {
            keep(&mut store, &pool, 1, tokens);
        }
        let found = store.find(&base(1), &talks[0], 64);
        let running = store.lend(&found, &pool);
        let found = store.find(&base(1), &talks[1], 64);
        drop(store.lend(&found, &pool));
        let held = |store: &PrefixStore| {
            [0, 1, 2].map(|talk| store.find(&base(1), &talks[talk], 64).len())
        };
        for expected in [
            [64, 64, 32],
            [64, 64, 0],
            [64, 32, 0],
            [64, 0, 0],
            [32, 0, 0],
        ] {
            assert!(store.evict());
            assert_eq!(held(&store), expected);
        }
        assert!(store.evict());
        assert!(!store.evict());
        assert_eq!((pool.held(), pool.kept(), pool.free()), (2, 0, 6));
        assert!(store.nodes.is_empty() && store.roots.is_empty() && store.leaves.is_empty());
        drop(running);
        assert_eq!(pool.free(), 8);
    }

    #[test]
    fn what_a_version_made_goes_with_it() {
        let (pool, mut store) = (pool(8), PrefixStore::default());
        let tokens = conversation(40, 1);
        let adapter = Arc::new(busy_adapter(&tiny(), 1));
        let learned = Served {
            learned: Some(Arc::clone(&adapter).into()),
            ..base(3)
        };
        store.keep(&learned, &tokens, &memory(&pool, &tokens));
        keep(&mut store, &pool, 0, &tokens);
        drop(learned);
        store.sweep();
        assert_eq!((store.len(), pool.kept()), (2, 4));
        drop(adapter);
        store.sweep();
        assert_eq!((store.len(), pool.kept()), (1, 2));
        assert_eq!(store.find(&base(3), &tokens, 40).len(), 0);
        assert_eq!(store.find(&base(0), &tokens, 40).len(), 40);
        store.clear();
        assert_eq!(pool.free(), 8);
    }
}
