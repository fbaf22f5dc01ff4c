"""The works of the kill tests: every way in which something gets into a store, as steps in a fixed order.

A step is one call through the public API, and returns what the call returned. What can be searched for says "numbat".
"""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import works_of_archives
from ingest_documents import _pdf
from serve_load import multipart
from writers import Desk, Step, Work

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict, EmbedderUnavailable
from agentformer.jobs.queue import stored_jobs
from agentformer.jobs.store import Task
from agentformer.memory.backends.faiss.folder import DATABASE_FILE
from agentformer.rag.documents import Document
from agentformer.records.integrity.disk import holders
from agentformer.records.sqlite.schema import MIGRATIONS
from agentformer.types import Matrix, MemoryEntry, Query, Scope, Use

_LONG_AGO = datetime(2024, 5, 1, tzinfo=UTC)
_LONG = " ".join(f"numbat{n} walks past tree {n}." for n in range(9_000))  # more windows than one batch embeds


# ---------------------------------------------------------------------- entries


def _facts(count: int, start: int = 0, what: str = "numbat") -> list[str]:
    return [f"{what} number {n} digs under log {n * 7 % 13}" for n in range(start, start + count)]


def _store_many(count: int, start: int = 0, **values: Any) -> Step:
    return lambda desk: desk.af.memory.store_many(_facts(count, start), **values)


def _store(content: str, **values: Any) -> Step:
    return lambda desk: desk.af.memory.store(content, **values)


def _both_namespaces(desk: Desk) -> None:
    items = [{"content": f"numbat of {name}", "namespace": name} for name in ("default", "other", "third")]
    desk.af.memory.store_many(items)


def _message(n: int, session: str = "walk", **values: Any) -> Step:
    at = _LONG_AGO + timedelta(minutes=n)
    text = f"numbat {n}: we met at tree {n} on the {n}th path."
    return lambda desk: desk.af.memory.add_message(session, "user", text, occurred_at=at, **values)


def _update(content: str, /, **changes: Any) -> Step:
    return lambda desk: desk.af.memory.update(desk.find(content).id, **changes)


def _supersede(desk: Desk) -> None:
    old, new = _facts(2)
    desk.af.memory.supersede(desk.find(old).id, desk.find(new).id)


def _restore(content: str) -> Step:
    return lambda desk: desk.af.memory.restore(desk.find(content).id)


def _remove(content: str) -> Step:
    return lambda desk: desk.af.memory.remove(desk.find(content).id)


def _read(content: str) -> Step:
    return lambda desk: desk.af.backend.touch([Use(desk.find(content).id, _LONG_AGO, reads=2)])


STORE = (
    _store("numbat one"),
    _store_many(5),
    _both_namespaces,
    _store("numbat one"),  # again: one more of what is there
    _store("numbat of a row", source_type="row", source_id="7"),
    _store("numbat of the same row, later", source_type="row", source_id="7"),
    _message(1),
    _message(2),
)
CHANGE = (
    _update(_facts(1)[0], content="numbat with another text"),
    _update("numbat with another text", metadata={"colour": "red"}, salience=0.5),
    _read(_facts(3)[2]),
    _update("numbat with another text", content=_facts(1)[0]),
    _supersede,
    _restore(_facts(1)[0]),
    _remove(_facts(4)[3]),
)
CORE = (
    lambda desk: desk.af.memory.core.append("plan", "numbat first line"),
    lambda desk: desk.af.memory.core.append("plan", "second line"),
    lambda desk: desk.af.memory.core.replace("plan", "second", "another"),
    _store("numbat block", tier="core", title="who"),
    lambda desk: desk.af.memory.core.remove("plan"),
)


# ---------------------------------------------------------------------- sessions


def _clean(desk: Desk) -> None:
    while desk.af.memory.clean(session_id="walk").busy:  # the lease of one that was killed ends soon
        time.sleep(0.02)


