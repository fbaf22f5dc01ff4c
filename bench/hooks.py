"""The time of a hook: events are played as an agent plays them, one process each. `python -m bench.hooks [--events N]`.

A memory of `--memories` entries is stored first. The first half of the events finds no companion (a hook then searches
by words alone), the second half a warm one. The table has the wall time of a process at the median and at the 95th
percentile, beside that of a process of Python that does nothing, taken in the same run, and how many answered.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import agentformer
from agentformer.hooks.spool import Spool

TOPICS = ("deploy", "linter", "database", "office", "release", "budget", "kettle", "railway", "garden", "printer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=300)
    parser.add_argument("--memories", type=int, default=2_000)
    parser.add_argument("--embedder", default="multilingual")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = {"index_dir": f"{folder}/index", "upload_dir": f"{folder}/uploads"}
        with agentformer.connect(**place, embedder=chosen.embedder) as af:
            af.memory.store_many([f"Note {n}: the {TOPICS[n % 10]} of team {n} is on day {n % 28 + 1}."
                                  for n in range(chosen.memories)])  # fmt: skip
        print("| hook | calls | answered | p50 ms | p95 ms | over 300 ms |\n|---|---|---|---|---|---|")
        row("python -c pass", [timed([sys.executable, "-c", "pass"], b"") for _ in range(20)])
        spool = Spool(Path(place["index_dir"]))
        options = ["--agent", "claude-code", "--index-dir", place["index_dir"], "--upload-dir", place["upload_dir"]]
        program = [str(Path(sys.executable).with_name("agentformer")), "hook"]
        for name in ("cold", "warm"):
            if name == "warm":
                subprocess.Popen([sys.executable, "-P", "-m", "agentformer.hooks.companion", *place.values(), "120"])
                while not spool.socket.exists():
                    time.sleep(0.1)
            else:
                spool.make()
            taken: dict[str, list[tuple[float, bool]]] = {}
            for n in range(chosen.events // 2):
                event = ("UserPromptSubmit", "PostToolUse", "Stop")[n % 3]
                if name == "cold":  # no companion starts, because one seems to live
                    spool.alive.touch()
                values = {"session_id": "s", "cwd": folder, "prompt": f"When is the {TOPICS[n % 10]} of team {n}?",
                          "tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_response": "a" * 2_000,
                          "last_assistant_message": f"It is on day {n}."}  # fmt: skip
                called = timed([*program, event, *options], json.dumps(values).encode())
                taken.setdefault(event, []).append(called)
            for event, calls in taken.items():
                row(f"{event}, {name}", calls)
        spool.switch(False)
        while spool.alive.exists() and any(spool.waiting()):
            time.sleep(0.5)
        subprocess.run(["pkill", "-f", f"agentformer.hooks.companion {place['index_dir']}"], check=False)


def timed(command: list[str], given: bytes) -> tuple[float, bool]:
    """Return the wall time of a process in milliseconds, and whether it wrote something."""
    begun = time.perf_counter()
    done = subprocess.run(command, input=given, capture_output=True, env=os.environ, check=True)
    return (time.perf_counter() - begun) * 1000, bool(done.stdout)


def row(name: str, calls: list[tuple[float, bool]]) -> None:
    times = np.array([each for each, _ in calls])
    p50, p95 = np.quantile(times, (0.5, 0.95))
    answered, over = sum(said for _, said in calls), int((times > 300).sum())
    print(f"| {name} | {len(calls)} | {answered} | {p50:.0f} | {p95:.0f} | {over} |", flush=True)


if __name__ == "__main__":
    main()
