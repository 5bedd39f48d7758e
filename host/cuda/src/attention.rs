//! Chooses the attention kernels for packed sequences, and the lists of tiles that they run over.

use crate::device::{Address, Precision, Result, Stream};
use crate::kernels::{
    AttentionArguments, AttentionGradients, BACKWARD_TILE, DECODE_SPLIT, DecodeWorkspace,
    PREFILL_TILE, has_decode_attention, has_tile_attention,
};

/// The heads of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadShape {
    pub(crate) precision: Precision,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
}

/// (sequence, first query) of every tile, for each kind of kernel. The tiles with the most work come first, as the kernels
/// want them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tiles {
    pub(crate) prefill: Vec<i32>,
    pub(crate) decode: Vec<i32>,
    pub(crate) general: Vec<i32>,
}

/// Number of tiles in a list.
pub(crate) fn count(tiles: &[i32]) -> usize {
    tiles.len() / 2
}

fn push(tiles: &mut Vec<i32>, sequence: usize, length: usize, size: usize) {
    for first in (0..length).step_by(size) {
        let int = |value: usize| i32::try_from(value).expect("a position fits");
        tiles.extend([int(sequence), int(first)]);
    }
}

impl Tiles {
    /// The tiles of sequences with these numbers of queries; `paged` if their keys are in the KV cache.
    pub(crate) fn new(
        shape: HeadShape,
        lengths: impl IntoIterator<Item = usize>,
        paged: bool,
    ) -> Self {
        let HeadShape {
            precision,
            heads,
            kv_heads,
            dim,
        } = shape;
        let mut tiles = Self::default();
        for (sequence, length) in lengths.into_iter().enumerate() {
            if !has_tile_attention(precision, dim) {
                push(&mut tiles.general, sequence, length, 1);
            } else if paged && length == 1 && has_decode_attention(precision, dim, heads, kv_heads)
            {
                push(&mut tiles.decode, sequence, length, 1);
            } else {
                push(&mut tiles.prefill, sequence, length, PREFILL_TILE);
            }
        }
        // Later queries see more keys.
        sort_by_work(&mut tiles.prefill, |_, first| first);
        tiles
    }

    /// The tiles of the backward pass: of keys, and of queries.
    pub(crate) fn backward(
        shape: HeadShape,
        lengths: impl IntoIterator<Item = usize>,
    ) -> [Vec<i32>; 2] {
        let tiled = has_tile_attention(shape.precision, shape.dim);
        let (mut keys, mut ends) = (Vec::new(), Vec::new());
        for (sequence, length) in lengths.into_iter().enumerate() {
            let size = if tiled { BACKWARD_TILE } else { 1 };
            push(&mut keys, sequence, length, size);
            ends.push(i32::try_from(length).expect("a length fits"));
        }
        let mut queries = keys.clone();
        // Earlier keys are seen by more queries.
        let sequence = |sequence: i32| usize::try_from(sequence).expect("an index");
        sort_by_work(&mut keys, |own, first| ends[sequence(own)] - first);
        sort_by_work(&mut queries, |_, first| first);
        [keys, queries]
    }
}

/// Sorts tiles by the work that a function of sequence and first query gives, the most first.
fn sort_by_work(tiles: &mut [i32], work: impl Fn(i32, i32) -> i32) {
    let (pairs, _) = tiles.as_chunks_mut::<2>();
    pairs.sort_by_key(|[sequence, first]| std::cmp::Reverse(work(*sequence, *first)));
}

/// Tiles on the device: addresses and numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacedTiles {
    pub(crate) prefill: (Address, usize),
    pub(crate) decode: (Address, usize),
    pub(crate) general: (Address, usize),
}

/// Computes attention of all tiles.
pub(crate) fn forward(
    stream: &Stream,
    precision: Precision,
    arguments: AttentionArguments,
    tiles: PlacedTiles,
    (workspace, splits): (DecodeWorkspace, usize),
) -> Result<()> {
    let with = |tiles: Address| AttentionArguments { tiles, ..arguments };
    let (list, count) = tiles.prefill;
    stream.attention_prefill(with(list), count)?;
    let (list, count) = tiles.decode;
    stream.attention_decode(with(list), workspace, (count, splits))?;
    let (list, count) = tiles.general;
    stream.attention_general(precision, with(list), count)
}

/// The gradient of attention over packed sequences; the arguments have the tiles of keys, and `queries` are those of queries.
pub(crate) fn backward(
    stream: &Stream,
    precision: Precision,
    arguments: AttentionArguments,
    gradients: AttentionGradients,
    (queries, tiles, tokens): (Address, usize, usize),
) -> Result<()> {
    stream.attention_delta(precision, arguments, gradients, tokens)?;
    let dim = usize::try_from(arguments.dim).expect("positive");
    if has_tile_attention(precision, dim) {
        stream.attention_backward(arguments, gradients, (queries, tiles))
    } else {
        stream.attention_general_backward(precision, arguments, gradients, tiles)
    }
}

/// In how many parts the decode kernel splits a context of at most `most` tokens, so that all multiprocessors have work.
/// Shorter contexts are split less.
pub(crate) fn decode_splits(processors: usize, rows: usize, kv_heads: usize, most: usize) -> usize {
    let wanted = (2 * processors).div_ceil(rows * kv_heads);
    wanted.clamp(1, 32).min(most.div_ceil(DECODE_SPLIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tiles_with_the_most_work_come_first() {
        let shape = HeadShape {
            precision: Precision::Bf16,
            heads: 2,
            kv_heads: 1,
            dim: 64,
        };
        let lengths = [100, 300];
        let prefill = Tiles::new(shape, lengths, false).prefill;
        assert_eq!(prefill, [1, 256, 1, 128, 0, 0, 1, 0]);
        let [keys, queries] = Tiles::backward(shape, lengths);
        let by_keys = [1, 0, 1, 64, 1, 128, 1, 192, 0, 0, 1, 256, 0, 64];
        assert_eq!(keys, by_keys);
        let by_queries = [1, 256, 1, 192, 1, 128, 0, 64, 1, 64, 0, 0, 1, 0];
        assert_eq!(queries, by_queries);
    }
}
