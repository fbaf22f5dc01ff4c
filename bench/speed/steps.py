"""The steps of one piece of work, with their times: `python -m bench.speed.steps PHASE FOLDER ENTRIES`.

`search` asks warm questions of a store. `upload` uploads a PDF of many pages. `http` sends the same questions to the
endpoint, in this process, so that only the work of the endpoint comes on top.

The functions in `SEARCH`, `UPLOAD` and `HTTP` are timed while they run. The time of a step is without the times of the
steps inside it, so the times of a thread add up to the whole. What no named step contains is the row `REST`. Rows of
another thread are marked, because they run beside the caller.

Timing a call takes time itself, which `Profile` measures with an empty function and subtracts. Python collects garbage
at a moment that says nothing about the step in which it falls, so collections have a row of their own (`GARBAGE`).
"""

from __future__ import annotations

import functools
import gc
import importlib
import sqlite3
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import agentformer
from agentformer.ahead import one_ahead
from agentformer.records.sqlite.connection import SqliteConnection
from bench.data import DATA
from bench.speed import growing, prepared
from bench.speed.children import python, run
from bench.speed.entries import source
from bench.speed.growth import ask, opened, settle
from bench.speed.timing import LIMIT, Values, report

REST = "not in a named step"
_WHOLE = "whole"
GARBAGE = "garbage collection"
BESIDE = "beside: "  # before the name of a step of another thread
_NAMES = ("model", "FAISS", "tantivy", "SQLite", "PDF")
LIBRARIES = (*_NAMES, *(BESIDE + name for name in _NAMES))  # with these begin the names of steps that are not ours
WARMING, ASKED = 100, 300  # questions
BLOCK = 25  # questions that are timed in the same way, one after the other
_EMPTY_CALLS = 2_000  # calls of an empty function that show what it costs to time a call
PAGES = 100

# The functions of each kind of work and the names of their steps. A step that begins with a word of `LIBRARIES` runs in
# a library.
Steps = Mapping[str, str]
_SQL = {
    f"agentformer.records.sqlite.connection:SqliteConnection.{name}": "SQLite: statements"
    for name in ("execute", "executemany")
}
_ROWS = {f"{__name__}:_Cursor.{name}": "SQLite: rows" for name in ("fetchall", "fetchone")}
_PIPELINE = "agentformer.search.pipeline"
SEARCH: Steps = {
    "agentformer.memory.memory_manager:MemoryManager.search": "arguments to a query, uses of the hits",
    "agentformer.memory.recall:Recall.search": "wider query",
    "agentformer.memory.recall:Recall._with_instructions": "standing instructions",
    "agentformer.memory.recall:name_originals": "originals of repeated messages",
    "agentformer.memory.backends.faiss.backend:FaissMemoryBackend.search": "checks of the open store",
    f"{_PIPELINE}:Pipeline.search": "order of the steps",
    f"{_PIPELINE}:analyze_query": "analysis of the query",
    f"{_PIPELINE}:query_dates": "dates of the query",
    f"{_PIPELINE}:Pipeline._request": "newest change and scope",
    f"{_PIPELINE}:Pipeline._start_words": "start of the words",
    f"{_PIPELINE}:VectorSearch.nearest": "vectors",
    "agentformer.search.vector_search:QueryVectorCache.embed": "model",
    "agentformer.index.vectors.follower:VectorFollower.follow": "vectors of new entries",
    "agentformer.index.vectors.follower:VectorFollower.search": "FAISS, and windows of the scope",
    "concurrent.futures:Future.result": "wait for the words",
    "agentformer.index.words.query:View.search": "terms, scores and ties of the words",
    "agentformer.index.words.query:CommittedIndex.best": "tantivy: best entries",
    "agentformer.index.words.query:CommittedIndex.stem_sums": "tantivy: covered words",
    f"{_PIPELINE}:rescore": "exact cosines of the nearest",
    f"{_PIPELINE}:vector_weight": "weight of the vectors",
    f"{_PIPELINE}:Pipeline._ranked": "fusion",
    f"{_PIPELINE}:Pipeline._derived": "derived rows",
    f"{_PIPELINE}:all_boosts": "boosts",
    f"{_PIPELINE}:favor_statements": "statements before questions",
    f"{_PIPELINE}:_read_hits": "hits",
    "agentformer.records.entries:from_rows": "entries from rows",
    f"{_PIPELINE}:for_search": "last steps",
    f"{_PIPELINE}:latest_first": "newest facts",
    **_SQL,
    **_ROWS,
}
_MODEL = {"token_spans": "tokens", "token_counts": "tokens", "embed_documents": "vectors"}
UPLOAD: Steps = {
    "agentformer.rag.document_store:DocumentStore.prepare": "bytes and name of the file",
    "agentformer.rag.document_store:DocumentStore.put": "place and state of the document",
    "concurrent.futures:Future.result": "wait for the next file",
    "agentformer.rag.ingest:IngestPipeline.read": "PDF: process of the reader",
    "agentformer.rag.ingest:IngestPipeline.entries": "chunks",
    "agentformer.index.embedding.queue:EmbeddingQueue.try_embed": "windows",
    **{f"agentformer.embedders.guarded:GuardedEmbedder.{name}": f"model: {what}" for name, what in _MODEL.items()},
    "agentformer.index.embedding.queue:EmbeddingQueue.commit": "rows of the windows",
    "agentformer.records.sqlite.connection:SqliteConnection.insert_entries": "rows of the entries",
    **_SQL,
    **_ROWS,
}
HTTP: Steps = {
    **SEARCH,
    "flask.app:Flask.wsgi_app": "routing and context of Flask",
    "agentformer.api.auth:Guard._check_request": "host, origin and size",
    "agentformer.api.auth:Guard._finish_response": "headers and counters",
    "agentformer.api.auth:Guard.authorize": "key and rights",
    "agentformer.api.operations:_handled": "checks and thread of the request",
    "agentformer.api.operations:body_of": "body to a model",
    "agentformer.api.endpoints.memory:search": "arguments",
    "agentformer.api.endpoints.memory:memory_hit_json": "JSON values of the hits",
    "agentformer.api.endpoints.memory:reply": "JSON of the reply",
}