def _summary(desk: Desk) -> MemoryEntry:
    return next(e for e in desk.af.backend.list(Scope(kinds=("summary",))) if e.archived_at is None)


def _restore_summary(desk: Desk) -> None:
    desk.af.memory.restore(_summary(desk).id)


def _messages(desk: Desk, count: int = 12, **values: Any) -> None:
    for n in range(count):
        _message(n, **values)(desk)


CLEAN = (_clean, _restore_summary, _clean, _message(20))


def _of_a_user(desk: Desk) -> None:
    _messages(desk, user_id="aino")
    _clean(desk)
    desk.af.memory.store_many(_facts(3), user_id="aino")
    desk.af.memory.store_many(_facts(3, 10))
    for user in ("aino", None):
        desk.af.rag.upload(_text("a", sentences=9) + f"{user} met a quokka.".encode(), name="a.txt", user_id=user)
    store, files = stored_jobs(desk.folder / "index", desk.af.originals.folder)
    files.put("job", [io.BytesIO(b"aino met a quokka and waits")], None).release()
    store.add("job", Task("default", ("aino met a quokka",), None, user_id="aino"), 9)
    store.close()
    _search(desk)


def _search(desk: Desk) -> None:
    """Through the backend, which counts no uses; then the indexes are written."""
    for mode in ("lexical", "dense"):
        desk.af.backend.search(Query("numbat", mode=mode))  # type: ignore[arg-type]
    desk.close()


def _remove_original(desk: Desk) -> None:
    """The summary that tells of it goes with it."""
    desk.af.memory.remove(desk.find("numbat 1: we met at tree 1 on the 1th path.").id)


def _state_facts(desk: Desk) -> None:
    for n in range(3):
        text = f"I bought numbat {n}. I live in Turku. How are you?"
        desk.af.memory.add_message("walk", "user", text, occurred_at=_LONG_AGO + timedelta(minutes=n), user_id="aino")


def _learn(desk: Desk) -> None:
    while desk.af.memory.learn("walk").busy:
        time.sleep(0.02)


def _undo_learning(desk: Desk) -> None:
    with contextlib.suppress(Conflict):
        desk.af.memory.undo_learning(desk.af.memory.learning_runs()[-1].id)


def _state_another(desk: Desk) -> None:
    text = "We visited numbat island. I live in Turku."
    desk.af.memory.add_message("walk", "user", text, occurred_at=_LONG_AGO + timedelta(days=1), user_id="aino")


def _learnt(desk: Desk) -> None:
    for step in (_state_facts, *LEARN):
        step(desk)


LEARN = (_learn, _state_another, _learn)


def _erased(desk: Desk) -> None:
    folders = (desk.folder / "index", desk.folder / "uploads")
    assert holders(folders, "None met a quokka") and not holders(folders, "aino met a quokka")
    assert not list(folders[1].rglob("job"))


FORGET = (_remove_original, lambda desk: desk.af.forget_user("aino").entries, _search, _erased)


# ---------------------------------------------------------------------- documents


def _text(name: str, version: int = 1, sentences: int = 60) -> bytes:
    lines = (f"The numbat of {name} sleeps in log {n} in version {version}." for n in range(sentences))
    return "\n\n".join(lines).encode()


def _upload(name: str, data: bytes) -> Step:
    return lambda desk: desk.af.rag.upload(data, name=name)


def _upload_pdf(desk: Desk) -> None:
    path = desk.folder / "paper.pdf"
    if not path.exists():
        part = path.with_suffix(".part")  # a kill must not leave a part of a file under the name
        _pdf(part, 2)
        part.replace(path)
    desk.af.rag.upload(path)


def _remove_document(name: str) -> Step:
    def step(desk: Desk) -> None:
        found = next(document for document in desk.af.rag.documents() if document.name == name)
        desk.af.rag.remove(found.id)

    return step


