#!/usr/bin/env python3
"""Runs LoRA updates with PyTorch and PEFT on the CPU on request; `benches/train.py` alternates it with clawhost.

One update is a forward pass, cross-entropy over all tokens but the first, a backward pass and AdamW, on LoRA
adapters of all linear layers. Each line of JSON on standard input, `{"tokens": [[1, 2, ...], ...]}` with sequences of
one length, runs one and is answered with a line on standard output. All other output goes to standard error.
"""

import argparse
import json
import os
import sys
import time


def memory(field):
    with open("/proc/self/status") as status:
        lines = [line.split() for line in status if line.startswith(field)]
    return int(lines[0][1]) << 10 if lines else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="directory in Hugging Face layout")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the frozen weights")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    args = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.dtype), attn_implementation="sdpa"
    )
    config = LoraConfig(
        r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    # Adapters in the dtype of the weights, as fast training on bfloat16 weights has it; otherwise each one casts its input.
    model = get_peft_model(model, config, autocast_adapter_dtype=False)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model.train()
    model.config.use_cache = False
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0, foreach=True)
    ready = {
        "name": f"PEFT {__import__('peft').__version__}, torch {torch.__version__}, {args.dtype}",
        "threads": torch.get_num_threads(),
        "parameters": sum(p.numel() for p in trained),
        "resident_bytes": memory("VmRSS:"),
    }
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        tokens = torch.tensor(json.loads(line)["tokens"])
        start = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - start
        answer = {
            "tokens_per_second": tokens.numel() / seconds,
            "loss": loss.item(),
            "peak_bytes": memory("VmHWM:"),
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
