//! The frozen base as flat f32 buffers, and their names in a checkpoint. Query, key and value
//! projections stand in one buffer, gate and up in another, because one product over a fused weight
//! beats three; names address parts of them. What a family does not have is an empty buffer.

use std::ops::Range;

use sha2::{Digest, Sha256};

use crate::config::ModelConfig;
use crate::lora::Target;

/// One decoder layer.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub(crate) input_norm: Vec<f32>,
    /// `[query + 2 key widths, hidden]`.
    pub(crate) qkv: Vec<f32>,
    /// `[query + 2 key widths]`, zero for parts without; empty when there is none.
    pub(crate) qkv_bias: Vec<f32>,
    /// `[head dim]`, or empty where heads are not normalised.
    pub(crate) q_norm: Vec<f32>,
    pub(crate) k_norm: Vec<f32>,
    /// `[hidden, query width]`.
    pub(crate) o: Vec<f32>,
    /// `[hidden]` or empty.
    pub(crate) o_bias: Vec<f32>,
    pub(crate) post_norm: Vec<f32>,
    /// `[2 * intermediate, hidden]`.
    pub(crate) gate_up: Vec<f32>,
    /// `[2 * intermediate]` or empty.
    pub(crate) gate_up_bias: Vec<f32>,
    /// `[hidden, intermediate]`.
    pub(crate) down: Vec<f32>,
    /// `[hidden]` or empty.
    pub(crate) down_bias: Vec<f32>,
}

/// Every weight of a model.
#[derive(Debug, Clone)]
pub(crate) struct Weights {
    pub(crate) embed: Vec<f32>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) final_norm: Vec<f32>,
    /// `None` when the head is the embedding.
    pub(crate) head: Option<Vec<f32>>,
}

/// What a named tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Embed,
    InputNorm,
    Weight(Target),
    Bias(Target),
    QNorm,
    KNorm,
    PostNorm,
    FinalNorm,
    Head,
}

/// A named tensor: its place and shape.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    part: Part,
    layer: usize,
    range: Range<usize>,
}

/// Where named tensors stand in the order of `Model::parameters` and of full-parameter gradients: embedding, layers,
/// final norm, head.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    layer: Vec<Part>,
    layers: usize,
}

impl Places {
    pub(crate) fn new(c: &ModelConfig) -> Self {
        let mut layer = Vec::new();
        let linear = |layer: &mut Vec<Part>, target| {
            layer.push(Part::Weight(target));
            layer.extend(c.has_bias(target).then_some(Part::Bias(target)));
        };
        layer.push(Part::InputNorm);
        for target in [Target::Q, Target::K, Target::V] {
            linear(&mut layer, target);
        }
        if c.has_head_norms() {
            layer.extend([Part::QNorm, Part::KNorm]);
        }
        linear(&mut layer, Target::O);
        layer.push(Part::PostNorm);
        for target in [Target::Gate, Target::Up, Target::Down] {
            linear(&mut layer, target);
        }
        Self {
            layer,
            layers: c.num_hidden_layers,
        }
    }

    /// Index of a layer's tensor; none when layers have no such.
    pub(crate) fn of(&self, layer: usize, part: Part) -> Option<usize> {
        let within = self.layer.iter().position(|own| *own == part)?;
        Some(1 + layer * self.layer.len() + within)
    }

    pub(crate) fn embed(&self) -> usize {
        0
    }

    pub(crate) fn final_norm(&self) -> usize {
        1 + self.layers * self.layer.len()
    }

    /// Of an untied head.
    pub(crate) fn head(&self) -> usize {
        self.final_norm() + 1
    }
}

/// All named tensors in a fixed order, that of [`Places`].
pub(crate) fn entries(c: &ModelConfig) -> Vec<Entry> {
    let (h, q, k, f) = (
        c.hidden_size,
        c.query_width(),
        c.key_width(),
        c.intermediate_size,
    );
    let entry = |name: String, shape: &[usize], part, layer, start: usize| {
        let len: usize = shape.iter().product();
        Entry {
            name,
            shape: shape.to_vec(),
            part,
            layer,
            range: start..start + len,
        }
    };
    let vocabulary = [c.vocab_size, h];
    let embedding = "model.embed_tokens.weight".to_owned();
    let mut all = vec![entry(embedding, &vocabulary, Part::Embed, 0, 0)];
    let places = Places::new(c);
    for l in 0..c.num_hidden_layers {
        for part in places.layer.iter().copied() {
            let norm = |name: &str, width: usize| {
                let name = format!("model.layers.{l}.{name}.weight");
                entry(name, &[width], part, l, 0)
            };
            // Rows before this part in its buffer.
            let before = |target| match target {
                Target::K => q,
                Target::V => q + k,
                Target::Up => f,
                _ => 0,
            };
            let linear =
                |target: Target, kind: &str| format!("model.layers.{l}.{}.{kind}", target.module());
            all.push(match part {
                Part::InputNorm => norm("input_layernorm", h),
                Part::PostNorm => norm("post_attention_layernorm", h),
                Part::QNorm => norm("self_attn.q_norm", c.head_dim),
                Part::KNorm => norm("self_attn.k_norm", c.head_dim),
                Part::Weight(target) => {
                    let (inputs, outputs) = target.widths(c);
                    let shape = [outputs, inputs];
                    entry(
                        linear(target, "weight"),
                        &shape,
                        part,
                        l,
                        before(target) * inputs,
                    )
                }
                Part::Bias(target) => {
                    let shape = [target.widths(c).1];
                    entry(linear(target, "bias"), &shape, part, l, before(target))
                }
                Part::Embed | Part::FinalNorm | Part::Head => continue,
            });
        }
    }
    let norm = "model.norm.weight".to_owned();
    all.push(entry(norm, &[h], Part::FinalNorm, 0, 0));
    if !c.tie_word_embeddings {
        let head = "lm_head.weight".to_owned();
        all.push(entry(head, &vocabulary, Part::Head, 0, 0));
    }
    all
}

