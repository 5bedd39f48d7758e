//! The prefix cache: KV-cache blocks of finished requests, reused by requests with the same token prefix. The next turn
//! of a conversation prefills only its new tokens, and requests share the blocks of a common system prompt.
//!
//! One radix tree of blocks per adapter version: a path from the root is a cached prefix, and prefixes that start alike
//! share their first blocks. Blocks are valid only for the weights that computed them: they are never shared across
//! adapter versions, and the blocks of a version are dropped once nothing holds that version.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Weak};

use clawhost_model::{Adapter, Model, TrainedWeights};

use crate::backend::BLOCK_TOKENS;
use crate::block_pool::{Block, BlockPool};
use crate::block_table::BlockTable;
use crate::loaded_version::{LoadedVersion, VersionDigest};

/// Minimum length of a shared prefix: below it, sharing does not pay for copying the partial last block.
pub(super) const MIN_SHARED_TOKENS: usize = 8;

/// Identifies the weights that computed a tree of blocks, without keeping them alive.
#[derive(Debug)]
struct WeightsKey {
    version: u64,
    digest: VersionDigest,
    weights: WeightsRef,
}

/// Weak reference to the weights, to tell whether the version is still loaded.
#[derive(Debug)]
enum WeightsRef {
    Base,
    Lora(Weak<Adapter>),
    Full(Weak<Model>),
}

impl WeightsKey {
    fn new(version: &LoadedVersion) -> Self {
        Self {
            version: version.version,
            digest: version.digest.clone(),
            weights: match &version.weights {
                None => WeightsRef::Base,
                Some(TrainedWeights::Lora(adapter)) => WeightsRef::Lora(Arc::downgrade(adapter)),
                Some(TrainedWeights::Full(model)) => WeightsRef::Full(Arc::downgrade(model)),
            },
        }
    }

    fn matches(&self, version: &LoadedVersion) -> bool {
        self.version == version.version && self.digest == version.digest
    }

    fn is_loaded(&self) -> bool {
        match &self.weights {
            WeightsRef::Base => true,
            WeightsRef::Lora(adapter) => adapter.strong_count() > 0,
            WeightsRef::Full(model) => model.strong_count() > 0,
        }
    }
}

/// Id of a node.
type NodeId = u64;

/// A block and the tokens in it: [`BLOCK_TOKENS`] of them, or fewer at the end of a path.
#[derive(Debug)]
struct Node {
    /// `None` for a root.
    parent: Option<NodeId>,
    tokens: Arc<[u32]>,
    /// `None` for a root.
    block: Option<Arc<Block>>,
    children: BTreeMap<Arc<[u32]>, NodeId>,
    /// Clock value of the last use; unique per node.
    last_used: u64,
}

impl Node {
    /// The block.
    ///
    /// # Panics
    /// For a root.
    fn block(&self) -> &Arc<Block> {
        self.block.as_ref().expect("a root has no block")
    }
}

/// A matched prefix: the path of nodes that hold its blocks.
#[derive(Debug, Default)]
pub(super) struct PrefixMatch {
    path: Vec<NodeId>,
    len: usize,
}

impl PrefixMatch {
    /// Number of matched tokens.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// Cached prefixes with LRU eviction.
#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    roots: Vec<(WeightsKey, NodeId)>,
    nodes: HashMap<NodeId, Node>,
    /// Nodes without children, roots excluded, by last use: the eviction order.
    leaves: BTreeMap<u64, NodeId>,
    clock: u64,
    last_id: NodeId,
}

impl PrefixCache {
    /// The longest cached prefix of `tokens`, at most `max_tokens` long.
    pub(super) fn match_prefix(
        &self,
        version: &LoadedVersion,
        tokens: &[u32],
        max_tokens: usize,
    ) -> PrefixMatch {
        let mut matched = PrefixMatch::default();
        let Some(mut current) = self.root(version) else {
            return matched;
        };
        while matched.len < max_tokens {
            let rest = &tokens[matched.len..];
            let chunk = &rest[..rest.len().min(BLOCK_TOKENS)];
            let Some((child, shared)) = longest_match(&self.nodes[&current], chunk) else {
                break;
            };
            matched.path.push(child);
            matched.len += shared;
            current = child;
            if shared < BLOCK_TOKENS {
                break;
            }
        }
        matched.len = matched.len.min(max_tokens);
        matched.path.truncate(matched.len.div_ceil(BLOCK_TOKENS));
        matched
    }

