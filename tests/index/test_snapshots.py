"""Snapshots save time and decide nothing: whatever is wrong with one, results are exact."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.index.files import INDEX_FILE, META_FILE
from agentformer.index.vectors import snapshot as snapshots
from agentformer.index.vectors.index import VectorIndex
from agentformer.index.vectors.snapshot import Image
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.testing import Reference, make_entry
from agentformer.types import MemoryEntry, Query
from tests.faults.long_form import LONG

QUERY = Query("numbat 3 under lantern 5", limit=12, mode="dense")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[MemoryEntry]]:
    """A store of 60 entries with its snapshot, and the entries."""
    folder = tmp_path_factory.mktemp("made")
    return folder, [*make_store(folder).entries.values()]


@pytest.fixture
def reference(made: tuple[Path, list[MemoryEntry]], tmp_path: Path) -> Reference:
    """What a copy of the store in `tmp_path` has to find."""
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    return Reference(made[1])


def make_store(folder: Path, seed: int = 1) -> Reference:
    choose = random.Random(seed)
    backend = FaissMemoryBackend(folder, HashingEmbedder())
    entries = [make_entry(f"numbat {choose.randrange(9)} under lantern {choose.randrange(9)} {n}") for n in range(60)]
    reference = Reference(backend.store(entries), HashingEmbedder())
    reference.check_dense(QUERY, backend.search(QUERY))
    backend.close()
    assert (folder / INDEX_FILE).is_file() and (folder / META_FILE).is_file()
    return reference


def check(folder: Path, reference: Reference) -> None:
    """Twice, so that a snapshot written after the repair is right too."""
    for _ in range(2):
        backend = FaissMemoryBackend(folder, HashingEmbedder())
        reference.check_dense(QUERY, backend.search(QUERY))
        backend.close()


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the snapshots that were believed."""
    sizes: list[int] = []
    original = VectorIndex.from_image.__func__  # type: ignore[attr-defined]

    def spy(cls: type[VectorIndex], saved: Image, *rest: object) -> VectorIndex:
        index: VectorIndex = original(cls, saved, *rest)
        sizes.append(len(index))
        return index

    monkeypatch.setattr(VectorIndex, "from_image", classmethod(spy))
    return sizes


def meta(folder: Path, **changes: object) -> None:
    values = json.loads((folder / META_FILE).read_text())
    (folder / META_FILE).write_text(json.dumps(values | changes))


def cut(name: str, share: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return damage


def flip(name: str, share: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[int((len(data) - 1) * share)] ^= 0x10
        (folder / name).write_bytes(data)

    return damage


def replace(path: Path, data: bytes | None) -> None:
    path.unlink()
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "no index": lambda folder: (folder / INDEX_FILE).unlink(),
    "no description": lambda folder: (folder / META_FILE).unlink(),
    **{f"{name} cut to {share}": cut(name, share) for name in (INDEX_FILE, META_FILE) for share in (0, 0.5, 0.99)},
    **{
        f"bit of {name} at {share}": flip(name, share) for name in (INDEX_FILE, META_FILE) for share in (0, 0.3, 0.6, 1)
    },
    "description is a list": lambda folder: replace(folder / META_FILE, b"[]"),
    "description is null": lambda folder: replace(folder / META_FILE, b"null"),
    "another store": lambda folder: meta(folder, store="another"),
    "another space": lambda folder: meta(folder, space=2),
    "another dimension": lambda folder: meta(folder, dimension=128),
    "newer than the records": lambda folder: meta(folder, seq=10_000),
    "a seq that is no number": lambda folder: meta(folder, seq=None),
    "a folder in its place": lambda folder: replace(folder / INDEX_FILE, None),
}


def test_a_good_snapshot_is_used(reference: Reference, tmp_path: Path, restored: list[int]) -> None:
    check(tmp_path, reference)
    assert restored == [60, 60]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_bad_snapshot_is_not_believed(
    reference: Reference, tmp_path: Path, restored: list[int], damage: Callable[[Path], None]
) -> None:
    damage(tmp_path)
    check(tmp_path, reference)
    assert restored[-1:] == [60]  # the one that was written anew
    assert len(restored) == 1


@pytest.mark.slow
def test_no_bit_of_the_description_can_change_what_is_believed(reference: Reference, tmp_path: Path) -> None:
    described = json.loads((tmp_path / META_FILE).read_text())
    whole, index = (tmp_path / META_FILE).read_bytes(), (tmp_path / INDEX_FILE).read_bytes()
    wrong = []
    for bit in range(0, len(whole) * 8, 1 if LONG else 5):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / META_FILE).write_bytes(data)
        (tmp_path / INDEX_FILE).write_bytes(index)
        try:
            loaded = snapshots.load(tmp_path, store_id=described["store"], space=described["space"], dimension=256)
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {bytes(data)[bit // 8 - 8 : bit // 8 + 5]!r}")
            continue
        if loaded is not None and loaded.seq != described["seq"]:
            wrong.append(f"seq {loaded.seq} instead of {described['seq']}")
    assert wrong == []


def test_a_snapshot_of_another_store_is_not_believed(reference: Reference, tmp_path: Path, restored: list[int]) -> None:
    make_store(tmp_path / "other", seed=2)
    for name in (INDEX_FILE, META_FILE):
        shutil.copy(tmp_path / "other" / name, tmp_path / name)
    check(tmp_path, reference)
    assert restored == [60]


def test_an_index_of_one_moment_with_a_description_of_another_is_not_believed(
    reference: Reference, tmp_path: Path
) -> None:
    old = (tmp_path / INDEX_FILE).read_bytes()
    change(tmp_path, reference)
    (tmp_path / INDEX_FILE).write_bytes(old)
    check(tmp_path, reference)


def test_an_old_snapshot_is_brought_up_to_date(reference: Reference, tmp_path: Path, restored: list[int]) -> None:
    old = {name: (tmp_path / name).read_bytes() for name in (INDEX_FILE, META_FILE)}
    change(tmp_path, reference)
    for name, data in old.items():
        (tmp_path / name).write_bytes(data)
    del restored[:]
    check(tmp_path, reference)
    assert restored[0] == 60  # what was changed and removed since is taken from the records


def change(folder: Path, reference: Reference) -> None:
    """Removes ten entries, changes one, adds three; the snapshot follows."""
    backend = FaissMemoryBackend(folder, HashingEmbedder())
    gone = sorted(reference.entries)[5:15]
    backend.remove(gone)
    for entry_id in gone:
        del reference.entries[entry_id]
    first: MemoryEntry = backend.update(min(reference.entries), {"content": "numbat 3 under lantern 5 and more"})
    fresh = backend.store([make_entry(f"numbat 3 lantern {n}") for n in range(3)])
    reference.entries.update({entry.id: entry for entry in [first, *fresh]})
    reference.check_dense(QUERY, backend.search(QUERY))
    backend.close()


def test_what_was_set_aside_is_kept_beside(reference: Reference, tmp_path: Path) -> None:
    flip(INDEX_FILE, 0.5)(tmp_path)
    damaged = (tmp_path / INDEX_FILE).read_bytes()
    check(tmp_path, reference)
    assert (tmp_path / f"{INDEX_FILE}.damaged").read_bytes() == damaged


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots.write_atomically(tmp_path / "a", b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        snapshots.write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_at_close_does_not_lose_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FaissMemoryBackend(tmp_path, HashingEmbedder())
    reference = Reference(backend.store([make_entry("numbat 3 under lantern 5")]))
    backend.search(QUERY)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "write_atomically", fail)
        backend.close()  # a snapshot only saves time: not having it is no error
    check(tmp_path, reference)
