//! The model weights as flat f32 buffers, and their names in a checkpoint. The query, key and value projections share
//! one buffer, gate and up another, because one product over a fused weight is faster than several; named tensors
//! address parts of them. What a family does not have is an empty buffer.
//!
//! The weights of the linear layers may be quantized instead: then their f32 buffers are empty.

use std::ops::Range;

use clawhost_config::{Quantization, Target};
use sha2::{Digest as _, Sha256};

use crate::config::{ModelConfig, TargetLayer};
use crate::digest;
use crate::quantized::{QuantizedFormat, QuantizedLayer, QuantizedWeight};

/// One decoder layer.
#[derive(Debug, Clone)]
pub struct Layer {
    /// `[hidden]`.
    pub input_norm: Vec<f32>,
    /// `[query + 2 key widths, hidden]`.
    pub qkv: Vec<f32>,
    /// `[query + 2 key widths]`, zero for parts without a bias; empty when there is none.
    pub qkv_bias: Vec<f32>,
    /// `[head dim]`, or empty for models without head norms.
    pub q_norm: Vec<f32>,
    /// As `q_norm`.
    pub k_norm: Vec<f32>,
    /// `[hidden, query width]`.
    pub o: Vec<f32>,
    /// `[hidden]` or empty.
    pub o_bias: Vec<f32>,
    /// `[hidden]`.
    pub post_norm: Vec<f32>,
    /// `[2 * intermediate, hidden]`.
    pub gate_up: Vec<f32>,
    /// `[2 * intermediate]` or empty.
    pub gate_up_bias: Vec<f32>,
    /// `[hidden, intermediate]`.
    pub down: Vec<f32>,
    /// `[hidden]` or empty.
    pub down_bias: Vec<f32>,
    /// The weights of the linear layers, if they are quantized; `qkv`, `o`, `gate_up` and `down` are empty then.
    pub quantized: Option<Box<QuantizedLayer>>,
}

/// Every weight of a model.
#[derive(Debug, Clone)]
pub struct Weights {
    /// `[vocab, hidden]`.
    pub embed: Vec<f32>,
    /// The decoder layers.
    pub layers: Vec<Layer>,
    /// `[hidden]`.
    pub final_norm: Vec<f32>,
    /// `None` when the head is the embedding.
    pub head: Option<Vec<f32>>,
}

/// The role of a named tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorRole {
    /// Token embedding.
    Embed,
    /// Norm before attention.
    InputNorm,
    /// Weight of a linear layer.
    Weight(Target),
    /// Bias of a linear layer.
    Bias(Target),
    /// Norm of the query heads.
    QNorm,
    /// Norm of the key heads.
    KNorm,
    /// Norm before the feed-forward layer.
    PostNorm,
    /// Norm after the last layer.
    FinalNorm,
    /// Language-model head, where it is not the embedding.
    Head,
}

/// A named tensor: its shape and its range in a buffer.
#[derive(Debug, Clone)]
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    role: TensorRole,
    layer: usize,
    range: Range<usize>,
}

impl TensorEntry {
    /// Name and number of values.
    pub(crate) fn named_len(&self) -> (&str, usize) {
        (&self.name, self.shape.iter().product())
    }
}

/// The index of named tensors in the order of `Model::parameters` and of full-parameter gradients: embedding, layers,
/// final norm, head.
#[derive(Debug, Clone)]
pub struct ParameterIndex {
    layer: Vec<TensorRole>,
    layers: usize,
}