    /// A block table that starts with the matched blocks. Marks them as used now.
    pub(super) fn acquire(&mut self, matched: &PrefixMatch, pool: &Arc<BlockPool>) -> BlockTable {
        for id in &matched.path {
            self.touch(*id);
        }
        let blocks = matched
            .path
            .iter()
            .map(|id| Arc::clone(self.nodes[id].block()));
        BlockTable::from_blocks(pool, blocks, matched.len)
    }

    /// Adds the blocks of `tokens`, as many of them as `cache` holds. Blocks that are cached already are not added
    /// again.
    pub(super) fn insert(&mut self, version: &LoadedVersion, tokens: &[u32], cache: &BlockTable) {
        let tokens = &tokens[..cache.len()];
        if tokens.len() < MIN_SHARED_TOKENS {
            return;
        }
        let mut current = self.root_or_insert(version);
        for (chunk, block) in tokens.chunks(BLOCK_TOKENS).zip(cache.blocks()) {
            current = match longest_match(&self.nodes[&current], chunk) {
                Some((child, shared)) if shared == chunk.len() => child,
                // The new block also serves the shorter prefix that ends inside it.
                Some((child, shared)) if self.is_leaf_of_len(child, shared) => {
                    let longer = self.add_child(current, chunk, block);
                    self.remove_leaf(child);
                    longer
                }
                _ => self.add_child(current, chunk, block),
            };
            self.touch(current);
        }
    }

    /// Evicts the least recently used leaf; one that a running request reads only if there is no other. Returns false
    /// if the cache is empty.
    pub(super) fn evict(&mut self) -> bool {
        let idle = |id: &NodeId| !self.nodes[id].block().is_active();
        let oldest = self.leaves.values().find(|id| idle(id));
        let Some(id) = oldest.or_else(|| self.leaves.values().next()).copied() else {
            return false;
        };
        self.remove_leaf(id);
        true
    }

    /// Drops the blocks of versions that nothing holds any more.
    pub(super) fn remove_unloaded(&mut self) {
        let dead = |(weights, _): &mut (WeightsKey, NodeId)| !weights.is_loaded();
        let roots: Vec<(WeightsKey, NodeId)> = self.roots.extract_if(.., dead).collect();
        for (_, root) in roots {
            let mut below = vec![root];
            while let Some(id) = below.pop() {
                let node = self.remove_node(id);
                self.leaves.remove(&node.last_used);
                below.extend(node.children.into_values());
            }
        }
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.roots.clear();
        self.nodes.clear();
        self.leaves.clear();
    }

    /// Number of cached prefixes, not counting prefixes of longer ones.
    pub(super) fn len(&self) -> usize {
        self.leaves.len()
    }

    fn root(&self, version: &LoadedVersion) -> Option<NodeId> {
        let root = self.roots.iter().find(|(key, _)| key.matches(version));
        root.map(|(_, id)| *id)
    }

    /// The root of this version, inserted if missing.
    fn root_or_insert(&mut self, version: &LoadedVersion) -> NodeId {
        if let Some(id) = self.root(version) {
            return id;
        }
        let id = self.insert_node(None, Arc::new([]), None);
        self.roots.push((WeightsKey::new(version), id));
        id
    }

    fn add_child(&mut self, parent: NodeId, tokens: &[u32], block: &Arc<Block>) -> NodeId {
        let tokens: Arc<[u32]> = tokens.into();
        let id = self.insert_node(Some(parent), Arc::clone(&tokens), Some(Arc::clone(block)));
        let parent = self.node_mut(parent);
        let parent_used = parent.last_used;
        parent.children.insert(tokens, id);
        self.leaves.remove(&parent_used);
        id
    }

    fn insert_node(
        &mut self,
        parent: Option<NodeId>,
        tokens: Arc<[u32]>,
        block: Option<Arc<Block>>,
    ) -> NodeId {
        self.last_id += 1;
        self.clock += 1;
        let node = Node {
            parent,
            tokens,
            block,
            children: BTreeMap::new(),
            last_used: self.clock,
        };
        if parent.is_some() {
            self.leaves.insert(self.clock, self.last_id);
        }
        self.nodes.insert(self.last_id, node);
        self.last_id
    }

