//! One decoder layer over packed tokens, shared by serving and training.

use std::mem::take;
use std::ops::Range;

use clawhost_model::{Adapter, ModelConfig, Target, TargetLayer};

use super::adapter::packed_pair;
use super::decoder::Decoder;
use crate::ops::attention::{self, HeadKv};
use crate::ops::linear::{self, Mat};
use crate::ops::rope::Angles;
use crate::ops::thread_pool::{self, Threads};
use crate::ops::{bias, norm, swiglu};

/// Minimum rows per task when an adapter is applied.
const LORA_ROWS: usize = 16;

/// Tasks per thread when an adapter is applied to many rows.
const LORA_TASKS: usize = 4;

/// Consecutive packed tokens with the same adapter.
pub(crate) type AdapterGroup<'a> = (Range<usize>, Option<&'a Adapter>);

/// Buffers of one layer over packed tokens. The backward pass of training reads them.
#[derive(Default)]
pub(crate) struct Activations {
    /// Normalized input of attention, `[t, hidden]`.
    pub(crate) normed: Vec<f32>,
    /// Query, key and value before head norms and rotation, `[t, q + 2 k]`; stored only for a backward pass and where
    /// the model has head norms.
    pub(crate) raw: Vec<f32>,
    /// Residual stream between attention and feed-forward, `[rows, hidden]`; stored only for a backward pass.
    pub(crate) middle: Vec<f32>,
    /// Query, key and value as attention reads them.
    pub(crate) qkv: Vec<f32>,
    /// Attention output of the selected rows, `[rows, q]`.
    pub(crate) attended: Vec<f32>,
    /// Normalized input of the feed-forward layer, `[rows, hidden]`.
    pub(crate) normed_ff: Vec<f32>,
    /// Gate and up projections, `[rows, 2 f]`.
    pub(crate) gate_up: Vec<f32>,
    /// Activated product, `[rows, f]`.
    pub(crate) activated: Vec<f32>,
    /// `x Aᵀ` of LoRA, `[t, rank]`.
    inner: Vec<f32>,
}

impl Activations {
    /// Takes what [`Decoder::restore`] does not compute.
    pub(crate) fn take_stored(&mut self) -> Self {
        Self {
            raw: take(&mut self.raw),
            middle: take(&mut self.middle),
            qkv: take(&mut self.qkv),
            attended: take(&mut self.attended),
            gate_up: take(&mut self.gate_up),
            ..Self::default()
        }
    }

    /// Puts back what [`Activations::take_stored`] took.
    fn put_stored(&mut self, stored: Self) {
        self.raw = stored.raw;
        self.middle = stored.middle;
        self.qkv = stored.qkv;
        self.attended = stored.attended;
        self.gate_up = stored.gate_up;
    }
}

/// Numbers of values per token in the buffers of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerValues {
    /// What [`Activations::take_stored`] takes.
    pub(crate) stored: usize,
    /// What [`Decoder::restore`] computes.
    pub(crate) restored: usize,
}

impl LayerValues {
    /// The buffers of a model with this configuration, without `inner`, which has the rank of the adapter.
    pub(crate) fn new(c: &ModelConfig) -> Self {
        let (h, f, q) = (c.hidden_size, c.intermediate_size, c.query_width());
        let stride = q + 2 * c.key_width();
        let raw = if c.has_head_norms() { stride } else { 0 };
        Self {
            stored: raw + h + stride + q + 2 * f,
            restored: h + h + f,
        }
    }
}

/// What a pass through a layer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The output.
    Output,
    /// The output, and what a backward pass needs.
    OutputAndActivations,
    /// What a backward pass needs: the pass ends before the last product.
    Activations,
}

/// The parameters of one pass through a layer.
#[derive(Clone, Copy)]
pub(crate) struct LayerPass<'a> {
    pub(crate) groups: &'a [AdapterGroup<'a>],
    pub(crate) angles: &'a Angles,
    /// Rows needed after attention, ascending: the last layer drops the others. `None` = all.
    pub(crate) rows: Option<&'a [usize]>,
    pub(crate) purpose: Purpose,
    pub(crate) threads: Threads,
}

