"""The embedder's server is killed in the middle of an upload of many files, and comes back."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

from long_form import LONG

import agentformer
from agentformer.embedders.model_info import PROBE
from agentformer.types import Query, Scope
from tests import forked

FILES, AWAY = (200, range(60, 140)) if LONG else (24, range(8, 16))
SERVER = "from tests.embedders.ollama_server import main\nmain()"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def start(port: int, log: Path) -> Any:
    server = forked.program(SERVER, "--port", port, "--log", log)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server
        time.sleep(0.05)
    server.kill()
    raise AssertionError("the server did not start")


def embedded(log: Path) -> Counter[str]:
    """How often each text of a document was embedded, by the server's own account."""
    texts = (json.loads(line) for line in log.read_text(encoding="utf-8").splitlines())
    return Counter(text for text in texts if text.startswith("search_document: ") and PROBE not in text)


def content(n: int) -> str:
    """A file of several windows, with a word of its own in each paragraph."""
    return "\n\n".join(
        f"File {n}, part {part}: the keeper of room{n}x{part} counts the lanterns. " + "They hang in a row. " * 40
        for part in range(4)
    )


def test_all_is_found_by_words_at_once_and_by_vectors_after_and_nothing_is_embedded_twice(
    tmp_path: Path,
) -> None:
    port, log = free_port(), tmp_path / "log"
    server = start(port, log)
    memory = agentformer.connect(
        index_dir=tmp_path / "i",
        upload_dir=tmp_path / "u",
        embedder="ollama:nomic-embed-text",
        embed_base_url=f"http://127.0.0.1:{port}",
        embed_retry_seconds=0.5,
        breaker_seconds=1,
    )
    try:
        states = []
        for n in range(FILES):
            if n == AWAY.start:
                server.kill()
                server.wait()
            if n == AWAY.stop:
                server = start(port, log)
            states.append(memory.rag.upload(content(n).encode(), name=f"file{n}.txt").status)
            (hit,) = memory.backend.search(Query(f"room{n}x3", Scope(), limit=1, mode="lexical"))
            assert f"room{n}x3" in hit.entry.content
        assert states[: AWAY.start] == ["ready"] * AWAY.start
        assert states[AWAY.start : AWAY.stop] == ["pending"] * len(AWAY)

        deadline = time.monotonic() + 120
        while memory.backend.pending(Scope()) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert memory.backend.pending(Scope()) == 0
        assert {document.status for document in memory.rag.documents()} == {"ready"}
        hits = memory.backend.search(Query("lanterns", Scope(), limit=10_000, mode="dense"))
        chunks = memory.backend.list(Scope(kinds=("chunk",)), limit=10_000)
        assert sorted(hit.entry.id for hit in hits) == [chunk.id for chunk in chunks] and not hits.warnings
        counts = memory.backend.status()
    finally:
        memory.close()
        server.kill()
        server.wait()
    times = embedded(log)
    assert set(times.values()) == {1}, [text[:80] for text, count in times.items() if count > 1]
    assert len(times) == counts["vectors"] >= FILES * 4
