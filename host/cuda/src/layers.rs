//! The forward pass of one decoder layer over packed tokens, shared by serving, scoring and training.

use std::ops::Range;

use crate::adapters::{AdaptedProjection, DeviceAdapter, table_index};
use crate::device::{Address, Operand, Precision, Product, Result, Stream};
use crate::kernels::{
    GemvArguments, LoraArguments, LoraMatrices, MAX_GEMV_ROWS, MAX_NORMED_ROWS, MAX_NORMED_VALUES,
    QkvArguments,
};
use crate::projection::Projection;
use crate::quantized::QuantizedLayers;
use crate::weights::DeviceModel;
use crate::workspace::Workspace;

/// The adapters of the rows of a pass.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lora<'a> {
    /// The base model.
    None,
    /// Consecutive rows with the same adapter; the others have none. For many rows.
    Groups(&'a [(Range<usize>, &'a DeviceAdapter)]),
    /// One of `adapters` for every row. For few rows.
    Table {
        /// [`crate::adapters::table`].
        table: Address,
        /// Index of every row's adapter; negative for none.
        slots: Address,
        adapters: usize,
        max_rank: usize,
    },
}

/// Rows with which the last layer continues after attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selection<'a> {
    /// Their indices, ascending.
    pub(crate) rows: Address,
    pub(crate) count: usize,
    /// Their adapters.
    pub(crate) lora: Lora<'a>,
}

/// One pass over packed tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) model: &'a DeviceModel,
    pub(crate) work: &'a Workspace,
    pub(crate) tokens: usize,
    pub(crate) lora: Lora<'a>,
}

/// Where the queries, keys and values of a layer go besides the workspace.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QkvTarget {
    /// Null, or a copy of them before norm and rotation.
    pub(crate) raw: Address,
    /// Null, or this layer's part of the first KV-cache block.
    pub(crate) kv: Address,
    pub(crate) block_stride: usize,
    /// Place in the cache of every token.
    pub(crate) slots: Address,
}

fn int(value: usize) -> i32 {
    i32::try_from(value).expect("a size that the backend has checked")
}

