"""A process whose model does not answer holds nothing that another one needs: all others store, search and clean.

The models are let go only after everything else was done, so no clock decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentformer.factory import AgentFormer, connect
from agentformer.types import Query, Scope
from tests import forked
from tests.edges.talking import Talker
from tests.embedders.ollama_server import OllamaServer

BOUND = 120.0
MODEL = "ollama:nomic-embed-text"


@pytest.fixture
def started() -> Iterator[list[Any]]:
    processes: list[Any] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def command(folder: Path, *arguments: str, **settings: str) -> Any:
    where = ["--index-dir", f"{folder}/i", "--upload-dir", f"{folder}/u"]
    named = {f"AGENTFORMER_{name.upper()}": value for name, value in settings.items()}
    return forked.command(*arguments, *where, env=named)


def opened(folder: Path, **settings: Any) -> AgentFormer:
    return connect(index_dir=folder / "i", upload_dir=folder / "u", clean_every=0, **settings)


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def talk(af: AgentFormer, session: str) -> None:
    for n in range(10):
        at = datetime(2024, 5, 1, tzinfo=UTC) + timedelta(minutes=n)
        af.memory.add_message(session, "user", f"numbat {n} of {session} sleeps in log {n}", occurred_at=at)


def use_all(af: AgentFormer, name: str) -> None:
    """Every kind of call that writes, and both searches."""
    kept = af.memory.store(f"numbat of {name}")
    assert af.memory.update(kept.id, content=f"numbat of {name}, later").version == 2
    af.memory.core.append(f"plan of {name}", "dig")
    document = af.rag.upload(f"The numbat of {name} digs.".encode(), name=f"{name}.txt")
    talk(af, f"talk of {name}")
    report = af.memory.clean(session_id=f"talk of {name}")
    assert len(report.summaries) == 1
    assert len(af.memory.restore(report.summaries[0])) == 5
    assert af.memory.reindex() == 0
    modes = ("lexical", "dense") if af.backend.spaces() else ("lexical",)
    for mode in modes:
        hits = af.backend.search(Query(f"numbat of {name}", limit=100, mode=mode))  # type: ignore[arg-type]
        assert {kept.id} <= {hit.entry.id for hit in hits}
    af.rag.remove(document.id)
    assert af.memory.remove(kept.id) == 1


def test_no_lock_is_held_while_an_embedder_works(tmp_path: Path, started: list[Any]) -> None:
    (tmp_path / "late.txt").write_text("The late numbat digs.")
    with (
        OllamaServer() as slow,
        OllamaServer() as quick,
        opened(tmp_path, embedder=MODEL, embed_base_url=quick.url) as af,
    ):
        af.memory.store("numbat that was there before")
        slow.hanging.set()
        for arguments in (("remember", "a late numbat"), ("ingest", str(tmp_path / "late.txt"))):
            started.append(
                command(tmp_path, *arguments, "--embedder", MODEL, embed_base_url=slow.url, embed_timeout="600")
            )
        until(lambda: sum(path.startswith("/api/embed") for path, _ in slow.requests) >= 2)
        use_all(af, "the quick")
        assert [process.poll() for process in started] == [None, None]
        slow.hanging.clear()
        for process in started:
            _, errors = process.communicate(timeout=BOUND)
            assert process.returncode == 0, errors
        found = {hit.entry.content for hit in af.backend.search(Query("late numbat", limit=100, mode="dense"))}
        assert {"a late numbat", "The late numbat digs."} <= found


@pytest.mark.parametrize("backend", ["faiss", "local_json"])
def test_no_lock_is_held_while_a_language_model_writes_a_summary(
    tmp_path: Path, started: list[Any], backend: str
) -> None:
    talker, go_on, asked = Talker(), tmp_path / "go_on", tmp_path / "asked"

    def late() -> Iterator[str]:
        asked.touch()
        until(go_on.exists)
        yield "The numbats sleep in logs 0 to 4."

    talker.script = late
    try:
        with opened(tmp_path, embedder="hashing", backend=backend) as af:
            talk(af, "slow")
            model = {name.removeprefix("AGENTFORMER_").lower(): value for name, value in talker.settings.items()}
            command_line = ("clean", "--session", "slow", "--embedder", "hashing")
            started.append(command(tmp_path, *command_line, **{**model, "llm_timeout": "600", "backend": backend}))
            until(asked.exists)
            use_all(af, "the quick")
            assert af.memory.clean(session_id="slow").busy == ("slow",)
            assert started[0].poll() is None
            go_on.touch()
            _, errors = started[0].communicate(timeout=BOUND)
            assert started[0].returncode == 0, errors
            summaries = af.backend.list(Scope(kinds=("summary",), session_id="slow"))
            assert len(summaries) == 1
    finally:
        go_on.touch()
        talker.close()
