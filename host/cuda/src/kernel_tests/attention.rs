//! Attention over the paged cache and over packed sequences, and its gradients, against f64.

use super::*;
use crate::device::Address;
use crate::kernels::{
    AttentionArguments, AttentionGradients, BACKWARD_TILE, DecodeWorkspace, PREFILL_TILE,
};

/// Heads, key heads, dimension.
type Shape = (usize, usize, usize);

/// Queries of one sequence after `past` cached tokens: keys and values of all its tokens.
struct Sequence {
    past: usize,
    /// `[new tokens, heads, dim]`.
    q: Vec<f32>,
    /// `[tokens, kv_heads, dim]`.
    k: Vec<f32>,
    v: Vec<f32>,
}

fn sequences(lengths: &[(usize, usize)], (heads, kv_heads, dim): Shape) -> Vec<Sequence> {
    let sequence = |(i, (past, new)): (usize, &(usize, usize))| {
        let seed = 100 + 3 * i as u64;
        Sequence {
            past: *past,
            q: random(seed, new * heads * dim, 2.0),
            k: random(seed + 1, (past + new) * kv_heads * dim, 2.0),
            v: random(seed + 2, (past + new) * kv_heads * dim, 1.0),
        }
    };
    lengths.iter().enumerate().map(sequence).collect()
}

/// Outputs `[new tokens, heads, dim]`, and with `dout` the gradients of queries, keys and values.
fn plain(s: &Sequence, (heads, kv_heads, dim): Shape, dout: Option<&[f32]>) -> [Vec<f32>; 4] {
    let scale = 1.0 / (dim as f64).sqrt();
    let (mut out, mut dq) = (vec![0.0; s.q.len()], vec![0f64; s.q.len()]);
    let (mut dk, mut dv) = (vec![0f64; s.k.len()], vec![0f64; s.v.len()]);
    for token in 0..s.q.len() / (heads * dim) {
        for head in 0..heads {
            let at = (token * heads + head) * dim;
            let key = |j: usize| (j * kv_heads + head * kv_heads / heads) * dim;
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                a.iter()
                    .zip(b)
                    .map(|(a, b)| f64::from(*a) * f64::from(*b))
                    .sum()
            };
            let q = &s.q[at..at + dim];
            let scores: Vec<f64> = (0..=s.past + token)
                .map(|j| (dot(q, &s.k[key(j)..key(j) + dim]) * scale).exp())
                .collect();
            let total: f64 = scores.iter().sum();
            for (j, score) in scores.iter().enumerate() {
                for d in 0..dim {
                    out[at + d] += (score / total * f64::from(s.v[key(j) + d])) as f32;
                }
            }
            let Some(dout) = dout else { continue };
            let dout = &dout[at..at + dim];
            let shared = dot(dout, &out[at..at + dim]);
            for (j, score) in scores.iter().enumerate() {
                let p = score / total;
                let slope = p * (dot(dout, &s.v[key(j)..key(j) + dim]) - shared) * scale;
                for d in 0..dim {
                    dv[key(j) + d] += p * f64::from(dout[d]);
                    dk[key(j) + d] += slope * f64::from(q[d]);
                    dq[at + d] += slope * f64::from(s.k[key(j) + d]);
                }
            }
        }
    }
    let f32s = |v: Vec<f64>| v.into_iter().map(|v| v as f32).collect();
    [out, f32s(dq), f32s(dk), f32s(dv)]
}

/// Packs new tokens: queries, keys and values next to each other.
fn pack(all: &[Sequence], (heads, kv_heads, dim): Shape) -> (Vec<f32>, Vec<usize>) {
    let (q, k) = (heads * dim, kv_heads * dim);
    let (mut packed, mut starts) = (Vec::new(), vec![0]);
    for s in all {
        let new = s.q.len() / q;
        for token in 0..new {
            packed.extend_from_slice(&s.q[token * q..(token + 1) * q]);
            for x in [&s.k, &s.v] {
                packed.extend_from_slice(&x[(s.past + token) * k..(s.past + token + 1) * k]);
            }
        }
        starts.push(starts[starts.len() - 1] + new);
    }
    (packed, starts)
}

/// Blocks of the paged cache in a scattered order; what no sequence has written is not a number.
fn page(all: &[Sequence], (_, kv_heads, dim): Shape) -> (Vec<f32>, Vec<usize>, usize) {
    let plane = kv_heads * 32 * dim;
    let most = all
        .iter()
        .map(|s| (s.k.len() / (kv_heads * dim)).div_ceil(32))
        .max()
        .unwrap();
    let blocks = most * all.len() + 1;
    let mut memory = vec![f32::NAN; blocks * 2 * plane];
    let mut tables = vec![0; most * all.len()];
    for (i, s) in all.iter().enumerate() {
        for token in 0..s.k.len() / (kv_heads * dim) {
            let block = 1 + (most - 1 - token / 32) * all.len() + i;
            tables[i * most + token / 32] = block;
            for head in 0..kv_heads {
                for (part, x) in [&s.k, &s.v].into_iter().enumerate() {
                    let to = block * 2 * plane + part * plane + (head * 32 + token % 32) * dim;
                    let from = (token * kv_heads + head) * dim;
                    memory[to..to + dim].copy_from_slice(&x[from..from + dim]);
                }
            }
        }
    }
    (memory, tables, most)
}