def compare(sizes: Sequence[int], say: Callable[[str], None]) -> dict[str, Values]:
    """Return the steps of each kind of work, by its name. `sizes` are the entries of the stores that are searched."""
    told: dict[str, Values] = {}
    for size in sizes:
        made = growing.made(size, say)
        for phase in ("search", "http"):
            say(f"  {phase} among {size:,}")
            growing.read(growing.folder_of(size))
            command = python("bench.speed.steps", phase, str(growing.folder_of(size)), str(size))
            told[f"{phase} among {size:,}"] = made if "error" in made else run(command)
    say(f"  upload of {PAGES} pages")
    return {**told, f"upload, of a page of {PAGES}": run(python("bench.speed.steps", "upload", "-", "0"))}


class _Spent:
    """Seconds on the wall and of the processor, and the number of timed calls that they contain."""

    def __init__(self) -> None:
        self.wall, self.processor, self.calls = 0.0, 0.0, 0

    def add(self, wall: float, processor: float, calls: int = 1) -> None:
        self.wall += wall
        self.processor += processor
        self.calls += calls


class Profile:
    """Wall and processor seconds of each step, without those of the steps inside it, of one turn. The cost of the
    timing, as an empty function shows it, is subtracted from the step that is timed and from the step around it."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._caller = threading.get_ident()
        self._steps: defaultdict[str, _Spent] = defaultdict(_Spent)
        self._around: defaultdict[str, int] = defaultdict(int)  # timed calls directly inside each step
        self._outer, self._inner = _Spent(), _Spent()
        empty, name = self._timed(lambda: None, REST), GARBAGE
        with self.step(name):
            for _ in range(_EMPTY_CALLS):
                empty()
        self._outer, self._inner = self._steps.pop(name), self._steps.pop(REST)
        self._around.clear()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        inside, self._local.inside = getattr(self._local, "inside", _Spent()), _Spent()
        wall, processor = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            wall, processor = time.perf_counter() - wall, time.thread_time() - processor
            own, self._local.inside = self._local.inside, inside
            inside.add(wall, processor)
            row = name if threading.get_ident() == self._caller else BESIDE + name
            self._steps[row].add(wall - own.wall, processor - own.processor)
            self._around[row] += own.calls

    def seconds(self, name: str) -> tuple[float, float]:
        """Return the wall and the processor seconds of a step, without the cost of their timing."""
        step, outer, inner = (
            self._steps[name],
            self._around[name] / _EMPTY_CALLS,
            self._steps[name].calls / _EMPTY_CALLS,
        )
        wall = step.wall - outer * self._outer.wall - inner * self._inner.wall
        processor = step.processor - outer * self._outer.processor - inner * self._inner.processor
        return max(0.0, wall), max(0.0, processor)

    @contextmanager
    def timing(self, steps: Steps) -> Iterator[None]:
        """Time the functions of `steps` until the end of the context. Raises `AttributeError` if one is unknown."""
        with ExitStack() as patches:
            patches.enter_context(patch.object(SqliteConnection, "cursor", lambda self: _Cursor(self)))
            for place, name in steps.items():
                owner, function = _found(place)
                patches.enter_context(patch.object(owner, function, self._timed(getattr(owner, function), name)))
            yield

    @contextmanager
    def collections(self) -> Iterator[None]:
        """Time the collections of garbage until the end of the context."""
        running: list[AbstractContextManager[None]] = []

        def called(phase: str, _: object) -> None:
            if phase == "start":
                running.append(self.step(GARBAGE))
                running[-1].__enter__()
            elif running:
                running.pop().__exit__(None, None, None)

        gc.callbacks.append(called)
        try:
            yield
        finally:
            gc.callbacks.remove(called)

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            with self.step(name):
                return function(*args, **options)

        return timed

    def rows(self, turns: int) -> dict[str, Values]:
        """Return the milliseconds of each step in one of several turns, longest first."""
        spent = {name: self.seconds(name) for name in self._steps}
        return {
            name: {"wall": wall / turns * 1000, "processor": processor / turns * 1000}
            for name, (wall, processor) in sorted(spent.items(), key=lambda row: -row[1][0])
        }


class _Cursor(sqlite3.Cursor):
    """A cursor whose methods can be replaced by timed ones."""

    def fetchall(self) -> list[Any]:
        return super().fetchall()

    def fetchone(self) -> Any:
        return super().fetchone()


def _found(place: str) -> tuple[Any, str]:
    """Return the module or class of a function, and its name."""
    module, _, names = place.partition(":")
    *owners, name = names.split(".")
    return functools.reduce(getattr, owners, importlib.import_module(module)), name


def profiled(work: Callable[[Any], object], items: Sequence[Any], steps: Steps) -> Values:
    """Return the milliseconds of each step, as means of half of the items, and those of a whole without any timing of
    steps, as the mean of the other half. The halves alternate in blocks, and share the collections of garbage."""
    profile, timed = Profile(), 0
    with profile.collections():
        for at in range(0, len(items), 2 * BLOCK):
            for item in items[at : at + BLOCK]:
                with profile.step(_WHOLE):
                    work(item)
            with profile.timing(steps):
                for item in items[at + BLOCK : at + 2 * BLOCK]:
                    with profile.step(REST):
                        work(item)
                    timed += 1
    rows = profile.rows(timed)
    whole = rows.pop(_WHOLE)["wall"] * timed / (len(items) - timed)
    for name in {GARBAGE, BESIDE + GARBAGE} & rows.keys():
        rows[name] = {kind: value * timed / len(items) for kind, value in rows[name].items()}
    return {"rows": rows, "whole": whole + rows.get(GARBAGE, {"wall": 0.0})["wall"]}


def search(folder: Path, count: int) -> Values:
    """Return the steps of a warm search of the store of `bench.speed.growth`. Its embedder looks vectors up, so that
    the step of the model is what the pipeline adds to it."""
    with _asked(folder) as (af, questions):
        return profiled(lambda text: ask(af, text), questions, SEARCH)


def http(folder: Path, count: int) -> Values:
    """Return the steps of a warm search through the application, without a server and without sockets."""
    import flask
    from werkzeug.test import EnvironBuilder, run_wsgi_app

    from agentformer.api import init_app

    with _asked(folder) as (af, questions):
        app = flask.Flask("bench")
        init_app(app, af)
        path = "/api/memory/search"

        def post(text: str) -> None:
            environ = EnvironBuilder(path, method="POST", json={"text": text, "limit": LIMIT}).get_environ()
            body, status, _ = run_wsgi_app(app.wsgi_app, environ | {"REMOTE_ADDR": "127.0.0.1"})
            answer = b"".join(body)
            if status != "200 OK":
                raise RuntimeError(answer.decode())

        post(questions[0])
        return profiled(post, questions, HTTP)


def upload(folder: Path, count: int) -> Values:
    """Return the steps of the upload of `PAGES` pages of PDF with the packaged encoder, in milliseconds of a page. As
    in a sync, the next file is read while the present one is embedded."""
    profile, pages = Profile(), 0
    first, *files = sorted((DATA / "pdfs" / "files").glob("*.pdf"), key=lambda path: path.stat().st_size)
    with tempfile.TemporaryDirectory() as place, _packaged(Path(place)) as af:
        af.rag.upload(first)  # loads the model
        ahead = one_ahead(files, lambda path, stopped: af.rag.prepare(path, stopped=stopped), lambda path: True)
        with profile.collections(), profile.timing(UPLOAD), closing(ahead) as prepared, profile.step(REST):
            while pages < PAGES:
                _, upload = next(prepared)
                pages += af.rag.put(upload()).pages
    rows = profile.rows(pages)
    return {"rows": rows, "whole": sum(row["wall"] for name, row in rows.items() if not name.startswith(BESIDE))}


@contextmanager
def _asked(folder: Path) -> Iterator[tuple[agentformer.AgentFormer, list[str]]]:
    """Open a store and warm it. Yield it with questions that were not asked yet."""
    prepared.register()
    known = source()
    prepared.SHELF.update(zip(known.questions, known.asked, strict=True))
    prepared.SHELF["what is loaded beside"] = known.asked[0]
    with opened(folder) as af:
        for text in known.questions[:WARMING]:
            ask(af, text)
        settle(af)
        yield af, known.questions[WARMING : WARMING + ASKED]


def _packaged(folder: Path) -> agentformer.AgentFormer:
    return agentformer.connect(index_dir=folder / "indexes", upload_dir=folder / "uploads", clean_every=0)


if __name__ == "__main__":
    phases = {"search": search, "http": http, "upload": upload}
    report(phases[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3])))
