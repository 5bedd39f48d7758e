//! One decoder layer over packed tokens: what serving and training share.

#![allow(
    clippy::indexing_slicing,
    reason = "offsets into packed buffers are computed here from the sizes that allocated them"
)]

use std::ops::Range;

use super::Model;
use crate::lora::{Adapter, Target};
use crate::ops::attention::{self, HeadKv};
use crate::ops::linear::{self, Mat, Threads};
use crate::ops::rope::Angles;
use crate::ops::{bias, norm, swiglu, team};

/// Rows that a thread takes through an adapter at once.
const TOGETHER: usize = 16;

/// Consecutive packed tokens under one adapter.
pub(crate) type Group<'a> = (Range<usize>, Option<&'a Adapter>);

/// Buffers of one layer over packed tokens. Training reads them in its backward pass.
#[derive(Default)]
pub(crate) struct Activations {
    /// Normalised input of attention, `[t, hidden]`.
    pub(crate) normed: Vec<f32>,
    /// Query, key, value before head norms and rotation, `[t, q + 2 k]`; kept only on request and where there are head norms.
    pub(crate) raw: Vec<f32>,
    /// Query, key, value as attention sees them.
    pub(crate) qkv: Vec<f32>,
    /// Attention output of the rows that go on, `[rows, q]`.
    pub(crate) attended: Vec<f32>,
    /// Normalised input of the feed-forward layer, `[rows, hidden]`.
    pub(crate) normed_ff: Vec<f32>,
    /// Gate and up, `[rows, 2 f]`.
    pub(crate) gate_up: Vec<f32>,
    /// Activated product, `[rows, f]`.
    pub(crate) activated: Vec<f32>,
    /// Inner LoRA values, `[t, rank]`.
    inner: Vec<f32>,
}

/// How packed tokens go through a layer.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    pub(crate) groups: &'a [Group<'a>],
    pub(crate) angles: &'a Angles,
    /// Rows that somebody wants of the last layer, ascending: after attention the others need not go on.
    /// None = all.
    pub(crate) rows: Option<&'a [usize]>,
    /// Keep what a backward pass needs.
    pub(crate) keep: bool,
    pub(crate) threads: Threads,
}

impl Model {
    /// One decoder layer over packed tokens: `x` is updated in place, and shrinks to the rows that go on.
    /// `attend` gets the finished queries, keys and values and fills the attention output. With `keep`, `x` ends
    /// between attention and feed-forward, for a backward pass has no use for what comes after it.
    pub(crate) fn layer(
        &self,
        layer: usize,
        x: &mut Vec<f32>,
        way: Way<'_>,
        act: &mut Activations,
        attend: impl FnOnce(&[f32], &mut [f32]),
    ) {
        let Way {
            groups,
            angles,
            keep,
            threads,
            ..
        } = way;
        let c = &self.config;
        let w = &self.weights.layers[layer];
        let panels = self.panels().map(|panels| &panels.layers[layer]);
        let (h, f, eps) = (c.hidden_size, c.intermediate_size, c.rms_norm_eps);
        let (q, k, stride) = self.qkv_widths();
        let t = x.len() / h;

        act.normed.resize(t * h, 0.0);
        norm::forward(&mut act.normed, x, &w.input_norm, eps);
        act.qkv.resize(t * stride, 0.0);
        let normed = Mat::new(&act.normed, t, h);
        linear::forward(
            &mut act.qkv,
            stride,
            normed,
            Mat::new(&w.qkv, stride, h).or_in(panels.map(|panels| &panels.qkv)),
            false,
            1.0,
            threads,
        );
        bias::forward(&mut act.qkv, &w.qkv_bias);
        let Activations {
            qkv, normed, inner, ..
        } = act;
        let qkv_targets = [(Target::Q, 0), (Target::K, q), (Target::V, q + k)];
        self.lora(
            (qkv, stride),
            normed,
            layer,
            &qkv_targets,
            groups,
            (inner, threads),
        );
        if !w.q_norm.is_empty() {
            if keep {
                act.raw.clone_from(&act.qkv);
            }
            for row in act.qkv.chunks_exact_mut(stride) {
                norm::forward_in_place(&mut row[..q], &w.q_norm, eps);
                norm::forward_in_place(&mut row[q..q + k], &w.k_norm, eps);
            }
        }
        angles.rotate(
            &mut act.qkv,
            c.num_attention_heads + c.num_key_value_heads,
            stride,
            false,
        );

        act.attended.resize(t * q, 0.0);
        attend(&act.qkv, &mut act.attended);
        let mut going_on = Vec::new();
        let (t, groups) = match way.rows {
            None => (t, groups),
            Some(rows) => {
                keep_rows(x, rows, h);
                keep_rows(&mut act.attended, rows, q);
                narrow(groups, rows, &mut going_on);
                (rows.len(), going_on.as_slice())
            }
        };
        linear::forward(
            x,
            h,
            Mat::new(&act.attended, t, q),
            Mat::new(&w.o, h, q).or_in(panels.map(|panels| &panels.o)),
            true,
            1.0,
            threads,
        );
        bias::forward(x, &w.o_bias);
        let Activations {
            attended, inner, ..
        } = act;
        self.lora(
            (x, h),
            attended,
            layer,
            &[(Target::O, 0)],
            groups,
            (inner, threads),
        );
        act.normed_ff.resize(t * h, 0.0);
        norm::forward(&mut act.normed_ff, x, &w.post_norm, eps);
        act.gate_up.resize(t * 2 * f, 0.0);
        linear::forward(
            &mut act.gate_up,
            2 * f,
            Mat::new(&act.normed_ff, t, h),
            Mat::new(&w.gate_up, 2 * f, h).or_in(panels.map(|panels| &panels.gate_up)),
            false,
            1.0,
            threads,
        );
        bias::forward(&mut act.gate_up, &w.gate_up_bias);
        let Activations {
            gate_up,
            normed_ff,
            inner,
            ..
        } = act;
        let gated = [(Target::Gate, 0), (Target::Up, f)];
        self.lora(
            (gate_up, 2 * f),
            normed_ff,
            layer,
            &gated,
            groups,
            (inner, threads),
        );
        act.activated.resize(t * f, 0.0);
        swiglu::forward(&mut act.activated, &act.gate_up, f);
        if keep {
            return;
        }
        linear::forward(
            x,
            h,
            Mat::new(&act.activated, t, f),
            Mat::new(&w.down, h, f).or_in(panels.map(|panels| &panels.down)),
            true,
            1.0,
            threads,
        );
        bias::forward(x, &w.down_bias);
        let Activations {
            activated, inner, ..
        } = act;
        self.lora(
            (x, h),
            activated,
            layer,
            &[(Target::Down, 0)],
            groups,
            (inner, threads),
        );
    }