impl ParameterIndex {
    /// The index of a model's tensors.
    pub fn new(c: &ModelConfig) -> Self {
        let mut layer = Vec::new();
        let linear = |layer: &mut Vec<TensorRole>, target| {
            layer.push(TensorRole::Weight(target));
            layer.extend(c.has_bias(target).then_some(TensorRole::Bias(target)));
        };
        layer.push(TensorRole::InputNorm);
        for target in [Target::Q, Target::K, Target::V] {
            linear(&mut layer, target);
        }
        if c.has_head_norms() {
            layer.extend([TensorRole::QNorm, TensorRole::KNorm]);
        }
        linear(&mut layer, Target::O);
        layer.push(TensorRole::PostNorm);
        for target in [Target::Gate, Target::Up, Target::Down] {
            linear(&mut layer, target);
        }
        Self {
            layer,
            layers: c.num_hidden_layers,
        }
    }

    /// Index of a layer's tensor; `None` when the layers have no such tensor.
    pub fn index(&self, layer: usize, role: TensorRole) -> Option<usize> {
        let within = self.layer.iter().position(|own| *own == role)?;
        Some(1 + layer * self.layer.len() + within)
    }

    /// Index of the embedding.
    pub fn embed(&self) -> usize {
        0
    }

    /// Index of the final norm.
    pub fn final_norm(&self) -> usize {
        1 + self.layers * self.layer.len()
    }

    /// Index of an untied head.
    pub fn head(&self) -> usize {
        self.final_norm() + 1
    }
}

/// All named tensors, in the order of [`ParameterIndex`].
pub(crate) fn tensor_entries(c: &ModelConfig) -> Vec<TensorEntry> {
    let (h, q, k, f) = (
        c.hidden_size,
        c.query_width(),
        c.key_width(),
        c.intermediate_size,
    );
    let entry = |name: String, shape: &[usize], role, layer, start: usize| {
        let len: usize = shape.iter().product();
        TensorEntry {
            name,
            shape: shape.to_vec(),
            role,
            layer,
            range: start..start + len,
        }
    };
    let vocabulary = [c.vocab_size, h];
    let embedding = "model.embed_tokens.weight".to_owned();
    let mut all = vec![entry(embedding, &vocabulary, TensorRole::Embed, 0, 0)];
    let parameters = ParameterIndex::new(c);
    for l in 0..c.num_hidden_layers {
        for role in parameters.layer.iter().copied() {
            let norm = |name: &str, width: usize| {
                let name = format!("model.layers.{l}.{name}.weight");
                entry(name, &[width], role, l, 0)
            };
            // Rows before this tensor in its buffer.
            let before = |target| match target {
                Target::K => q,
                Target::V => q + k,
                Target::Up => f,
                _ => 0,
            };
            let linear =
                |target: Target, kind: &str| format!("model.layers.{l}.{}.{kind}", target.module());
            all.push(match role {
                TensorRole::InputNorm => norm("input_layernorm", h),
                TensorRole::PostNorm => norm("post_attention_layernorm", h),
                TensorRole::QNorm => norm("self_attn.q_norm", c.head_dim),
                TensorRole::KNorm => norm("self_attn.k_norm", c.head_dim),
                TensorRole::Weight(target) => {
                    let (inputs, outputs) = target.widths(c);
                    let shape = [outputs, inputs];
                    entry(
                        linear(target, "weight"),
                        &shape,
                        role,
                        l,
                        before(target) * inputs,
                    )
                }
                TensorRole::Bias(target) => {
                    let shape = [target.widths(c).1];
                    entry(linear(target, "bias"), &shape, role, l, before(target))
                }
                TensorRole::Embed | TensorRole::FinalNorm | TensorRole::Head => continue,
            });
        }
    }
    let norm = "model.norm.weight".to_owned();
    all.push(entry(norm, &[h], TensorRole::FinalNorm, 0, 0));
    if !c.tie_word_embeddings {
        let head = "lm_head.weight".to_owned();
        all.push(entry(head, &vocabulary, TensorRole::Head, 0, 0));
    }
    all
}

impl Weights {
    /// All zeros except the norms, which are one.
    pub fn zeros(c: &ModelConfig) -> Self {
        Self::with_linear_layers(c, true)
    }

