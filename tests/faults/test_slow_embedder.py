"""A model that does not answer holds up those who need it, and nobody else: reads go on, and who comes too many is told
when to come again.

No test here looks at the clock: the model is let go only after everything else was answered.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gunicorn", reason="the extra `server` is not installed")
from long_form import long_form
from serve_load import BOUND, Answer, Server, multipart

from tests.edges.talking import Step, Talker
from tests.embedders.ollama_server import OllamaServer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gunicorn runs on POSIX only")

THREADS = 4
PLACES = THREADS - 1  # of requests that may wait for a model
KEYS = b"The caretaker keeps the keys in the blue cupboard. Boats are lifted in October."
JSON = {"Content_Type": "application/json"}


class Served:
    """A server with a document and a memory in it, and the clients of a test."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.document = self.upload("keys.txt", KEYS).json["documents"][0]["id"]
        self.memory = self.post("/api/memory", content="Aino prefers tea.").json["id"]
        self.pool = ThreadPoolExecutor(4 * THREADS)

    def post(self, path: str, **body: Any) -> Answer:
        return self.server.call("POST", path, json.dumps(body).encode(), **JSON)

    def upload(self, name: str, data: bytes, **headers: str) -> Answer:
        body, kind = multipart({name: data})
        return self.server.call("POST", "/api/rag/upload", body, Content_Type=kind, **headers)

    def ask(self, question: str, **more: Any) -> Future[Answer]:
        return self.pool.submit(self.post, "/api/rag/query", question=question, **more)

    def read_all(self) -> dict[str, int]:
        """Path -> status, of everything that needs no model."""
        document, memory = f"/api/rag/documents/{self.document}", f"/api/memory/{self.memory}"
        paths = ["/healthz", "/readyz", "/openapi.json", "/metrics", "/api/status", "/api/tools", "/api/jobs"]
        paths += ["/api/rag/documents", document, f"{document}/content", f"{document}/chunks", f"{document}/pages"]
        paths += ["/api/memory", memory, f"{memory}/history", "/api/memory/core", "/api/memory/audit"]
        told = {path: self.server.call("GET", path).status for path in paths}
        found = self.post("/api/memory/search", text="caretaker keys", mode="lexical")
        assert "caretaker" in found.json["hits"][0]["content"]
        return told | {"by words": found.status}


@contextmanager
def served(folder: Path, *options: str, **environ: str) -> Iterator[Served]:
    with ExitStack() as ending:
        environ = {"AGENTFORMER_QUEUE_SECONDS": "1", **environ}
        server = Server(folder, "--threads", str(THREADS), *options, environ=environ)
        ending.callback(server.close)
        here = Served(server)
        ending.callback(here.pool.shutdown, wait=False)
        yield here


def until(holds: Callable[[], bool]) -> None:
    for _ in range(int(BOUND / 0.02)):
        if holds():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never came about")


def refused(asking: list[Future[Answer]]) -> list[Answer]:
    return [each.result() for each in asking if each.done() and each.result().status == 429]


def check_the_rest_is_told_when_to_come_again(asking: list[Future[Answer]]) -> None:
    """All but those that wait for the model."""
    until(lambda: len(refused(asking)) == len(asking) - PLACES)
    for answer in refused(asking):
        assert answer.json["type"] == "urn:agentformer:problem:busy"
        assert int(answer.headers["retry-after"]) > 0


@pytest.fixture
def embedder() -> Iterator[OllamaServer]:
    with OllamaServer() as server:
        yield server
        server.hanging.clear()


def test_reads_go_on_while_the_embedder_hangs_and_what_waits_for_it_is_done_after(
    tmp_path: Path, embedder: OllamaServer
) -> None:
    with served(tmp_path, "--embedder", "ollama:nomic-embed-text", AGENTFORMER_EMBED_BASE_URL=embedder.url) as here:
        embedder.hanging.set()
        asking = [here.ask(f"Who keeps key {n}?") for n in range(PLACES)]
        asking += [here.pool.submit(here.post, "/api/memory", content=f"Fact {n}.") for n in range(2)]
        asking += [here.pool.submit(here.post, "/api/memory/search", text=f"cupboard {n}") for n in range(2)]
        asking += [here.pool.submit(here.upload, f"{n}.txt", KEYS + b"%d" % n) for n in range(2)]
        check_the_rest_is_told_when_to_come_again(asking)

        job = here.upload("later.txt", b"Tea is served at four.", Prefer="respond-async")
        for _ in range(3):
            assert set(here.read_all().values()) == {200}
        assert job.status == 202
        assert sum(not each.done() for each in asking) == PLACES
        assert here.server.call("DELETE", f"/api/memory/{here.memory}").status == 204

        embedder.hanging.clear()
        assert {each.result(BOUND).status for each in asking} <= {200, 201, 429}
        assert len(refused(asking)) == len(asking) - PLACES
        assert here.server.ended_job(job.json["id"])["state"] == "done"
        found = here.ask("When is tea served?").result(BOUND).json
        assert found["warnings"] == [] and found["hits"][0]["dense_rank"] == 1


def test_a_question_waits_for_a_hanging_embedder_no_longer_than_its_limit_and_is_answered_by_words(
    tmp_path: Path, embedder: OllamaServer
) -> None:
    environ = {"AGENTFORMER_EMBED_BASE_URL": embedder.url, "AGENTFORMER_EMBED_TIMEOUT": "1"}
    with served(tmp_path, "--embedder", "ollama:nomic-embed-text", **environ) as here:
        embedder.hanging.set()
        for _ in range(2):  # the second is not sent to the embedder: it is left alone for a while
            answer = here.ask("Who keeps the keys?").result(BOUND)
            assert answer.status == 200 and "caretaker" in answer.json["answer"]
            assert any("only words were searched" in warning for warning in answer.json["warnings"])
        stored = here.post("/api/memory", content="The rope is blue.")
        assert stored.status == 201
        assert embedder.hanging.is_set()
        assert sum(path == "/api/embed" and len(body["input"]) == 1 for path, body in embedder.requests[3:]) <= 1


@pytest.mark.parametrize("options", [(), pytest.param(("--server", "waitress"), marks=long_form)], ids=" ".join)
def test_reads_go_on_while_the_language_model_hangs(tmp_path: Path, options: tuple[str, ...]) -> None:
    pytest.importorskip("openai", reason="the extra `llm` is not installed")
    speak = threading.Event()
    talker = Talker()

    def slowly() -> Iterator[Step]:
        speak.wait(BOUND)
        yield "The caretaker keeps them [1]."

    talker.script = slowly
    try:
        with served(tmp_path, *options, **talker.settings) as here:
            asking = [here.ask("Who keeps the keys?", stream=bool(n % 2)) for n in range(PLACES + 4)]
            check_the_rest_is_told_when_to_come_again(asking)
            for _ in range(3):
                assert set(here.read_all().values()) == {200}
            assert sum(not each.done() for each in asking) == PLACES
            assert here.upload("later.txt", b"Tea is served at four.", Prefer="respond-async").status == 202
            speak.set()
            answers = [each.result(BOUND) for each in asking]
            assert sum(b"caretaker keeps them" in a.data for a in answers if a.status == 200) == PLACES
            assert here.ask("Who keeps the keys?").result(BOUND).json["mode"] == "llm"
    finally:
        speak.set()
        talker.close()
