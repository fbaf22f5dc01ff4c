"""Cost of refusing hostile bodies: `python -m bench.bodies [http] [mcp] [stdio]`. Each body has the greatest size
that its interface reads. The table has the processor time and the additional memory of the server, and its answer."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

HTTP_BYTES = 16 * 1024 * 1024 - 200
MCP_BYTES = 64 * 1024 * 1024 - 400
HTTP_PATHS = ("/api/memory", "/api/memory/batch", "/api/rag/query", "/api/memory/search", "/v1/chat/completions",
              "/v1/embeddings", "/api/tools/memory_add")  # fmt: skip
HALF = rb"\ud800"


def shapes(size: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each shape, and a JSON object of about `size` bytes."""
    filled = b"x" * (size - 5_000)
    yield "unknown names", b"{%s}" % _joined(size, lambda n: b'"a%d":0' % n)
    yield "one name repeated", b"{%s}" % _joined(size, lambda n: b'"a":0')
    yield "known name repeated", b'{"content":"a",%s}' % _joined(size, lambda n: b'"title":0')
    yield "names of metadata", b'{"content":"a","metadata":{%s}}' % _joined(size, lambda n: b'"a%d":0' % n)
    yield "empty objects", b'{"items":[%s]}' % _joined(size, lambda n: b"{}")
    yield (
        "items of unknown names",
        b'{"items":[%s]}' % _joined(size, lambda n: b"{%s}" % b",".join(b'"a%d":0' % k for k in range(500))),
    )
    few = 190_000  # just below the limit
    padding = b"x" * (size // few - 16)
    yield "fewer unknown names", b"{%s}" % b",".join(b'"%s%d":0' % (padding, n) for n in range(few))
    yield (
        "fewer items of unknown names",
        b'{"items":[%s]}'
        % b",".join(b"{%s}" % b",".join(b'"%s%d":0' % (padding, k) for k in range(few // 1000)) for _ in range(999)),
    )
    yield "fewer empty objects", b'{"items":[%s],"rest":"%s"}' % (b",".join([b"{}"] * (few // 2)), filled[: size // 2])
    yield "fewer objects in metadata", b'{"content":"a","metadata":{"a":[%s]}}' % b",".join([b"{}"] * (few // 2))
    yield "list of numbers", b'{"content":[%s]}' % _joined(size, lambda n: b"1")
    yield "messages", b'{"messages":[%s],"input":[%s]}' % ((_joined(size // 2, lambda n: b"1"),) * 2)
    yield "nested lists", b'{"content":%s}' % (b"[" * (size // 2) + b"]" * (size // 2))
    yield "nested objects", b'{"content":%s1%s}' % (b'{"a":' * (size // 6), b"}" * (size // 6))
    yield "lists in lists", b'{"metadata":{"a":[%s]}}' % _joined(size, lambda n: b"[" * 150 + b"]" * 150)
    yield "long number", b'{"content":%s}' % (b"1" * size)
    yield "long fraction", b'{"salience":0.%s}' % (b"1" * size)
    yield "long name", b'{"%s":1}' % (b"a" * size)
    yield "long text", b'{"content":"%s"}' % (b"a" * size)
    yield "long text of quotes", b'{"content":"%s"}' % (b'\\"' * (size // 2))
    yield "commas in a text", b'{"content":"%s"}' % (b"," * size)
    yield "half surrogates", b'{"content":"%s"}' % (HALF * (size // 6))
    deep = b'{"items":[%s"%s"%s],"rest":"%s"}' % (b'{"items":[' * 90, HALF, b"]}" * 90, filled)
    yield "half a surrogate deep inside", deep
    yield "NaN", b'{"content":[%s]}' % _joined(size, lambda n: b"NaN")
    yield "not JSON", b"{" * size
    yield "open text", b'{"content":"' + b"a" * size


def _joined(size: int, item: Callable[[int], bytes]) -> bytes:
    """Return items with commas between them, about `size` bytes together."""
    count = max(1, (size - 100) // (len(item(10**6)) + 1))
    return b",".join(map(item, range(count)))


class Cost:
    """Measures the processor time and the additional memory of a process and of the processes that it has started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        for each in self._tree():
            with contextlib.suppress(OSError):
                Path(f"/proc/{each}/clear_refs").write_text("5")
        self._seconds, self._memory = self._total(_seconds), self._total(lambda pid: _memory(pid, "VmRSS"))

    def row(self) -> tuple[float, float]:
        """Return the seconds and the MB since the object was created."""
        peak = self._total(lambda pid: _memory(pid, "VmHWM"))
        return self._total(_seconds) - self._seconds, peak - self._memory

    def _total(self, of: Callable[[int], float]) -> float:
        return sum(map(of, self._tree()))

    def _tree(self) -> list[int]:
        found, parents = [self.pid], {}
        for state in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parents[int(state.parent.name)] = int(state.read_text().rpartition(")")[2].split()[1])
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found


def _seconds(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _memory(pid: int, name: str) -> float:
    with contextlib.suppress(OSError):
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


@contextlib.contextmanager
def _server(*command: str, folder: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    settings = {"AGENTFORMER_INDEX_DIR": f"{folder}/i", "AGENTFORMER_UPLOAD_DIR": f"{folder}/u"}
    environment = {**os.environ, **settings, "AGENTFORMER_EMBEDDER": "hashing", "AGENTFORMER_LLM_MODEL": "echo:"}
    arguments = [str(Path(sys.executable).with_name("agentformer")), *command]
    with Path(f"{folder}/{command[0]}.log").open("wb") as log:
        running = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
        )
    try:
        yield running, _address(running, Path(log.name)) if "--port" in command else ""
    finally:
        running.terminate()
        running.wait(30)


def _address(running: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the server has printed its address to its output or its log."""
    os.set_blocking(running.stdout.fileno(), False)
    printed = ""
    while not (found := re.search(r"http://[\w.:]+", printed + log.read_text())):
        printed += (running.stdout.read() or b"").decode()
        time.sleep(0.1)
        if running.poll() is not None:
            sys.exit(f"the server has ended: {log.read_text()}")
    return found[0]


def _post(address: str, path: str, body: bytes) -> str:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    with contextlib.closing(connection), contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return f"{response.status} {response.read(200).decode('utf-8', 'replace')}"
    return "closed"


def _print(door: str, shape: str, cost: Cost, answer: str) -> None:
    seconds, memory = cost.row()
    text = " ".join(answer.split())[:70].replace("|", "\\|")
    print(f"| {door} | {shape} | {seconds:.2f} | {memory:.0f} | {text} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("doors", nargs="*", default=["http", "mcp", "stdio"])
    doors = parser.parse_args().doors
    print("| interface | shape | seconds | MB | answer |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        if "http" in doors:
            with _server("serve", "--port", "0", folder=folder) as (running, address):
                for shape, body in shapes(HTTP_BYTES):
                    for path in HTTP_PATHS:
                        cost = Cost(running.pid)
                        _print(path, shape, cost, _post(address, path, body))
        if "mcp" in doors:
            with _server("mcp", "--http", "--port", "0", folder=folder) as (running, address):
                for shape, body in shapes(MCP_BYTES):
                    cost = Cost(running.pid)
                    _print("MCP over HTTP", shape, cost, _post(address, "/mcp", _call(body)))
        if "stdio" in doors:
            with _server("mcp", folder=folder) as (running, _):
                _write(running, json.dumps(_INITIALIZE).encode())
                running.stdout.readline()
                _write(running, b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
                for shape, body in shapes(MCP_BYTES):
                    cost = Cost(running.pid)
                    _write(running, _call(body).replace(b"\n", b" "))
                    _print("MCP, stdio", shape, cost, running.stdout.readline().decode("utf-8", "replace"))


_INITIALIZE = {
    **{"jsonrpc": "2.0", "id": 0, "method": "initialize"},
    "params": {
        **{"protocolVersion": "2025-06-18", "capabilities": {}},
        "clientInfo": {"name": "bodies", "version": "1"},
    },
}


def _write(running: subprocess.Popen[bytes], line: bytes) -> None:
    running.stdin.write(line + b"\n")
    running.stdin.flush()


def _call(arguments: bytes) -> bytes:
    head = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call"}).encode()[:-1]
    return head + b', "params": {"name": "memory_add", "arguments": %s}}' % arguments


if __name__ == "__main__":
    main()
