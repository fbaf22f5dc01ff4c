"""The backend of JSON files keeps the contract, and its files can be read, edited and damaged by people."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import InvalidInput, StoreDamaged, StoreError, StoreFull
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.backends.local_json import backend as local_json
from agentformer.memory.backends.local_json import folder
from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.testing import (
    BackupConformance,
    LeaseConformance,
    OriginalsConformance,
    SnapshotConformance,
    StoreConformance,
    VerifiedConformance,
    by_words,
    make_entry,
)
from agentformer.types import AbsentDocument, Embedder, Link, MemoryBackend, Query, Scope, Source

MOMENT = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)
EVERYTHING = Scope(include_archived=True)
HOSTILE = (
    "",
    "a",
    "A",
    "ä",
    "../up",
    "a/b",
    "a\\b",
    ".",
    "..",
    "con",
    "x.json",
    "%61",
    "~",
    "日本語" * 60,
    "a" * 200,
    "a" * 199,
)


class TestLocalJson(
    StoreConformance,
    SnapshotConformance,
    BackupConformance,
    VerifiedConformance,
    LeaseConformance,
    OriginalsConformance,
):
    vectors = False

    def open(self, folder: Path, embedder: Embedder) -> Any:
        return LocalJsonMemoryBackend(folder)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LocalJsonMemoryBackend]:
    backend = LocalJsonMemoryBackend(tmp_path)
    yield backend
    backend.close()


def file_of(tmp_path: Path, namespace: str = "default") -> Path:
    return tmp_path / f"memory-{namespace}.json"


def everything_in(tmp_path: Path) -> bytes:
    """All bytes of all files, and their names; copies of damaged files excepted."""
    files = [path for path in sorted(tmp_path.rglob("*")) if path.is_file() and ".damaged-" not in path.name]
    return b"\0".join(path.name.encode() + b"\0" + path.read_bytes() for path in files)


def test_a_file_is_readable_json_without_default_values(tmp_path: Path, backend: LocalJsonMemoryBackend) -> None:
    later = make_entry("Avaimet ovat sinisessä kaapissa.", id="b", created_at=MOMENT, updated_at=MOMENT)
    first = make_entry(
        "日本語 😀\n\u2028second line", id="a", created_at=MOMENT, updated_at=MOMENT, metadata={"z": 1, "a": []}
    )
    backend.store([later, first])
    assert file_of(tmp_path).read_text(encoding="utf-8") == (
        """{
  "format": 1,
  "namespace": "default",
  "entries": [
    {
      "id": "a",
      "content": "日本語 😀\\n\u2028second line",
      "metadata": {
        "a": [],
        "z": 1
      },
      "created_at": "2026-11-20T09:30:00+00:00",
      "updated_at": "2026-11-20T09:30:00+00:00"
    },
    {
      "id": "b",
      "content": "Avaimet ovat sinisessä kaapissa.",
      "created_at": "2026-11-20T09:30:00+00:00",
      "updated_at": "2026-11-20T09:30:00+00:00"
    }
  ]
}
"""
    )
    assert LocalJsonMemoryBackend(tmp_path).list(EVERYTHING) == [first, later]


def test_former_states_are_stored_with_their_entry(tmp_path: Path, backend: LocalJsonMemoryBackend) -> None:
    entry = make_entry("first", id="a", source=Source("d", "n", page=3), derived_from=(Link("x"), Link("y", "refutes")))
    (first,) = backend.store([entry])
    second = backend.update("a", {"content": "second", "namespace": "other"})
    (values,) = json.loads(file_of(tmp_path, "other").read_text())["entries"]
    assert values["content"] == "second" and values["version"] == 2 and "namespace" not in values
    (former,) = values["history"]
    assert (former["content"], former["namespace"]) == ("first", "default") and "id" not in former
    assert values["source"] == {"document_id": "d", "name": "n", "page": 3}
    assert values["derived_from"] == [{"id": "x"}, {"id": "y", "type": "refutes"}]
    assert not file_of(tmp_path).exists()  # nothing is left in the namespace that it has left
    again = LocalJsonMemoryBackend(tmp_path)
    assert list(again.get(["a"])) == [second] and list(again.history("a")) == [first]


def test_every_namespace_has_its_own_file_inside_the_folder(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    backend = LocalJsonMemoryBackend(inner)
    for name in HOSTILE:
        backend.store([make_entry(f"kakapo of {name}", namespace=name)])
    again = LocalJsonMemoryBackend(inner)
    assert again.namespaces() == sorted(HOSTILE)
    assert [[e.content for e in again.list(Scope(name))] for name in HOSTILE] == [[f"kakapo of {n}"] for n in HOSTILE]
    files = [path.name for path in inner.iterdir() if path.suffix == ".json"]
    assert len({name.casefold() for name in files}) == len(HOSTILE)
    assert all(len(name.encode()) < 200 for name in files)
    assert list(tmp_path.iterdir()) == [inner]


def test_lexical_scores_equal_those_of_the_embedded_backend(tmp_path: Path) -> None:
    texts = [
        "Pesukoneen takuu on kaksi vuotta ja korjaus maksaa 120 euroa.",
        "Kone pysähtyi; huoltomies vaihtoi pesukoneen moottorin.",
        "The washing machine has a warranty of two years.",
        "getUserName returns the name of the user, SKU-1234 is a washing machine.",
        "Vaskemaskinen har to års garanti, og reparasjonen koster penger.",
        "東京タワーの高さは三百三十三メートルです。",
        "Machine machine machine, said the machine to the machines.",
        "Ensi vuonna kaikki koneet vaihdetaan uusiin koneisiin.",
    ]
    entries = [
        make_entry(text, title="kone" if n % 3 == 0 else "", session_id="ab"[n % 2]) for n, text in enumerate(texts)
    ]
    backends: list[MemoryBackend] = [
        LocalJsonMemoryBackend(tmp_path / "json"),
        FaissMemoryBackend(tmp_path / "faiss", HashingEmbedder()),
    ]
    for backend in backends:
        backend.store(entries)
    for text in (
        "pesukone takuu",
        "washing machines",
        "user name",
        "kone",
        "garanti",
        "タワーの高さ",
        "SKU-1234",
        "koneita",
    ):
        for scope in (Scope(), Scope(session_id="b")):
            ours, theirs = (backend.search(Query(text, scope, mode="lexical")) for backend in backends)
            assert [hit.entry.id for hit in ours] == [hit.entry.id for hit in theirs], text
            assert [hit.lexical_score for hit in ours] == pytest.approx([h.lexical_score for h in theirs], rel=1e-3)
            assert ours or scope.session_id
    for backend in backends:
        backend.close()


def test_the_next_call_reads_a_file_edited_by_hand(tmp_path: Path, backend: LocalJsonMemoryBackend) -> None:
    (entry,) = backend.store([make_entry("The keys hang in the hall.", id="keys", created_at=MOMENT)])
    assert by_words(backend, "cupboard") == []
    path = file_of(tmp_path)
    text = path.read_text().replace("hall", "blue cupboard")
    text = text.replace("[\n    {", '[{"content": "Zebras eat grass.", "id": "zebra", "tier": "core"},\n    {')
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert by_words(backend, "cupboard") == ["keys"] and by_words(backend, "hall") == []
    assert [(e.id, e.content, e.tier) for e in backend.list(Scope())] == [
        ("keys", "The keys hang in the blue cupboard.", "semantic"),
        ("zebra", "Zebras eat grass.", "core"),
    ]
    assert [e.id for e in backend.latest(Scope())] == ["zebra", "keys"]  # without a time, that of the file counts
    backend.update("zebra", {"content": "Zebras eat leaves."})
    assert by_words(backend, "cupboard") == ["keys"] and by_words(backend, "leaves") == ["zebra"]
    assert [e.content for e in backend.history("zebra")] == ["Zebras eat grass."]
    path.unlink()
    assert backend.namespaces() == [] and backend.count(EVERYTHING) == 0
    assert entry.content == "The keys hang in the hall."


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (b"", "line 1 column 1"),
        (b'{\n  "entries": [\n    {"id": "a" "content": "b"}\n  ]\n}', "line 3 column 16"),
        ('{"namespace": "default",\n"entries": [{"id": "ä"}]}'.encode("latin-1"), "line 2 is not UTF-8"),
        ('{"namespace": "default", "entries": []}'.encode("utf-16"), "line 1 is not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", '"entries"'),
        (b'{"namespace": "default"}', '"entries"'),
        (b'{"entries": []}', '"namespace"'),
        (b'{"namespace": "other", "entries": []}', "memory-other.json"),
        (b'{"namespace": "default", "format": 2, "entries": []}', '"format" is 2'),
        (b'{"namespace": "default", "entries": [], "notes": 1}', "'notes'"),
        (b'{"namespace": "default", "entries": ["a"]}', "entry 1, entry: must be a JSON object"),
        (b'{"namespace": "default", "entries": [{"content": "a"}]}', "entry 1, id: is missing"),
        (b'{"namespace": "default", "entries": [{"id": "a"}]}', "entry 1 (id 'a'), content: is missing"),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": 7}]}', "content: must be a string, got int"),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "content": "c"}]}', "'content' twice"),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "\\ud800"}]}', "content: contains half"),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "contnt": ""}]}', "contnt: is not a field"),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "tier": "top"}]}', "tier: must be one of"),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "salience": 7}]}', "salience: must be"),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "salience": NaN}]}', "NaN is not a number"),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "metadata": {"x": 1e999}}]}', "metadata"),
        (
            b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "metadata": []}]}',
            "must be a JSON object",
        ),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "version": "1"}]}', "version: must be a"),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "read_count": true}]}', "read_count: must"),
        (
            b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "created_at": "2026-01-01T00:00:00"}]}',
            "created_at: must have a time zone",
        ),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "occurred_at": 7}]}', "occurred_at: must"),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "source": {"page": 1}}]}', "source: must"),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "derived_from": ["x"]}]}', "derived_from"),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "history": [{}]}]}', "content: is missing"),
        (b'{"namespace": "default", "entries": [{"id": "a", "content": "b", "namespace": "c"}]}', "another file"),
        (
            b'{"namespace": "default", "entries": [{"id": "a", "content": "b"}, {"id": "a", "content": "c"}]}',
            "entry 2 has the id a of an earlier entry",
        ),
    ],
)
def test_a_damaged_file_is_reported_copied_and_not_changed(tmp_path: Path, written: bytes, told: str) -> None:
    first = LocalJsonMemoryBackend(tmp_path)
    mine, other = first.store([make_entry("my numbat"), make_entry("another numbat", namespace="sound")])
    path = file_of(tmp_path)
    sound = path.read_bytes()
    path.write_bytes(written)
    for backend in (first, LocalJsonMemoryBackend(tmp_path)):
        for call in (
            lambda b: b.list(Scope()),
            lambda b: b.search(Query("numbat")),
            lambda b: b.store([make_entry("late")]),
            lambda b: b.store([make_entry("late", namespace="sound"), make_entry("late")]),
            lambda b: b.remove(Scope()),
            lambda b: b.get([mine.id]),
            lambda b: b.remove([mine.id]),
            lambda b: b.update(mine.id, {"content": "late"}),
            lambda b: b.update(other.id, {"namespace": "default"}),
        ):
            with pytest.raises(StoreDamaged) as raised:
                call(backend)
            assert str(path) in str(raised.value) and told in str(raised.value) and len(str(raised.value)) < 1500
        assert path.read_bytes() == written
        (copy,) = tmp_path.glob("*.damaged-*")
        assert copy.read_bytes() == written and copy.name in str(raised.value)
        assert backend.namespaces() == ["sound"] and backend.status()["damaged"] == [str(raised.value)]
        assert by_words(backend, "numbat", Scope("sound")) == [other.id] and list(backend.get([other.id])) == [other]
    backend.touch([])
    other = backend.update(other.id, {"content": "another numbat still"})
    path.write_bytes(sound)
    assert list(backend.get([mine.id, other.id])) == [mine, other] and backend.status()["damaged"] == []
    assert by_words(backend, "numbat") == [mine.id]


def test_a_copied_file_with_the_same_ids_counts_as_damaged(tmp_path: Path, backend: LocalJsonMemoryBackend) -> None:
    (entry,) = backend.store([make_entry("numbat", namespace="a")])
    copied = file_of(tmp_path, "a").read_text().replace('"namespace": "a"', '"namespace": "b"')
    file_of(tmp_path, "b").write_text(copied)
    with pytest.raises(StoreDamaged, match=r"memory-b\.json is damaged: the entry .* is also in memory-a\.json"):
        backend.list(Scope("b"))
    assert list(backend.list(Scope("a"))) == [entry] == list(backend.get([entry.id]))
    file_of(tmp_path, "b").write_text(copied.replace(entry.id, "another"))
    assert [e.id for e in backend.list(Scope("b"))] == ["another"]
    file_of(tmp_path, "b").write_text(copied)
    file_of(tmp_path, "a").unlink()
    assert [e.id for e in backend.list(Scope("b"))] == [entry.id]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("content", {"content": "half \ud800 a pair"}),
        ("title", {"title": "\udfff"}),
        ("namespace", {"namespace": "\ud800"}),
        ("session_id", {"session_id": 7}),
        ("metadata", {"metadata": {"a": float("nan")}}),
        ("metadata", {"metadata": {"a": float("inf")}}),
        ("metadata", {"metadata": {"a": object()}}),
        ("metadata", {"metadata": {"a": "\ud800"}}),
        ("occurred_at", {"occurred_at": datetime(2026, 1, 1)}),
        ("salience", {"salience": 1.5}),
        ("tier", {"tier": "top"}),
        ("source.page", {"source": Source("d", "n", page=-1)}),
    ],
)
def test_a_value_that_could_not_be_read_back_is_refused(tmp_path: Path, field: str, values: dict[str, Any]) -> None:
    backend = LocalJsonMemoryBackend(tmp_path)
    (known,) = backend.store([make_entry("known")])
    before = everything_in(tmp_path)
    new = make_entry(**{"content": "new", **values})
    for call in (
        lambda: backend.store([make_entry("fine"), new]),
        lambda: backend.update(known.id, values),
        lambda: backend.consolidate(new, [known.id]),
    ):
        with pytest.raises(InvalidInput) as raised:
            call()
        assert raised.value.field == field
        assert everything_in(tmp_path) == before
    assert LocalJsonMemoryBackend(tmp_path).list(EVERYTHING) == [known]


def test_changing_a_returned_entry_does_not_change_the_store(backend: LocalJsonMemoryBackend) -> None:
    given: dict[str, Any] = {"list": [1]}
    (stored,) = backend.store([make_entry("numbat", metadata=given)])
    backend.update(stored.id, {"content": "a numbat"})
    given["list"].append(2)
    for entry in (stored, *backend.get([stored.id]), *backend.list(Scope()), *backend.history(stored.id)):
        entry.metadata["list"].append(3)  # type: ignore[index]
    (hit,) = backend.search(Query("numbat"))
    assert hit.entry.metadata == {"list": [1]}
    assert [entry.metadata for entry in backend.history(stored.id)] == [{"list": [1]}]


def test_removed_text_is_in_no_file_of_the_folder(tmp_path: Path, backend: LocalJsonMemoryBackend) -> None:
    secret = make_entry("first pangolin", namespace="a", title="pangolin", metadata={"k": "pangolin"})
    kept = make_entry("a zebra", namespace="a")
    backend.store([secret, kept])
    backend.update(secret.id, {"content": "second pangolin"})
    other = make_entry("third pangolin", namespace="b", raw="pangolin")
    backend.store([other])
    summary = make_entry("pangolin: a summary", namespace="a", kind="summary", derived_from=(Link(secret.id),))
    backend.consolidate(summary, [secret.id])
    backend.search(Query("pangolin", Scope("a")))
    for left in (".memory-a.json.1.2", "memory-b.json.new", ".memory.journal.1.2"):  # as killed writers leave them
        (tmp_path / left).write_text("pangolin")
    assert b"pangolin" in everything_in(tmp_path)
    assert backend.remove([secret.id, other.id]) == 3
    assert b"pangolin" not in everything_in(tmp_path)
    assert [path.name for path in sorted(tmp_path.glob("memory-*"))] == ["memory-a.json"]
    assert b"a zebra" in everything_in(tmp_path)
    backend.remove(Scope("a"))
    assert b"zebra" not in everything_in(tmp_path) and list(tmp_path.glob("memory-*")) == []


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_full_disk_changes_nothing(
    tmp_path: Path, backend: LocalJsonMemoryBackend, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    one, other = backend.store([make_entry("numbat"), make_entry("numbat", namespace="b")])
    before = everything_in(tmp_path)
    real, calls = folder.write_atomically, iter(range(100))

    def full(path: Path, data: bytes) -> None:
        if next(calls) == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(folder, "write_atomically", full)
    fresh = [make_entry("late", namespace=name) for name in ("a", "b", "c")]
    with pytest.raises(StoreFull, match="disk space"):  # three files and the journal
        backend.store(fresh)
    assert everything_in(tmp_path) == before
    assert list(backend.get([one.id, other.id])) == [one, other] and backend.count(Scope("c")) == 0
    assert [entry.id for entry in backend.store(fresh)] == [entry.id for entry in fresh]


def test_a_closed_memory_and_an_unusable_folder_raise(tmp_path: Path) -> None:
    backend = LocalJsonMemoryBackend(tmp_path / "m")
    backend.close()
    with pytest.raises(StoreError, match="closed"):
        backend.count(Scope())
    with pytest.raises(StoreError, match="closed"):
        backend.verify()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFull):
        LocalJsonMemoryBackend(tmp_path / "file")


def test_a_damaged_journal_is_a_finding(tmp_path: Path, backend: LocalJsonMemoryBackend) -> None:
    (tmp_path / folder.JOURNAL_FILE).write_text("{")
    (check,) = backend.verify()
    assert (check.name, check.found) == ("files", 1) and "then delete the journal" in check.findings[0]
    (tmp_path / folder.JOURNAL_FILE).unlink()
    assert not any(check.found for check in backend.verify())


def test_an_unreadable_file_of_leases_holds_none(tmp_path: Path, backend: LocalJsonMemoryBackend) -> None:
    assert backend.lease("clean", "A", 3600)
    for spoilt in (b"{", b"[]", b'{"clean": 7}', b'{"clean": ["A", "x", 1]}', b"\xff"):
        (tmp_path / "sidecar-local_json.leases").write_bytes(spoilt)
        assert backend.lease("clean", "B", 3600) and not backend.lease("clean", "A", 3600)
        assert backend.list(EVERYTHING) == []


def test_a_lease_expires_after_the_clock_was_set_back(tmp_path: Path, backend: LocalJsonMemoryBackend) -> None:
    assert backend.lease("clean", "A", 60)
    (tmp_path / "sidecar-local_json.leases").write_text(json.dumps({"clean": ["A", 9e9, 60.0]}))
    assert backend.lease("clean", "B", 60)


def test_the_absent_documents_of_a_former_version_are_listed(tmp_path: Path) -> None:
    (tmp_path / "memory-default.json").write_text(
        '{"namespace": "default", "entries": [], "absent_documents": [["a", "12", "one"], ["b", "34", ""]]}'
    )
    backend = LocalJsonMemoryBackend(tmp_path)
    listed = [AbsentDocument("a", "12", "one"), AbsentDocument("b", "34")]
    assert backend.absent_documents() == listed
    backend.store([make_entry("numbat")])
    assert "absent_documents" not in (tmp_path / "memory-default.json").read_text()
    assert LocalJsonMemoryBackend(tmp_path).absent_documents() == listed


def test_an_invalid_journal_is_reported_and_not_applied(tmp_path: Path, backend: LocalJsonMemoryBackend) -> None:
    backend.store([make_entry("numbat")])
    outside = tmp_path.parent / "outside.json"
    outside.write_text("stays")
    for spoilt in ('{"../outside.json": false}', "{", "[]", '{"memory-/../../outside.json": false}'):
        (tmp_path / "memory.journal").write_text(spoilt)
        with pytest.raises(StoreDamaged, match=r"memory\.journal"):
            backend.count(Scope())
    (tmp_path / "memory.journal").unlink()
    assert backend.count(Scope()) == 1 and outside.read_text() == "stays"


def test_only_files_that_changed_are_read_again(
    tmp_path: Path, backend: LocalJsonMemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LocalJsonMemoryBackend(tmp_path)
    backend.store([make_entry("a", namespace="a"), make_entry("b", namespace="b")])
    assert other.count(Scope("a")) == 1
    read: list[bytes] = []
    real = local_json.parse_file
    monkeypatch.setattr(local_json, "parse_file", lambda data: (read.append(data), real(data))[1])
    backend.store([make_entry("c", namespace="b")])
    assert backend.count(Scope("b")) == 2 and read == []  # a writer knows what it has written
    assert other.count(Scope("b")) == 2 and len(read) == 1
    assert other.count(Scope("a")) == 1 and len(read) == 1


def test_quick_writes_of_equal_size_are_noticed(tmp_path: Path, backend: LocalJsonMemoryBackend) -> None:
    other = LocalJsonMemoryBackend(tmp_path)
    (entry,) = backend.store([make_entry("version 000", id="a")])
    for n in range(1, 200):
        backend.remove(["a"])
        backend.store([make_entry(f"version {n:03}", id="a")])
        assert [e.content for e in other.list(Scope())] == [f"version {n:03}"]
    assert entry.content == "version 000"


def test_removal_deletes_copies_of_a_damaged_file(tmp_path: Path) -> None:
    backend = LocalJsonMemoryBackend(tmp_path)
    backend.store([make_entry("zed's secret", user_id="zed"), make_entry("another's", user_id="y")])
    backend.store([make_entry("elsewhere", namespace="other")])
    paths = [tmp_path / "memory-default.json", tmp_path / "memory-other.json"]
    whole = [path.read_bytes() for path in paths]
    for path in paths:
        path.write_bytes(path.read_bytes()[:-3])
    for namespace in ("default", "other"):
        with pytest.raises(StoreDamaged):
            backend.list(Scope(namespace))
    for path, data in zip(paths, whole, strict=True):
        path.write_bytes(data)
    assert len(list(tmp_path.glob("*.damaged-*"))) == 2
    assert backend.remove(Scope(user_id="zed")) == 1
    assert [path.name.partition(".damaged")[0] for path in tmp_path.glob("*.damaged-*")] == ["memory-other.json"]
    assert not any(b"zed's secret" in path.read_bytes() for path in tmp_path.iterdir())
