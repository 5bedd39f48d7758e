//! The backward pass of one decoder layer, written by hand in the reverse order of `Model::layer`.

use std::ops::Range;

use clawhost_model::{ParameterIndex, Target, TargetLayer, TensorRole};

use super::gradients::{GradientTarget, Gradients};
use crate::model::{Activations, Decoder, resize_exact};
use crate::ops::linear::{self, Mat};
use crate::ops::rope::Angles;
use crate::ops::thread_pool::Threads;
use crate::ops::{attention, bias, norm, swiglu};

/// The stored and recomputed inputs of a layer.
pub(crate) struct LayerInputs<'a> {
    pub(crate) layer: usize,
    /// Residual stream before the layer, `[t, hidden]`.
    pub(crate) input: &'a [f32],
    /// Rows selected after attention; `None` = all.
    pub(crate) rows: Option<&'a [usize]>,
    pub(crate) spans: &'a [Range<usize>],
    pub(crate) angles: &'a Angles,
    /// Nothing below this layer is trained: the gradient of its input is not needed.
    pub(crate) is_last: bool,
    pub(crate) parameters: &'a ParameterIndex,
    pub(crate) threads: Threads,
}

/// Scratch buffers reused by the layers.
#[derive(Default)]
pub(crate) struct Scratch {
    activated: Vec<f32>,
    normed: Vec<f32>,
    attended: Vec<f32>,
    qkv: Vec<f32>,
    inner: Vec<f32>,
    dinner: Vec<f32>,
}

/// Replaces `dx`, the gradient of the layer's output (for the selected rows), by the gradient of its input, and
/// accumulates the gradients of the trained tensors. `act` holds the stored or recomputed forward pass and is consumed.
pub(crate) fn backward(
    model: Decoder<'_>,
    trained: GradientTarget<'_>,
    inputs: &LayerInputs<'_>,
    act: &mut Activations,
    dx: &mut Vec<f32>,
    gradients: &mut Gradients,
    scratch: &mut Scratch,
) {
    let c = model.config();
    let w = &model.weights.layers[inputs.layer];
    let quantized = w.quantized.as_deref();
    let (h, f, eps) = (c.hidden_size, c.intermediate_size, c.rms_norm_eps);
    let (q, k, stride) = model.qkv_widths();
    let (t, kept) = (inputs.input.len() / h, dx.len() / h);
    let Scratch {
        activated: dactivated,
        normed: dnormed,
        attended: dattended,
        qkv: dqkv,
        inner,
        dinner,
    } = scratch;
    let mut ctx = LinearGradients {
        model,
        trained,
        layer: inputs.layer,
        parameters: inputs.parameters,
        t: kept,
        gradients,
        inner,
        dinner,
        threads: inputs.threads,
    };

    resize_exact(dactivated, kept * f);
    ctx.weight_gradients(dx, h, &[(Target::Down, 0)], &act.activated);
    let weight = Mat::weight(&w.down, quantized.map(|w| &w.down), h, f);
    ctx.input_gradient(dactivated, dx, h, weight);
    ctx.lora_gradients(dactivated, dx, h, &[(Target::Down, 0)], &act.activated);
    swiglu::backward_in_place(&mut act.gate_up, dactivated, f, inputs.threads);

    resize_exact(dnormed, kept * h);
    let dgate_up = &act.gate_up;
    let parts = [(Target::Gate, 0), (Target::Up, f)];
    ctx.weight_gradients(dgate_up, 2 * f, &parts, &act.normed_ff);
    let weight = Mat::weight(&w.gate_up, quantized.map(|w| &w.gate_up), 2 * f, h);
    ctx.input_gradient(dnormed, dgate_up, 2 * f, weight);
    ctx.lora_gradients(dnormed, dgate_up, 2 * f, &parts, &act.normed_ff);
    if let Some(dgain) = ctx.buffer(TensorRole::PostNorm) {
        norm::gain_gradient(dgain, dnormed, &act.middle, eps);
    }
    let (middle, gain) = (&act.middle, &w.post_norm);
    norm::backward(dx, dnormed, middle, gain, eps, true, inputs.threads);

    resize_exact(dattended, kept * q);
    ctx.weight_gradients(dx, h, &[(Target::O, 0)], &act.attended);
    let weight = Mat::weight(&w.o, quantized.map(|w| &w.o), h, q);
    ctx.input_gradient(dattended, dx, h, weight);
    ctx.lora_gradients(dattended, dx, h, &[(Target::O, 0)], &act.attended);
    if let Some(rows) = inputs.rows {
        scatter_rows(dx, rows, h, t);
        scatter_rows(dattended, rows, q, t);
        ctx.t = t;
        resize_exact(dnormed, t * h);
    }
    resize_exact(dqkv, t * stride);
    for span in inputs.spans {
        attention::backward(
            &mut dqkv[span.start * stride..span.end * stride],
            &dattended[span.start * q..span.end * q],
            &act.qkv[span.start * stride..span.end * stride],
            span.len(),
            model.shape(),
            inputs.threads,
        );
    }
    let heads = c.num_attention_heads + c.num_key_value_heads;
    inputs
        .angles
        .rotate(dqkv, heads, stride, true, inputs.threads);
    if !w.q_norm.is_empty() {
        ctx.head_norm_gradients(dqkv, &act.raw);
    }

    let parts = [(Target::Q, 0), (Target::K, q), (Target::V, q + k)];
    ctx.weight_gradients(dqkv, stride, &parts, &act.normed);
    if !inputs.is_last {
        let weight = Mat::weight(&w.qkv, quantized.map(|w| &w.qkv), stride, h);
        ctx.input_gradient(dnormed, dqkv, stride, weight);
    }
    ctx.lora_gradients(dnormed, dqkv, stride, &parts, &act.normed);
    if !inputs.is_last {
        if let Some(dgain) = ctx.buffer(TensorRole::InputNorm) {
            norm::gain_gradient(dgain, dnormed, inputs.input, eps);
        }
        let (input, gain) = (inputs.input, &w.input_norm);
        norm::backward(dx, dnormed, input, gain, eps, true, inputs.threads);
    }
}

