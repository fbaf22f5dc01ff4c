"""What belongs to a user, on each backend: who finds it, its export, and its erasure. All files of the memory are
searched for the bytes of the texts."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentformer.errors import InvalidInput, NotFound
from agentformer.factory import AgentFormer, connect
from agentformer.jobs.queue import stored_jobs
from agentformer.jobs.store import Task
from agentformer.rag.removals import Removals
from agentformer.records.integrity.disk import holders
from agentformer.records.trail import Wanted
from agentformer.registry import lookup
from agentformer.types import Scope, new_id
from tests.backends.cosmos_emulator import KEY
from tests.backends.postgres_server import schema_of
from tests.faults.long_form import LONG

HOSTILE = '../../ö\'; DROP TABLE "entries"; --\u202e'
TEAM = "team/b"
KINDS = ("fact", "former", "message", "learnt", "block", "page", "replaced", "hidden", "waiting")
# Each owner (namespace and user) has a word of its own for each kind of text.
OWNERS = {("default", "aino"): "zyx", ("default", HOSTILE): "qwv", (TEAM, "aino"): "kjh", ("default", None): "wpf"}
AINO = ("default", "aino")
Open = Callable[[], AgentFormer]
# The backends of the normal suite; an erasure is tested on each.
SHORT_FORM = {
    "test_who_finds_the_document_of_a_user": ("faiss",),
    "test_an_export_has_what_belongs_to_the_user_alone_and_is_imported_again": ("local_json", "postgres"),
}


def words(owner: tuple[str, str | None]) -> dict[str, str]:
    return {kind: f"{OWNERS[owner]}{kind}{OWNERS[owner][::-1]}" for kind in KINDS}


@pytest.fixture(
    params=[
        "faiss",
        "local_json",
        "routed",
        pytest.param("cosmos_db", marks=pytest.mark.process),
        pytest.param("postgres", marks=pytest.mark.process),
        pytest.param("database", marks=pytest.mark.process),  # with the original files in the database
    ]
)
def open_memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Open one memory of a backend, again and again."""
    backend, test = request.param, request.function.__name__
    if not LONG and backend not in SHORT_FORM.get(test, (backend,)):
        pytest.skip("part of the long form: run `make faults`")
    given: dict[str, Any] = {"backend": backend}
    if backend == "routed":
        given = {"backend": "faiss", "routes": "kind:document=local_json;kind:chunk=local_json"}
    elif backend == "cosmos_db":
        url = request.getfixturevalue("emulator").url
        name = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:20]
        given |= {"cosmos_endpoint": url, "cosmos_key": KEY, "cosmos_database": name}
    elif backend in ("postgres", "database"):
        url = request.getfixturevalue("postgres_url")
        given = {"backend": "postgres", "postgres_url": url, "postgres_schema": schema_of(tmp_path)}
        given |= {"originals": "database"} if backend == "database" else {}
    opened: list[AgentFormer] = []

    def open_again() -> AgentFormer:
        for af in opened:
            af.close()
        folders = {"index_dir": tmp_path / "i", "upload_dir": tmp_path / "u"}
        options = {"embedder": "hashing", "embed_retry_seconds": 0, "clean_keep_recent": 0, "clean_batch": 2}
        opened[:] = [connect(**folders, **options, **given)]
        return opened[0]

    yield open_again
    for af in opened:
        af.close()


def fill(af: AgentFormer, owner: tuple[str, str | None]) -> None:
    """Store one text of each kind for an owner."""
    namespace, user = owner
    word = words(owner)
    place: dict[str, Any] = {"namespace": namespace, "user_id": user}
    entry = af.memory.store(f"The {word['former']} nests here.", title="a heron", **place)
    af.memory.update(entry.id, content=f"The {word['fact']} nests here now.")
    session = f"monday of {OWNERS[owner]}"
    for text in (f"The {word['message']} flew over the weir at noon.", f"I live in {word['learnt'].title()}."):
        af.memory.add_message(session, "user", text, **place)
    af.memory.learn(session, **place)
    assert af.memory.clean(namespace=namespace, session_id=session).summaries
    af.memory.core.append("persona", f"Likes the {word['block']}.", **place)
    for text in (word["replaced"], word["page"]):  # the second one replaces the first one
        af.rag.upload(f"The {text} sleeps in the reed.".encode(), name="heron.txt", metadata={"of": text}, **place)
    hidden = af.rag.upload(f"The {word['hidden']} is gone.".encode(), name="hidden.txt", **place)
    Removals(af.backend, lambda *_: None).add(hidden.id, 3_600)
    store, files = af.shared_jobs or stored_jobs(af.settings.index_dir, af.originals.folder)
    task = Task(namespace, (f"{word['waiting']}.txt",), {"of": word["waiting"]}, user_id=user or "")
    job_id = new_id()
    files.put(job_id, [io.BytesIO(word["waiting"].encode())], word["waiting"]).release()
    store.add(job_id, task, 99)
    store.close()


