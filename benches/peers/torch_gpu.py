#!/usr/bin/env python3
"""PyTorch on a GPU, for benches/gpu.py: a Qwen3 shape with random bf16 weights.

    python3 benches/peers/torch_gpu.py qwen3-1.7b [--train] [--rounds 3]

Decoding has a static cache of 384 tokens and a prompt of 128; the model is compiled with `reduce-overhead`, which records CUDA
graphs, and every token is read back, as a server has to. Training is PEFT LoRA of rank 16 on all linear layers with fused AdamW,
with layer checkpointing, eager and compiled. Prints one JSON object: lists of one value per round.
"""

import argparse
import json
import statistics
import time
import warnings

warnings.filterwarnings("ignore")

import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache

transformers.logging.set_verbosity_error()

SHAPES = {
    "qwen3-0.6b": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16),
    "qwen3-1.7b": dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16),
    "qwen3-4b": dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32),
}
PROMPT, REPLY, CONTEXT = 128, 128, 384


def model(shape):
    config = Qwen3Config(
        vocab_size=151936, max_position_embeddings=8192, num_key_value_heads=8, head_dim=128, rope_theta=1e6,
        tie_word_embeddings=True, **SHAPES[shape],
    )
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        made = Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return made.to(torch.bfloat16)


def seconds(work):
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def rounds(work, count, warm=2):
    for _ in range(warm):
        work()
    return [seconds(work) for _ in range(count)]


def decode(net, streams, count):
    """Tokens per second of all streams."""
    forward = torch.compile(net.forward, mode="reduce-overhead", dynamic=False)
    cache = StaticCache(config=net.config, max_cache_len=CONTEXT)
    prompt = torch.randint(0, 151936, (streams, PROMPT), device="cuda")
    net(prompt, past_key_values=cache, logits_to_keep=1, use_cache=True)
    token = torch.zeros((streams, 1), dtype=torch.long, device="cuda")
    position = torch.tensor([PROMPT], device="cuda")

    def reply():
        for _ in range(REPLY):
            out = forward(input_ids=token, past_key_values=cache, position_ids=position[None].expand(streams, 1), use_cache=True)
            token.copy_(out.logits[:, -1:].argmax(-1))
            position.add_(1)
            token.tolist()
        position.fill_(PROMPT)
        for layer in cache.layers:
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length.fill_(PROMPT)

    return [streams * REPLY / s for s in rounds(reply, count, warm=1)]


def train(shape, count, compiled):
    """Tokens per second and peak GB of updates over 4 sequences of 1,024 tokens."""
    from peft import LoraConfig, get_peft_model

    spec = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    net = get_peft_model(model(shape), spec, autocast_adapter_dtype=False)
    net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    net.enable_input_require_grads()
    net.train()
    net.config.use_cache = False
    trained = [p for p in net.parameters() if p.requires_grad]
    if compiled:
        net = torch.compile(net)
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    ids = torch.randint(0, 151936, (4, 1024), device="cuda")
    torch.cuda.reset_peak_memory_stats()

    def update():
        net(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    speeds = [ids.numel() / s for s in rounds(update, count, warm=3)]
    return speeds, torch.cuda.max_memory_allocated() / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--train", action="store_true", help="measure training instead of serving")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.train:
        figures = {}
        for name, compiled in (("eager", False), ("compiled", True)):
            speeds, peak = train(args.shape, args.rounds, compiled)
            figures |= {f"LoRA update, 4 x 1024, {name} (tokens/s)": speeds, f"LoRA peak, {name} (GB)": [peak]}
            torch.cuda.empty_cache()
    else:
        net = model(args.shape).eval()
        with torch.no_grad():
            prompt = torch.randint(0, 151936, (1, 2048), device="cuda")
            prefill = rounds(lambda: net(prompt, logits_to_keep=1, use_cache=True), args.rounds)
            figures = {"prefill, 1 x 2048 (tokens/s)": [2048 / s for s in prefill]}
            for streams in (1, 32):
                torch.compiler.reset()
                figures[f"decode, {streams} streams (tokens/s)"] = decode(net, streams, args.rounds)
    print(json.dumps({"torch": torch.__version__, "figures": figures, "medians": {k: statistics.median(v) for k, v in figures.items()}}))


if __name__ == "__main__":
    main()
