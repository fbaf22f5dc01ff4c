"""Searches a second of HTTP servers under the same clients: `python -m bench.crowd --folder DIR`.

Our server with one and with two workers; with `--beside NAME=FOLDER` also the server of another checkout, and with
`--txtai PYTHON` txtai's own server in the environment of that Python. All run at the same time, and the clients ask one
after the other, in rounds. Ratios are to the searches a second that the first server serves to one client.

DIR keeps one store for each checkout, which is filled when it is missing; at 10,000 entries, this takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

from bench.crowd.servers import OURS, TXTAI, Server, ask, running, stores
from bench.speed.timing import Values

CLIENTS = (1, 8)
WARMING = 1.5  # seconds of four clients, twice


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="keeps the stores")
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--embedder", default="minilm:int8")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--beside", metavar="NAME=FOLDER", help="another checkout, whose server has one worker")
    parser.add_argument("--txtai", metavar="PYTHON", help="a Python with txtai[api]")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    servers = []
    if given.beside:
        name, _, folder = given.beside.partition("=")
        servers.append(Server(name, "agentformer", Path(folder).resolve(), 1))
    servers += [Server(f"{OURS}, {count} workers", "agentformer", Path.cwd(), count) for count in given.workers]
    if given.txtai:
        servers.append(Server(TXTAI, "txtai", Path.cwd(), 1, given.txtai))
    stores(given.folder, servers, given.entries, given.embedder)
    with ExitStack() as stack:
        urls = {one: stack.enter_context(running(one, given.folder, given.embedder)) for one in servers}
        offset = 0
        for _ in range(2):
            for one in servers:
                ask(one, urls[one].url, 4, WARMING, offset := offset + 5_003)
        found: dict[tuple[Server, int], list[Values]] = {}
        for number in range(given.rounds):
            for clients in CLIENTS:
                for one in servers:
                    spent = urls[one].processor_seconds()
                    told = ask(one, urls[one].url, clients, given.seconds, offset := offset + 5_003)
                    told["server_ms"] = (urls[one].processor_seconds() - spent) * 1000 / told["searches"]
                    found.setdefault((one, clients), []).append(told)
                    print(f"round {number + 1}, {one.name}, {clients}: {json.dumps(told)}", file=sys.stderr, flush=True)
        memory = {one: urls[one].memory() for one in servers}
    _report(servers, found, memory)


def _report(servers: list[Server], found: dict[tuple[Server, int], list[Values]], memory: dict[Server, float]) -> None:
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
