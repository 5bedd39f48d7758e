//! The gradient of one decoder layer, written out by hand in the reverse order of `Model::layer`.

#![allow(
    clippy::indexing_slicing,
    reason = "offsets into packed buffers are computed here from the sizes that allocated them"
)]

use std::ops::Range;

use super::gradients::Gradients;
use super::pass::Trained;
use crate::lora::Target;
use crate::model::{Activations, Model};
use crate::ops::linear::{self, Mat, Threads};
use crate::ops::rope::Angles;
use crate::ops::{attention, norm, swiglu};
use crate::weights::PER_LAYER;

/// What the layer saw.
pub(crate) struct Below<'a> {
    pub(crate) layer: usize,
    /// Residual stream before the layer, `[t, hidden]`.
    pub(crate) input: &'a [f32],
    /// Residual stream between attention and feed-forward, `[rows, hidden]`.
    pub(crate) middle: &'a [f32],
    /// Rows that went on after attention; none = all.
    pub(crate) rows: Option<&'a [usize]>,
    pub(crate) spans: &'a [Range<usize>],
    pub(crate) angles: &'a Angles,
    /// Nothing below is trained: the gradient of the input is not needed.
    pub(crate) last: bool,
    pub(crate) threads: Threads,
}

/// Buffers that layers use in turn.
#[derive(Default)]
pub(crate) struct Scratch {
    activated: Vec<f32>,
    normed: Vec<f32>,
    attended: Vec<f32>,
    qkv: Vec<f32>,
    inner: Vec<f32>,
    dinner: Vec<f32>,
}

/// Places of a layer's tensors in full-parameter gradients (see `weights::entries`).
mod place {
    pub(super) const INPUT_NORM: usize = 0;
    pub(super) const Q: usize = 1;
    pub(super) const K: usize = 2;
    pub(super) const V: usize = 3;
    pub(super) const Q_NORM: usize = 4;
    pub(super) const K_NORM: usize = 5;
    pub(super) const O: usize = 6;
    pub(super) const POST_NORM: usize = 7;
    pub(super) const GATE: usize = 8;
    pub(super) const UP: usize = 9;
    pub(super) const DOWN: usize = 10;
}

/// Turns `dx`, the gradient of the layer's output (of the rows that went on), into that of its input, and adds the gradients of what
/// is trained. `act` holds the recomputed forward pass (with `keep`) and is consumed.
pub(crate) fn backward(
    model: &Model,
    trained: Trained<'_>,
    below: &Below<'_>,
    act: &mut Activations,
    dx: &mut Vec<f32>,
    gradients: &mut Gradients,
    scratch: &mut Scratch,
) {
    let c = model.config();
    let w = &model.weights.layers[below.layer];
    let (h, f, eps) = (c.hidden_size, c.intermediate_size, c.rms_norm_eps);
    let (q, k, stride) = model.qkv_widths();
    let (t, going_on) = (below.input.len() / h, dx.len() / h);
    let Scratch {
        activated: dactivated,
        normed: dnormed,
        attended: dattended,
        qkv: dqkv,
        inner,
        dinner,
    } = scratch;
    let mut ctx = Linears {
        model,
        trained,
        layer: below.layer,
        t: going_on,
        gradients,
        inner,
        dinner,
        threads: below.threads,
    };

    dactivated.resize(going_on * f, 0.0);
    ctx.weights(dx, h, &[(Target::Down, place::DOWN, 0)], &act.activated);
    ctx.through(dactivated, dx, h, &w.down, h);
    ctx.lora(dactivated, dx, h, &[(Target::Down, 0)], &act.activated);
    swiglu::backward_in_place(&mut act.gate_up, dactivated, f);

    dnormed.resize(going_on * h, 0.0);
    let dgate_up = &act.gate_up;
    let parts = [(Target::Gate, place::GATE, 0), (Target::Up, place::UP, f)];
    ctx.weights(dgate_up, 2 * f, &parts, &act.normed_ff);
    ctx.through(dnormed, dgate_up, 2 * f, &w.gate_up, 2 * f);
    let parts = [(Target::Gate, 0), (Target::Up, f)];
    ctx.lora(dnormed, dgate_up, 2 * f, &parts, &act.normed_ff);
    let dgain = ctx.norm_slot(place::POST_NORM);
    norm::backward(dx, dnormed, below.middle, &w.post_norm, eps, true, dgain);

    dattended.resize(going_on * q, 0.0);
    ctx.weights(dx, h, &[(Target::O, place::O, 0)], &act.attended);
    ctx.through(dattended, dx, h, &w.o, h);
    ctx.lora(dattended, dx, h, &[(Target::O, 0)], &act.attended);
    if let Some(rows) = below.rows {
        spread(dx, rows, h, t);
        spread(dattended, rows, q, t);
        ctx.t = t;
        dnormed.resize(t * h, 0.0);
    }
    dqkv.resize(t * stride, 0.0);
    for span in below.spans {
        attention::backward(
            &mut dqkv[span.start * stride..span.end * stride],
            &dattended[span.start * q..span.end * q],
            &act.qkv[span.start * stride..span.end * stride],
            span.len(),
            model.shape(),
            below.threads,
        );
    }
    let heads = c.num_attention_heads + c.num_key_value_heads;
    below.angles.rotate(dqkv, heads, stride, true);
    let mut dy = vec![0f32; q.max(k)];
    for (d, raw) in dqkv
        .chunks_exact_mut(stride)
        .zip(act.raw.chunks_exact(stride))
    {
        for (range, gain, at) in [
            (0..q, &w.q_norm, place::Q_NORM),
            (q..q + k, &w.k_norm, place::K_NORM),
        ] {
            let dy = &mut dy[..range.len()];
            dy.copy_from_slice(&d[range.clone()]);
            let dgain = ctx.norm_slot(at);
            norm::backward(
                &mut d[range.clone()],
                dy,
                &raw[range],
                gain,
                eps,
                false,
                dgain,
            );
        }
    }

    let parts = [
        (Target::Q, place::Q, 0),
        (Target::K, place::K, q),
        (Target::V, place::V, q + k),
    ];
    ctx.weights(dqkv, stride, &parts, &act.normed);
    if !below.last {
        ctx.through(dnormed, dqkv, stride, &w.qkv, stride);
    }
    let parts = [(Target::Q, 0), (Target::K, q), (Target::V, q + k)];
    ctx.lora(dnormed, dqkv, stride, &parts, &act.normed);
    if !below.last {
        let dgain = ctx.norm_slot(place::INPUT_NORM);
        norm::backward(dx, dnormed, below.input, &w.input_norm, eps, true, dgain);
    }
}

