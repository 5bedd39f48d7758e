#!/usr/bin/env python3
"""Episodes per second of 64 terminal episodes at once, and of plain bubblewrap with the same commands.

    cargo build --release
    python3 benches/environments/terminal.py --clawhost target/release/clawhost [--rounds 3] [--kill]

An episode has a setup command, ten commands of a policy, and two tests in a fresh sandbox with the files of /work. Plain
bubblewrap does that without a supervisor, limits, time-outs, leases or output caps: a shell in a sandbox reads the lines, one at a
time as a policy would send them, and tar moves the files. Both run their commands at the nice value 10. The two take turns.
Afterwards, and with `--kill` after a kill -9 of clawhost in the middle, processes, mounts and leases that are left are counted.
Prints one line of JSON.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARALLEL = 64
PER_PLACE = 4
TURNS = 10
SETUP = "seq 100 > numbers.txt"
COMMAND = "sort -rn numbers.txt | head -n 3 > top.txt; cat top.txt; date +%s >> log.txt"
TESTS = ["head -n 1 top.txt", "wc -l < log.txt"]
EXPECTED = ["100", str(TURNS)]
TASK = {
    "id": "t",
    "instruction": "Sort the numbers.",
    "setup": [SETUP],
    "tests": [{"command": command, "stdout": stdout} for command, stdout in zip(TESTS, EXPECTED)],
    "max_turns": TURNS,
}


def clawhost(program, folder, parallel, wait=True):
    tasks = pathlib.Path(folder, "tasks.jsonl")
    tasks.write_text(json.dumps(TASK) + "\n")
    component = ROOT / "plugins/artifacts/environment-terminal.wasm"
    data = str(pathlib.Path(folder, "data"))
    environment = {**os.environ, "CLAWHOST_SERVER__DATA_DIR": data}
    grant = [program, "plugin", "grant", component, "sandbox", "--data", data]
    subprocess.run(grant, check=True, capture_output=True)
    command = [program, "env", "bench", component, "--tasks", tasks, "--parallel", str(parallel), "--json"]
    command += ["--action", "/call shell_exec " + json.dumps({"command": COMMAND})]
    command += ["--steps", str(parallel * PER_PLACE * TURNS)]
    if not wait:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout)
    return max(one["episodes"] / one["seconds"] for one in figures)


class Sandbox:
    """A shell in plain bubblewrap."""

    def __init__(self):
        # As commands in machines: serving has priority.
        command = ["nice", "-n", "10", "bwrap", "--unshare-all", "--die-with-parent", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"]
        for folder in ["/usr", "/etc/alternatives"]:
            command += ["--ro-bind", folder, folder]
        for link in ["bin", "lib", "lib64", "sbin"]:
            command += ["--symlink", "usr/" + link, "/" + link]
        for folder in ["/work", "/home/agent", "/tmp", "/dev/shm"]:
            command += ["--tmpfs", folder]
        command += ["--proc", "/proc", "--dev", "/dev", "--chdir", "/work"]
        loop = 'while read -r line; do sh -c "$line" 2>&1; echo "exit $?"; done'
        self.process = subprocess.Popen(
            [*command, "sh", "-c", loop], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        output = []
        while (seen := self.process.stdout.readline()) and not seen.startswith("exit "):
            output.append(seen)
        assert seen == "exit 0\n", (line, seen, output)
        return "".join(output).strip()

    def end(self):
        self.process.stdin.close()
        self.process.stdout.read()
        self.process.wait()


def episode(_):
    policy = Sandbox()
    policy.run(SETUP)
    for _ in range(TURNS):
        policy.run(COMMAND)
    files = policy.run("tar -c . | base64 -w 0; echo")
    policy.end()
    grader = Sandbox()
    grader.run(f"echo {files} | base64 -d | tar -x")
    found = [grader.run(test) for test in TESTS]
    grader.end()
    assert found == EXPECTED, found


def plain(parallel):
    with concurrent.futures.ThreadPoolExecutor(parallel) as pool:
        started = time.perf_counter()
        episodes = list(pool.map(episode, range(parallel * PER_PLACE)))
        return len(episodes) / (time.perf_counter() - started)


def processes():
    """Sandboxes and supervisors on this machine."""
    found = 0
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found += words[0].endswith(b"bwrap") or b"supervise-machines" in words
    return found


def mounts():
    return len(pathlib.Path("/proc/mounts").read_text().splitlines())


def left(folder, before):
    """What is left, once nothing ends any more."""
    for _ in range(300):
        if processes() == before["processes"]:
            break
        time.sleep(0.1)
    directory = pathlib.Path(folder, "data/sandbox")
    leases = [path for path in directory.rglob("*") if path.is_file() and path.name != "lock"] if directory.is_dir() else []
    return {
        "processes": processes() - before["processes"],
        "mounts": mounts() - before["mounts"],
        "leases": len(leases),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clawhost", default=str(ROOT / "target/release/clawhost"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=PARALLEL)
    parser.add_argument("--kill", action="store_true", help="also kill clawhost in the middle")
    arguments = parser.parse_args()
    before = {"processes": processes(), "mounts": mounts()}
    result = {"parallel": arguments.parallel, "clawhost": [], "plain": []}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for _ in range(arguments.rounds):
            result["clawhost"].append(clawhost(arguments.clawhost, folder, arguments.parallel))
            result["plain"].append(plain(arguments.parallel))
        ratios = [a / b for a, b in zip(result["clawhost"], result["plain"])]
        result["ratio"] = {"median": round(statistics.median(ratios), 3), "all": [round(ratio, 3) for ratio in ratios]}
        for name in ["clawhost", "plain"]:
            result[name] = [round(figure, 2) for figure in result[name]]
        result["left"] = left(folder, before)
        if arguments.kill:
            running = clawhost(arguments.clawhost, folder, arguments.parallel, wait=False)
            while processes() < before["processes"] + arguments.parallel:
                time.sleep(0.05)
            running.kill()
            running.wait()
            result["left_after_kill"] = left(folder, before)
            # The next process removes the directory of the last one.
            clawhost(arguments.clawhost, folder, 1)
            result["left_after_restart"] = left(folder, before)
    print(json.dumps(result))


main()
