#!/usr/bin/env python3
"""Compares LoRA updates of clawhost with those of peers, alternately and on the same checkpoint and tokens.

    cargo build --release -p clawhost-cpu --example lora_update
    python3 benches/train.py --model DIR --threads 2 \\
        --ours target/release/examples/lora_update --peer "python3 benches/peers/peft_train.py"

Each program is started once and answers each line `{"tokens": [...]}` with the speed of one update. Only one of them
works at a time, so other load on the machine affects all equally: read the ratios. `--peer` may be repeated.
"""

import argparse
import json
import random
import shlex
import statistics
import subprocess
import sys


class Program:
    def __init__(self, command, args):
        command = shlex.split(command) + ["--model", args.model, "--threads", str(args.threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self.read()
        self.results = []

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args}: ended with status {self.process.wait()}")
        return json.loads(line)

    def update(self, tokens):
        self.process.stdin.write(json.dumps({"tokens": tokens}) + "\n")
        self.process.stdin.flush()
        return self.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="directory in Hugging Face layout")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ours", action="append", required=True, help="command of the example lora_update")
    parser.add_argument("--peer", action="append", default=[], help="command of a peer; may be repeated")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512, help="of each sequence")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, after one for warming up")
    args = parser.parse_args()
    with open(f"{args.model}/config.json") as config:
        vocabulary = json.load(config)["vocab_size"]
    programs = [Program(command, args) for command in args.ours + args.peer]
    for turn in range(args.rounds + 1):
        draw = random.Random(turn)
        tokens = [[draw.randrange(vocabulary) for _ in range(args.tokens)] for _ in range(args.sequences)]
        for program in programs:
            result = program.update(tokens)
            print(f"round {turn}, {program.ready['name']}: {result['tokens_per_second']:.1f} tokens/s", file=sys.stderr)
            if turn == 0:
                program.loss = result["loss"]
            else:
                program.results.append(result)
    base = programs[0]
    for program in programs:
        speeds = [result["tokens_per_second"] for result in program.results]
        ratios = [ours["tokens_per_second"] / own for ours, own in zip(base.results, speeds)]
        peak, resident = program.results[-1]["peak_bytes"], program.ready["resident_bytes"]
        print(
            f"{program.ready['name']}, {program.ready['threads']} threads: {statistics.median(speeds):.0f} tokens/s, "
            f"{base.ready['name']} is {statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f}); "
            f"peak {peak / 2**20:.0f} MiB, {(peak - resident) / 2**20:.0f} MiB above the loaded model; "
            f"first loss {program.loss:.4f}, {program.ready['parameters']} trained parameters"
        )


if __name__ == "__main__":
    main()