    /// Removes a node without children. Its parent may become a leaf; a root is removed with its last child.
    fn remove_leaf(&mut self, id: NodeId) {
        let node = self.remove_node(id);
        self.leaves.remove(&node.last_used);
        let parent_id = node.parent.expect("a root is no leaf");
        let parent = self.node_mut(parent_id);
        parent.children.remove(&node.tokens);
        if !parent.children.is_empty() {
            return;
        }
        let (is_root, last_used) = (parent.parent.is_none(), parent.last_used);
        if !is_root {
            self.leaves.insert(last_used, parent_id);
        } else {
            self.remove_node(parent_id);
            self.roots.retain(|(_, root)| *root != parent_id);
        }
    }

    fn touch(&mut self, id: NodeId) {
        self.clock += 1;
        let clock = self.clock;
        let before = std::mem::replace(&mut self.node_mut(id).last_used, clock);
        if self.leaves.remove(&before).is_some() {
            self.leaves.insert(clock, id);
        }
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("ids refer to nodes")
    }

    fn remove_node(&mut self, id: NodeId) -> Node {
        self.nodes.remove(&id).expect("ids refer to nodes")
    }

    /// Whether a node holds exactly `shared` tokens and has no children.
    fn is_leaf_of_len(&self, id: NodeId, shared: usize) -> bool {
        let node = &self.nodes[&id];
        node.tokens.len() == shared && node.children.is_empty()
    }
}

/// The child that shares the longest prefix with `chunk`, and its length; `None` if no child shares a token. Among
/// sorted keys it is one of the two neighbours of `chunk`.
fn longest_match(node: &Node, chunk: &[u32]) -> Option<(NodeId, usize)> {
    let below = (Bound::Unbounded, Bound::Excluded(chunk));
    let above = (Bound::Included(chunk), Bound::Unbounded);
    let below = node.children.range::<[u32], _>(below).next_back();
    let above = node.children.range::<[u32], _>(above).next();
    above
        .into_iter()
        .chain(below)
        .map(|(tokens, id)| (*id, common_prefix_len(tokens, chunk)))
        .filter(|(_, shared)| *shared > 0)
        .reduce(|one, other| if other.1 > one.1 { other } else { one })
}

