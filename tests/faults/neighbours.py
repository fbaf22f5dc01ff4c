"""Six ways of using one folder at once, each a process of its own or a process for each call, seen from outside alike:
add a text, and tell which of some texts are found by their words and by their vectors.

As a program it is one of them, a notebook: `python neighbours.py INDEX_DIR UPLOAD_DIR` answers a line with a line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from serve_load import BOUND, Server, multipart

from agentformer.errors import Conflict
from agentformer.factory import AgentFormer, connect
from agentformer.tools.result_json import hit_json
from tests import forked

EMBEDDER = "hashing:1024"  # so many that hundreds of texts do not look alike
LIMIT = 100
QUIET = {"AGENTFORMER_CLEAN_EVERY": "0"}


class Neighbour(Protocol):
    def add(self, text: str) -> None: ...

    def find(self, texts: Sequence[str]) -> set[str]:
        """Those that a search finds both ways."""
        ...

    def close(self) -> None: ...


def both_ways(hits: Iterable[dict[str, Any]]) -> set[str]:
    return {hit["content"] for hit in hits if hit["dense_rank"] is not None and hit["lexical_rank"] is not None}


class ByHttp:
    """A client of `agentformer serve` with two workers; with `uploads` it brings documents, else memories."""

    def __init__(self, folder: Path, *, uploads: bool = False) -> None:
        self._server = Server(folder, "--workers", "2", "--embedder", EMBEDDER)
        self._uploads = uploads

    def add(self, text: str) -> None:
        if self._uploads:
            body, kind = multipart({f"{text}.txt": text.encode()})
            answer = self._server.call("POST", "/api/rag/upload", body, Content_Type=kind)
        else:
            answer = self._post("/api/memory", content=text)
        assert answer.status == 201, answer.data

    def find(self, texts: Sequence[str]) -> set[str]:
        answer = self._post("/api/memory/search", text=" ".join(texts), limit=LIMIT)
        assert answer.status == 200, answer.data
        return both_ways(answer.json["hits"])

    def close(self) -> None:
        assert self._server.end() == 0
        self._server.close()
        assert "Traceback" not in self._server.log.read_text()

    def _post(self, path: str, **values: Any) -> Any:
        return self._server.call("POST", path, json.dumps(values).encode(), Content_Type="application/json")


class ByCommands:
    """`agentformer remember` and `ingest` by turns, and `recall`; each call is a process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def add(self, text: str) -> None:
        self._count += 1
        if self._count % 2:
            self._run("remember", text)
        else:
            path = self._folder / f"{text}.txt"
            path.write_text(text)
            self._run("ingest", str(path))

    def find(self, texts: Sequence[str]) -> set[str]:
        found = self._run("recall", " ".join(texts), "--all", "--limit", str(LIMIT))
        return both_ways(json.loads(found)["hits"])

    def close(self) -> None:
        """Nothing goes on between calls."""

    def _run(self, command: str, *arguments: str) -> str:
        where = ["--index-dir", f"{self._folder}/i", "--upload-dir", f"{self._folder}/u"]
        options = ("--embedder", EMBEDDER, "--json")
        done = forked.ended(forked.command(command, *arguments, *where, *options, env=QUIET), BOUND)
        assert done.returncode == 0, done.stderr
        return done.stdout


class _Piped:
    """A process that answers a line of JSON with a line of JSON."""

    def __init__(self, start: Callable[..., Any], *arguments: object, log: Path, **options: Any) -> None:
        self._log = log
        with log.open("w") as errors:
            self.process = start(*arguments, stdin=subprocess.PIPE, stderr=errors, env=QUIET, **options)

    def ask(self, **what: Any) -> Any:
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self._log.read_text()
        return json.loads(line)

    def close(self) -> None:
        self.process.communicate(timeout=BOUND)
        assert self.process.returncode == 0, self._log.read_text()


class Notebook:
    """A long-lived process that uses the library; with `cleans` it also talks, cleans up, and restores."""

    def __init__(self, folder: Path, *, cleans: bool = False) -> None:
        log = folder / f"notebook{cleans}.txt"
        self._piped = _Piped(forked.script, Path(__file__), f"{folder}/i", f"{folder}/u", log=log)
        self._cleans = cleans

    def add(self, text: str) -> None:
        if self._cleans:
            self._ask(do="clean")
        self._ask(do="add", text=text)

    def find(self, texts: Sequence[str]) -> set[str]:
        return set(self._ask(do="find", text=" ".join(texts)))

    def close(self) -> None:
        self._piped.close()

    def _ask(self, **what: Any) -> Any:
        told = self._piped.ask(**what)
        assert "error" not in told, told
        return told["value"]


class ByMcp:
    """A client of `agentformer mcp`. It is shown texts and no ranks, so its searches tell less."""

    def __init__(self, folder: Path) -> None:
        where = ["--index-dir", f"{folder}/i", "--upload-dir", f"{folder}/u", "--embedder", EMBEDDER]
        self._piped = _Piped(forked.command, "mcp", *where, imports=forked.MCP, log=folder / "mcp.txt")
        self._number = 0
        client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
        self._ask("initialize", client)

    def add(self, text: str) -> None:
        self._call("memory_add", content=text)

    def find(self, texts: Sequence[str]) -> set[str]:
        found = (self._call("memory_search", query=text, limit=5)["memories"] for text in texts)
        return {memory["content"] for memories in found for memory in memories}

    def close(self) -> None:
        self._piped.close()

    def _call(self, tool: str, **arguments: Any) -> Any:
        result = self._ask("tools/call", {"name": tool, "arguments": arguments})
        assert not result.get("isError"), result
        return result["structuredContent"]

    def _ask(self, method: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        told = self._piped.ask(jsonrpc="2.0", id=self._number, method=method, params=parameters)
        assert "result" in told, told
        return told["result"]


def _clean(af: AgentFormer) -> None:
    """A few more words in a session, which are summarised, and sometimes brought back."""
    for n in range(3):
        af.memory.add_message("talk", "user", f"we met {uuid.uuid4()} at noon", occurred_at=f"2024-05-01T12:0{n}:00Z")
    summaries = af.memory.clean(session_id="talk").summaries
    for summary in summaries[:1]:
        try:
            af.memory.restore(summary)
        except Conflict:
            continue


def _answer(af: AgentFormer, asked: dict[str, Any]) -> Any:
    if asked["do"] == "add":
        return af.memory.store(asked["text"]).id
    if asked["do"] == "clean":
        return _clean(af)
    return sorted(both_ways(map(hit_json, af.memory.search(asked["text"], limit=LIMIT))))


def main() -> None:
    index, uploads = sys.argv[1:]
    with connect(index_dir=index, upload_dir=uploads, embedder=EMBEDDER, clean_every=0, lease_seconds=5.0) as af:
        for line in sys.stdin:
            try:
                told = {"value": _answer(af, json.loads(line))}
            except Exception as error:
                told = {"error": repr(error)}
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
