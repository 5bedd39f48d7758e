//! The backward pass: the layers in reverse, each recomputed from its input and differentiated by hand, so that memory is
//! one layer's activations plus one input per layer (gradient checkpointing). `host/cpu/src/grad` is the reference.

use crate::adapters::{AdaptedProjection, DeviceAdapter};
use crate::attention;
use crate::device::{Address, Buffer, Operand, Precision, Product, Result};
use crate::gradient_workspace::GradientWorkspace;
use crate::head::Partials;
use crate::kernels::{AttentionArguments, AttentionGradients, QkvArguments, StridedRows};
use crate::layers::{Lora, Pass, QkvTarget, Selection};
use crate::projection::Projection;
use crate::scoring::{MicroBatch, Scorer};
use crate::weights::DeviceModel;

/// What the backward pass differentiates, and where it adds the gradients: a flat buffer in the layout of the trained
/// weights.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trained<'a> {
    Lora(&'a DeviceAdapter),
    /// Every parameter of the model.
    Full,
}

/// One backward pass.
pub(crate) struct Backward<'a> {
    pub(crate) scorer: &'a Scorer,
    pub(crate) model: &'a DeviceModel,
    pub(crate) trained: Trained<'a>,
    pub(crate) gradients: &'a Buffer<f32>,
    pub(crate) work: &'a GradientWorkspace,
}

/// A projection that is differentiated: the gradient of its output and its input.
#[derive(Clone, Copy)]
struct Differentiated {
    layer: usize,
    projection: Projection,
    rows: usize,
    dy: Address,
    x: Address,
    /// Gets the gradient of the input; null where nobody needs it.
    dx: Address,
}

fn int(value: usize) -> i32 {
    i32::try_from(value).expect("checked by the memory plan")
}

