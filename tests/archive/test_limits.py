"""The limits of an export at the level of one line: numbers, lengths of lines, relations of entries, and batches."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentformer.archive import export, importer, reader
from agentformer.archive import format as archive_format
from agentformer.archive.format import read_entry_line, read_lines, read_manifest, read_vector_file
from agentformer.archive.importer import Imported
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import Conflict, InvalidInput, StoreError
from agentformer.factory import connect
from agentformer.memory.backends.local_json.backend import LocalJsonMemoryBackend
from agentformer.records.entry_json import entry_to_json
from agentformer.testing import make_entry
from agentformer.types import Link, MemoryEntry, Source
from tests.archive.conftest import exported, imported

MOST = 2**63 - 1


def line(**values: Any) -> bytes:
    return json.dumps({**entry_to_json(make_entry("tea")), **values}).encode()


def test_an_import_begins_with_nothing() -> None:
    assert asdict(Imported()) == {"entries": 0, "there_already": 0, "former": 0, "vectors": 0}
    assert asdict(export.Exported()) == {
        "namespaces": {},
        "former": 0,
        "originals": 0,
        "missing_originals": [],
        "vectors": 0,
    }


def source(**values: Any) -> dict[str, Any]:
    return {"source": {"document_id": "d", "name": "a", "page": 1, "label": "", "start": 0, "end": 0, **values}}


def test_numbers_of_an_entry_have_bounds() -> None:
    valid: tuple[dict[str, Any], ...] = (
        {"version": 1},
        {"version": MOST},
        {"access_count": MOST},
        source(),
        source(page=None),
        source(page=MOST),
        source(start=3, end=3),
        source(end=MOST),
        {"tier": "working", "session_id": "s"},
        {"source_type": "boat", "source_id": "b1"},
        {"kind": "page", "content": "", **source()},
        {"kind": "chunk", **source()},
    )
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"version": 0}, "version"),
        ({"version": MOST + 1}, "version"),
        ({"access_count": MOST + 1}, "access_count is too large"),
        ({"read_count": MOST + 1}, "read_count is too large"),
        (source(page=0), "page number or the span"),
        (source(page=MOST + 1), "page number or the span"),
        (source(start=-1), "source"),
        (source(start=4, end=3), "source"),
        (source(end=MOST + 1), "page number or the span"),
        ({"tier": "working"}, "session_id is missing"),
        ({"source_type": "boat"}, "must be given together"),
        ({"source_id": "b1"}, "must be given together"),
        ({"content": ""}, "content"),
        ({"kind": "page"}, "a page needs a source"),
        ({"kind": "chunk", **source(page=None)}, "a chunk needs a source"),
        ({"history": {}}, "history is not a list"),
    )
    for values in valid:
        assert read_entry_line(line(**values)).entry.content == values.get("content", "tea")
    for values, message in wrong:
        with pytest.raises((ValueError, InvalidInput), match=message):
            read_entry_line(line(**values))
    with pytest.raises(ValueError, match="namespace: is missing"):
        read_entry_line(b'{"content": "tea"}')
    former = read_entry_line(b'{"former": ' + line(version=2) + b"}")
    assert (former.is_former, former.entry.version, former.history) == (True, 2, ())


def test_a_space_of_vectors_has_bounds() -> None:
    space = asdict(HashingEmbedder().space)
    for changes, valid in (
        ({"dimension": 1}, True),
        ({"dimension": 65_536}, True),
        ({"dimension": 0}, False),
        ({"dimension": 65_537}, False),
        ({"max_tokens": 1}, True),
        ({"max_tokens": 0}, False),
    ):
        values = {"space": {**space, **changes}, "count": 3}
        if valid:
            assert read_vector_file("vectors/a", values).total == 3
        else:
            with pytest.raises(ValueError, match="out of range"):
                read_vector_file("vectors/a", values)
    with pytest.raises(ValueError, match="not a whole number"):
        read_vector_file("vectors/a", {"space": space, "count": "3"})


def test_a_line_of_exactly_the_limit_is_read_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert archive_format.LONGEST_LINE == 320 * 2**20
    (tmp_path / "lines").write_bytes(b"a\n" + b"b" * 9 + b"\n" + b"c" * 10 + b"\n")
    monkeypatch.setattr(archive_format, "LONGEST_LINE", 11)
    assert len([*read_lines(tmp_path, "lines")]) == 3
    monkeypatch.setattr(archive_format, "LONGEST_LINE", 10)
    with pytest.raises(InvalidInput, match="lines: line 3 has more than 10 bytes"):
        list(read_lines(tmp_path, "lines"))
    backend = LocalJsonMemoryBackend(tmp_path / "memory")
    backend.store([make_entry("tea")])
    exported(backend, tmp_path / "first")
    length = (tmp_path / "first" / "entries" / "default.jsonl").stat().st_size
    monkeypatch.setattr(export, "LONGEST_LINE", length)
    exported(backend, tmp_path / "second")
    monkeypatch.setattr(export, "LONGEST_LINE", length - 1)
    with pytest.raises(StoreError, match=f"needs {length} bytes in an export, but the limit is {length - 1}"):
        exported(backend, tmp_path / "third")
    assert not (tmp_path / "third").exists()
    backend.close()


def test_a_manifest_has_sorted_keys_and_a_limit(tmp_path: Path) -> None:
    export.write_manifest(tmp_path, {"b": ["ä"], "a": 1})
    written = (tmp_path / "manifest.json").read_bytes()
    assert written.decode() == '{\n "a": 1,\n "b": [\n  "ä"\n ]\n}\n'
    assert read_manifest(tmp_path, len(written)) == {"a": 1, "b": ["ä"]}
    with pytest.raises(InvalidInput, match="has more than"):
        read_manifest(tmp_path, len(written) - 1)


def test_the_checksum_of_each_file_is_compared(tmp_path: Path) -> None:
    data = b"a note"
    digest = hashlib.sha256(data).hexdigest()
    (tmp_path / "entries").mkdir()
    (tmp_path / "entries" / "a.jsonl").write_bytes(data)
    reader._check_file(tmp_path, "entries/a.jsonl", {"bytes": 6, "sha256": digest})
    for expected in (digest, {}, {"sha256": "0" * 64}):
        with pytest.raises(InvalidInput, match="has changed since the export"):
            reader._check_file(tmp_path, "entries/a.jsonl", expected)
    with pytest.raises(InvalidInput, match="cannot be read"):
        reader._check_file(tmp_path, "entries/b.jsonl", {"sha256": digest})
    for path in ("entries/../a.jsonl", "notes.txt", "originals/ab/cd.bin"):
        with pytest.raises(InvalidInput, match="is not a file of an export"):
            reader._check_file(tmp_path, path, {"sha256": digest})
    path = f"originals/00/{'0' * 64}.bin"
    (tmp_path / "originals" / "00").mkdir(parents=True)
    (tmp_path / path).write_bytes(data)
    with pytest.raises(InvalidInput, match="does not match the SHA-256 in its name"):
        reader._check_file(tmp_path, path, {"sha256": digest})


def entry(id: str, **values: Any) -> MemoryEntry:
    return make_entry("tea", id=id, **values)


def document(id: str, name: str = "a.txt", *, origin: str = "") -> MemoryEntry:
    details = {"status": "ready", "reason": "", "pages": 1, "chunks": 0, "media_type": "", "sha256": "0", "bytes": 1}
    metadata = {"name": name, "given": {}, "origin": origin, **details}
    return make_entry(name, id=id, kind="document", metadata=metadata)


def part(id: str, document_id: str, *, parent_id: str | None = None, kind: str = "page") -> MemoryEntry:
    place = Source(document_id, "a.txt", 1)
    return make_entry("tea", id=id, kind=kind, source=place, parent_id=parent_id or document_id)


def test_relations_of_entries_are_checked() -> None:
    block = {"tier": "core", "title": "persona"}
    for entries, problem in (
        ([entry("a"), entry("b", parent_id="a"), entry("c", parent_id="z")], ""),
        ([entry("a"), entry("a")], "two entries have the id a"),
        ([entry("a", namespace="work"), entry("b", pair_id="a")], "pair_id of b is a, which is in another namespace"),
        ([entry("b", archived_by="a"), entry("a", namespace="work")], "archived_by of b is a"),
        ([entry("b", superseded_by="a"), entry("a")], ""),
        ([entry("a", namespace="work"), entry("b", derived_from=(Link("a"),))], "derived_from of b is a"),
        ([document("d"), part("p", "d"), part("c", "d", kind="chunk")], ""),
        ([part("p", "d"), document("d")], ""),
        ([part("p", "d")], "the page p belongs to no document"),
        ([part("c", "d", kind="chunk"), entry("d")], "the chunk c belongs to no document"),
        ([document("d"), part("p", "d", parent_id="e")], "the page p belongs to no document"),
        ([document("d"), document("e")], "d and e have the same document name"),
        ([document("d"), document("e", "b.txt")], ""),
        ([document("d"), document("e", origin="/a.txt")], ""),
        (
            [document("d", origin="/a.txt"), document("e", "b.txt", origin="/a.txt")],
            "d and e have the same document path",
        ),
        ([document("d", origin="/a.txt"), document("e", origin="/b.txt")], ""),
        ([entry("a", **block), entry("b", **block)], "a and b have the same block"),
        ([entry("a", **block), entry("b", **block, user_id="aino")], ""),
        ([entry("a", **block), entry("b", **block, superseded_by="a")], ""),
        ([entry("a", tier="core"), entry("b", tier="core")], ""),
        ([entry("a", title="persona"), entry("b", title="persona")], ""),
    ):
        relations = reader._Relations()
        found = next(filter(None, map(relations.add, entries)), "") or relations.finish()
        assert found.startswith(problem) and bool(found) is bool(problem), entries
    relations = reader._Relations()
    assert not any(map(relations.add, (entry("b", parent_id="a"), entry("c", parent_id="z"), entry("a"))))
    assert [reference.target for reference in relations.outside_references()] == ["z"]


def test_a_batch_ends_at_a_limit_and_never_inside_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "_BATCH", 4)
    monkeypatch.setattr(importer, "_BATCH_BYTES", 100)
    for groups, sizes, batches in (
        ([[0, 1], [2], [3], [4]], [1] * 5, [[0, 1, 2, 3], [4]]),
        ([[0, 1, 2], [3, 4, 5], [6]], [1] * 7, [[0, 1, 2, 3, 4, 5], [6]]),
        ([[0], [1], [2], [3]], [50, 50, 50, 49], [[0, 1], [2, 3]]),
        ([[0], [1], [2], [3], [4]], [100, 99, 1, 99, 2], [[0], [1, 2], [3, 4]]),
        ([[0], [1], [2]], [50, 49, 1], [[0, 1, 2]]),
        ([], [], []),
    ):
        archive = SimpleNamespace(groups=lambda missing, groups=groups: groups, size=sizes.__getitem__)
        assert [*importer._batches(archive, range(len(sizes)))] == batches  # type: ignore[arg-type]


def test_a_memory_with_the_document_or_the_block_of_an_export_is_not_changed(tmp_path: Path) -> None:
    def opened(name: str) -> Any:
        return connect(index_dir=tmp_path / name / "i", upload_dir=tmp_path / name / "u", embedder="hashing")

    with opened("first") as af:
        af.rag.upload(b"The crane is blue.", name="crane.txt")
        af.memory.core.append("persona", "You help.")
        af.memory.store("a fact")
        af.export_to(tmp_path / "out")
        with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as copy:
            assert copy.import_from(tmp_path / "out").there_already == 0
            done = copy.import_from(tmp_path / "out")
            assert (done.entries, done.there_already) == (0, 5)
    with opened("document") as af:
        af.rag.upload(b"The crane is red.", name="crane.txt")
        with pytest.raises(Conflict, match=r"'crane\.txt' already exists in namespace default"):
            af.import_from(tmp_path / "out")
        assert len(af.rag.documents()) == 1
    with opened("another document") as af:
        af.rag.upload(b"The crane is blue.", name="other.txt")
        assert af.import_from(tmp_path / "out").entries == 5
    with opened("block") as af:
        af.backend.store([make_entry("You wait.", tier="core", kind="block", title="persona")])
        with pytest.raises(Conflict, match="a core block 'persona' already exists"):
            af.import_from(tmp_path / "out")


def test_at_most_ten_different_entries_are_named(tmp_path: Path) -> None:
    origin, copy = (LocalJsonMemoryBackend(tmp_path / name) for name in ("first", "second"))
    for count, more in ((10, ""), (11, " and 1 more")):
        entries = [make_entry(f"fact {number}") for number in range(count)]
        origin.store(entries)
        copy.store([make_entry("another", id=each.id) for each in entries])
        exported(origin, tmp_path / f"out{count}")
        with pytest.raises(Conflict, match=f"{count} entries already exist with different content") as caught:
            imported(copy, tmp_path / f"out{count}")
        named = str(caught.value)
        assert sum(each.id in named for each in entries) == 10 and (" more; import" in named) is bool(more)
        assert more in named
        for backend in (origin, copy):
            backend.remove([each.id for each in entries])