    /// As [`Weights::zeros`], with quantized linear layers that have no rows yet.
    pub(crate) fn quantized(c: &ModelConfig, format: QuantizedFormat) -> Self {
        let mut weights = Self::with_linear_layers(c, false);
        let (h, q, k, f) = (
            c.hidden_size,
            c.query_width(),
            c.key_width(),
            c.intermediate_size,
        );
        for layer in &mut weights.layers {
            let empty = |rows, inputs| QuantizedWeight::with_capacity(format, rows, inputs);
            layer.quantized = Some(Box::new(QuantizedLayer {
                qkv: empty(q + 2 * k, h),
                o: empty(h, q),
                gate_up: empty(2 * f, h),
                down: empty(h, f),
            }));
        }
        weights
    }

    fn with_linear_layers(c: &ModelConfig, linear: bool) -> Self {
        let (h, q, k, f) = (
            c.hidden_size,
            c.query_width(),
            c.key_width(),
            c.intermediate_size,
        );
        let zeros = |there: bool, len: usize| if there { vec![0.0; len] } else { Vec::new() };
        let heads = vec![1.0; if c.has_head_norms() { c.head_dim } else { 0 }];
        let layer = Layer {
            input_norm: vec![1.0; h],
            qkv: zeros(linear, (q + 2 * k) * h),
            qkv_bias: zeros(c.has_bias(Target::Q), q + 2 * k),
            q_norm: heads.clone(),
            k_norm: heads,
            o: zeros(linear, h * q),
            o_bias: zeros(c.has_bias(Target::O), h),
            post_norm: vec![1.0; h],
            gate_up: zeros(linear, 2 * f * h),
            gate_up_bias: zeros(c.has_bias(Target::Gate), 2 * f),
            down: zeros(linear, h * f),
            down_bias: zeros(c.has_bias(Target::Down), h),
            quantized: None,
        };
        Self {
            embed: vec![0.0; c.vocab_size * h],
            layers: vec![layer; c.num_hidden_layers],
            final_norm: vec![1.0; h],
            head: (!c.tie_word_embeddings).then(|| vec![0.0; c.vocab_size * h]),
        }
    }

    /// The head's weight, `[vocab, hidden]`.
    pub fn head(&self) -> &[f32] {
        self.head.as_deref().unwrap_or(&self.embed)
    }

    /// Whether the linear layers take less memory than f32.
    pub fn is_quantized(&self) -> bool {
        self.layers.iter().any(|layer| layer.quantized.is_some())
    }

    /// The number format of the linear layers; `None` is f32.
    pub(crate) fn format(&self) -> Option<QuantizedFormat> {
        let layer = self.layers.first();
        let quantized = layer.and_then(|layer| layer.quantized.as_deref());
        quantized.map(|layer| layer.qkv.format())
    }

    /// How the linear layers are quantized.
    pub(crate) fn quantization(&self) -> Quantization {
        match self.format() {
            None | Some(QuantizedFormat::Bf16) => Quantization::None,
            Some(QuantizedFormat::Int8) => Quantization::Int8,
            Some(QuantizedFormat::Int4) => Quantization::Int4,
        }
    }

    /// The named tensors that are in f32, in the order of [`ParameterIndex`].
    pub(crate) fn f32_entries(&self, c: &ModelConfig) -> Vec<TensorEntry> {
        let mut entries = tensor_entries(c);
        if self.is_quantized() {
            entries.retain(|entry| !matches!(entry.role, TensorRole::Weight(_)));
        }
        entries
    }

    /// The quantized weight that holds a named tensor, and its first row there.
    fn quantized_tensor(&self, entry: &TensorEntry) -> Option<(&QuantizedWeight, Range<usize>)> {
        use Target::{Down, Gate, K, O, Q, Up, V};
        let TensorRole::Weight(target) = entry.role else {
            return None;
        };
        let layer = self.layers[entry.layer].quantized.as_deref()?;
        let weight = match target {
            Q | K | V => &layer.qkv,
            O => &layer.o,
            Gate | Up => &layer.gate_up,
            Down => &layer.down,
        };
        let inputs = weight.shape().1.max(1);
        Some((weight, entry.range.start / inputs..entry.range.end / inputs))
    }

