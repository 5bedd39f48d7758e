//! Keys and values of the tokens that one row has seen, per layer and key head, contiguous per head
//! so that decoding reads them in one sweep.

use crate::config::ModelConfig;
use crate::ops::attention::HeadKv;

/// The attention memory of one conversation. Grows as tokens are run and shrinks with
/// [`KvCache::truncate`]; belongs to one adapter version, which its holder keeps track of.
#[derive(Debug, Clone)]
pub struct KvCache {
    heads: Vec<(Vec<f32>, Vec<f32>)>,
    kv_heads: usize,
    dim: usize,
    len: usize,
}

impl KvCache {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let heads = config.num_hidden_layers * config.num_key_value_heads;
        Self {
            heads: vec![(Vec::new(), Vec::new()); heads],
            kv_heads: config.num_key_value_heads,
            dim: config.head_dim,
            len: 0,
        }
    }

    /// Tokens remembered.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all but the first `len` tokens; does nothing when fewer are remembered.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            for (keys, values) in &mut self.heads {
                keys.truncate(len * self.dim);
                values.truncate(len * self.dim);
            }
            self.len = len;
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let values: usize = self
            .heads
            .iter()
            .map(|(k, v)| k.capacity() + v.capacity())
            .sum();
        values * size_of::<f32>()
    }

    /// Appends keys and values of `layer`, each `[tokens, kv_heads * dim]` inside rows of `stride`.
    pub(crate) fn append(&mut self, layer: usize, keys: &[f32], values: &[f32], stride: usize) {
        let (heads, dim) = (self.kv_heads, self.dim);
        let layer = self.heads.iter_mut().skip(layer * heads).take(heads);
        for (head, (own_keys, own_values)) in layer.enumerate() {
            for (own, rows) in [(own_keys, keys), (own_values, values)] {
                for row in rows.chunks(stride) {
                    own.extend(row.iter().skip(head * dim).take(dim));
                }
            }
        }
    }

    pub(crate) fn head(&self, layer: usize, head: usize) -> HeadKv<'_> {
        let empty: (&[f32], &[f32]) = (&[], &[]);
        let (keys, values) = self
            .heads
            .get(layer * self.kv_heads + head)
            .map_or(empty, |(k, v)| (k.as_slice(), v.as_slice()));
        HeadKv {
            keys,
            values,
            stride: self.dim,
        }
    }

    /// Counts `tokens` more, once every layer has appended them.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}
