"""Searches a second of HTTP servers under the same clients: `python -m bench.crowd --folder DIR`.

Our server with one and with two workers; with `--beside NAME=FOLDER` also the server of another checkout, and with
`--peers PYTHON` the servers of txtai and Chroma in the environment of that Python (`.venv-peers/bin/python`). Chroma's
client embeds, not its server. All run at the same time, and the clients ask one after the other, in rounds. Ratios are
to the searches a second that the first server serves to one client.

DIR keeps one store for each checkout, which is filled when it is missing; at 10,000 entries, this takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from bench.crowd.servers import OURS, PEERS, Running, Server, ask, running, stores
from bench.speed.timing import Values

Found = dict[tuple[Server, int], list[Values]]  # a server and a number of clients -> the figures of each round

CLIENTS = (1, 8)
WARMING = 1.5  # seconds of four clients, twice


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="keeps the stores")
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--embedder", default="minilm:int8")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--beside", metavar="NAME=FOLDER", help="another checkout, whose server has one worker")
    parser.add_argument("--peers", metavar="PYTHON", help="a Python with txtai[api] and chromadb")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    servers = []
    if given.beside:
        name, _, folder = given.beside.partition("=")
        servers.append(Server(name, "agentformer", Path(folder).resolve(), 1))
    servers += [Server(f"{OURS}, {count} workers", "agentformer", Path.cwd(), count) for count in given.workers]
    if given.peers:
        servers += [Server(peer, peer, Path.cwd(), 1, str(Path(given.peers).absolute())) for peer in PEERS]
    stores(given.folder, servers, given.entries, given.embedder)
    with ExitStack() as stack:
        started = {one: stack.enter_context(running(one, given.folder, given.embedder)) for one in servers}
        found, failed = _measure(started, given.seconds, given.rounds)
        memory = {one: process.memory() for one, process in started.items()}
    _report(servers, found, memory)
    for one, problem in failed.items():
        print(f"\n{one.name} failed: {problem}")


def _measure(started: Mapping[Server, Running], seconds: float, rounds: int) -> tuple[Found, dict[Server, str]]:
    """Let the clients ask each server in turn. Return the figures, and the error of each peer that failed; the other
    servers go on without it."""
    found: Found = {}
    failed: dict[Server, str] = {}
    turns = [(WARMING, 4, "") for _ in range(2)]
    turns += [(seconds, clients, f"round {number + 1}") for number in range(rounds) for clients in CLIENTS]
    offset = 0
    for lasting, clients, name in turns:
        for one in [one for one in started if one not in failed]:
            spent = started[one].processor_seconds()
            offset += 5_003
            try:
                told = ask(one, started[one].url, clients, lasting, offset)
            except RuntimeError as error:
                if one.kind not in PEERS:
                    raise
                failed[one] = f"{clients} clients, {error}"
                continue
            if name:
                told["server_ms"] = (started[one].processor_seconds() - spent) * 1000 / told["searches"]
                found.setdefault((one, clients), []).append(told)
            print(f"{name or 'warming'}, {one.name}, {clients}: {json.dumps(told)}", file=sys.stderr, flush=True)
    return found, failed


def _report(servers: list[Server], found: Found, memory: dict[Server, float]) -> None:
    middle = {
        place: {name: statistics.median(told[name] for told in rounds) for name in rounds[0]}
        for place, rounds in found.items()
    }
    base = middle[servers[0], CLIENTS[0]]["rate"]
    print(
        "| server | clients | searches/s | ratio | p50, ms | p99, ms | p99 / p50 of one | processor ms | memory, MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for (one, clients), told in middle.items():
        tail = told["p99"] / middle[one, CLIENTS[0]]["p50"]
        print(
            f"| {one.name} | {clients} | {told['rate']:.0f} | {told['rate'] / base:.2f} | {told['p50']:.1f} | "
            f"{told['p99']:.1f} | {tail:.1f} | {told['server_ms']:.2f} | {memory[one]:.0f} |"
        )


if __name__ == "__main__":
    main()
