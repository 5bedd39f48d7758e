//! Norms, rotation, biases, activations, and moves of rows.

use super::*;
use crate::device::Address;
use crate::kernels::{QkvArguments, StridedRows};

const EPS: f32 = 1e-5;

fn inverse_rms(x: &[f32]) -> f32 {
    let squares: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
    (1.0 / (squares / x.len() as f64 + f64::from(EPS)).sqrt()) as f32
}

fn plain_norm(x: &[f32], gain: &[f32]) -> Vec<f32> {
    let rows = x.chunks_exact(gain.len());
    rows.flat_map(|row| {
        let scale = inverse_rms(row);
        row.iter().zip(gain).map(move |(v, g)| v * scale * g)
    })
    .collect()
}

/// The gradient of `sum(dy * f(x))` by central differences, for a function of few values.
fn differences(x: &[f32], dy: &[f32], f: impl Fn(&[f32]) -> Vec<f32>) -> Vec<f32> {
    let loss = |x: &[f32]| -> f64 {
        let y = f(x);
        y.iter().zip(dy).map(|(y, d)| f64::from(y * d)).sum()
    };
    let step = 1e-2;
    (0..x.len())
        .map(|i| {
            let mut moved = x.to_vec();
            moved[i] = x[i] + step;
            let above = loss(&moved);
            moved[i] = x[i] - step;
            ((above - loss(&moved)) / (2.0 * f64::from(step))) as f32
        })
        .collect()
}

#[test]
fn norm_and_its_gradients() {
    for precision in BOTH {
        for (rows, width) in [(3, 8), (5, 48), (2, 1544)] {
            let (x, dy) = (random(1, rows * width, 2.0), random(2, rows * width, 1.0));
            let before = random(3, rows * width, 1.0);
            let gain = random(4, width, 1.5);
            let Some((y, dx, dgain)) = in_both_orders(|b| {
                let (xs, dys) = (b.upload(&x), b.values(precision, &dy));
                let (gains, dx) = (b.upload(&gain), b.values(precision, &before));
                let y = b.empty(precision, rows * width);
                let (scales, dgain) = (b.upload(&vec![0f32; rows]), b.upload(&vec![0f32; width]));
                let shape = (rows, width);
                let s = &b.stream;
                s.rms_norm(
                    precision,
                    (xs.address(), gains.address(), y.address()),
                    shape,
                    EPS,
                )
                .unwrap();
                let at = (xs.address(), gains.address(), dys.address(), dx.address());
                s.rms_norm_backward(precision, at, scales.address(), shape, EPS, true)
                    .unwrap();
                let at = (
                    xs.address(),
                    dys.address(),
                    scales.address(),
                    dgain.address(),
                );
                s.residual_gain_backward(precision, at, StridedRows::dense(rows, width))
                    .unwrap();
                (b.read_values(&y), b.read_values(&dx), b.read(&dgain))
            }) else {
                return;
            };
            assert_close("norm", &y, &plain_norm(&x, &gain), rounding(precision));
            let mut expected = before.clone();
            let mut expected_gain = vec![0f32; width];
            for row in 0..rows {
                let own = row * width..(row + 1) * width;
                let (x, dy) = (&x[own.clone()], &dy[own.clone()]);
                let scale = inverse_rms(x);
                let shared: f32 = (0..width).map(|i| dy[i] * gain[i] * x[i]).sum();
                for i in 0..width {
                    expected[own.start + i] +=
                        dy[i] * gain[i] * scale - shared * scale.powi(3) / width as f32 * x[i];
                    expected_gain[i] += dy[i] * x[i] * scale;
                }
            }
            assert_close("dx", &dx, &expected, rounding(precision));
            assert_close("dgain", &dgain, &expected_gain, 1e-5);
            if width == 8 && precision == Precision::F32 {
                let differences = differences(&x, &dy, |x| plain_norm(x, &gain));
                let own: Vec<f32> = dx.iter().zip(&before).map(|(d, b)| d - b).collect();
                assert_close("differences", &own, &differences, 2e-2);
            }
        }
    }
}

/// Bias, head norms and rotation as the CPU backend applies them.
fn plain_qkv(
    qkv: &[f32],
    (heads, kv_heads, dim): (usize, usize, usize),
    (bias, q_norm, k_norm): (&[f32], &[f32], &[f32]),
    (positions, frequencies): (&[i32], &[f32]),
) -> Vec<f32> {
    let width = (heads + 2 * kv_heads) * dim;
    let mut all = qkv.to_vec();
    for (row, position) in all.chunks_exact_mut(width).zip(positions) {
        row.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
        for (head, values) in row.chunks_exact_mut(dim).enumerate().take(heads + kv_heads) {
            let gain = if head < heads { q_norm } else { k_norm };
            if !gain.is_empty() {
                values.copy_from_slice(&plain_norm(values, gain));
            }
            let (low, high) = values.split_at_mut(dim / 2);
            for i in 0..dim / 2 {
                let angle = *position as f32 * frequencies[i];
                let (a, b) = (low[i], high[i]);
                low[i] = a * angle.cos() - b * angle.sin();
                high[i] = b * angle.cos() + a * angle.sin();
            }
        }
    }
    all
}