def texts_in(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def held(af: AgentFormer, word: str) -> list[str]:
    """Return the files of the memory, and the rows of its database server, that contain a word in any case."""
    folders = (af.settings.index_dir, af.settings.upload_dir)
    found = [str(path) for form in (word, word.title()) for path in holders(folders, form)]
    if af.distributed is not None:
        with af.distributed.records.reading() as connection:
            schema = af.settings.postgres_schema
            query = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
            for (table,) in connection.execute(query, [schema]).fetchall():
                rows = f'SELECT count(*) FROM "{schema}"."{table}" AS t WHERE t::text ILIKE %s'
                pattern = [f"%{word}%"]
                if table == "files":
                    rows = f'SELECT count(*) FROM "{schema}".files WHERE position(%s in data) > 0'
                    pattern = [word.encode()]
                if connection.execute(rows, pattern).fetchone()[0]:
                    found.append(table)
    return found


def found(af: AgentFormer, word: str, **scope: Any) -> list[str]:
    """Return the kinds of the entries with a word that a search finds."""
    hits = af.memory.search(word, mode="lexical", include_archived=True, **scope)
    return sorted({hit.entry.kind for hit in hits if word in hit.entry.content.lower()})


def test_who_finds_the_document_of_a_user(open_memory: Open) -> None:
    af = open_memory()
    for owner in OWNERS:
        fill(af, owner)
    page = words(AINO)["page"]
    question = f"Where does the {page} sleep?"
    (document,) = af.rag.documents(user_id="aino")
    assert (document.user_id, document.name) == ("aino", "heron.txt")

    def asked(**scope: Any) -> bool:
        cited = [citation.document_id for citation in af.rag.query(question, sources=["documents"], **scope).citations]
        return document.id in cited

    assert asked(user_id="aino") and asked(every_user=True) and asked(document_id=document.id)
    assert not asked() and not asked(user_id=HOSTILE)
    with pytest.raises(NotFound, match="there is no document"):
        asked(document_id=document.id, user_id=HOSTILE)
    nobody = words(("default", None))["page"]
    for user in (None, "aino", HOSTILE):
        answer = af.rag.query(f"Where does the {nobody} sleep?", user_id=user)
        assert nobody in answer.citations[0].quote
    assert found(af, page, user_id="aino") == found(af, page) == ["chunk"]
    assert found(af, page, user_id=HOSTILE, or_nobody=True) == []
    names = [(each.user_id, each.name) for each in af.rag.documents(user_id="aino", or_nobody=True)]
    assert names == [("aino", "heron.txt"), (None, "heron.txt")]
    assert len(af.rag.documents()) == 3


def test_an_export_has_what_belongs_to_the_user_alone_and_is_imported_again(open_memory: Open, tmp_path: Path) -> None:
    af = open_memory()
    for owner in OWNERS:
        fill(af, owner)
    folder = tmp_path / "export"
    done = af.export_to(folder, user_id="aino", namespaces=["default"])
    assert list(done.namespaces) == ["default"] and done.missing_originals == [] and done.originals == 2
    content = texts_in(folder).lower()
    stored = {kind: word for kind, word in words(AINO).items() if kind not in ("waiting", "replaced")}
    assert [kind for kind, word in stored.items() if word.encode() not in content] == []
    others = [owner for owner in OWNERS if owner != AINO]
    assert [word for owner in others for word in words(owner).values() if word.encode() in content] == []
    assert [name for name in (HOSTILE, TEAM) if json.dumps(name, ensure_ascii=False).encode() in content] == []
    assert json.loads((folder / "manifest.json").read_text())["user_id"] == "aino"
    everywhere = tmp_path / "everywhere"
    assert list(af.export_to(everywhere, user_id="aino").namespaces) == ["default", TEAM]
    with pytest.raises(NotFound):
        af.export_to(tmp_path / "nobody", user_id="Aino")
    with pytest.raises(InvalidInput, match="vectors"):
        af.export_to(tmp_path / "vectors", user_id="aino", vectors=True)
    assert not (tmp_path / "nobody").exists() and not (tmp_path / "vectors").exists()
    with connect(index_dir=tmp_path / "i2", upload_dir=tmp_path / "u2", embedder="hashing") as other:
        other.import_from(folder)
        other.export_to(tmp_path / "again", user_id="aino")
        assert other.verify() and not [check for check in other.verify() if check.found]
    assert texts_in(tmp_path / "again") == texts_in(folder)
    assert af.forget_user("aino").jobs == 1
    af.import_from(folder)
    assert af.export_to(tmp_path / "restored", user_id="aino", namespaces=["default"]).originals == 2
    assert texts_in(tmp_path / "restored") == texts_in(folder)


def test_nothing_of_a_forgotten_user_is_left_and_nothing_else_is_touched(
    open_memory: Open, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    af = open_memory()
    for owner in OWNERS:
        fill(af, owner)
    same = b"The same bytes of two users."
    for user in ("aino", HOSTILE):
        af.rag.upload(same, name="same.txt", user_id=user)
    af.memory.search("heron")  # the indexes are written
    af = open_memory()
    kept = {kind: word for kind, word in words(AINO).items() if kind != "replaced"}
    assert [kind for kind, word in kept.items() if not held(af, word)] == []
    before = {owner: af.backend.count(Scope(owner[0], user_id=owner[1])) for owner in OWNERS if owner[1]}
    done = af.forget_user("aino")
    assert done.entries > 9 and done.jobs == 1
    for _ in range(2):
        assert {word: files for word in words(AINO).values() if (files := held(af, word))} == {}
        af = open_memory()
    assert af.backend.count(Scope(user_id="aino", include_archived=True)) == 0
    assert af.rag.documents(user_id="aino") == [] and found(af, words(AINO)["page"]) == []
    if request.node.callspec.params["open_memory"] == "cosmos_db":
        items = str(list(af.backend._container.query("SELECT * FROM c")))  # type: ignore[attr-defined]
        assert [word for word in words(AINO).values() if word in items.lower()] == []
    del before[AINO]
    assert {owner: af.backend.count(Scope(owner[0], user_id=owner[1])) for owner in before} == before
    for owner in [owner for owner in OWNERS if owner != AINO]:
        assert [kind for kind, word in words(owner).items() if kind != "replaced" and not held(af, word)] == []
        assert found(af, words(owner)["page"], namespace=owner[0]) == ["chunk"]
    (document,) = (each for each in af.rag.documents(user_id=HOSTILE) if each.name == "same.txt")
    assert af.rag.original(document.id) == same
    assert not [check for check in af.verify() if check.found]
    assert af.forget_user("aino") == (0, 0)
    assert af.forget_user(HOSTILE).entries > 9 and af.rag.documents(user_id=HOSTILE) == []
    if getattr(af.backend, "feed", None) is not None:
        acts = [af.trail.page(Wanted(subject=user)) for user in ("aino", HOSTILE)]
        rows = [[(act.action, act.subject, act.namespace) for act in each] for each in acts]
        forgotten = [("user-forgotten", user, "default") for user in ("aino", HOSTILE)]
        assert rows == [forgotten[:1] * 2, forgotten[1:]]


@pytest.mark.process
@pytest.mark.parametrize("open_memory", ["postgres"], indirect=True)
def test_the_tables_of_a_database_hold_nothing_after_a_full_vacuum(open_memory: Open, postgres_url: str) -> None:
    import psycopg

    af, word = open_memory(), f"zyx{new_id().replace('-', '')}"
    af.memory.store(f"The {word} nests here.", user_id="aino")
    af.rag.upload(f"The {word} sleeps in the reed.".encode(), name="heron.txt", user_id="aino")
    af.rag.upload(b"The stork stays.", name="stork.txt")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        row = connection.execute("SHOW data_directory").fetchone()

        def files() -> list[Path]:
            connection.execute("CHECKPOINT")
            return holders((Path(str(row and row[0])) / "base",), word)

        assert files()
        assert af.forget_user("aino").entries == 4 and held(af, word) == []
        assert files(), "deleted rows stay in the pages of their tables"
        lookup("vacuums", "postgres")(af.settings, None, full=True)
        assert files() == []
    assert found(af, "stork") == ["chunk"] and not [check for check in af.verify() if check.found]
