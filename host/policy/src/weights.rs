//! The frozen base as flat f32 buffers, and their names in a checkpoint. Query, key and value
//! projections stand in one buffer, gate and up in another, because one product over a fused weight
//! beats three; names address parts of them.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use sha2::{Digest, Sha256};

use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::files::ModelFiles;

/// One decoder layer.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub(crate) input_norm: Vec<f32>,
    /// `[query + 2 key widths, hidden]`.
    pub(crate) qkv: Vec<f32>,
    pub(crate) q_norm: Vec<f32>,
    pub(crate) k_norm: Vec<f32>,
    /// `[hidden, query width]`.
    pub(crate) o: Vec<f32>,
    pub(crate) post_norm: Vec<f32>,
    /// `[2 * intermediate, hidden]`.
    pub(crate) gate_up: Vec<f32>,
    /// `[hidden, intermediate]`.
    pub(crate) down: Vec<f32>,
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

/// Which buffer a named tensor lives in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Buffer {
    Embed,
    InputNorm,
    Qkv,
    QNorm,
    KNorm,
    O,
    PostNorm,
    GateUp,
    Down,
    FinalNorm,
    Head,
}

/// A named tensor: its place and shape.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    buffer: Buffer,
    layer: usize,
    range: Range<usize>,
}

/// Named tensors of one layer, in the order of the checkpoint.
pub(crate) const PER_LAYER: usize = 11;

