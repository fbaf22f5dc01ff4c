"""Damaged and hostile exports: vectors, histories, endless lines, races. More are in tests/edges/test_cli_import.py."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentformer.archive import format as archive_format
from agentformer.archive import importer
from agentformer.archive.reader import read
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import AgentFormerError, InvalidInput
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.testing import make_entry
from agentformer.types import MemoryBackend, Scope
from tests.archive.conftest import everything, exported, fill, imported, manifest_of, resign

Lines = list[dict[str, Any]]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An export with histories and vectors."""
    backend = FaissMemoryBackend(tmp_path / "first", HashingEmbedder())
    fill(backend)
    exported(backend, tmp_path / "out", vectors=True)
    backend.close()
    return tmp_path / "out"


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[MemoryBackend]:
    backend = FaissMemoryBackend(tmp_path / "copy", HashingEmbedder())
    yield backend
    backend.close()


def vectors_in(folder: Path) -> Path:
    (path,) = (folder / "vectors").iterdir()
    return path


def entries_in(folder: Path) -> Path:
    return folder / "entries" / "default.jsonl"


def rewritten(path: Path, change: Callable[[Lines], Any]) -> None:
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    change(found)
    path.write_text("".join(json.dumps(each) + "\n" for each in found), encoding="utf-8")
    resign(path.parent.parent)


def in_vectors(change: Callable[[Lines], Any]) -> Callable[[Path], None]:
    return lambda folder: rewritten(vectors_in(folder), change)


def in_entries(change: Callable[[Lines], Any]) -> Callable[[Path], None]:
    return lambda folder: rewritten(entries_in(folder), change)


def first_vector(values: np.ndarray) -> Callable[[Path], None]:
    data = base64.b64encode(values.astype("<f4").tobytes()).decode()
    return in_vectors(lambda lines: lines[0].update(vector=data))