/// (sequence, first query) of every tile.
fn tiles(starts: &[usize], size: usize) -> Vec<usize> {
    let lengths = starts.windows(2).map(|pair| pair[1] - pair[0]);
    lengths
        .enumerate()
        .flat_map(|(i, length)| (0..length).step_by(size).flat_map(move |first| [i, first]))
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kernel {
    Prefill,
    Decode { splits: usize },
    General,
}

fn paged(lengths: &[(usize, usize)], shape: Shape, precision: Precision, kernel: Kernel) {
    let all = sequences(lengths, shape);
    let (packed, starts) = pack(&all, shape);
    let (memory, tables, stride) = page(&all, shape);
    let (heads, kv_heads, dim) = shape;
    let tokens = *starts.last().unwrap();
    let Some(out) = in_both_orders(|b| {
        let (qkv, kv) = (b.values(precision, &packed), b.values(precision, &memory));
        let out = b.empty(precision, tokens * heads * dim);
        let (start, tables) = (b.ints(&starts), b.ints(&tables));
        let past = b.ints(&all.iter().map(|s| s.past).collect::<Vec<_>>());
        let size = if kernel == Kernel::Prefill {
            PREFILL_TILE
        } else {
            1
        };
        let list = tiles(&starts, size);
        let tile = b.ints(&list);
        let arguments = AttentionArguments {
            qkv: qkv.address(),
            qkv_stride: ((heads + 2 * kv_heads) * dim) as i32,
            out: out.address(),
            kv: kv.address(),
            block_stride: (2 * kv_heads * 32 * dim) as i64,
            starts: start.address(),
            past: past.address(),
            tables: tables.address(),
            table_stride: stride as i32,
            tiles: tile.address(),
            lse: Address::NULL,
            lse_stride: 0,
            heads: heads as i32,
            kv_heads: kv_heads as i32,
            dim: dim as i32,
            scale: 1.0 / (dim as f32).sqrt(),
        };
        let count = list.len() / 2;
        match kernel {
            Kernel::Prefill => b.stream.attention_prefill(arguments, count).unwrap(),
            Kernel::General => b
                .stream
                .attention_general(precision, arguments, count)
                .unwrap(),
            Kernel::Decode { splits } => {
                let partials = count * heads * splits;
                let outputs = Buffer::<f32>::new(&b.driver, partials * dim).unwrap();
                let sums = Buffer::<f32>::new(&b.driver, 2 * partials).unwrap();
                let finished = b.upload(&vec![0u32; count * kv_heads]);
                let workspace = DecodeWorkspace {
                    outputs: outputs.address(),
                    sums: sums.address(),
                    finished: finished.address(),
                };
                let sizes = (count, splits);
                b.stream
                    .attention_decode(arguments, workspace, sizes)
                    .unwrap();
                assert!(b.read(&finished).iter().all(|count| *count == 0));
            }
        }
        b.read_values(&out)
    }) else {
        return;
    };
    let expected: Vec<f32> = all
        .iter()
        .flat_map(|s| {
            let [out, ..] = plain(s, shape, None);
            out
        })
        .collect();
    let bound = if precision == Precision::F32 {
        2e-5
    } else {
        1e-2
    };
    assert_close(
        &format!("{kernel:?} {shape:?} {lengths:?}"),
        &out,
        &expected,
        bound,
    );
}

#[test]
fn prefill_over_the_paged_cache() {
    paged(
        &[(0, 1), (0, 130), (37, 65), (64, 3)],
        (4, 2, 64),
        Precision::Bf16,
        Kernel::Prefill,
    );
    paged(
        &[(5, 129), (0, 31)],
        (3, 1, 128),
        Precision::Bf16,
        Kernel::Prefill,
    );
}

#[test]
fn decode_over_the_paged_cache() {
    for splits in [1, 3] {
        let kernel = Kernel::Decode { splits };
        paged(
            &[(0, 1), (31, 1), (32, 1), (299, 1)],
            (4, 2, 64),
            Precision::Bf16,
            kernel,
        );
        paged(&[(400, 1), (13, 1)], (12, 1, 128), Precision::Bf16, kernel);
        paged(&[(257, 1)], (3, 3, 128), Precision::Bf16, kernel);
        // Splits of different lengths, and one that has none.
        paged(&[(600, 1), (1000, 1)], (2, 1, 64), Precision::Bf16, kernel);
    }
}

#[test]
fn general_attention_has_every_head_dimension() {
    for precision in BOTH {
        paged(
            &[(0, 3), (40, 2), (3, 1)],
            (6, 2, 16),
            precision,
            Kernel::General,
        );
        paged(&[(9, 2)], (2, 1, 200), precision, Kernel::General);
    }
}

fn packed(lengths: &[usize], shape: Shape, precision: Precision, by_tiles: bool) {
    let (heads, kv_heads, dim) = shape;
    let new: Vec<(usize, usize)> = lengths.iter().map(|n| (0, *n)).collect();
    let all = sequences(&new, shape);
    let (packed, starts) = pack(&all, shape);
    let tokens = *starts.last().unwrap();
    let (q, k) = (heads * dim, kv_heads * dim);
    let dout = random(55, tokens * q, 1.0);
    let Some((out, dqkv)) = in_both_orders(|b| {
        let (qkv, d) = (b.values(precision, &packed), b.values(precision, &dout));
        let (out, dqkv) = (
            b.empty(precision, tokens * q),
            b.empty(precision, packed.len()),
        );
        let start = b.ints(&starts);
        let lse = Buffer::<f32>::new(&b.driver, heads * tokens).unwrap();
        let delta = Buffer::<f32>::new(&b.driver, heads * tokens).unwrap();
        let (size, backward) = if by_tiles {
            (PREFILL_TILE, BACKWARD_TILE)
        } else {
            (1, 1)
        };
        let (list, backward) = (tiles(&starts, size), tiles(&starts, backward));
        let (tile, backward_tile) = (b.ints(&list), b.ints(&backward));
        let arguments = AttentionArguments {
            qkv: qkv.address(),
            qkv_stride: (q + 2 * k) as i32,
            out: out.address(),
            kv: Address::NULL,
            block_stride: 0,
            starts: start.address(),
            past: Address::NULL,
            tables: Address::NULL,
            table_stride: 0,
            tiles: tile.address(),
            lse: lse.address(),
            lse_stride: tokens as i32,
            heads: heads as i32,
            kv_heads: kv_heads as i32,
            dim: dim as i32,
            scale: 1.0 / (dim as f32).sqrt(),
        };
        let gradients = AttentionGradients {
            dout: d.address(),
            dqkv: dqkv.address(),
            delta: delta.address(),
        };
        let s = &b.stream;
        if by_tiles {
            s.attention_prefill(arguments, list.len() / 2).unwrap();
        } else {
            s.attention_general(precision, arguments, list.len() / 2)
                .unwrap();
        }
        s.attention_delta(precision, arguments, gradients, tokens)
            .unwrap();
        let arguments = AttentionArguments {
            tiles: backward_tile.address(),
            ..arguments
        };
        let count = backward.len() / 2;
        if by_tiles {
            let tiles = (backward_tile.address(), count);
            s.attention_backward(arguments, gradients, tiles).unwrap();
        } else {
            s.attention_general_backward(precision, arguments, gradients, count)
                .unwrap();
        }
        (b.read_values(&out), b.read_values(&dqkv))
    }) else {
        return;
    };
    let (mut outs, mut expected) = (Vec::new(), Vec::new());
    for (s, start) in all.iter().zip(&starts) {
        let own = &dout[start * q..start * q + s.q.len()];
        let [out, dq, dk, dv] = plain(s, shape, Some(own));
        outs.extend(out);
        for token in 0..s.q.len() / q {
            expected.extend_from_slice(&dq[token * q..(token + 1) * q]);
            expected.extend_from_slice(&dk[token * k..(token + 1) * k]);
            expected.extend_from_slice(&dv[token * k..(token + 1) * k]);
        }
    }
    let bound = if precision == Precision::F32 {
        2e-5
    } else {
        1e-2
    };
    assert_close("out", &out, &outs, bound);
    assert_close("dqkv", &dqkv, &expected, bound);
    // Relative error of the whole gradient.
    let square = |v: f32| f64::from(v) * f64::from(v);
    let error: f64 = dqkv.iter().zip(&expected).map(|(a, b)| square(a - b)).sum();
    let norm: f64 = expected.iter().map(|v| square(*v)).sum();
    assert!(
        (error / norm).sqrt() < f64::from(bound),
        "{}",
        (error / norm).sqrt()
    );
}

#[test]
fn gradients_over_packed_sequences() {
    packed(&[1, 130, 64], (4, 2, 64), Precision::Bf16, true);
    packed(&[67], (2, 1, 128), Precision::Bf16, true);
}

#[test]
fn general_gradients_have_every_head_dimension() {
    for precision in BOTH {
        packed(&[3, 9, 1], (4, 2, 16), precision, false);
    }
    packed(&[4], (2, 2, 250), Precision::F32, false);
}
