"""Cost of each interface: `python -m bench.serving [--passages N] [--embedder SPEC]`.

One search through each interface, compared with the same search in this process; and requests per second of many HTTP
clients, compared with one.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio.from_thread
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

import agentformer
from bench.data import load

SET = "xquad/en"
TOOL = "memory_search"
SECONDS = 10.0  # of many clients at once
Ask = Callable[[str], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=1000)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--embedder", default="hashing")
    given = parser.parse_args()
    data = load(SET)
    texts = [row.text for row in itertools.islice(data.corpus, given.passages)]
    questions = [row.text for row in itertools.islice(data.queries, given.questions)]
    rows: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        where = {"index_dir": f"{folder}/i", "upload_dir": f"{folder}/u", "embedder": given.embedder}
        with agentformer.connect(**where, clean_every=0) as af:
            count = len(af.memory.store_many(texts))
            rows.append(("in this process", _p50(lambda text: af.toolbox.call(TOOL, {"query": text}), questions)))
        for server in ("gunicorn", "waitress"):
            with _serving(where, "serve", "--server", server) as url:
                rows.append((f"HTTP, {server}", _p50(_over_http(url), questions)))
                print(f"{server}: {_crowd(url, questions)}")
        with anyio.from_thread.start_blocking_portal() as portal:
            with portal.wrap_async_context_manager(_stdio(where)) as client:
                rows.append(("MCP, stdio", _p50(lambda text: portal.call(_tool, client, text), questions)))
            with (
                _serving(where, "mcp", "--http") as url,
                portal.wrap_async_context_manager(Client(streamable_http_client(url))) as client,
            ):
                rows.append(("MCP, HTTP", _p50(lambda text: portal.call(_tool, client, text), questions)))
    print(f"\n{count} passages of {SET}, {given.embedder}, {len(questions)} questions\n")
    print("| interface | p50, ms | ratio |\n|---|---|---|")
    for name, seconds in rows:
        print(f"| {name} | {seconds * 1000:.1f} | {seconds / rows[0][1]:.2f} |")


def _p50(ask: Ask, questions: list[str]) -> float:
    """Return the median seconds of one question; the first ones are a warm-up."""
    for text in questions[:10]:
        ask(text)
    return statistics.median(_timed(ask, text) for text in questions)


def _timed(ask: Ask, text: str) -> float:
    started = time.perf_counter()
    ask(text)
    return time.perf_counter() - started


def _over_http(url: str) -> Ask:
    """Ask over one connection, as clients do."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)

    def ask(text: str) -> object:
        body = json.dumps({"query": text})
        connection.request("POST", f"/api/tools/{TOOL}", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        told = json.load(answer)
        if answer.status != 200:
            raise RuntimeError(told)
        return told

    return ask


def _crowd(url: str, questions: list[str]) -> str:
    """Return the requests per second of 1, 8 and 32 clients."""
    rates = {}
    for clients in (1, 8, 32):
        done = [0] * clients
        until = time.perf_counter() + SECONDS

        def work(number: int, done: list[int] = done, until: float = until) -> None:
            ask = _over_http(url)
            for text in itertools.cycle(questions):
                if time.perf_counter() > until:
                    return
                ask(text)
                done[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rates[clients] = sum(done) / SECONDS
    return ", ".join(f"{n} clients {rate:.0f} requests/s ({rate / rates[1]:.2f})" for n, rate in rates.items())


async def _tool(client: Client, text: str) -> object:
    told = await client.call_tool(TOOL, {"query": text})
    if told.is_error:
        raise RuntimeError(told.content)
    return told


def _options(where: dict[str, str]) -> list[str]:
    return [part for name, value in where.items() for part in (f"--{name.replace('_', '-')}", value)]


def _stdio(where: dict[str, str]) -> Client:
    command = ["-m", "agentformer.cli", "mcp", *_options(where), "--folder", str(Path(where["index_dir"]).parent)]
    return Client(stdio_client(StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))))


@contextmanager
def _serving(where: dict[str, str], *command: str) -> Iterator[str]:
    """Start a server process and yield its address."""
    arguments = [sys.executable, "-m", "agentformer.cli", *command, "--port", "0", *_options(where)]
    both = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert both.stdout
        for line in both.stdout:
            if "http://" in line:
                break
        threading.Thread(target=both.stdout.read, daemon=True).start()  # nothing else reads the log
        yield line[line.index("http://") :].strip()
    finally:
        both.terminate()
        both.wait(timeout=60)


if __name__ == "__main__":
    main()
