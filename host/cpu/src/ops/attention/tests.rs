//! Attention against the formula in f64.

use super::*;
use clawhost_engine::backend::BLOCK_TOKENS;

const SHAPE: Shape = Shape {
    heads: 4,
    kv_heads: 2,
    dim: 22,
};

/// Values within ±2, uneven enough that the position of the best key varies.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let mix = |i: usize| (i * 2_654_435_761 + seed * 97 + 11) % 65_521;
    (0..count).map(|i| mix(i) as f32 / 16_380.0 - 2.0).collect()
}

/// Rows of queries, keys and values as the model packs them, and the row width.
fn packed_qkv(tokens: usize, shape: Shape) -> (Vec<f32>, usize) {
    let stride = (shape.heads + 2 * shape.kv_heads) * shape.dim;
    (numbers(tokens * stride, 3), stride)
}

/// Runs attention on the last `tokens` of all packed positions.
fn run(qkv: &[f32], stride: usize, tokens: usize, shape: Shape, threads: usize) -> Vec<f32> {
    let past = qkv.len() / stride - tokens;
    let keys = shape.heads * shape.dim;
    let values = keys + shape.kv_heads * shape.dim;
    let mut out = vec![f32::NAN; tokens * keys];
    forward(
        &mut out,
        &qkv[past * stride..],
        stride,
        (tokens, past),
        shape,
        |group| HeadKv {
            keys: &qkv[keys + group * shape.dim..],
            values: &qkv[values + group * shape.dim..],
            stride,
        },
        Threads(threads),
    );
    out
}

/// The formula, for one position.
fn formula(qkv: &[f32], stride: usize, position: usize, head: usize, shape: Shape) -> Vec<f64> {
    let (dim, group) = (shape.dim, shape.group(head));
    let at = |row: usize, part: usize, d: usize| f64::from(qkv[row * stride + part * dim + d]);
    let score = |key: usize| -> f64 {
        let dot: f64 = (0..dim)
            .map(|d| at(position, head, d) * at(key, shape.heads + group, d))
            .sum();
        dot / (dim as f64).sqrt()
    };
    let scores: Vec<f64> = (0..=position).map(score).collect();
    let best = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - best).exp()).collect();
    let total: f64 = weights.iter().sum();
    let part = shape.heads + shape.kv_heads + group;
    (0..dim)
        .map(|d| {
            (0..=position)
                .map(|k| weights[k] / total * at(k, part, d))
                .sum()
        })
        .collect()
}

fn follows_the_formula(all: usize, tokens: usize, shape: Shape) {
    let (qkv, stride) = packed_qkv(all, shape);
    let out = run(&qkv, stride, tokens, shape, 1);
    for (index, out) in out.chunks_exact(shape.dim).enumerate() {
        let (row, head) = (index / shape.heads, index % shape.heads);
        let right = formula(&qkv, stride, all - tokens + row, head, shape);
        for (ours, right) in out.iter().zip(right) {
            assert!((f64::from(*ours) - right).abs() < 1e-5, "{ours} {right}");
        }
    }
}

#[test]
fn blocks_and_single_rows_match_the_formula_with_and_without_a_past() {
    for (all, tokens) in [
        (1, 1),
        (3, 3),
        (5, 5),
        (64, 64),
        (65, 65),
        (131, 131),
        (131, 70),
        (200, 1),
        (200, 4),
        (200, 37),
    ] {
        follows_the_formula(all, tokens, SHAPE);
    }
    for dim in [2, 16, 32, 50, 128] {
        follows_the_formula(150, 90, Shape { dim, ..SHAPE });
        follows_the_formula(150, 2, Shape { dim, ..SHAPE });
    }
}