impl Decoder<'_> {
    /// Runs one decoder layer over packed tokens. `x` is updated in place and shrinks to the selected rows. `attend`
    /// gets the final queries, keys and values and fills the attention output. With [`Purpose::Activations`], `x` ends
    /// between attention and feed-forward.
    pub(crate) fn layer(
        &self,
        layer: usize,
        x: &mut Vec<f32>,
        pass: LayerPass<'_>,
        act: &mut Activations,
        attend: impl FnOnce(&[f32], &mut [f32]),
    ) {
        let LayerPass {
            groups,
            angles,
            purpose,
            threads,
            ..
        } = pass;
        let for_backward = purpose != Purpose::Output;
        let c = self.config;
        let w = &self.weights.layers[layer];
        let packed = self.packed_weights().map(|packed| &packed.layers[layer]);
        let quantized = w.quantized.as_deref();
        let (h, f, eps) = (c.hidden_size, c.intermediate_size, c.rms_norm_eps);
        let (q, k, stride) = self.qkv_widths();
        let t = x.len() / h;

        resize_exact(&mut act.normed, t * h);
        norm::forward(&mut act.normed, x, &w.input_norm, eps, threads);
        resize_exact(&mut act.qkv, t * stride);
        let normed = Mat::new(&act.normed, t, h);
        linear::forward(
            &mut act.qkv,
            stride,
            normed,
            Mat::weight(&w.qkv, quantized.map(|w| &w.qkv), stride, h)
                .with_packed(packed.map(|packed| &packed.qkv)),
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
            if for_backward {
                act.raw.clone_from(&act.qkv);
            }
            norm::heads_in_place(
                &mut act.qkv,
                stride,
                (&w.q_norm, q),
                (&w.k_norm, k),
                eps,
                threads,
            );
        }
        angles.rotate(
            &mut act.qkv,
            c.num_attention_heads + c.num_key_value_heads,
            stride,
            false,
            threads,
        );

        resize_exact(&mut act.attended, t * q);
        attend(&act.qkv, &mut act.attended);
        let mut kept_groups = Vec::new();
        let (t, groups) = match pass.rows {
            None => (t, groups),
            Some(rows) => {
                select_rows(x, rows, h);
                select_rows(&mut act.attended, rows, q);
                select_groups(groups, rows, &mut kept_groups);
                (rows.len(), kept_groups.as_slice())
            }
        };
        linear::forward(
            x,
            h,
            Mat::new(&act.attended, t, q),
            Mat::weight(&w.o, quantized.map(|w| &w.o), h, q)
                .with_packed(packed.map(|packed| &packed.o)),
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
        if for_backward {
            resize_exact(&mut act.middle, x.len());
            act.middle.copy_from_slice(x);
        }
        resize_exact(&mut act.normed_ff, t * h);
        norm::forward(&mut act.normed_ff, x, &w.post_norm, eps, threads);
        resize_exact(&mut act.gate_up, t * 2 * f);
        linear::forward(
            &mut act.gate_up,
            2 * f,
            Mat::new(&act.normed_ff, t, h),
            Mat::weight(&w.gate_up, quantized.map(|w| &w.gate_up), 2 * f, h)
                .with_packed(packed.map(|packed| &packed.gate_up)),
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
        resize_exact(&mut act.activated, t * f);
        swiglu::forward(&mut act.activated, &act.gate_up, f, threads);
        if purpose == Purpose::Activations {
            return;
        }
        linear::forward(
            x,
            h,
            Mat::new(&act.activated, t, f),
            Mat::weight(&w.down, quantized.map(|w| &w.down), h, f)
                .with_packed(packed.map(|packed| &packed.down)),
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

    /// Completes stored activations of a layer with what costs little to compute again. `input` is the residual stream
    /// before the layer.
    pub(crate) fn restore(
        &self,
        layer: usize,
        input: &[f32],
        stored: Activations,
        act: &mut Activations,
        threads: Threads,
    ) {
        let (c, w) = (self.config, &self.weights.layers[layer]);
        let (f, eps) = (c.intermediate_size, c.rms_norm_eps);
        act.put_stored(stored);
        resize_exact(&mut act.normed, input.len());
        norm::forward(&mut act.normed, input, &w.input_norm, eps, threads);
        resize_exact(&mut act.normed_ff, act.middle.len());
        norm::forward(&mut act.normed_ff, &act.middle, &w.post_norm, eps, threads);
        resize_exact(&mut act.activated, act.gate_up.len() / 2);
        swiglu::forward(&mut act.activated, &act.gate_up, f, threads);
    }

    /// `y += scale * (x Aᵀ) Bᵀ` for each group of rows whose adapter changes one of these targets. All targets read
    /// `x`; each writes its columns of `y`, which start at the given offset in rows of `stride`. Runs in parallel over
    /// chunks of rows.
    fn lora(
        &self,
        (y, stride): (&mut [f32], usize),
        x: &[f32],
        layer: usize,
        targets: &[(Target, usize)],
        groups: &[AdapterGroup<'_>],
        (inner, threads): (&mut Vec<f32>, Threads),
    ) {
        for (range, adapter) in groups {
            let Some(adapter) = adapter else { continue };
            let pairs = || {
                let pairs = targets.iter();
                pairs.filter_map(|(target, at)| Some((*target, *at, adapter.pair(layer, *target)?)))
            };
            let Some(max_rank) = pairs().map(|(_, _, pair)| pair.rank).max() else {
                continue;
            };
            let small = self.packed_weights().is_some();
            let multiply = |y: &mut [f32], x: &[f32], inner: &mut [f32], t: usize| {
                for (target, at, pair) in pairs() {
                    let ((inputs, outputs), rank) = (target.widths(self.config), pair.rank);
                    let packed = small.then(|| packed_pair(adapter, layer, target)).flatten();
                    let a =
                        Mat::new(&pair.a, rank, inputs).with_packed(packed.map(|packed| &packed.a));
                    let b = Mat::new(&pair.b, outputs, rank)
                        .with_packed(packed.map(|packed| &packed.b));
                    let inner = &mut inner[..t * rank];
                    let x = Mat::new(x, t, inputs);
                    linear::forward(inner, rank, x, a, false, 1.0, Threads(1));
                    let x = Mat::new(inner, t, rank);
                    linear::forward(&mut y[at..], stride, x, b, true, pair.scale(), Threads(1));
                }
            };
            let inputs = targets
                .first()
                .map_or(1, |(target, _)| target.widths(self.config).0);
            inner.resize(range.len() * max_rank, 0.0);
            let y = &mut y[range.start * stride..range.end * stride];
            let x = &x[range.start * inputs..range.end * inputs];
            let rows = match threads.0 {
                0 | 1 => range.len(),
                threads => range.len().div_ceil(threads * LORA_TASKS),
            };
            let rows = rows.next_multiple_of(LORA_ROWS);
            let parts = y.chunks_mut(rows * stride).zip(x.chunks(rows * inputs));
            let mut parts: Vec<_> = parts.zip(inner.chunks_mut(rows * max_rank)).collect();
            let weight = pairs().map(|(_, _, pair)| pair.a.len() + pair.b.len());
            let weight = range.len() * weight.sum::<usize>();
            thread_pool::parallel_for_each(threads, &mut parts, weight, |((y, x), inner)| {
                multiply(y, x, inner, x.len() / inputs);
            });
        }
    }

    /// Causal attention of packed sequences without a past.
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

/// Changes the length; new values are zero. The capacity does not grow beyond the length: the last layer has fewer rows
/// than the others, and twice its size would be a third more memory for a whole training pass.
pub(crate) fn resize_exact(values: &mut Vec<f32>, len: usize) {
    values.reserve_exact(len.saturating_sub(values.len()));
    values.resize(len, 0.0);
}

/// Keeps only these rows (ascending), moved to the front.
fn select_rows(values: &mut Vec<f32>, rows: &[usize], width: usize) {
    for (to, from) in rows.iter().enumerate() {
        values.copy_within(from * width..(from + 1) * width, to * width);
    }
    values.truncate(rows.len() * width);
}

/// The groups of the remaining rows.
fn select_groups<'a>(
    groups: &[AdapterGroup<'a>],
    rows: &[usize],
    selected: &mut Vec<AdapterGroup<'a>>,
) {
    let mut from = 0;
    for (range, adapter) in groups {
        let to = rows.partition_point(|row| *row < range.end);
        selected.push((from..to, *adapter));
        from = to;
    }
}