/// Length of the common prefix.
pub(super) fn common_prefix_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawhost_model::testing::{random_adapter, tiny};

    fn base(version: u64) -> LoadedVersion {
        LoadedVersion::unloaded(version, format!("d{version}"), None)
    }

    /// A KV cache of these tokens; its contents do not matter here.
    fn kv_cache(pool: &Arc<BlockPool>, tokens: &[u32]) -> BlockTable {
        let mut kv_cache = BlockTable::new(pool);
        kv_cache.reserve(tokens.len(), &mut Vec::new()).unwrap();
        kv_cache.advance(tokens.len());
        kv_cache
    }

    fn insert(cache: &mut PrefixCache, pool: &Arc<BlockPool>, version: u64, tokens: &[u32]) {
        cache.insert(&base(version), tokens, &kv_cache(pool, tokens));
    }

    fn conversation(count: u32, salt: u32) -> Vec<u32> {
        (0..count).map(|i| (i * 37 + salt * 11 + 5) % 97).collect()
    }

    #[test]
    fn longest_common_prefix_is_reused_and_never_across_versions() {
        let (pool, mut cache) = (BlockPool::new(16), PrefixCache::default());
        for length in [20, 32, 33, 64, 90] {
            let tokens = conversation(length, length);
            insert(&mut cache, &pool, 1, &tokens);
            for changed in [0, 5, 12, 31, 32, 70, 89] {
                let mut other = tokens.clone();
                if let Some(token) = other.get_mut(changed) {
                    *token += 100;
                }
                let expected = changed.min(tokens.len());
                let matched = cache.match_prefix(&base(1), &other, usize::MAX);
                assert_eq!(matched.len(), expected);
                let acquired = cache.acquire(&matched, &pool);
                assert_eq!(acquired.len(), expected);
                assert_eq!(acquired.blocks().count(), expected.div_ceil(BLOCK_TOKENS));
                assert_eq!(cache.match_prefix(&base(2), &other, usize::MAX).len(), 0);
            }
            let most = cache.match_prefix(&base(1), &tokens, tokens.len() - 1);
            assert_eq!(most.len(), tokens.len() - 1);
        }
        let other = LoadedVersion::unloaded(1, "other".to_owned(), None);
        assert_eq!(
            cache.match_prefix(&other, &conversation(90, 90), 90).len(),
            0
        );
    }

    #[test]
    fn conversations_with_a_common_prefix_share_blocks() {
        let (pool, mut cache) = (BlockPool::new(16), PrefixCache::default());
        let system = conversation(64, 1);
        for salt in 2..5 {
            let tokens = [system.clone(), conversation(20, salt)].concat();
            insert(&mut cache, &pool, 1, &tokens);
        }
        assert_eq!((cache.len(), pool.cached(), pool.free()), (3, 2 + 3, 11));
        // The same prefix again, or a part of it, adds no block.
        insert(
            &mut cache,
            &pool,
            1,
            &[system.clone(), conversation(20, 2)].concat(),
        );
        insert(&mut cache, &pool, 1, &system[..50]);
        assert_eq!((cache.len(), pool.cached()), (3, 5));
        // A longer prefix replaces the leaf that it extends.
        let longer = [system, conversation(20, 3), conversation(30, 9)].concat();
        insert(&mut cache, &pool, 1, &longer);
        assert_eq!((cache.len(), pool.cached()), (3, 6));
        assert_eq!(
            cache.match_prefix(&base(1), &longer, 200).len(),
            longer.len()
        );
    }

    #[test]
    fn eviction_is_lru_and_blocks_in_use_go_last() {
        let (pool, mut cache) = (BlockPool::new(8), PrefixCache::default());
        let conversations = [1, 2, 3].map(|salt| conversation(64, salt));
        for tokens in &conversations {
            insert(&mut cache, &pool, 1, tokens);
        }
        let matched = cache.match_prefix(&base(1), &conversations[0], 64);
        let running = cache.acquire(&matched, &pool);
        let matched = cache.match_prefix(&base(1), &conversations[1], 64);
        drop(cache.acquire(&matched, &pool));
        let held = |cache: &PrefixCache| {
            [0, 1, 2].map(|index| {
                cache
                    .match_prefix(&base(1), &conversations[index], 64)
                    .len()
            })
        };
        for expected in [
            [64, 64, 32],
            [64, 64, 0],
            [64, 32, 0],
            [64, 0, 0],
            [32, 0, 0],
        ] {
            assert!(cache.evict());
            assert_eq!(held(&cache), expected);
        }
        assert!(cache.evict());
        assert!(!cache.evict());
        assert_eq!((pool.active(), pool.cached(), pool.free()), (2, 0, 6));
        assert!(cache.nodes.is_empty() && cache.roots.is_empty() && cache.leaves.is_empty());
        drop(running);
        assert_eq!(pool.free(), 8);
    }

    #[test]
    fn blocks_of_a_version_are_dropped_with_it() {
        let (pool, mut cache) = (BlockPool::new(8), PrefixCache::default());
        let tokens = conversation(40, 1);
        let adapter = Arc::new(random_adapter(&tiny(), 1));
        let trained = LoadedVersion::new(3, Arc::clone(&adapter));
        let same = LoadedVersion::unloaded(3, adapter.digest(), None);
        cache.insert(&trained, &tokens, &kv_cache(&pool, &tokens));
        insert(&mut cache, &pool, 0, &tokens);
        drop(trained);
        cache.remove_unloaded();
        assert_eq!((cache.len(), pool.cached()), (2, 4));
        drop(adapter);
        cache.remove_unloaded();
        assert_eq!((cache.len(), pool.cached()), (1, 2));
        assert_eq!(cache.match_prefix(&same, &tokens, 40).len(), 0);
        assert_eq!(cache.match_prefix(&base(0), &tokens, 40).len(), 40);
        cache.clear();
        assert_eq!(pool.free(), 8);
    }
}
