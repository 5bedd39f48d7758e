//! The tensors of a GGUF file under their names in a Hugging Face checkpoint.
//!
//! llama.cpp stores the query and key projections of the architecture `llama` with each head's rows interleaved for its
//! rotation of adjacent pairs (`LlamaModel.permute` of convert_hf_to_gguf.py); reading them undoes that.

use std::collections::BTreeMap;

use super::header::{Header, TensorEntry};
use crate::error::LoadError;
use crate::stored::StoredTensor;

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
) -> Result<BTreeMap<String, (StoredTensor, Vec<usize>)>, LoadError> {
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
        let tensor = StoredTensor {
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

/// A tensor that is read as one row.
pub(super) fn vector(header: &Header, entry: &TensorEntry) -> StoredTensor {
    let values: usize = entry.shape.iter().product();
    StoredTensor {
        kind: entry.kind,
        interleaved: None,
        start: header.data + entry.range.0,
        rows: 1,
        row_bytes: values / entry.kind.block_len() * entry.kind.block_bytes(),
    }
}