DOCUMENTS = (
    _upload("a.txt", _text("a", sentences=700)),
    _upload_pdf,
    _upload("again.txt", _text("a", sentences=700)),  # the same bytes
    _upload("broken.pdf", b"%PDF-1.7 and nothing of one"),
    _upload("a.txt", _text("a", 2)),
    _upload("b.md", _text("b")),
    _remove_document("b.md"),
)


def _upload_path(path: str, data: bytes) -> Step:
    def step(desk: Desk) -> Document:
        file = desk.folder / path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        return desk.af.rag.upload(file)

    return step


REPLACED = (  # two files with equal names and bytes are replaced one after the other
    _upload_path("one/a.txt", _text("a")),
    _upload_path("two/a.txt", _text("a")),
    _upload_path("one/a.txt", _text("a", 2)),
    _upload_path("two/a.txt", _text("a", 3)),
    _upload_path("one/a.txt", _text("a")),
)
ORIGINALS = (
    _upload("a.txt", _text("a", sentences=9)),
    _upload("a.txt", _text("a", 2, sentences=9)),
    _upload("b.txt", _text("b", sentences=9)),
    lambda desk: desk.af.rag.upload(_text("b", sentences=9), name="b.txt", namespace="other"),
    _remove_document("b.txt"),
    lambda desk: desk.af.memory.remove(Scope("other")),
    _upload("a.txt", _text("a", sentences=9)),
)
REFUSED = (_upload("a.txt", _text("a")), _upload("a.txt", b"%PDF-1.7 and nothing of one"))  # the usable one stays


# ---------------------------------------------------------------------- vectors


def _without_embedder(desk: Desk) -> None:
    """Nobody listens at that port."""
    away = {"embedder": "ollama:nomic-embed-text", "embed_base_url": "http://127.0.0.1:9", "embed_retries": 0}
    with desk.connect(desk.folder, **away) as af:
        af.memory.store_many(_facts(80))
        assert af.backend.pending(Scope()) == 80


class _Failing(HashingEmbedder):
    """Takes some texts, and then nobody knows why not."""

    def __init__(self) -> None:
        super().__init__(32)
        self._left = 2

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        self._left -= 1
        if self._left < 0:
            raise EmbedderUnavailable("it is away")
        return super().embed_documents(texts)


def _begin_a_move(desk: Desk) -> None:
    with contextlib.suppress(EmbedderUnavailable):
        desk.af.backend.reembed(_Failing())


def _hashed(desk: Desk) -> None:
    """In the space that `auto` finds later."""
    with desk.connect(desk.folder, embedder="hashing") as af:
        af.memory.store_many(_facts(150))


def _reembed(to: str) -> Step:
    return lambda desk: desk.af.reembed(to)


OUTAGE = (lambda desk: desk.af.memory.reindex(), _store("numbat after the outage"))
REEMBED = (
    _begin_a_move,
    _store("numbat in between"),
    lambda desk: desk.af.backend.abandon_reembedding(),
    _reembed("hashing:96"),
    _store("numbat in the new space"),
    lambda desk: desk.af.backend.prune_spaces(),
)
SNAPSHOT = (*(step for n in range(3) for step in (_store_many(10, 10 * n), _search)), _remove(_facts(3)[2]))
TRAINING = (
    _search,
    lambda desk: desk.af.backend.embed_pending(),  # trains, and waits for it
    _store_many(30, 1000),
    _remove(_facts(3)[2]),
    lambda desk: desk.af.backend.embed_pending(),
)


# ---------------------------------------------------------------------- schemas


def _of_schema(version: int) -> Callable[[Desk], None]:
    """A store as the version of that schema wrote it: its tables, with the rows of one of today."""

    def before(desk: Desk) -> None:
        _store_many(6)(desk)
        _messages(desk, 4)
        _upload("a.txt", _text("a"))(desk)
        _update(_facts(1)[0], content="numbat with another text")(desk)
        desk.close()
        path = desk.folder / "index" / DATABASE_FILE
        path.rename(path.with_suffix(".new"))
        _copy(path.with_suffix(".new"), path, version)

    return before