    /// The quantized weight to which a named tensor is appended.
    pub(crate) fn quantized_mut(&mut self, entry: &TensorEntry) -> Option<&mut QuantizedWeight> {
        use Target::{Down, Gate, K, O, Q, Up, V};
        let TensorRole::Weight(target) = entry.role else {
            return None;
        };
        let layer = self.layers[entry.layer].quantized.as_deref_mut()?;
        Some(match target {
            Q | K | V => &mut layer.qkv,
            O => &mut layer.o,
            Gate | Up => &mut layer.gate_up,
            Down => &mut layer.down,
        })
    }

    /// A copy with all tensors in f32.
    pub fn dequantized(&self, c: &ModelConfig) -> Self {
        if !self.is_quantized() {
            return self.clone();
        }
        let mut restored = Self::zeros(c);
        for (entry, (_, values)) in tensor_entries(c).iter().zip(restored.tensors_mut(c)) {
            match self.quantized_tensor(entry) {
                Some((weight, rows)) => weight.dequantize(rows, values),
                None => values.copy_from_slice(self.tensor(entry)),
            }
        }
        restored
    }

    /// Bytes of all weights in memory.
    pub fn bytes(&self, c: &ModelConfig) -> usize {
        bytes_in(c, self.format())
    }

    /// [`Weights::bytes`] of a model with this configuration, before it is loaded.
    pub fn planned_bytes(c: &ModelConfig, quantization: Quantization) -> usize {
        Self::planned_bytes_in(c, QuantizedFormat::of(quantization))
    }

    /// As [`Weights::planned_bytes`], with the linear layers in this format; `None` is f32.
    pub fn planned_bytes_in(c: &ModelConfig, format: Option<QuantizedFormat>) -> usize {
        bytes_in(c, format)
    }

    /// Values of a named tensor in f32.
    pub(crate) fn tensor(&self, entry: &TensorEntry) -> &[f32] {
        use Target::{Down, Gate, K, O, Q, Up, V};
        let layer = || &self.layers[entry.layer];
        let buffer = match entry.role {
            TensorRole::Embed => &self.embed,
            TensorRole::FinalNorm => &self.final_norm,
            TensorRole::Head => self.head(),
            TensorRole::InputNorm => &layer().input_norm,
            TensorRole::Weight(Q | K | V) => &layer().qkv,
            TensorRole::Bias(Q | K | V) => &layer().qkv_bias,
            TensorRole::QNorm => &layer().q_norm,
            TensorRole::KNorm => &layer().k_norm,
            TensorRole::Weight(O) => &layer().o,
            TensorRole::Bias(O) => &layer().o_bias,
            TensorRole::PostNorm => &layer().post_norm,
            TensorRole::Weight(Gate | Up) => &layer().gate_up,
            TensorRole::Bias(Gate | Up) => &layer().gate_up_bias,
            TensorRole::Weight(Down) => &layer().down,
            TensorRole::Bias(Down) => &layer().down_bias,
        };
        &buffer[entry.range.clone()]
    }