def in_space(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        described = manifest_of(folder)["vectors"]
        (about,) = described.values()
        about["space"].update(values)
        resign(folder, vectors=described)

    return change


def former(lines: Lines) -> list[int]:
    return [number for number, values in enumerate(lines) if "former" in values]


def in_former(**values: Any) -> Callable[[Path], None]:
    return in_entries(lambda lines: lines[former(lines)[0]]["former"].update(values))


UNIT = np.eye(1, 256)[0]
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a vector that is no number": (first_vector(UNIT * np.nan), "not finite"),
    "an endless vector": (first_vector(np.full(256, np.inf)), "not finite"),
    "a vector that is too long": (first_vector(UNIT * 2), "unit length"),
    "a vector of nothing": (first_vector(UNIT * 0), "unit length"),
    "a vector of other dimensions": (first_vector(UNIT[:-1]), "has the wrong length"),
    "a vector in no base64": (in_vectors(lambda lines: lines[0].update(vector="*")), "line 1"),
    "a vector that is a list": (in_vectors(lambda lines: lines[0].update(vector=[1.0])), "is not a vector"),
    "a vector with more to it": (in_vectors(lambda lines: lines[0].update(more=1)), "is not a vector"),
    "a hash that is none": (in_vectors(lambda lines: lines[0].update(hash="ab")), "has the wrong length"),
    "a hash twice": (in_vectors(lambda lines: lines.insert(0, lines[0])), "is not greater than the hash"),
    "a vector too few": (in_vectors(lambda lines: lines.pop()), "the manifest says"),
    "a space that is none": (in_space(dimension="many"), "the description of an embedding space"),
    "a space of no dimensions": (in_space(dimension=0), "dimension"),
    "a space beyond all bounds": (in_space(dimension=10**9), "dimension"),
    "a fingerprint that is none": (in_space(fingerprint="*"), "base64"),
    "vectors that nobody describes": (lambda out: resign(out, vectors={}), "other vector files in `vectors` than"),
    "a description of no vectors": (lambda out: resign(out, vectors=[]), "other vector files in `vectors` than"),
    "a former version of another entry": (in_former(id="another"), "a former version of"),
    "a former version that is newer": (in_former(version=99), "must rise and be lower"),
    "a former version of nought": (in_former(version=0), "version"),
    "a former version twice": (
        in_entries(lambda lines: lines.insert(0, lines[former(lines)[0]])),
        "comes before any entry",
    ),
    "former versions out of order": (
        in_entries(lambda lines: lines.insert(former(lines)[0], lines[former(lines)[-1]])),
        "a former version of",
    ),
    "a former version with a tier that is none": (in_former(tier="royal"), "tier"),
    "a former version that is a list": (in_entries(lambda lines: lines[former(lines)[0]].update(former=[])), "line "),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_export_is_refused_and_writes_nothing(out: Path, copy: MemoryBackend, what: str) -> None:
    damage, said = DAMAGES[what]
    damage(out)
    with pytest.raises(InvalidInput) as told:
        imported(copy, out)
    assert said in str(told.value)
    assert everything(copy) == {} and copy.spaces() == []


def test_an_endless_line_is_not_read_into_memory(
    out: Path, copy: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_format, "LONGEST_LINE", 100_000)
    with entries_in(out).open("a") as file:
        file.truncate(1 << 26)  # sparse: all of it one line of nothing
    resign_in_pieces(out, "entries/default.jsonl")
    with pytest.raises(InvalidInput, match="has more than 100000 bytes"):
        imported(copy, out)


def resign_in_pieces(folder: Path, path: str) -> None:
    from hashlib import sha256

    digest = sha256()
    with (folder / path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    manifest = manifest_of(folder)
    manifest["files"][path]["sha256"] = digest.hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def test_entries_changed_during_an_import_are_reported(out: Path, copy: MemoryBackend) -> None:
    archive = read(out)
    data = entries_in(out).read_bytes()
    entries_in(out).write_bytes(data.replace(b"lives in Turku", b"lives in Tampa"))
    with pytest.raises(InvalidInput, match="was changed while"):
        list(archive.read(range(len(archive))))


def test_a_reference_into_another_namespace_is_refused(tmp_path: Path, copy: MemoryBackend) -> None:
    there = make_entry("a secret of the board", namespace="board")
    origin = FaissMemoryBackend(tmp_path / "first", HashingEmbedder())
    for name in ("parent_id", "pair_id", "archived_by"):
        origin.remove(Scope(include_archived=True))
        origin.store([make_entry("a stranger", **{name: there.id})])
        exported(origin, tmp_path / name)
        copy.remove(Scope(include_archived=True))
        imported(copy, tmp_path / name)  # which leads nowhere, as where the other entry was forgotten
        copy.remove(Scope(include_archived=True))
        copy.store([there])
        with pytest.raises(InvalidInput, match=f"{name} of"):
            imported(copy, tmp_path / name)
        assert [entry.id for entry, _ in everything(copy).values()] == [there.id]
        copy.remove([there.id])
    origin.close()


def test_a_batch_that_fails_leaves_no_original_behind(
    tmp_path: Path, copy: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentformer.factory import connect

    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        af.rag.upload(b"The harbour closes in November.", name="rules.txt")
        af.export_to(tmp_path / "out")
    with connect(index_dir=tmp_path / "j", upload_dir=tmp_path / "v", embedder="hashing") as af:
        intruder = next(read(tmp_path / "out").read([0])).entry
        find_missing = importer._missing_entries

        def late(backend: MemoryBackend, archive: Any) -> list[int]:
            """Somebody stores one of the ids between the look and the transaction."""
            found = find_missing(backend, archive)
            backend.store([make_entry("an intruder", id=intruder.id)])
            return found

        monkeypatch.setattr(importer, "_missing_entries", late)
        with pytest.raises(AgentFormerError, match="already"):
            af.import_from(tmp_path / "out")
        assert af.backend.count(Scope()) == 1
    assert list((tmp_path / "v").rglob("*.bin")) == []
