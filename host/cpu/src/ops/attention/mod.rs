//! Causal attention with grouped key and value heads, forward and backward.
//!
//! Serving and training use the same forward pass: blocks of queries go to `prefill`; a few last rows, and so every
//! decoding step, go to `decode`. Neither stores anything that grows with tokens times context.

mod backward;
mod decode;
mod prefill;
mod shape;
mod tile;

pub(crate) use backward::{backward, scratch_values};
pub(crate) use shape::{HeadKv, Shape};
pub(crate) use tile::{KeyValues, Tile};

use super::thread_pool::{self, Threads};
use prefill::{Block, QUERIES};

/// Up to this many rows each one goes to `decode`; from about five rows on a block is cheaper.
const MAX_DECODE_ROWS: usize = 4;

/// Writes `out [tokens, heads * dim]` for the queries `q` (rows `q_stride` apart) of `tokens` new positions that follow
/// `past` earlier ones; `kv(g)` returns key head `g`. Long prompts run in parallel over blocks of queries, a single
/// decoding row over key heads.
pub(crate) fn forward<'a, K: KeyValues<'a>>(
    out: &mut [f32],
    q: &[f32],
    q_stride: usize,
    (tokens, past): (usize, usize),
    shape: Shape,
    kv: impl Fn(usize) -> K + Sync,
    threads: Threads,
) {
    let (dim, width) = (shape.dim, shape.heads * shape.dim);
    let work = shape.macs(tokens, past);
    // Query heads that share a key head are adjacent.
    let share = shape.heads / shape.kv_heads * dim;
    let alone = |row: usize, group: usize, out: &mut [f32]| {
        let q = &q[row * q_stride + group * share..][..share];
        decode::attend(out, q, dim, kv(group), past + row + 1, shape.scale());
    };
    if tokens == 1 {
        let mut groups: Vec<_> = out[..width].chunks_mut(share).enumerate().collect();
        thread_pool::parallel_for_each(threads, &mut groups, work, |(group, out)| {
            alone(0, *group, out);
        });
        return;
    }
    let block = |(index, out): &mut (usize, &mut [f32])| {
        let (first, rows) = (*index * QUERIES, out.len() / width);
        if rows <= MAX_DECODE_ROWS {
            for (row, out) in out.chunks_exact_mut(width).enumerate() {
                for (group, out) in out.chunks_exact_mut(share).enumerate() {
                    alone(first + row, group, out);
                }
            }
            return;
        }
        let mut scratch = prefill::Scratch::new(dim);
        for head in 0..shape.heads {
            let block = Block {
                q: &q[first * q_stride + head * dim..],
                q_stride,
                rows,
                past: past + first,
                kv: kv(shape.group(head)),
                dim,
                scale: shape.scale(),
            };
            block.attend(&mut out[head * dim..], width, &mut scratch);
        }
    };
    let blocks = out[..tokens * width].chunks_mut(QUERIES * width);
    // The last blocks attend to the most keys.
    let mut blocks: Vec<_> = blocks.enumerate().collect();
    blocks.reverse();
    thread_pool::parallel_for_each(threads, &mut blocks, work, block);
}

#[cfg(test)]
mod tests;