impl Weights {
    /// All zeros except the norms, which are one.
    pub(crate) fn blank(c: &ModelConfig) -> Self {
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
            qkv: vec![0.0; (q + 2 * k) * h],
            qkv_bias: zeros(c.has_bias(Target::Q), q + 2 * k),
            q_norm: heads.clone(),
            k_norm: heads,
            o: vec![0.0; h * q],
            o_bias: zeros(c.has_bias(Target::O), h),
            post_norm: vec![1.0; h],
            gate_up: vec![0.0; 2 * f * h],
            gate_up_bias: zeros(c.has_bias(Target::Gate), 2 * f),
            down: vec![0.0; h * f],
            down_bias: zeros(c.has_bias(Target::Down), h),
        };
        Self {
            embed: vec![0.0; c.vocab_size * h],
            layers: vec![layer; c.num_hidden_layers],
            final_norm: vec![1.0; h],
            head: (!c.tie_word_embeddings).then(|| vec![0.0; c.vocab_size * h]),
        }
    }

    /// The head's weight, `[vocab, hidden]`.
    pub(crate) fn head(&self) -> &[f32] {
        self.head.as_deref().unwrap_or(&self.embed)
    }

    fn buffer(&self, entry: &Entry) -> Option<&[f32]> {
        use Target::{Down, Gate, K, O, Q, Up, V};
        let layer = self.layers.get(entry.layer);
        let buffer = match entry.part {
            Part::Embed => &self.embed,
            Part::FinalNorm => &self.final_norm,
            Part::Head => self.head.as_ref()?,
            Part::InputNorm => &layer?.input_norm,
            Part::Weight(Q | K | V) => &layer?.qkv,
            Part::Bias(Q | K | V) => &layer?.qkv_bias,
            Part::QNorm => &layer?.q_norm,
            Part::KNorm => &layer?.k_norm,
            Part::Weight(O) => &layer?.o,
            Part::Bias(O) => &layer?.o_bias,
            Part::PostNorm => &layer?.post_norm,
            Part::Weight(Gate | Up) => &layer?.gate_up,
            Part::Bias(Gate | Up) => &layer?.gate_up_bias,
            Part::Weight(Down) => &layer?.down,
            Part::Bias(Down) => &layer?.down_bias,
        };
        buffer.get(entry.range.clone())
    }

    /// Values of a named tensor.
    pub(crate) fn tensor(&self, entry: &Entry) -> &[f32] {
        self.buffer(entry).unwrap_or_default()
    }

    /// All named tensors, mutable and in order. Parts of a fused buffer are split off one by one.
    pub(crate) fn tensors_mut(&mut self, c: &ModelConfig) -> Vec<(String, &mut [f32])> {
        let (h, q, k, f) = (
            c.hidden_size,
            c.query_width(),
            c.key_width(),
            c.intermediate_size,
        );
        let mut slices: Vec<&mut [f32]> = vec![&mut self.embed];
        for layer in &mut self.layers {
            let [wq, wk, wv] = thirds(&mut layer.qkv, q * h, k * h);
            let [bq, bk, bv] = thirds(&mut layer.qkv_bias, q, k);
            let [gate, up, _] = thirds(&mut layer.gate_up, f * h, f * h);
            let [gate_bias, up_bias, _] = thirds(&mut layer.gate_up_bias, f, f);
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
            // What a family does not have is empty, and has no name either.
            slices.extend(all.into_iter().filter(|slice| !slice.is_empty()));
        }
        slices.push(&mut self.final_norm);
        slices.extend(self.head.as_deref_mut());
        entries(c).into_iter().map(|e| e.name).zip(slices).collect()
    }

    /// sha256 over names and values, hex.
    pub(crate) fn digest(&self, config: &ModelConfig) -> String {
        let mut hash = Sha256::new();
        for entry in entries(config) {
            hash.update(entry.name.as_bytes());
            for value in self.tensor(&entry) {
                hash.update(value.to_le_bytes());
            }
        }
        hex(&hash.finalize())
    }
}

/// The first values, as many after them, and the rest; all empty where the buffer is.
fn thirds(buffer: &mut [f32], first: usize, second: usize) -> [&mut [f32]; 3] {
    let (one, rest) = buffer.split_at_mut(first.min(buffer.len()));
    let (two, three) = rest.split_at_mut(second.min(rest.len()));
    [one, two, three]
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
