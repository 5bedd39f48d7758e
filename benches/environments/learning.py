#!/usr/bin/env python3
"""Reinforcement learning in the environments, with and without a step judge: a table and a plot.

    cargo build --release
    python3 benches/environments/learning.py --clawhost target/release/clawhost --seeds 3 --out learning.jsonl
    python3 benches/environments/learning.py --report learning.jsonl --plot docs/src/images/environments.svg

The model inside the program; runs follow one another. A run that `--out` has already is not repeated, so that the command goes on
after an interruption. terminal, swe and gui need bubblewrap, gui Chromium besides. `--report` prints a table in Markdown: pass@1
before and after with 95 % intervals over tasks, and the mean over seeds with a t interval.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benches"))
import plot

# The component, its tasks, its grants, and episodes at a time: a browser needs more memory than a shell.
ENVIRONMENTS = {
    "toolcall": ("toolcall", "toolcall/tasks.jsonl", [], 64),
    "terminal": ("terminal", "terminal/tasks.jsonl", ["sandbox"], 64),
    "swe": ("swe", "swe/tasks.jsonl", ["sandbox"], 64),
    "gui": ("gui", "gui/tasks.jsonl", ["display"], 16),
    "quiz": ("python", "python/examples/quiz.jsonl", ["sandbox"], 64),
}
ARMS = {"outcome": [], "outcome + votes": ["--step-judge", str(ROOT / "plugins/artifacts/judge-step.wasm"), "--step-coef", "0.5"]}
SPLITS = {"train": "train", "held-out": "held out"}
COLOURS = {"outcome": "#2563eb", "outcome + votes": "#d97706"}


def run(program, environment, arm, seed, options):
    component, tasks, grants, parallel = ENVIRONMENTS[environment]
    component = ROOT / f"plugins/artifacts/environment-{component}.wasm"
    tasks = ROOT / "environments" / tasks
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "data")
        if grants:
            grant = [program, "plugin", "grant", component, *grants, "--data", data]
            subprocess.run(grant, check=True, capture_output=True)
        command = [program, "train", "--env", component, "--tasks", tasks, "--data", data, "--json"]
        command += ["--group", "8", "--tasks-per-step", str(options.tasks_per_step), "--parallel", str(parallel), "--steps", str(options.steps)]
        command += ["--eval-samples", str(options.eval_samples), "--seed", str(seed), *ARMS[arm]]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    *steps, end = [json.loads(line) for line in lines]
    shown = {"environment": environment, "arm": arm, "seed": seed, "seconds": end["seconds"]}
    shown["curve"] = [step["episodes"]["pass_at_1"]["mean"] for step in steps]
    shown["no_verdict"] = sum(step["episodes"]["no_verdict"] for step in steps)
    for when in ("before", "after"):
        shown[when] = {split: end[when][split]["pass_at_1"] for split in SPLITS}
    return shown


def measure(options):
    out = pathlib.Path(options.out)
    known = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(one["environment"], one["arm"], one["seed"]) for one in known}
    for seed in range(options.seeds):
        for environment in options.environments.split(","):
            for arm in options.arms.split(","):
                if (environment, arm, seed) in done:
                    continue
                shown = run(options.clawhost, environment, arm, seed, options)
                with out.open("a") as file:
                    file.write(json.dumps(shown) + "\n")
                print(f"{environment}, {arm}, seed {seed}: {moved(shown, 'train')} in {shown['seconds']:.0f} s", flush=True)


def interval(pass_at_1):
    return f"{pass_at_1['mean']:.2f} [{pass_at_1['low']:.2f}, {pass_at_1['high']:.2f}]"


def moved(shown, split):
    return f"{interval(shown['before'][split])} → {interval(shown['after'][split])}"


def over_seeds(values):
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:+.2f}"
    half = plot.half_interval(values)
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def groups(runs):
    for environment in ENVIRONMENTS:
        for arm in ARMS:
            group = [one for one in runs if (one["environment"], one["arm"]) == (environment, arm)]
            if group:
                yield environment, arm, sorted(group, key=lambda one: one["seed"])


def table(runs):
    print("| environment, reward | seed | train | held out | seconds |\n|---|---|---|---|---|")
    for environment, arm, group in groups(runs):
        for one in group:
            splits = " | ".join(moved(one, split) for split in SPLITS)
            print(f"| {environment}, {arm} | {one['seed']} | {splits} | {one['seconds']:.0f} |")
        gains = [
            over_seeds([one["after"][split]["mean"] - one["before"][split]["mean"] for one in group]) for split in SPLITS
        ]
        print(f"| | gain | {' | '.join(gains)} | |")


def draw(runs, path):
    curves = {}
    for environment, arm, group in groups(runs):
        curves.setdefault(environment, {})[arm] = [one["curve"] for one in group]
    steps = max(len(one["curve"]) for one in runs)
    plot.panels(path, curves, COLOURS, (1, steps), "share of solved episodes, by step; mean and range of the seeds")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clawhost", default="target/release/clawhost")
    parser.add_argument("--environments", default=",".join(ENVIRONMENTS))
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--tasks-per-step", type=int, default=16, help="of eight episodes each")
    parser.add_argument("--eval-samples", type=int, default=4)
    parser.add_argument("--out", default="learning.jsonl", help="a line of JSON for each run is appended")
    parser.add_argument("--report", help="print the table of such a file instead of running anything")
    parser.add_argument("--plot", help="with --report: write the plot (SVG)")
    options = parser.parse_args()
    if not options.report:
        return measure(options)
    runs = [json.loads(line) for line in open(options.report)]
    table(runs)
    if options.plot:
        draw(runs, options.plot)


main()