    /// `y += scale * (x Aᵀ) Bᵀ` for each group of rows that has an adapter on one of these targets, all of which read
    /// `x`; their columns begin where it says in rows of `y` of `stride`. A thread takes a few rows through everything.
    fn lora(
        &self,
        (y, stride): (&mut [f32], usize),
        x: &[f32],
        layer: usize,
        targets: &[(Target, usize)],
        groups: &[Group<'_>],
        (inner, threads): (&mut Vec<f32>, Threads),
    ) {
        for (range, adapter) in groups {
            let Some(adapter) = adapter else { continue };
            let pairs = || {
                let pairs = targets.iter();
                pairs.filter_map(|(target, at)| Some((*target, *at, adapter.pair(layer, *target)?)))
            };
            let Some(most) = pairs().map(|(_, _, pair)| pair.rank).max() else {
                continue;
            };
            let small = self.panels().is_some();
            let multiply = |y: &mut [f32], x: &[f32], inner: &mut [f32], t: usize| {
                for (target, at, pair) in pairs() {
                    let ((inputs, outputs), rank) = (target.widths(&self.config), pair.rank);
                    let panels = small.then(|| adapter.panels(layer, target)).flatten();
                    let a = Mat::new(&pair.a, rank, inputs).or_in(panels.map(|panels| &panels.a));
                    let b = Mat::new(&pair.b, outputs, rank).or_in(panels.map(|panels| &panels.b));
                    let inner = &mut inner[..t * rank];
                    let x = Mat::new(x, t, inputs);
                    linear::forward(inner, rank, x, a, false, 1.0, Threads(1));
                    let x = Mat::new(inner, t, rank);
                    linear::forward(&mut y[at..], stride, x, b, true, pair.scale(), Threads(1));
                }
            };
            let inputs = targets
                .first()
                .map_or(1, |(target, _)| target.widths(&self.config).0);
            inner.resize(range.len() * most, 0.0);
            let y = &mut y[range.start * stride..range.end * stride];
            let x = &x[range.start * inputs..range.end * inputs];
            let parts = y
                .chunks_mut(TOGETHER * stride)
                .zip(x.chunks(TOGETHER * inputs));
            let mut parts: Vec<_> = parts.zip(inner.chunks_mut(TOGETHER * most)).collect();
            let weight = pairs().map(|(_, _, pair)| pair.a.len() + pair.b.len());
            let weight = range.len() * weight.sum::<usize>();
            team::each_of(threads, &mut parts, weight, |((y, x), inner)| {
                multiply(y, x, inner, x.len() / inputs);
            });
        }
    }

    /// Causal attention of packed sequences that have no past.
    pub(crate) fn attend_packed(
        &self,
        qkv: &[f32],
        out: &mut [f32],
        spans: &[Range<usize>],
        threads: Threads,
    ) {
        let (q, k, stride) = self.qkv_widths();
        let dim = self.config.head_dim;
        for span in spans {
            let qkv = &qkv[span.start * stride..span.end * stride];
            attention::forward(
                &mut out[span.start * q..span.end * q],
                qkv,
                stride,
                (span.len(), 0),
                self.shape(),
                |head| HeadKv {
                    keys: &qkv[q + head * dim..],
                    values: &qkv[q + k + head * dim..],
                    stride,
                },
                threads,
            );
        }
    }
}

/// Moves these rows, ascending, to the front and drops the others.
fn keep_rows(values: &mut Vec<f32>, rows: &[usize], width: usize) {
    for (to, from) in rows.iter().enumerate() {
        values.copy_within(from * width..(from + 1) * width, to * width);
    }
    values.truncate(rows.len() * width);
}

/// The groups that the remaining rows belong to.
fn narrow<'a>(groups: &[Group<'a>], rows: &[usize], narrowed: &mut Vec<Group<'a>>) {
    let mut from = 0;
    for (range, adapter) in groups {
        let to = rows.partition_point(|row| *row < range.end);
        narrowed.push((from..to, *adapter));
        from = to;
    }
}