/// All named tensors in a fixed order: embedding, layers, final norm, head. The order is that of
/// `Model::parameters` and of full-parameter gradients.
pub(crate) fn entries(c: &ModelConfig) -> Vec<Entry> {
    let (h, q, k, f) = (
        c.hidden_size,
        c.query_width(),
        c.key_width(),
        c.intermediate_size,
    );
    let mut all = Vec::new();
    let mut push = |name: String, shape: &[usize], buffer, layer, start: usize| {
        let len: usize = shape.iter().product();
        let range = start..start + len;
        all.push(Entry {
            name,
            shape: shape.to_vec(),
            buffer,
            layer,
            range,
        });
    };
    push(
        "model.embed_tokens.weight".to_owned(),
        &[c.vocab_size, h],
        Buffer::Embed,
        0,
        0,
    );
    for l in 0..c.num_hidden_layers {
        let at = |part: &str| format!("model.layers.{l}.{part}.weight");
        push(at("input_layernorm"), &[h], Buffer::InputNorm, l, 0);
        push(at("self_attn.q_proj"), &[q, h], Buffer::Qkv, l, 0);
        push(at("self_attn.k_proj"), &[k, h], Buffer::Qkv, l, q * h);
        push(at("self_attn.v_proj"), &[k, h], Buffer::Qkv, l, (q + k) * h);
        push(at("self_attn.q_norm"), &[c.head_dim], Buffer::QNorm, l, 0);
        push(at("self_attn.k_norm"), &[c.head_dim], Buffer::KNorm, l, 0);
        push(at("self_attn.o_proj"), &[h, q], Buffer::O, l, 0);
        push(at("post_attention_layernorm"), &[h], Buffer::PostNorm, l, 0);
        push(at("mlp.gate_proj"), &[f, h], Buffer::GateUp, l, 0);
        push(at("mlp.up_proj"), &[f, h], Buffer::GateUp, l, f * h);
        push(at("mlp.down_proj"), &[h, f], Buffer::Down, l, 0);
    }
    push(
        "model.norm.weight".to_owned(),
        &[h],
        Buffer::FinalNorm,
        0,
        0,
    );
    if !c.tie_word_embeddings {
        push(
            "lm_head.weight".to_owned(),
            &[c.vocab_size, h],
            Buffer::Head,
            0,
            0,
        );
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
        let layer = Layer {
            input_norm: vec![1.0; h],
            qkv: vec![0.0; (q + 2 * k) * h],
            q_norm: vec![1.0; c.head_dim],
            k_norm: vec![1.0; c.head_dim],
            o: vec![0.0; h * q],
            post_norm: vec![1.0; h],
            gate_up: vec![0.0; 2 * f * h],
            down: vec![0.0; h * f],
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
        let layer = self.layers.get(entry.layer);
        let buffer = match entry.buffer {
            Buffer::Embed => &self.embed,
            Buffer::FinalNorm => &self.final_norm,
            Buffer::Head => self.head.as_ref()?,
            Buffer::InputNorm => &layer?.input_norm,
            Buffer::Qkv => &layer?.qkv,
            Buffer::QNorm => &layer?.q_norm,
            Buffer::KNorm => &layer?.k_norm,
            Buffer::O => &layer?.o,
            Buffer::PostNorm => &layer?.post_norm,
            Buffer::GateUp => &layer?.gate_up,
            Buffer::Down => &layer?.down,
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
            let (wq, rest) = layer.qkv.split_at_mut(q * h);
            let (wk, wv) = rest.split_at_mut(k * h);
            let (gate, up) = layer.gate_up.split_at_mut(f * h);
            slices.extend([
                layer.input_norm.as_mut_slice(),
                wq,
                wk,
                wv,
                &mut layer.q_norm,
                &mut layer.k_norm,
                &mut layer.o,
                &mut layer.post_norm,
                gate,
                up,
                &mut layer.down,
            ]);
        }
        slices.push(&mut self.final_norm);
        slices.extend(self.head.as_deref_mut());
        entries(c).into_iter().map(|e| e.name).zip(slices).collect()
    }

    /// Reads a checkpoint, converting to f32, and checks every name, shape and value.
    pub(crate) fn load(config: &ModelConfig, files: &ModelFiles) -> Result<Self, LoadError> {
        let entries = entries(config);
        let mut weights = Self::blank(config);
        let mut missing: BTreeMap<String, usize> = entries
            .iter()
            .enumerate()
            .map(|(i, e)| (e.name.clone(), i))
            .collect();
        files.each_weight_file(|file, bytes| {
            let malformed = |e: &dyn std::fmt::Display| LoadError::Malformed {
                file: file.to_owned(),
                reason: e.to_string(),
            };
            let tensors = candle_core::safetensors::load_buffer(bytes, &Device::Cpu)
                .map_err(|e| malformed(&e))?;
            let mut slots = weights.tensors_mut(config);
            // In order of names, so that of several faults always the same one is told.
            let tensors: BTreeMap<String, Tensor> = tensors.into_iter().collect();
            for (name, tensor) in tensors {
                let Some(index) = missing.remove(&name) else {
                    continue;
                };
                if let (Some(entry), Some((_, slot))) = (entries.get(index), slots.get_mut(index)) {
                    fill(slot, entry, &tensor, &malformed)?;
                }
            }
            Ok(())
        })?;
        match missing.into_iter().next() {
            None => Ok(weights),
            Some((name, _)) => Err(LoadError::MissingTensor { name }),
        }
    }

    /// sha256 over names, shapes and values, hex.
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

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn fill(
    slot: &mut [f32],
    entry: &Entry,
    tensor: &Tensor,
    malformed: &dyn Fn(&dyn std::fmt::Display) -> LoadError,
) -> Result<(), LoadError> {
    if tensor.dims() != entry.shape {
        return Err(LoadError::Shape {
            name: entry.name.clone(),
            found: tensor.dims().to_vec(),
            expected: entry.shape.clone(),
        });
    }
    let values = tensor
        .to_dtype(DType::F32)
        .and_then(|t| t.flatten_all())
        .and_then(|t| t.to_vec1::<f32>())
        .map_err(|e| malformed(&e))?;
    if values.iter().any(|v| !v.is_finite()) {
        return Err(LoadError::NotFinite {
            name: entry.name.clone(),
        });
    }
    slot.copy_from_slice(&values);
    Ok(())
}