/// Gradients of the linear layers of one decoder layer over `t` packed tokens.
struct Linears<'a> {
    model: &'a Model,
    trained: Trained<'a>,
    layer: usize,
    t: usize,
    gradients: &'a mut Gradients,
    inner: &'a mut Vec<f32>,
    dinner: &'a mut Vec<f32>,
    threads: Threads,
}

/// Puts rows where they were among `total`; the others are zero.
fn spread(values: &mut Vec<f32>, rows: &[usize], width: usize, total: usize) {
    let mut all = vec![0f32; total * width];
    for (row, values) in rows.iter().zip(values.chunks_exact(width)) {
        all[row * width..(row + 1) * width].copy_from_slice(values);
    }
    *values = all;
}

impl Linears<'_> {
    /// `dx = dy w`, overwriting.
    fn through(&self, dx: &mut [f32], dy: &[f32], stride: usize, w: &[f32], out: usize) {
        let inputs = w.len() / out;
        let dy = Mat::strided(dy, self.t, out, stride);
        linear::product(
            dx,
            inputs,
            dy,
            Mat::new(w, out, inputs),
            false,
            1.0,
            self.threads,
        );
    }

    /// Adds dL/dW of full-parameter training for each part of a fused projection.
    fn weights(&mut self, dy: &[f32], stride: usize, parts: &[(Target, usize, usize)], x: &[f32]) {
        if !matches!(self.trained, Trained::Full) {
            return;
        }
        for (target, place, at) in parts {
            let (inputs, outputs) = target.widths(self.model.config());
            let slot = self.gradients.slot(1 + self.layer * PER_LAYER + place);
            let dy = Mat::strided(&dy[*at..], self.t, outputs, stride);
            let x = Mat::new(x, self.t, inputs);
            linear::outer(slot, inputs, dy, x, true, 1.0, self.threads);
        }
    }

    /// Adds the adapter's share to `dx` and accumulates dL/dA and dL/dB.
    fn lora(
        &mut self,
        dx: &mut [f32],
        dy: &[f32],
        stride: usize,
        parts: &[(Target, usize)],
        x: &[f32],
    ) {
        let Trained::Lora(adapter) = self.trained else {
            return;
        };
        let (rank, scale) = (adapter.spec().rank, adapter.spec().scale());
        let threads = self.threads;
        self.inner.resize(self.t * rank, 0.0);
        self.dinner.resize(self.t * rank, 0.0);
        for (target, at) in parts {
            let Some(pair) = adapter.pair(self.layer, *target) else {
                continue;
            };
            let Some(index) = adapter.tensor_index(self.layer, *target) else {
                continue;
            };
            let (inputs, outputs) = target.widths(self.model.config());
            let x = Mat::new(x, self.t, inputs);
            let dy = Mat::strided(&dy[*at..], self.t, outputs, stride);
            let a = Mat::new(&pair.a, rank, inputs);
            linear::forward(self.inner, rank, x, a, false, 1.0, threads);
            let b = Mat::new(&pair.b, outputs, rank);
            linear::product(self.dinner, rank, dy, b, false, scale, threads);
            let inner = Mat::new(self.inner, self.t, rank);
            linear::outer(
                self.gradients.slot(index + 1),
                rank,
                dy,
                inner,
                true,
                scale,
                threads,
            );
            let dinner = Mat::new(self.dinner, self.t, rank);
            linear::outer(
                self.gradients.slot(index),
                inputs,
                dinner,
                x,
                true,
                1.0,
                threads,
            );
            linear::product(dx, inputs, dinner, a, true, 1.0, threads);
        }
    }

    /// Where a norm's gain accumulates, in full-parameter training.
    fn norm_slot(&mut self, place: usize) -> Option<&mut [f32]> {
        let full = matches!(self.trained, Trained::Full);
        full.then(|| self.gradients.slot(1 + self.layer * PER_LAYER + place))
    }
}