/// The gradients of the linear layers of one decoder layer over `t` packed tokens.
struct LinearGradients<'a> {
    model: Decoder<'a>,
    trained: GradientTarget<'a>,
    layer: usize,
    parameters: &'a ParameterIndex,
    t: usize,
    gradients: &'a mut Gradients,
    inner: &'a mut Vec<f32>,
    dinner: &'a mut Vec<f32>,
    threads: Threads,
}

/// Moves rows back to their positions among `total`; the others are zero.
fn scatter_rows(values: &mut Vec<f32>, rows: &[usize], width: usize, total: usize) {
    let mut all = vec![0f32; total * width];
    for (row, values) in rows.iter().zip(values.chunks_exact(width)) {
        all[row * width..(row + 1) * width].copy_from_slice(values);
    }
    *values = all;
}

impl LinearGradients<'_> {
    /// `dx = dy w`, overwriting.
    fn input_gradient(&self, dx: &mut [f32], dy: &[f32], stride: usize, w: Mat<'_>) {
        let (outputs, inputs) = w.shape();
        let dy = Mat::strided(dy, self.t, outputs, stride);
        linear::matmul(dx, inputs, dy, w, false, 1.0, self.threads);
    }

    /// Adds dL/dW and dL/dbias, in full-parameter training, for each part of a fused projection.
    fn weight_gradients(
        &mut self,
        dy: &[f32],
        stride: usize,
        parts: &[(Target, usize)],
        x: &[f32],
    ) {
        for (target, at) in parts {
            let (inputs, outputs) = target.widths(self.model.config());
            let (t, threads) = (self.t, self.threads);
            let Some(buffer) = self.buffer(TensorRole::Weight(*target)) else {
                continue;
            };
            let rows = Mat::strided(&dy[*at..], t, outputs, stride);
            linear::matmul_at_b(
                buffer,
                inputs,
                rows,
                Mat::new(x, t, inputs),
                true,
                1.0,
                threads,
            );
            if let Some(buffer) = self.buffer(TensorRole::Bias(*target)) {
                bias::backward(buffer, &dy[*at..t * stride], stride);
            }
        }
    }

    /// Replaces the gradient of normalized queries and keys by that of the raw ones.
    fn head_norm_gradients(&mut self, dqkv: &mut [f32], raw: &[f32]) {
        let (q, k, stride) = self.model.qkv_widths();
        let w = &self.model.weights.layers[self.layer];
        let eps = self.model.config().rms_norm_eps;
        let mut dy = vec![0f32; q.max(k)];
        for (d, raw) in dqkv.chunks_exact_mut(stride).zip(raw.chunks_exact(stride)) {
            for (range, gain, part) in [
                (0..q, &w.q_norm, TensorRole::QNorm),
                (q..q + k, &w.k_norm, TensorRole::KNorm),
            ] {
                let dy = &mut dy[..range.len()];
                dy.copy_from_slice(&d[range.clone()]);
                let (dx, x) = (&mut d[range.clone()], &raw[range]);
                if let Some(dgain) = self.buffer(part) {
                    norm::gain_gradient(dgain, dy, x, eps);
                }
                norm::backward(dx, dy, x, gain, eps, false, Threads(1));
            }
        }
    }

    /// Adds the adapter's contribution to `dx` and accumulates dL/dA and dL/dB.
    fn lora_gradients(
        &mut self,
        dx: &mut [f32],
        dy: &[f32],
        stride: usize,
        parts: &[(Target, usize)],
        x: &[f32],
    ) {
        let GradientTarget::Lora(adapter) = self.trained else {
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
            resize_exact(self.inner, self.t * rank);
            resize_exact(self.dinner, self.t * rank);
            let (inputs, outputs) = target.widths(self.model.config());
            let x = Mat::new(x, self.t, inputs);
            let dy = Mat::strided(&dy[*at..], self.t, outputs, stride);
            let a = Mat::new(&pair.a, rank, inputs);
            linear::forward(self.inner, rank, x, a, false, 1.0, threads);
            let b = Mat::new(&pair.b, outputs, rank);
            linear::matmul(self.dinner, rank, dy, b, false, scale, threads);
            let inner = Mat::new(self.inner, self.t, rank);
            linear::matmul_at_b(
                self.gradients.buffer(index + 1),
                rank,
                dy,
                inner,
                true,
                scale,
                threads,
            );
            let dinner = Mat::new(self.dinner, self.t, rank);
            linear::matmul_at_b(
                self.gradients.buffer(index),
                inputs,
                dinner,
                x,
                true,
                1.0,
                threads,
            );
            linear::matmul(dx, inputs, dinner, a, true, 1.0, threads);
        }
    }

    /// The gradient buffer of a tensor: only in full-parameter training, and only if the layer has such a tensor.
    fn buffer(&mut self, role: TensorRole) -> Option<&mut [f32]> {
        if !matches!(self.trained, GradientTarget::Full) {
            return None;
        }
        let index = self.parameters.index(self.layer, role)?;
        Some(self.gradients.buffer(index))
    }
}