#[test]
fn queries_and_keys_are_rotated_and_written_to_their_blocks() {
    for (precision, dim, norms) in [
        (Precision::F32, 16, true),
        (Precision::Bf16, 64, true),
        (Precision::Bf16, 128, false),
        (Precision::Bf16, 48, true),
        (Precision::F32, 6, true),
        (Precision::F32, 6, false),
    ] {
        let (heads, kv_heads, tokens) = (6, 2, 5);
        let width = (heads + 2 * kv_heads) * dim;
        let qkv = random(5, tokens * width, 2.0);
        let bias = random(6, width, 0.5);
        let (q_norm, k_norm) = if norms {
            (random(7, dim, 1.5), random(8, dim, 1.5))
        } else {
            (Vec::new(), Vec::new())
        };
        let frequencies: Vec<f32> = (0..dim / 2).map(|i| 0.9f32.powi(i as i32)).collect();
        let positions = [0, 1, 33, 500, 2];
        // Blocks are strided: this layer's part is in the middle of a block.
        let (plane, blocks) = (2 * kv_heads * 32 * dim, 4);
        let (stride, slots) = (3 * plane, [0, 33, 95, 64, 7]);
        let grid = (heads, kv_heads, dim);
        let gains = (&bias[..], &q_norm[..], &k_norm[..]);
        let expected = plain_qkv(&qkv, grid, gains, (&positions, &frequencies));
        let dy = random(9, tokens * width, 1.0);
        let Some((out, raw, kv, dx)) = in_both_orders(|b| {
            let s = &b.stream;
            let values = b.values(precision, &qkv);
            let raw = b.values(precision, &vec![0.0; qkv.len()]);
            let kv = b.values(precision, &vec![0.0; stride * blocks]);
            let (bias, positions) = (b.upload(&bias), b.upload(&positions));
            let (q_norm, k_norm) = (b.upload(&q_norm), b.upload(&k_norm));
            let angles = b.upload(&vec![0f32; tokens * dim]);
            let slots = b.upload(&slots);
            let frequencies = b.upload(&frequencies);
            let at = (positions.address(), frequencies.address(), angles.address());
            s.rope_angles(at, 1.0, (tokens, dim / 2)).unwrap();
            let gain = |gain: &Buffer<f32>| if norms { gain.address() } else { Address::NULL };
            let arguments = QkvArguments {
                qkv: values.address(),
                raw: raw.address(),
                bias: bias.address(),
                q_norm: gain(&q_norm),
                k_norm: gain(&k_norm),
                angles: angles.address(),
                kv: kv.at(plane),
                block_stride: stride as i64,
                slots: slots.address(),
                heads: heads as i32,
                kv_heads: kv_heads as i32,
                dim: dim as i32,
                eps: EPS,
            };
            s.finish_qkv(precision, arguments, tokens).unwrap();
            let dqkv = b.values(precision, &dy);
            let backward = QkvArguments {
                qkv: dqkv.address(),
                ..arguments
            };
            let scales = b.upload(&vec![0f32; tokens * (heads + kv_heads)]);
            let rotated = b.values(precision, &vec![0.0; qkv.len()]);
            let outputs = (scales.address(), rotated.address());
            s.finish_qkv_backward(precision, backward, outputs, tokens)
                .unwrap();
            (
                b.read_values(&values),
                b.read_values(&raw),
                b.read_values(&kv),
                b.read_values(&dqkv),
            )
        }) else {
            return;
        };
        let bound = 2.0 * rounding(precision);
        assert_close("qkv", &out, &expected, bound);
        let with_bias: Vec<f32> = qkv
            .iter()
            .enumerate()
            .map(|(i, v)| v + bias[i % width])
            .collect();
        assert_close("raw", &raw, &with_bias, rounding(precision));
        for (token, slot) in slots.iter().enumerate() {
            for head in 0..2 * kv_heads {
                let from = (*slot as usize / 32) * stride
                    + plane
                    + (head * 32 + *slot as usize % 32) * dim;
                let at = token * width + (heads + head) * dim;
                assert_eq!(kv[from..from + dim], out[at..at + dim], "token {token}");
            }
        }
        let written = kv.iter().filter(|v| **v != 0.0).count();
        assert!(
            written <= tokens * 2 * kv_heads * dim,
            "nothing else is written"
        );
        // The gradient of queries and keys; that of the values passes through.
        if precision == Precision::F32 {
            let expected = differences(&raw, &dy, |x| {
                plain_qkv(x, grid, (&[], &q_norm, &k_norm), (&positions, &frequencies))
            });
            assert_close("dqkv", &dx, &expected, 2e-2);
        } else {
            assert_eq!(
                dx[(heads + kv_heads) * dim..width],
                dy[(heads + kv_heads) * dim..width]
            );
        }
    }
}