    /// All named tensors in f32, mutable and in order. Fused buffers are split into their parts.
    pub fn tensors_mut(&mut self, c: &ModelConfig) -> Vec<(String, &mut [f32])> {
        let (h, q, k, f) = (
            c.hidden_size,
            c.query_width(),
            c.key_width(),
            c.intermediate_size,
        );
        let entries = self.f32_entries(c);
        let mut slices: Vec<&mut [f32]> = vec![&mut self.embed];
        for layer in &mut self.layers {
            let [wq, wk, wv] = split_three(&mut layer.qkv, q * h, k * h);
            let [bq, bk, bv] = split_three(&mut layer.qkv_bias, q, k);
            let [gate, up, _] = split_three(&mut layer.gate_up, f * h, f * h);
            let [gate_bias, up_bias, _] = split_three(&mut layer.gate_up_bias, f, f);
            let all = [
                layer.input_norm.as_mut_slice(),
                wq,
                bq,
                wk,
                bk,
                wv,
                bv,
                &mut layer.q_norm,
                &mut layer.k_norm,
                &mut layer.o,
                &mut layer.o_bias,
                &mut layer.post_norm,
                gate,
                gate_bias,
                up,
                up_bias,
                &mut layer.down,
                &mut layer.down_bias,
            ];
            // Tensors that a family does not have are empty and have no name.
            slices.extend(all.into_iter().filter(|slice| !slice.is_empty()));
        }
        slices.push(&mut self.final_norm);
        slices.extend(self.head.as_deref_mut());
        entries.into_iter().map(|e| e.name).zip(slices).collect()
    }

    /// The digest of a model with these weights; see [`digest`](crate::digest).
    pub(crate) fn digest(&self, config: &ModelConfig, threads: usize) -> String {
        let entries = tensor_entries(config);
        let tensors: Vec<_> = entries.iter().map(TensorEntry::named_len).collect();
        let digest = digest::of_tensors(&tensors, threads, |index| {
            let mut hash = Sha256::new();
            self.hash_tensor(&entries[index], &mut hash);
            Ok(hash)
        });
        digest.expect("weights in memory are there")
    }

    /// sha256 over names and values, hex: the digest in old records.
    pub(crate) fn unversioned_digest(&self, config: &ModelConfig) -> String {
        let mut hash = Sha256::new();
        for entry in tensor_entries(config) {
            hash.update(entry.name.as_bytes());
            self.hash_tensor(&entry, &mut hash);
        }
        digest::hex(&hash.finalize())
    }

    fn hash_tensor(&self, entry: &TensorEntry, hash: &mut Sha256) {
        let mut bytes = Vec::new();
        if let Some((weight, rows)) = self.quantized_tensor(entry) {
            if weight.format() != QuantizedFormat::Bf16 {
                hash.update(weight.rows(rows));
                return;
            }
            // A checkpoint in bf16 is the same model in f32.
            let mut values = vec![0.0; weight.shape().1];
            for row in rows {
                weight.dequantize(row..row + 1, &mut values);
                bytes.clear();
                push_le_bytes(&values, &mut bytes);
                hash.update(&bytes);
            }
            return;
        }
        for values in self.tensor(entry).chunks(1 << 14) {
            bytes.clear();
            push_le_bytes(values, &mut bytes);
            hash.update(&bytes);
        }
    }
}

/// Bytes of all weights with the linear layers in this format; `None` is f32.
fn bytes_in(c: &ModelConfig, format: Option<QuantizedFormat>) -> usize {
    let bytes = |entry: &TensorEntry| match (format, entry.role) {
        (Some(format), TensorRole::Weight(_)) => {
            format.weight_bytes(entry.shape[0], entry.shape[1])
        }
        _ => entry.range.len() * size_of::<f32>(),
    };
    tensor_entries(c).iter().map(bytes).sum()
}

/// Splits into `first` values, `second` values and the rest; all empty where the buffer is.
fn split_three(buffer: &mut [f32], first: usize, second: usize) -> [&mut [f32]; 3] {
    let (one, rest) = buffer.split_at_mut(first.min(buffer.len()));
    let (two, three) = rest.split_at_mut(second.min(rest.len()));
    [one, two, three]
}

/// Appends the little-endian bytes of values.
pub(crate) fn push_le_bytes(values: &[f32], bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.resize(start + size_of_val(values), 0);
    let to = bytes[start..].as_chunks_mut::<4>().0;
    for (to, value) in to.iter_mut().zip(values) {
        *to = value.to_le_bytes();
    }
}
