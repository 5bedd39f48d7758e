//! The tensors of a GGUF file under their names in a Hugging Face checkpoint, and their rows as bytes.
//!
//! llama.cpp stores the query and key projections of the architecture `llama` with each head's rows interleaved for its
//! rotation of adjacent pairs (`LlamaModel.permute` of convert_hf_to_gguf.py); reading them undoes that.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::blocks::GgmlType;
use super::header::{Header, TensorEntry};
use crate::error::LoadError;

/// Approximate number of bytes read and converted at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// A tensor in a GGUF file.
#[derive(Debug, Clone)]
pub(crate) struct GgufTensor {
    pub(crate) kind: GgmlType,
    /// Rows per head whose two rotated halves are interleaved.
    interleaved: Option<usize>,
    /// Offset in the file.
    start: u64,
    rows: usize,
    row_bytes: usize,
}

/// A tensor's name in a Hugging Face checkpoint; `None` for one that is not part of the weights.
fn checkpoint_name(name: &str) -> Option<String> {
    let fixed = match name {
        "token_embd.weight" => Some("model.embed_tokens.weight"),
        "output_norm.weight" => Some("model.norm.weight"),
        "output.weight" => Some("lm_head.weight"),
        // Compared with the configuration when that is made.
        ROPE_FACTORS => return None,
        _ => None,
    };
    if let Some(fixed) = fixed {
        return Some(fixed.to_owned());
    }
    let in_layer = || {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (part, kind) = rest.rsplit_once('.')?;
        let module = match part {
            "attn_norm" => "input_layernorm",
            "ffn_norm" => "post_attention_layernorm",
            "attn_q" => "self_attn.q_proj",
            "attn_k" => "self_attn.k_proj",
            "attn_v" => "self_attn.v_proj",
            "attn_output" => "self_attn.o_proj",
            "attn_q_norm" => "self_attn.q_norm",
            "attn_k_norm" => "self_attn.k_norm",
            "ffn_gate" => "mlp.gate_proj",
            "ffn_up" => "mlp.up_proj",
            "ffn_down" => "mlp.down_proj",
            _ => return None,
        };
        layer
            .parse::<usize>()
            .ok()
            .map(|layer| format!("model.layers.{layer}.{module}.{kind}"))
    };
    // Another name stays, so that loading rejects it by the name that is in the file.
    Some(in_layer().unwrap_or_else(|| name.to_owned()))
}

/// The tensor of factors of the rotary wavelengths, in files of Llama 3.1 and newer.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The tensors of a file, by their names in a Hugging Face checkpoint, with their shapes. `head_dim` is given for an
/// architecture whose query and key projections are interleaved.
///
/// # Errors
/// Two tensors with the same name in a checkpoint, or a projection that has no whole number of heads.
pub(super) fn tensors(
    header: &Header,
    head_dim: Option<usize>,
) -> Result<BTreeMap<String, (GgufTensor, Vec<usize>)>, LoadError> {
    let mut tensors = BTreeMap::new();
    for (own, entry) in &header.tensors {
        let Some(name) = checkpoint_name(own) else {
            continue;
        };
        let rotated = [
            "q_proj.weight",
            "k_proj.weight",
            "q_proj.bias",
            "k_proj.bias",
        ];
        let interleaved = head_dim.filter(|_| rotated.iter().any(|end| name.ends_with(end)));
        let bias = entry.shape.len() == 1;
        // A vector is read value by value where its values are those of rows.
        let row = if bias && interleaved.is_some() && entry.kind.block_len() == 1 {
            1
        } else {
            entry.shape.last().copied().unwrap_or(0)
        };
        let rows = entry.shape.iter().product::<usize>() / row.max(1);
        if let Some(head) = interleaved
            && (head == 0 || !rows.is_multiple_of(head) || (bias && row != 1))
        {
            return Err(header.error(format!(
                "tensor {own} has {rows} rows of {}, which are not heads of {head}",
                entry.kind.name()
            )));
        }
        let tensor = GgufTensor {
            kind: entry.kind,
            interleaved,
            start: header.data + entry.range.0,
            rows,
            row_bytes: row / entry.kind.block_len() * entry.kind.block_bytes(),
        };
        if tensors
            .insert(name.clone(), (tensor, entry.shape.clone()))
            .is_some()
        {
            return Err(header.error(format!("it has the tensor {name} under two names")));
        }
    }
    Ok(tensors)
}

impl GgufTensor {
    /// A tensor that is read as one row.
    pub(super) fn vector(header: &Header, entry: &TensorEntry) -> Self {
        let values: usize = entry.shape.iter().product();
        Self {
            kind: entry.kind,
            interleaved: None,
            start: header.data + entry.range.0,
            rows: 1,
            row_bytes: values / entry.kind.block_len() * entry.kind.block_bytes(),
        }
    }

    /// Passes the rows to `each` as bytes, in the order of a Hugging Face checkpoint and whole rows at a time.
    pub(crate) fn read_rows(
        &self,
        path: &Path,
        mut each: impl FnMut(&[u8]),
    ) -> std::io::Result<()> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(self.start))?;
        // A head is within one chunk, so its rows can be ordered there.
        let unit = self.interleaved.unwrap_or(1);
        let chunk_rows = (CHUNK_BYTES / self.row_bytes.max(1))
            .max(1)
            .next_multiple_of(unit);
        let (mut chunk, mut ordered) = (Vec::new(), Vec::new());
        let mut row = 0;
        while row < self.rows {
            let count = chunk_rows.min(self.rows - row);
            chunk.resize(count * self.row_bytes, 0);
            file.read_exact(&mut chunk)?;
            match self.interleaved {
                None => each(&chunk),
                Some(head) => {
                    ordered.clear();
                    for head_rows in chunk.chunks_exact(head * self.row_bytes) {
                        for place in 0..head {
                            let (half, pair) = (place / (head / 2), place % (head / 2));
                            let from = (2 * pair + half) * self.row_bytes;
                            ordered.extend_from_slice(&head_rows[from..from + self.row_bytes]);
                        }
                    }
                    each(&ordered);
                }
            }
            row += count;
        }
        Ok(())
    }

    /// Passes the values to `each`, in the same order.
    pub(crate) fn read(&self, path: &Path, mut each: impl FnMut(&[f32])) -> std::io::Result<()> {
        let mut values = Vec::new();
        self.read_rows(path, |bytes| {
            let blocks = bytes.len() / self.kind.block_bytes();
            values.resize(blocks * self.kind.block_len(), 0.0);
            self.kind.dequantize(bytes, &mut values);
            each(&values);
        })
    }
}