impl Pass<'_> {
    pub(crate) fn precision(&self) -> Precision {
        self.model.precision()
    }

    /// Embeds the tokens into the residual stream and computes the angles of their positions.
    pub(crate) fn embed(&self, tokens: Address, positions: Address) -> Result<()> {
        let c = &self.model.config;
        let embedding = self.model.matrix(self.model.layout.embed);
        let at = (embedding, tokens, self.work.x.address());
        let shape = (self.tokens, c.hidden_size);
        self.stream.embed(self.precision(), at, shape)?;
        let angles = self.work.angles.address();
        let at = (positions, self.model.frequencies.address(), angles);
        let scale = self.model.rope_scale;
        self.stream
            .rope_angles(at, scale, (self.tokens, c.head_dim / 2))
    }

    /// Runs a layer on the residual stream `x` (f32), in place unless it selects rows; returns the residual stream afterwards.
    /// `attend` fills the attention output from the final queries, keys and values. With `for_backward` the pass ends
    /// before the last product, because the backward pass needs nothing after it.
    pub(crate) fn layer(
        &self,
        layer: usize,
        x: Address,
        target: QkvTarget,
        selection: Option<&Selection<'_>>,
        for_backward: bool,
        attend: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Address> {
        let (c, work) = (&self.model.config, self.work);
        let own = &self.model.layout.layers[layer];
        let gain = self.model.exact(own.input_norm);
        let input = (x, gain, work.normed.address());
        self.normed_product(
            (layer, Projection::Qkv),
            input,
            work.qkv.address(),
            for_backward,
        )?;
        let (q_norm, k_norm) = own.head_norms.unzip();
        let arguments = QkvArguments {
            qkv: work.qkv.address(),
            raw: target.raw,
            bias: self.model.exact_or_null(own.bias(Projection::Qkv)),
            q_norm: self.model.exact_or_null(q_norm),
            k_norm: self.model.exact_or_null(k_norm),
            angles: work.angles.address(),
            kv: target.kv,
            block_stride: target.block_stride as i64,
            slots: target.slots,
            heads: int(c.num_attention_heads),
            kv_heads: int(c.num_key_value_heads),
            dim: int(c.head_dim),
            eps: c.rms_norm_eps,
        };
        self.stream
            .finish_qkv(self.precision(), arguments, self.tokens)?;
        attend()?;
        let Some(selection) = selection else {
            let attended = work.attended.address();
            return self.feed_forward(layer, x, attended, for_backward);
        };
        let (selected, attended) = (&work.selected, &work.selected_attended);
        let at = (x, selection.rows, selected.address());
        let shape = (selection.count, c.hidden_size);
        self.stream.gather_rows(Precision::F32, at, shape)?;
        let at = (work.attended.address(), selection.rows, attended.address());
        let shape = (selection.count, c.query_width());
        self.stream.gather_rows(self.precision(), at, shape)?;
        let rest = Pass {
            tokens: selection.count,
            lora: selection.lora,
            ..*self
        };
        rest.feed_forward(layer, selected.address(), attended.address(), for_backward)
    }

    /// The part of a layer after attention.
    fn feed_forward(
        &self,
        layer: usize,
        x: Address,
        attended: Address,
        for_backward: bool,
    ) -> Result<Address> {
        let work = self.work;
        self.product((layer, Projection::O), attended, x)?;
        let own = &self.model.layout.layers[layer];
        let input = (x, self.model.exact(own.post_norm), work.normed_ff.address());
        let activated = work.activated.address();
        let gated = !for_backward
            && self.has_gemv()
            && !self.is_adapted(layer, Projection::GateUp)
            && own.bias(Projection::GateUp).is_none();
        if gated {
            let (input, gain) = self.gemv_input(input)?;
            let at = (layer, Projection::GateUp);
            self.gemv(at, (input, activated), gain, true)?;
        } else {
            let gate_up = work.gate_up.address();
            self.normed_product((layer, Projection::GateUp), input, gate_up, for_backward)?;
            let shape = (self.tokens, self.model.config.intermediate_size);
            self.stream
                .swiglu(self.precision(), (gate_up, activated), shape)?;
        }
        if !for_backward {
            self.product((layer, Projection::Down), activated, x)?;
        }
        Ok(x)
    }

    /// Whether products of these rows with a weight that is not quantized are GEMVs.
    fn has_few_rows(&self) -> bool {
        self.precision() == Precision::Bf16 && self.tokens <= MAX_GEMV_ROWS
    }

    /// Whether products of these rows with the weights of layers are GEMVs.
    fn has_gemv(&self) -> bool {
        self.model.quantized.is_none() && self.has_few_rows()
    }

    /// Whether a row may have an adapter that changes a projection.
    fn is_adapted(&self, layer: usize, projection: Projection) -> bool {
        match self.lora {
            Lora::None => false,
            Lora::Table { .. } => true,
            Lora::Groups(groups) => groups.iter().any(|(_, adapter)| {
                let own = adapter.layout.projection(layer, projection);
                !own.targets.is_empty()
            }),
        }
    }

    /// The input of a GEMV of normalized rows, and the gain where it normalizes them itself.
    fn gemv_input(
        &self,
        (x, gain, normed): (Address, Address, Address),
    ) -> Result<(Address, Option<Address>)> {
        let values = self.tokens * self.model.config.hidden_size;
        if self.tokens <= MAX_NORMED_ROWS && values <= MAX_NORMED_VALUES {
            return Ok((x, Some(gain)));
        }
        self.norm((x, gain, normed))?;
        Ok((normed, None))
    }

    /// `normed = norm(x)`.
    fn norm(&self, at: (Address, Address, Address)) -> Result<()> {
        let c = &self.model.config;
        let shape = (self.tokens, c.hidden_size);
        self.stream
            .rms_norm(self.precision(), at, shape, c.rms_norm_eps)
    }

    /// `y = norm(x) wᵀ`; `normed` gets the norm of x where it is needed.
    fn normed_product(
        &self,
        at: (usize, Projection),
        input: (Address, Address, Address),
        y: Address,
        keep_normed: bool,
    ) -> Result<()> {
        if !keep_normed && self.has_gemv() && !self.is_adapted(at.0, at.1) {
            let (input, gain) = self.gemv_input(input)?;
            self.gemv(at, (input, y), gain, false)?;
            return self.add_bias(at, y);
        }
        self.norm(input)?;
        self.product(at, input.2, y)
    }

    /// Precision of a projection's output: those that end in the residual stream add to it.
    pub(crate) fn output_precision(&self, projection: Projection) -> Precision {
        match projection.adds_to_residual() {
            true => Precision::F32,
            false => self.precision(),
        }
    }

    /// `y = x wᵀ` with bias and adapters; adds to y where that is the residual stream.
    fn product(&self, at: (usize, Projection), x: Address, y: Address) -> Result<()> {
        if self.has_gemv() {
            self.gemv(at, (x, y), None, false)?;
        } else if let Some(quantized) = self.quantized_gemv() {
            let output = self.output_precision(at.1);
            quantized.gemv(self.stream, at, (x, y), (self.tokens, output))?;
        } else {
            let (inputs, outputs) = at.1.widths(&self.model.config);
            let operands = (x, self.model.weight(self.stream, self.work, at)?, y);
            let accumulate = at.1.adds_to_residual();
            let output = self.output_precision(at.1);
            self.multiply(operands, (outputs, inputs), output, accumulate)?;
        }
        self.add_bias(at, y)?;
        self.add_lora(at, x, y)
    }

    /// The quantized layers, if this pass has so few rows that products restore their weights in registers.
    fn quantized_gemv(&self) -> Option<&QuantizedLayers> {
        let quantized = self.model.quantized.as_ref()?;
        QuantizedLayers::has_gemv(self.precision(), self.tokens).then_some(quantized)
    }

    /// Adds the bias of a projection; that of queries, keys and values is added after it.
    fn add_bias(&self, (layer, projection): (usize, Projection), y: Address) -> Result<()> {
        let own = &self.model.layout.layers[layer];
        let Some(bias) = own.bias(projection) else {
            return Ok(());
        };
        if projection == Projection::Qkv {
            return Ok(());
        }
        let shape = (self.tokens, projection.widths(&self.model.config).1);
        let precision = self.output_precision(projection);
        self.stream
            .add_bias(precision, (y, self.model.exact(bias)), shape)
    }

    /// `y [tokens, n] (+)= x [tokens, k] w [n, k]ᵀ` with an output of its own precision.
    pub(crate) fn multiply(
        &self,
        (x, w, y): (Address, Address, Address),
        (n, k): (usize, usize),
        output: Precision,
        accumulate: bool,
    ) -> Result<()> {
        self.stream.product(&Product {
            m: self.tokens,
            n,
            k,
            a: Operand::rows(x, k),
            b: Operand::transposed(w, k),
            c: y,
            c_stride: n,
            alpha: 1.0,
            beta: if accumulate { 1.0 } else { 0.0 },
            inputs: self.precision(),
            output,
        })
    }

    /// The product of few rows, with the norm of the residual stream where there is a gain; `gated` activates gate and up.
    fn gemv(
        &self,
        (layer, projection): (usize, Projection),
        (x, y): (Address, Address),
        gain: Option<Address>,
        gated: bool,
    ) -> Result<()> {
        let c = &self.model.config;
        let (inputs, outputs) = projection.widths(c);
        let weight = self.model.layout.layers[layer].weight(projection);
        let outputs = if gated { outputs / 2 } else { outputs };
        let arguments = GemvArguments {
            w: self.model.matrix(weight),
            x,
            x_stride: int(inputs),
            y,
            y_stride: int(outputs),
            n: int(outputs),
            k: int(inputs),
            tokens: int(self.tokens),
            gain: gain.unwrap_or(Address::NULL),
            eps: c.rms_norm_eps,
            accumulate: i32::from(projection.adds_to_residual()),
            f32_output: i32::from(projection.adds_to_residual()),
        };
        self.stream.gemv(arguments, gated)
    }

    /// `y += scale (x Aᵀ) Bᵀ` for the adapters of the rows.
    fn add_lora(
        &self,
        (layer, projection): (usize, Projection),
        x: Address,
        y: Address,
    ) -> Result<()> {
        let (inputs, outputs) = projection.widths(&self.model.config);
        match self.lora {
            Lora::None => Ok(()),
            Lora::Groups(groups) => {
                let output = self.output_precision(projection);
                for (rows, adapter) in groups {
                    let own = adapter.layout.projection(layer, projection);
                    let x = x.plus(rows.start * inputs * self.precision().bytes());
                    let y = y.plus(rows.start * outputs * output.bytes());
                    let to = (y, outputs, output);
                    self.add_group(adapter, own, (x, inputs), to, rows.len())?;
                }
                Ok(())
            }
            Lora::Table {
                table,
                slots,
                adapters,
                max_rank,
            } => {
                let targets = projection.targets();
                let column = |index: usize| {
                    targets.get(index).map_or(outputs, |target| {
                        projection.first_column(&self.model.config, *target)
                    })
                };
                let entry = table_index(layer, projection, adapters);
                let arguments = LoraArguments {
                    table: table.plus(entry * size_of::<LoraMatrices>()),
                    slots,
                    x,
                    x_stride: int(inputs),
                    inputs: int(inputs),
                    inner: self.work.row_inner.address(),
                    max_rank: int(max_rank),
                    y,
                    y_stride: int(outputs),
                    targets: int(targets.len()),
                    width: int(outputs),
                    second: int(column(1)),
                    third: int(column(2)),
                    residual: i32::from(projection.adds_to_residual()),
                };
                let precision = self.precision();
                self.stream.lora_shrink(precision, arguments, self.tokens)?;
                self.stream.lora_expand(precision, arguments, self.tokens)
            }
        }
    }

    /// One adapter for consecutive rows, by products.
    fn add_group(
        &self,
        adapter: &DeviceAdapter,
        own: &AdaptedProjection,
        (x, inputs): (Address, usize),
        (y, outputs, output): (Address, usize, Precision),
        rows: usize,
    ) -> Result<()> {
        if own.targets.is_empty() {
            return Ok(());
        }
        let precision = self.precision();
        let inner = self.work.inner.address();
        self.stream.product(&Product {
            m: rows,
            n: own.rank,
            k: inputs,
            a: Operand::rows(x, inputs),
            b: Operand::transposed(adapter.values.at(own.a), inputs),
            c: inner,
            c_stride: own.rank,
            alpha: 1.0,
            beta: 0.0,
            inputs: precision,
            output: precision,
        })?;
        for target in &own.targets {
            self.stream.product(&Product {
                m: rows,
                n: target.outputs,
                k: target.rank,
                a: Operand::rows(inner.plus(target.inner * precision.bytes()), own.rank),
                b: Operand::transposed(adapter.values.at(target.b), target.rank),
                c: y.plus(target.column * output.bytes()),
                c_stride: outputs,
                alpha: target.scale,
                beta: 1.0,
                inputs: precision,
                output,
            })?;
        }
        Ok(())
    }

    /// Logits of rows of the residual stream: final norm and head. `normed` gets the norm.
    pub(crate) fn head(&self, x: Address, normed: Address, logits: Address) -> Result<()> {
        let gain = self.model.exact(self.model.layout.final_norm);
        self.norm((x, gain, normed))?;
        self.logits(normed, logits)
    }

    /// Logits in f32 of normalized rows, `[tokens, logits_stride]`.
    pub(crate) fn logits(&self, normed: Address, logits: Address) -> Result<()> {
        let c = &self.model.config;
        let (head, stride) = (
            self.model.matrix(self.model.layout.head),
            self.model.logits_stride(),
        );
        if self.has_few_rows() {
            let arguments = GemvArguments {
                w: head,
                x: normed,
                x_stride: int(c.hidden_size),
                y: logits,
                y_stride: int(stride),
                n: int(c.vocab_size),
                k: int(c.hidden_size),
                tokens: int(self.tokens),
                gain: Address::NULL,
                eps: 0.0,
                accumulate: 0,
                f32_output: 1,
            };
            return self.stream.gemv(arguments, false);
        }
        self.stream.product(&Product {
            m: self.tokens,
            n: c.vocab_size,
            k: c.hidden_size,
            a: Operand::rows(normed, c.hidden_size),
            b: Operand::transposed(head, c.hidden_size),
            c: logits,
            c_stride: stride,
            alpha: 1.0,
            beta: 0.0,
            inputs: self.precision(),
            output: Precision::F32,
        })
    }
}
