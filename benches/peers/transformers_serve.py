#!/usr/bin/env python3
"""Serves a checkpoint with Hugging Face transformers on the CPU and measures it on demand.

`clawhost bench serve --peer "python3 benches/peers/transformers_serve.py"` starts it, passes it the checkpoint
and the number of threads, and requests measurements, alternating with its own:

    {"measure": "decode", "streams": 16, "prompt_tokens": 128, "reply_tokens": 128}
    {"measure": "prefill", "prompt_tokens": 512}

Each response is one JSON line with the best result of transformers: `generate` on a batch of prompts of equal
length, with each attention implementation for CPUs, and continuous batching if it runs on this machine.
Greedy, with KV cache, in inference mode. All other output goes to standard error.
"""

import argparse
import inspect
import json
import os
import subprocess
import sys
import time

ATTENTION = ("sdpa", "eager")
PROBE_SECONDS = 90


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="directory in Hugging Face layout")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--probe-continuous", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def load(directory, threads, attention):
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation=attention
    )
    # Ignore the checkpoint's sampling parameters and end tokens, which would override the configuration below.
    model.generation_config = GenerationConfig(pad_token_id=0)
    model.config.eos_token_id = None
    return model.eval()


def prompts(config, streams, length, salt):
    import torch

    generator = torch.Generator().manual_seed(salt)
    return torch.randint(0, config.vocab_size, (streams, length), generator=generator)


def greedy(new_tokens, **more):
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=False, max_new_tokens=new_tokens, eos_token_id=None, pad_token_id=0, use_cache=True, **more
    )


def generate(model, ids, new_tokens):
    """Seconds of one call; raises if a response is shorter than requested."""
    import torch

    mask = torch.ones_like(ids)
    start = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=mask, generation_config=greedy(new_tokens))
    seconds = time.perf_counter() - start
    if out.shape[1] != ids.shape[1] + new_tokens:
        raise RuntimeError(f"{out.shape[1] - ids.shape[1]} tokens instead of {new_tokens}")
    return seconds


def generate_batch(model, ids, new_tokens):
    """As `generate`, with continuous batching."""
    import torch

    start = time.perf_counter()
    with torch.inference_mode():
        out = model.generate_batch(
            inputs=[row.tolist() for row in ids],
            generation_config=greedy(new_tokens),
            progress_bar=False,
        )
    seconds = time.perf_counter() - start
    replies = [len(reply.generated_tokens) for reply in out.values()]
    if replies != [new_tokens] * len(ids):
        raise RuntimeError(f"replies of {replies} tokens instead of {new_tokens}")
    return seconds


def decode(way, model, ask, salt):
    """Tokens per second after the first token of each stream, and milliseconds to the first token."""
    ids = prompts(model.config, ask["streams"], ask["prompt_tokens"], salt)
    first = way(model, ids, 1)
    whole = way(model, ids, ask["reply_tokens"])
    tokens = ask["streams"] * (ask["reply_tokens"] - 1)
    return tokens / max(whole - first, 1e-9), first * 1e3


def prefill(model, length, salt):
    """Tokens per second of prefilling one prompt, with logits of the last token only."""
    import torch

    ids = prompts(model.config, 1, length, salt)
    start = time.perf_counter()
    with torch.inference_mode():
        model(input_ids=ids, use_cache=True, logits_to_keep=1)
    return length / (time.perf_counter() - start)


def probe_continuous(args):
    """Whether continuous batching runs on this machine, tested in a subprocess because it may hang."""
    model = load(args.model, args.threads, "paged|sdpa")
    if "progress_bar" not in inspect.signature(model.generate_batch).parameters:
        raise RuntimeError("this generate_batch has another signature")
    generate_batch(model, prompts(model.config, 2, 8, 0), 4)


def ways(args):
    """The decoding variants of transformers: name, function, model."""
    found = [(f"generate, {kind}", generate, load(args.model, args.threads, kind)) for kind in ATTENTION]
    probe = [sys.executable, __file__, "--model", args.model, "--threads", str(args.threads), "--probe-continuous"]
    try:
        subprocess.run(probe, check=True, timeout=PROBE_SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        found.append(("generate_batch", generate_batch, load(args.model, args.threads, "paged|sdpa")))
    except subprocess.TimeoutExpired:
        print("continuous batching timed out", file=sys.stderr)
    except subprocess.CalledProcessError as failed:
        reason = failed.stderr.decode(errors="replace").strip().splitlines()[-1:]
        print(f"continuous batching does not run here: {' '.join(reason)}", file=sys.stderr)
    return found


def answer(found, ask, salt, dropped):
    if ask["measure"] == "prefill":
        best = max(((prefill(model, ask["prompt_tokens"], salt), name) for name, way, model in found if way is generate))
        return {"tokens_per_second": best[0], "how": best[1].removeprefix("generate, ")}
    results = []
    for name, way, model in found:
        if name in dropped:
            continue
        rate, first = decode(way, model, ask, salt)
        results.append((rate, first, name))
    best = max(results)
    # Skip a variant that is far slower at this load from now on, also at larger loads.
    dropped.update(name for rate, _, name in results if rate < best[0] / 2)
    return {"tokens_per_second": best[0], "first_token_ms": min(r[1] for r in results), "how": best[2]}


def main():
    args = arguments()
    # Before torch is imported: if a GPU is visible, continuous batching would use it.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if args.probe_continuous:
        probe_continuous(args)
        return
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    found = ways(args)
    for _, way, model in found:
        decode(way, model, {"streams": 1, "prompt_tokens": 16, "reply_tokens": 8}, 0)
    ready = {
        "name": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "threads": torch.get_num_threads(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "ways": [name for name, _, _ in found],
    }
    print(json.dumps(ready), flush=True)
    dropped = {}
    for salt, line in enumerate(sys.stdin, start=1):
        ask = json.loads(line)
        print(json.dumps(answer(found, ask, salt, dropped.setdefault(line, set()))), flush=True)


if __name__ == "__main__":
    main()