def _copy(source: Path, target: Path, version: int) -> None:
    connection = sqlite3.connect(target)
    connection.execute("ATTACH ? AS newer", [str(source)])
    connection.executescript("".join(MIGRATIONS[:version]))
    tables = [row[0] for row in connection.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'")]
    for table in [name for name in tables if not name.startswith("sqlite_")]:
        columns = ",".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
        connection.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}")
    connection.execute("DELETE FROM main.sqlite_sequence")
    connection.execute("INSERT INTO main.sqlite_sequence SELECT * FROM newer.sqlite_sequence")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.commit()
    connection.close()
    source.unlink()


MIGRATE = (lambda desk: desk.af, _store("numbat after the upgrade"))


# ---------------------------------------------------------------------- a server


def _post(files: dict[str, bytes], **headers: str) -> Step:
    def step(desk: Desk) -> list[tuple[str, str, int]]:
        body, kind = multipart(files)
        answer = desk.server.call("POST", "/api/rag/upload", body, Content_Type=kind, **headers)
        assert answer.status in (201, 202), answer.data
        return [("default", name, 1) for name in files if answer.status == 201]

    return step


def _jobs_done(desk: Desk) -> None:
    for job in desk.server.call("GET", "/api/jobs").json["jobs"]:
        assert desk.server.ended_job(job["id"])["state"] == "done"


def _delete_over_http(name: str) -> Step:
    def step(desk: Desk) -> None:
        found = next(document for document in desk.server.documents() if document["name"] == name)
        assert desk.server.call("DELETE", f"/api/rag/documents/{found['id']}").status in (200, 204)

    return step


def _remember_over_http(desk: Desk) -> None:
    body = json.dumps({"content": "numbat over HTTP"}).encode()
    assert desk.server.call("POST", "/api/memory", body, Content_Type="application/json").status == 201


SERVE = (
    _post({"a.txt": _text("a"), "b.txt": _text("b")}),
    _post({"a.txt": _text("a", 2)}),
    _post({f"job{n}.txt": _text(f"job{n}") for n in range(3)}, Prefer="respond-async"),
    _jobs_done,
    _remember_over_http,
    _delete_over_http("b.txt"),
)


# ---------------------------------------------------------------------- all of them


def _works() -> Iterator[Work]:
    of_entries = {
        "store": Work("store", STORE),
        "change": Work("change", CHANGE, _store_many(5)),
        "core": Work("core", CORE, kills=0),
        "clean": Work("clean", CLEAN, _messages),
        "learn": Work("learn", LEARN, _state_facts),
        "forget": Work("forget", FORGET, _of_a_user),
        "documents": Work("documents", DOCUMENTS),
    }
    yield from of_entries.values()
    for name, work in of_entries.items():
        yield replace(work, name=f"{name} local_json", backend="local_json", kills=int(name in ("store", "clean")))
    yield Work("undo learning", (_undo_learning, _learn), _learnt, kills=0, parts={0: 9})
    yield Work("originals", ORIGINALS, kills=0)
    yield Work("originals local_json", ORIGINALS, backend="local_json", kills=0)
    yield Work("long", (_store(_LONG), _update(_LONG, content=_LONG + " The end.")), kills=0)
    yield Work("refused", REFUSED)
    yield Work("replaced", REPLACED, kills=3)
    yield Work("replaced local_json", REPLACED, backend="local_json", kills=2)
    yield Work("outage", OUTAGE, _without_embedder)
    yield Work("reembed", REEMBED, _hashed, embedder="auto")
    yield Work("snapshot", SNAPSHOT)
    yield Work("training", TRAINING, _store_many(300), train_at=64)
    for version in range(1, len(MIGRATIONS)):
        yield Work(f"schema {version}", MIGRATE, _of_schema(version), kills=int(version == 1), parts={0: 2})
    yield from works_of_archives.works()
    yield Work("serve", SERVE, serves=True, parts={0: 2, 2: 3, 3: 3})


WORKS = {work.name: work for work in _works()}