#[test]
fn activation_and_its_gradient() {
    for precision in BOTH {
        let (rows, width) = (7, 72);
        let (gate_up, dy) = (
            random(11, rows * 2 * width, 3.0),
            random(12, rows * width, 1.0),
        );
        let Some((y, d)) = in_both_orders(|b| {
            let (x, dys) = (b.values(precision, &gate_up), b.values(precision, &dy));
            let y = b.empty(precision, rows * width);
            b.stream
                .swiglu(precision, (x.address(), y.address()), (rows, width))
                .unwrap();
            let at = (x.address(), dys.address());
            b.stream
                .swiglu_backward(precision, at, (rows, width))
                .unwrap();
            (b.read_values(&y), b.read_values(&x))
        }) else {
            return;
        };
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let (mut expected, mut gradient) = (Vec::new(), Vec::new());
        for (row, dy) in gate_up.chunks_exact(2 * width).zip(dy.chunks_exact(width)) {
            let (gate, up) = row.split_at(width);
            expected.extend(gate.iter().zip(up).map(|(g, u)| g * sigmoid(*g) * u));
            gradient.extend((0..width).map(|i| {
                let s = sigmoid(gate[i]);
                dy[i] * up[i] * s * (1.0 + gate[i] * (1.0 - s))
            }));
            gradient.extend((0..width).map(|i| dy[i] * gate[i] * sigmoid(gate[i])));
        }
        assert_close("swiglu", &y, &expected, rounding(precision));
        assert_close("gradient", &d, &gradient, rounding(precision));
    }
}

#[test]
fn rows_and_biases() {
    for precision in BOTH {
        let (vocab, width, ids) = (9, 40, [3usize, 8, 3, 0]);
        let table = random(13, vocab * width, 1.0);
        let bias = random(14, width, 1.0);
        let Some((embedded, x, gathered, scattered, biased, dbias, dtable)) = in_both_orders(|b| {
            let s = &b.stream;
            let shape = (ids.len(), width);
            let (tables, tokens) = (b.values(precision, &table), b.ints(&ids));
            let embedded = b.empty(Precision::F32, ids.len() * width);
            s.embed(
                precision,
                (tables.address(), tokens.address(), embedded.address()),
                shape,
            )
            .unwrap();
            let x = b.values(precision, &b.read_values(&embedded));
            let rows = b.ints(&[2, 0]);
            let gathered = b.empty(precision, 2 * width);
            s.gather_rows(
                precision,
                (x.address(), rows.address(), gathered.address()),
                (2, width),
            )
            .unwrap();
            let scattered = b.values(precision, &vec![0.0; 4 * width]);
            let at = (gathered.address(), rows.address(), scattered.address());
            s.scatter_rows(precision, at, (2, width)).unwrap();
            let biases = b.upload(&bias);
            let biased = b.values(precision, &vec![0.0; 4 * width]);
            s.add_bias(precision, (biased.address(), biases.address()), shape)
                .unwrap();
            let dbias = b.upload(&vec![1f32; width - 8]);
            let strided = (4, width - 8, width);
            s.bias_backward(precision, (x.address(), dbias.address()), strided)
                .unwrap();
            let dtable = b.upload(&vec![0f32; vocab * width]);
            s.embed_backward(
                precision,
                (x.address(), tokens.address(), dtable.address()),
                shape,
            )
            .unwrap();
            (
                b.read_values(&embedded),
                b.read_values(&x),
                b.read_values(&gathered),
                b.read_values(&scattered),
                b.read_values(&biased),
                b.read(&dbias),
                b.read(&dtable),
            )
        }) else {
            return;
        };
        let row = |id: usize| &table[id * width..(id + 1) * width];
        assert_eq!(embedded, [row(3), row(8), row(3), row(0)].concat());
        assert_eq!(x, embedded);
        assert_eq!(gathered, [row(3), row(3)].concat());
        assert_eq!(
            scattered,
            [row(3), &vec![0.0; width], row(3), &vec![0.0; width]].concat()
        );
        assert_eq!(biased, bias.repeat(4));
        let sums: Vec<f32> = (0..width - 8)
            .map(|c| 1.0 + 2.0 * row(3)[c] + row(8)[c] + row(0)[c])
            .collect();
        assert_close("dbias", &dbias, &sums, 1e-6);
        let mut expected = vec![0.0; vocab * width];
        for (id, factor) in [(3, 2.0), (8, 1.0), (0, 1.0)] {
            for c in 0..width {
                expected[id * width + c] = factor * row(id)[c];
            }
        }
        assert_eq!(dtable, expected);
    }
}