#[test]
fn chunked_prefill_gives_the_same_bits() {
    let (qkv, stride) = packed_qkv(300, SHAPE);
    let width = SHAPE.heads * SHAPE.dim;
    let whole = run(&qkv, stride, 300, SHAPE, 1);
    for (from, to) in [(0, 100), (100, 109), (109, 237), (237, 300), (7, 290)] {
        let part = run(&qkv[..to * stride], stride, to - from, SHAPE, 1);
        assert!(part == whole[from * width..to * width], "{from}..{to}");
    }
}

#[test]
fn the_number_of_threads_does_not_change_the_result() {
    let shape = Shape { dim: 32, ..SHAPE };
    let (qkv, stride) = packed_qkv(20_000, shape);
    for (all, tokens) in [(600, 600), (20_000, 1)] {
        let qkv = &qkv[..all * stride];
        let one = run(qkv, stride, tokens, shape, 1);
        assert!(run(qkv, stride, tokens, shape, 3) == one);
    }
}

/// The same keys, transposed, and values, in blocks.
#[derive(Clone, Copy)]
struct Blocks<'a>(&'a [Vec<f32>], &'a [Vec<f32>], usize);

impl<'a> KeyValues<'a> for Blocks<'a> {
    fn stride(self) -> usize {
        self.2
    }

    fn key_steps(self) -> (usize, usize) {
        (1, BLOCK_TOKENS)
    }

    fn keys(self, first: usize, last: usize) -> Tile<'a> {
        pieces(self.0, first, last)
    }

    fn values(self, first: usize, last: usize) -> Tile<'a> {
        pieces(self.1, first, last)
    }
}

fn pieces(blocks: &[Vec<f32>], first: usize, last: usize) -> Tile<'_> {
    assert!(first.is_multiple_of(BLOCK_TOKENS));
    let mut tile = Tile::new(BLOCK_TOKENS);
    for block in &blocks[first / BLOCK_TOKENS..last.div_ceil(BLOCK_TOKENS)] {
        tile.push(block);
    }
    tile
}

/// One head's rows in blocks; rows after the last are NaN.
fn blocks(packed: &[f32], stride: usize, at: usize, dim: usize) -> Vec<Vec<f32>> {
    let rows: Vec<&[f32]> = packed
        .chunks_exact(stride)
        .map(|row| &row[at..at + dim])
        .collect();
    let of = |rows: &[&[f32]]| {
        let mut block = rows.concat();
        block.resize(BLOCK_TOKENS * dim, f32::NAN);
        block
    };
    rows.chunks(BLOCK_TOKENS).map(of).collect()
}

#[test]
fn paged_keys_and_values_give_the_same_bits_as_contiguous_ones() {
    for dim in [16, 22, 32, 64] {
        let shape = Shape { dim, ..SHAPE };
        let (qkv, stride) = packed_qkv(331, shape);
        let keys = shape.heads * dim;
        let values = keys + shape.kv_heads * dim;
        for (all, tokens) in [
            (1, 1),
            (33, 1),
            (128, 1),
            (129, 3),
            (331, 1),
            (331, 70),
            (200, 200),
        ] {
            let qkv = &qkv[..all * stride];
            let each: Vec<_> = (0..shape.kv_heads)
                .map(|group| {
                    let part = |at: usize| blocks(qkv, stride, at + group * dim, dim);
                    let turn = |block: Vec<f32>| {
                        let lane = |i: usize| block[i % BLOCK_TOKENS * dim + i / BLOCK_TOKENS];
                        (0..block.len()).map(lane).collect()
                    };
                    (
                        part(keys).into_iter().map(turn).collect::<Vec<Vec<f32>>>(),
                        part(values),
                    )
                })
                .collect();
            let past = all - tokens;
            let mut out = vec![f32::NAN; tokens * keys];
            forward(
                &mut out,
                &qkv[past * stride..],
                stride,
                (tokens, past),
                shape,
                |group| Blocks(&each[group].0, &each[group].1, dim),
                Threads(1),
            );
            assert!(
                out == run(qkv, stride, tokens, shape, 1),
                "{all} {tokens} {dim}"
            );
        }
    }
}
