#!/usr/bin/env python3
"""Steps per second of `environment-guess`, and of the same game as a Python class: in the same process, behind a pipe, and
behind HTTP, as the environment servers of other programs are.

    cargo build --release
    python3 benches/environments/guess.py --clawhost target/release/clawhost [--rounds 3] [--cpu 0]

The same action is repeated; an episode that ends is graded, and another begins. Everything runs on one core (`taskset`), the
Python class with its caller. In each round programs take five turns each, so that other load affects all of them. Prints one line
of JSON: medians of the rounds, and each round's ratio.
"""

import argparse
import http.client
import http.server
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "environments/python/examples"))
from guess import Guess  # noqa: E402

ACTION = {
    "content": "",
    "tool_calls": [{"id": "call-1", "type": "function", "function": {"name": "guess", "arguments": '{"number": 101}'}}],
}
# What each program does in a round, in so many parts.
TURNS = 5
# Out of the range, so that an episode has all of its steps.
TASK = {"id": "g", "instruction": "Play with me.", "tries": 100}


class Episode:
    """What a caller does with an environment, wherever it is."""

    def __init__(self):
        self.env = Guess(tries=100)

    def handle(self, request):
        if request["do"] == "reset":
            return self.env.reset(seed=request["seed"])
        return self.env.step(request["action"])


def run(handle, steps):
    """Steps per second."""
    started, seed, done = time.perf_counter(), 0, True
    for _ in range(steps):
        if done:
            handle({"do": "reset", "seed": seed})
            seed += 1
        _, _, terminated, truncated, _ = handle({"do": "step", "action": ACTION})
        done = terminated or truncated
    return steps / (time.perf_counter() - started)


def in_process(steps):
    return run(Episode().handle, steps)


def serve_pipe():
    episode = Episode()
    for line in sys.stdin:
        print(json.dumps(episode.handle(json.loads(line))), flush=True)


def pipe(steps):
    command = [sys.executable, __file__, "--serve-pipe"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:

        def handle(request):
            server.stdin.write(json.dumps(request) + "\n")
            server.stdin.flush()
            return json.loads(server.stdout.readline())

        figure = run(handle, steps)
        server.stdin.close()
        return figure


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Else each answer waits for an acknowledgement.
    disable_nagle_algorithm = True
    wbufsize = -1
    episode = Episode()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = json.dumps(self.episode.handle(json.loads(body))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def serve_http():
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server.serve_forever()


def over_http(steps):
    command = [sys.executable, __file__, "--serve-http"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        connection = http.client.HTTPConnection("127.0.0.1", int(server.stdout.readline()))

        def handle(request):
            connection.request("POST", "/", json.dumps(request), {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())

        figure = run(handle, steps)
        connection.close()
        server.stdin.close()
        return figure


def component(program, steps):
    """Of callers on the threads of the guests: a step there is a call of the component and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        tasks = pathlib.Path(folder, "tasks.jsonl")
        tasks.write_text(json.dumps(TASK) + "\n")
        command = [program, "env", "bench", ROOT / "plugins/artifacts/environment-guess.wasm", "--tasks", tasks]
        command += ["--action", '/call guess {"number": 101}', "--steps", str(steps), "--json"]
        figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return [one["steps_per_cpu_second"] for one in figures if one["same_threads"]][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clawhost", default=str(ROOT / "target/release/clawhost"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--serve-pipe", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve-http", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve_pipe:
        return serve_pipe()
    if arguments.serve_http:
        return serve_http()
    os.sched_setaffinity(0, {arguments.cpu})
    measured = {
        "component": lambda: component(arguments.clawhost, 60_000),
        "python, same process": lambda: in_process(40_000),
        "python, pipe": lambda: pipe(6_000),
        "python, HTTP": lambda: over_http(1_000),
    }
    figures = {name: [] for name in measured}
    for _ in range(arguments.rounds):
        turns = {name: [] for name in measured}
        for _ in range(TURNS):
            for name, measure in measured.items():
                turns[name].append(measure())
        for name, found in turns.items():
            # Each turn has as many steps, so this is all steps over all of their time.
            figures[name].append(statistics.harmonic_mean(found))
    result = {}
    for name, found in figures.items():
        ratios = [round(own / other, 2) for own, other in zip(figures["component"], found)]
        result[name] = {
            "steps_per_second": round(statistics.median(found)),
            "component_is_faster_by": statistics.median(ratios),
            "in_each_round": ratios,
        }
    print(json.dumps(result))


main()