impl Backward<'_> {
    fn adapter(&self) -> Option<&DeviceAdapter> {
        match self.trained {
            Trained::Lora(adapter) => Some(adapter),
            Trained::Full => None,
        }
    }

    fn precision(&self) -> Precision {
        self.model.precision()
    }

    /// The address of a gradient in full-parameter training; null otherwise.
    fn full(&self, offset: usize) -> Address {
        match self.trained {
            Trained::Lora(_) => Address::NULL,
            Trained::Full => self.gradients.at(offset),
        }
    }

    /// Adds the gradients of a micro-batch.
    pub(crate) fn run(&self, batch: &MicroBatch, partials: &Partials) -> Result<()> {
        let (model, work) = (self.model, self.work);
        let (precision, c) = (self.precision(), &model.config);
        let (tokens, rows) = (batch.inputs.token_count, batch.inputs.row_count);
        self.scorer.begin_pass();
        let dhead = self.full(model.layout.head);
        let scorer = self.scorer;
        let pass = Pass {
            stream: &scorer.stream,
            model,
            work: &scorer.work,
            tokens: rows,
            lora: Lora::None,
        };
        let at = (batch.stored.normed.address(), work.dnormed.address());
        batch
            .positions
            .backward(&pass, &scorer.chunk, partials, at, dhead)?;
        let norm = (
            batch.stored.outputs.address(),
            model.layout.final_norm,
            work.dnormed.address(),
        );
        self.norm(norm, work.dx.address(), (rows, c.hidden_size), false)?;

        self.angles(batch)?;
        let mut kept = rows;
        for layer in (0..c.num_hidden_layers).rev() {
            self.scorer.yield_to_requests()?;
            let input = batch.stored.layer_inputs.at(layer * tokens * c.hidden_size);
            self.layer(batch, layer, input, kept)?;
            kept = tokens;
        }
        if matches!(self.trained, Trained::Full) {
            let dembed = self.full(model.layout.embed);
            let at = (work.dx.address(), batch.inputs.tokens(), dembed);
            let shape = (tokens, c.hidden_size);
            self.scorer.stream.embed_backward(precision, at, shape)?;
        }
        self.scorer.stream.synchronize()?;
        self.scorer.yield_to_requests()
    }

    /// The angles of the micro-batch, which another pass has replaced.
    fn angles(&self, batch: &MicroBatch) -> Result<()> {
        let scorer = self.scorer;
        let pass = Pass {
            stream: &scorer.stream,
            model: self.model,
            work: &scorer.work,
            tokens: batch.inputs.token_count,
            lora: Lora::None,
        };
        pass.embed(batch.inputs.tokens(), batch.inputs.positions())
    }

    /// Gradient of a norm with a gain at this offset: `dx (+)=`, and that of the gain in full-parameter training.
    fn norm(
        &self,
        (x, gain, dy): (Address, usize, Address),
        dx: Address,
        (rows, width): (usize, usize),
        accumulate: bool,
    ) -> Result<()> {
        let dgain = self.full(gain);
        let scales = match dgain {
            Address::NULL => Address::NULL,
            _ => self.work.scales.address(),
        };
        let (stream, precision) = (&self.scorer.stream, self.precision());
        let at = (x, self.model.exact(gain), dy, dx);
        let eps = self.model.config.rms_norm_eps;
        stream.rms_norm_backward(precision, at, scales, (rows, width), eps, accumulate)?;
        if dgain == Address::NULL {
            return Ok(());
        }
        let at = (x, dy, scales, dgain);
        stream.residual_gain_backward(precision, at, StridedRows::dense(rows, width))
    }

    /// Replaces `dx`, the gradient of the layer's output for `kept` rows, by the gradient of its input.
    fn layer(&self, batch: &MicroBatch, layer: usize, input: Address, kept: usize) -> Result<()> {
        let (model, work, precision) = (self.model, self.work, self.precision());
        let c = &model.config;
        let (h, f, q) = (c.hidden_size, c.intermediate_size, c.query_width());
        let tokens = batch.inputs.token_count;
        let selected = layer + 1 == c.num_hidden_layers;
        let middle = self.recompute(batch, layer, input, selected)?;
        let own = &model.layout.layers[layer];
        let scorer = self.scorer;
        let (stream, act) = (&scorer.stream, &scorer.work);
        let dx = work.dx.address();

        let down = Differentiated {
            layer,
            projection: Projection::Down,
            rows: kept,
            dy: dx,
            x: act.activated.address(),
            dx: work.dactivated.address(),
        };
        self.projection(down)?;
        let gate_up = act.gate_up.address();
        stream.swiglu_backward(precision, (gate_up, work.dactivated.address()), (kept, f))?;
        let gated = Differentiated {
            projection: Projection::GateUp,
            dy: gate_up,
            x: act.normed_ff.address(),
            dx: work.dnormed.address(),
            ..down
        };
        self.projection(gated)?;
        let norm = (middle, own.post_norm, work.dnormed.address());
        self.norm(norm, dx, (kept, h), true)?;
        let attended = if selected {
            &act.selected_attended
        } else {
            &act.attended
        };
        let o = Differentiated {
            projection: Projection::O,
            dy: dx,
            x: attended.address(),
            dx: work.dattended.address(),
            ..down
        };
        self.projection(o)?;
        let mut dattended = work.dattended.address();
        if selected {
            // Rows go back to their positions among all tokens; the others are zero.
            let rows = batch.inputs.rows();
            let (moved, to) = (&work.moved, &work.moved_attended);
            stream.clear_values(moved)?;
            stream.clear_values(to)?;
            stream.scatter_rows(precision, (dx, rows, moved.address()), (kept, h))?;
            stream.scatter_rows(precision, (dattended, rows, to.address()), (kept, q))?;
            stream.copy_bytes(moved.address(), dx, tokens * h * precision.bytes())?;
            dattended = to.address();
        }
        let (keys, queries, count) = batch.inputs.backward_tiles();
        let arguments = AttentionArguments {
            tiles: keys,
            ..batch.inputs.attention(model, act, work.lse.address())
        };
        let gradients = AttentionGradients {
            dout: dattended,
            dqkv: work.dqkv.address(),
            delta: work.delta.address(),
        };
        let tiles = (queries, count, tokens);
        attention::backward(stream, precision, arguments, gradients, tiles)?;
        self.heads(layer, tokens)?;

        let is_first = layer == 0 && matches!(self.trained, Trained::Lora(_));
        let qkv = Differentiated {
            projection: Projection::Qkv,
            rows: tokens,
            dy: work.dqkv.address(),
            x: act.normed.address(),
            dx: if is_first {
                Address::NULL
            } else {
                work.dnormed.address()
            },
            ..down
        };
        self.projection(qkv)?;
        if is_first {
            return Ok(());
        }
        let norm = (input, own.input_norm, work.dnormed.address());
        self.norm(norm, dx, (tokens, h), true)
    }

    /// Runs the layer again from its input, up to its last product; returns the residual stream between attention and
    /// feed-forward.
    fn recompute(
        &self,
        batch: &MicroBatch,
        layer: usize,
        input: Address,
        selected: bool,
    ) -> Result<Address> {
        let scorer = self.scorer;
        let (tokens, rows) = (batch.inputs.token_count, batch.inputs.row_count);
        let adapter = self.adapter();
        let groups: Vec<_> = adapter.iter().map(|own| (0..tokens, *own)).collect();
        let ends: Vec<_> = adapter.iter().map(|own| (0..rows, *own)).collect();
        let pass = Pass {
            stream: &scorer.stream,
            model: self.model,
            work: &scorer.work,
            tokens,
            lora: Lora::Groups(&groups),
        };
        let selection = Selection {
            rows: batch.inputs.rows(),
            count: rows,
            lora: Lora::Groups(&ends),
        };
        let x = scorer.work.x.address();
        let bytes = tokens * self.model.config.hidden_size * size_of::<f32>();
        scorer.stream.copy_bytes(input, x, bytes)?;
        let lse = self.work.lse.address();
        let arguments = batch.inputs.attention(self.model, &scorer.work, lse);
        let target = QkvTarget {
            raw: self.work.raw.address(),
            ..QkvTarget::default()
        };
        let selection = selected.then_some(&selection);
        let attend = &mut || batch.inputs.attend(&scorer.stream, self.model, arguments);
        pass.layer(layer, x, target, selection, true, attend)
    }

    /// Replaces the gradient of queries and keys by that before rotation and norm.
    fn heads(&self, layer: usize, tokens: usize) -> Result<()> {
        let (model, work, precision) = (self.model, self.work, self.precision());
        let c = &model.config;
        let own = &model.layout.layers[layer];
        let (q_norm, k_norm) = own.head_norms.unzip();
        let arguments = QkvArguments {
            qkv: work.dqkv.address(),
            raw: work.raw.address(),
            bias: Address::NULL,
            q_norm: model.exact_or_null(q_norm),
            k_norm: model.exact_or_null(k_norm),
            angles: self.scorer.work.angles.address(),
            kv: Address::NULL,
            block_stride: 0,
            slots: Address::NULL,
            heads: int(c.num_attention_heads),
            kv_heads: int(c.num_key_value_heads),
            dim: int(c.head_dim),
            eps: c.rms_norm_eps,
        };
        let stream = &self.scorer.stream;
        let full = matches!(self.trained, Trained::Full);
        let Some((q_norm, k_norm)) = own.head_norms.filter(|_| full) else {
            let none = (Address::NULL, Address::NULL);
            return stream.finish_qkv_backward(precision, arguments, none, tokens);
        };
        let outputs = (work.scales.address(), work.rotated.address());
        stream.finish_qkv_backward(precision, arguments, outputs, tokens)?;
        let (heads, kv_heads) = (c.num_attention_heads, c.num_key_value_heads);
        for (gain, first, count) in [(q_norm, 0, heads), (k_norm, heads, kv_heads)] {
            let column = first * c.head_dim;
            let at = (
                work.raw.at(column),
                work.rotated.at(column),
                work.scales.at(first),
                self.full(gain),
            );
            let rows = StridedRows {
                rows: int(tokens * count),
                width: int(c.head_dim),
                per_group: int(count),
                stride: int(model.qkv_width()),
            };
            stream.gain_backward(precision, at, rows, heads + kv_heads)?;
        }
        Ok(())
    }

    /// The gradients of a projection: of its input, and of its weight and bias or its adapter.
    fn projection(&self, d: Differentiated) -> Result<()> {
        let (model, precision) = (self.model, self.precision());
        let (inputs, outputs) = d.projection.widths(&model.config);
        let stream = &self.scorer.stream;
        let own = &model.layout.layers[d.layer];
        let weight = own.weight(d.projection);
        if d.dx != Address::NULL {
            let at = model.weight(stream, &self.scorer.work, (d.layer, d.projection))?;
            stream.product(&Product {
                m: d.rows,
                n: inputs,
                k: outputs,
                a: Operand::rows(d.dy, outputs),
                b: Operand::rows(at, inputs),
                c: d.dx,
                c_stride: inputs,
                alpha: 1.0,
                beta: 0.0,
                inputs: precision,
                output: precision,
            })?;
        }
        match self.trained {
            Trained::Full => {
                let to = (self.full(weight), inputs);
                self.weight_gradient(
                    (d.dy, outputs),
                    (d.x, inputs),
                    to,
                    (outputs, inputs, d.rows),
                    1.0,
                )?;
                let Some(bias) = own.bias(d.projection) else {
                    return Ok(());
                };
                let at = (d.dy, self.full(bias));
                stream.bias_backward(precision, at, (d.rows, outputs, outputs))
            }
            Trained::Lora(adapter) => {
                let adapted = adapter.layout.projection(d.layer, d.projection);
                self.lora(adapter, adapted, d, (inputs, outputs))
            }
        }
    }

    /// `to [m, n] += scale dyᵀ x` over `rows`, in f32.
    fn weight_gradient(
        &self,
        (dy, dy_stride): (Address, usize),
        (x, x_stride): (Address, usize),
        (to, to_stride): (Address, usize),
        (m, n, rows): (usize, usize, usize),
        scale: f32,
    ) -> Result<()> {
        self.scorer.stream.product(&Product {
            m,
            n,
            k: rows,
            a: Operand::transposed(dy, dy_stride),
            b: Operand::rows(x, x_stride),
            c: to,
            c_stride: to_stride,
            alpha: scale,
            beta: 1.0,
            inputs: self.precision(),
            output: Precision::F32,
        })
    }

    fn lora(
        &self,
        adapter: &DeviceAdapter,
        own: &AdaptedProjection,
        d: Differentiated,
        (inputs, outputs): (usize, usize),
    ) -> Result<()> {
        if own.targets.is_empty() {
            return Ok(());
        }
        let (precision, size) = (self.precision(), self.precision().bytes());
        let stream = &self.scorer.stream;
        let inner = self.scorer.work.inner.address();
        let dinner = self.work.dinner.address();
        let a = adapter.values.at(own.a);
        let product = |m, n, k, (a, b), (c, c_stride), (alpha, beta)| Product {
            m,
            n,
            k,
            a,
            b,
            c,
            c_stride,
            alpha,
            beta,
            inputs: precision,
            output: precision,
        };
        let operands = (Operand::rows(d.x, inputs), Operand::transposed(a, inputs));
        let to = (inner, own.rank);
        stream.product(&product(d.rows, own.rank, inputs, operands, to, (1.0, 0.0)))?;
        for target in &own.targets {
            let dy = d.dy.plus(target.column * size);
            let b = adapter.values.at(target.b);
            let operands = (Operand::rows(dy, outputs), Operand::rows(b, target.rank));
            let to = (dinner.plus(target.inner * size), own.rank);
            let sizes = (d.rows, target.rank, target.outputs);
            let factors = (target.scale, 0.0);
            stream.product(&product(sizes.0, sizes.1, sizes.2, operands, to, factors))?;
            let x = (inner.plus(target.inner * size), own.rank);
            let to = (self.gradients.at(target.b), target.rank);
            let sizes = (target.outputs, target.rank, d.rows);
            self.weight_gradient((dy, outputs), x, to, sizes, target.scale)?;
        }
        let to = (self.gradients.at(own.a), inputs);
        let sizes = (own.rank, inputs, d.rows);
        self.weight_gradient((dinner, own.rank), (d.x, inputs), to, sizes, 1.0)?;
        if d.dx == Address::NULL {
            return Ok(());
        }
        let operands = (Operand::rows(dinner, own.rank), Operand::rows(a, inputs));
        let to = (d.dx, inputs);
        stream.product(&product(d.rows, inputs, own.rank, operands, to, (1.0, 1.0)))
    }
}
