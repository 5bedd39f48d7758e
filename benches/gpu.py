#!/usr/bin/env python3
"""Serving and training on a GPU beside PyTorch, in one run on one machine, random weights of the same shape.

    python3 benches/gpu.py --program target/release/clawhost --shape qwen3-1.7b --rounds 3 [--out FILE]

Needs torch, transformers and peft. Prints medians with their range, and the ratio of the medians.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

PEER = pathlib.Path(__file__).parent / "peers" / "torch_gpu.py"


def last_json(command):
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if ended.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{ended.stderr[-2000:]}")
    return json.loads(ended.stdout[ended.stdout.index("{"):])


def ours(args, bench, extra=()):
    command = [args.program, "bench", bench, "--device", "cuda:0", "--random", args.shape, "--rounds", str(args.rounds), "--json", *extra]
    return {figure["name"]: figure for figure in last_json(command)["figures"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="target/release/clawhost")
    parser.add_argument("--shape", default="qwen3-1.7b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", help="write all values as JSON")
    args = parser.parse_args()
    serve = ours(args, "serve")
    train = ours(args, "train", ["--samples", "4", "--prompt-tokens", "1", "--reply-tokens", "1023"])
    peer = [sys.executable, str(PEER), args.shape, "--rounds", str(args.rounds)]
    torch = last_json(peer)["figures"] | last_json([*peer, "--train"])["figures"]
    update = train["LoRA update, 4 samples of 1024 tokens"]
    rows = [
        ("decode, 1 stream", serve["decode, 1 stream"], "decode, 1 streams (tokens/s)"),
        ("decode, 32 streams", serve["decode, 32 streams"], "decode, 32 streams (tokens/s)"),
        ("prefill, 1 x 2048", serve["prefill, 1 x 2048"], "prefill, 1 x 2048 (tokens/s)"),
        ("LoRA, 4 x 1024, eager", update, "LoRA update, 4 x 1024, eager (tokens/s)"),
        ("LoRA, 4 x 1024, compiled", update, "LoRA update, 4 x 1024, compiled (tokens/s)"),
    ]
    print(f"{args.shape:26} {'clawhost':>28} {'torch':>28}  ratio")
    for name, own, key in rows:
        other = torch[key]
        mine = f"{own['median']:.0f} ({own['low']:.0f}-{own['high']:.0f})"
        theirs = f"{statistics.median(other):.0f} ({min(other):.0f}-{max(other):.0f})"
        print(f"{name:26} {mine:>28} {theirs:>28}  {own['median'] / statistics.median(other):.2f}")
    for name in ("eager", "compiled"):
        print(f"peak memory of torch in training, {name}: {torch[f'LoRA peak, {name} (GB)'][0]:.1f} GB")
    if args.out:
        everything = {"serve": list(serve.values()), "train": list(train.values()), "torch": torch}
        pathlib.Path(args.out).write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
