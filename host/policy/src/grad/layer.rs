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
use crate::ops::{attention, bias, norm, swiglu};
use crate::weights::{Part, Places};

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
    pub(crate) places: &'a Places,
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
        places: below.places,
        t: going_on,
        gradients,
        inner,
        dinner,
        threads: below.threads,
    };

    dactivated.resize(going_on * f, 0.0);
    ctx.weights(dx, h, &[(Target::Down, 0)], &act.activated);
    ctx.through(dactivated, dx, h, &w.down, h);
    ctx.lora(dactivated, dx, h, &[(Target::Down, 0)], &act.activated);
    swiglu::backward_in_place(&mut act.gate_up, dactivated, f);

    dnormed.resize(going_on * h, 0.0);
    let dgate_up = &act.gate_up;
    let parts = [(Target::Gate, 0), (Target::Up, f)];
    ctx.weights(dgate_up, 2 * f, &parts, &act.normed_ff);
    ctx.through(dnormed, dgate_up, 2 * f, &w.gate_up, 2 * f);
    ctx.lora(dnormed, dgate_up, 2 * f, &parts, &act.normed_ff);
    let dgain = ctx.slot(Part::PostNorm);
    norm::backward(dx, dnormed, below.middle, &w.post_norm, eps, true, dgain);

    dattended.resize(going_on * q, 0.0);
    ctx.weights(dx, h, &[(Target::O, 0)], &act.attended);
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
    if !w.q_norm.is_empty() {
        ctx.head_norms(dqkv, &act.raw);
    }

    let parts = [(Target::Q, 0), (Target::K, q), (Target::V, q + k)];
    ctx.weights(dqkv, stride, &parts, &act.normed);
    if !below.last {
        ctx.through(dnormed, dqkv, stride, &w.qkv, stride);
    }
    ctx.lora(dnormed, dqkv, stride, &parts, &act.normed);
    if !below.last {
        let dgain = ctx.slot(Part::InputNorm);
        norm::backward(dx, dnormed, below.input, &w.input_norm, eps, true, dgain);
    }
}

/// Gradients of the linear layers of one decoder layer over `t` packed tokens.
struct Linears<'a> {
    model: &'a Model,
    trained: Trained<'a>,
    layer: usize,
    places: &'a Places,
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

    /// Adds dL/dW and dL/dbias of full-parameter training for each part of a fused projection.
    fn weights(&mut self, dy: &[f32], stride: usize, parts: &[(Target, usize)], x: &[f32]) {
        for (target, at) in parts {
            let (inputs, outputs) = target.widths(self.model.config());
            let (t, threads) = (self.t, self.threads);
            let Some(slot) = self.slot(Part::Weight(*target)) else {
                continue;
            };
            let rows = Mat::strided(&dy[*at..], t, outputs, stride);
            linear::outer(
                slot,
                inputs,
                rows,
                Mat::new(x, t, inputs),
                true,
                1.0,
                threads,
            );
            if let Some(slot) = self.slot(Part::Bias(*target)) {
                bias::backward(slot, &dy[*at..t * stride], stride);
            }
        }
    }

    /// Turns the gradient of normalised queries and keys into that of what they were made from.
    fn head_norms(&mut self, dqkv: &mut [f32], raw: &[f32]) {
        let (q, k, stride) = self.model.qkv_widths();
        let w = &self.model.weights.layers[self.layer];
        let eps = self.model.config().rms_norm_eps;
        let mut dy = vec![0f32; q.max(k)];
        for (d, raw) in dqkv.chunks_exact_mut(stride).zip(raw.chunks_exact(stride)) {
            for (range, gain, part) in [
                (0..q, &w.q_norm, Part::QNorm),
                (q..q + k, &w.k_norm, Part::KNorm),
            ] {
                let dy = &mut dy[..range.len()];
                dy.copy_from_slice(&d[range.clone()]);
                let dgain = self.slot(part);
                let (dx, x) = (&mut d[range.clone()], &raw[range]);
                norm::backward(dx, dy, x, gain, eps, false, dgain);
            }
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
        let threads = self.threads;
        for (target, at) in parts {
            let Some(pair) = adapter.pair(self.layer, *target) else {
                continue;
            };
            let Some(index) = adapter.tensor_index(self.layer, *target) else {
                continue;
            };
            let (rank, scale) = (pair.rank, pair.scale());
            self.inner.resize(self.t * rank, 0.0);
            self.dinner.resize(self.t * rank, 0.0);
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

    /// Where the gradient of a tensor accumulates: in full-parameter training, when the layer has such a tensor.
    fn slot(&mut self, part: Part) -> Option<&mut [f32]> {
        if !matches!(self.trained, Trained::Full) {
            return None;
        }
        let index = self.places.of(self.layer, part)?;
        Some(self.gradients.slot(index))
    }
}
