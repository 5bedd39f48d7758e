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
import math
import os
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
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
# Quantiles of the t distribution for a 95 % interval of the mean of two and more seeds.
T = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26]
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
        command += ["--group", "8", "--tasks-per-step", "8", "--parallel", str(parallel), "--steps", str(options.steps)]
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
    half = T[min(len(values) - 2, len(T) - 1)] * statistics.stdev(values) / math.sqrt(len(values))
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


def plot(runs, path):
    width, height, gap, left, top = 200, 130, 30, 40, 44
    panels = [name for name in ENVIRONMENTS if any(one["environment"] == name for one in runs)]
    total = left + len(panels) * (width + gap)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {top + height + 40}" font-family="sans-serif" font-size="11">']
    svg.append('<rect width="100%" height="100%" fill="#fff"/>')
    for number, (arm, colour) in enumerate(COLOURS.items()):
        x = left + number * 130
        svg.append(f'<path d="M{x} 12h18" stroke="{colour}" stroke-width="2"/><text x="{x + 23}" y="16" fill="#333">{arm}</text>')
    for number, name in enumerate(panels):
        x0 = left + number * (width + gap)
        svg.append(f'<text x="{x0}" y="{top - 8}" font-weight="bold" fill="#111">{name}</text>')
        for value in (0, 0.5, 1):
            y = top + height * (1 - value)
            svg.append(f'<path d="M{x0} {y:.1f}h{width}" stroke="#ddd"/>')
            if number == 0:
                svg.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{value:g}</text>')
        for environment, arm, group in groups(runs):
            if environment != name:
                continue
            curves = list(zip(*[one["curve"] for one in group]))
            x = lambda at: x0 + width * at / max(1, len(curves) - 1)
            y = lambda value: top + height * (1 - value)
            highest = [f"{x(at):.1f},{y(max(values)):.1f}" for at, values in enumerate(curves)]
            lowest = [f"{x(at):.1f},{y(min(values)):.1f}" for at, values in enumerate(curves)]
            middle = [f"{x(at):.1f},{y(statistics.mean(values)):.1f}" for at, values in enumerate(curves)]
            svg.append(f'<polygon points="{" ".join(highest + lowest[::-1])}" fill="{COLOURS[arm]}" opacity="0.15"/>')
            svg.append(f'<polyline points="{" ".join(middle)}" fill="none" stroke="{COLOURS[arm]}" stroke-width="2"/>')
            if number == 0 and arm == "outcome":
                svg.append(f'<text x="{x0}" y="{top + height + 30}" fill="#555">share of solved episodes, by step (1 to {len(curves)}); mean and range of the seeds</text>')
            for at in (0, len(curves) - 1):
                svg.append(f'<text x="{x(at):.1f}" y="{top + height + 14}" text-anchor="middle" fill="#555">{at + 1}</text>')
    pathlib.Path(path).write_text("\n".join(svg) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clawhost", default="target/release/clawhost")
    parser.add_argument("--environments", default=",".join(ENVIRONMENTS))
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
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
        plot(runs, options.plot)


main()
