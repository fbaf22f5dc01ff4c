"""The word index follows the records, and is rebuilt from them when anything is wrong with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import tantivy

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import StoreError, StoreFull
from agentformer.index.words.fields import ANALYSIS, schema
from agentformer.index.words.index import WordIndex
from agentformer.index.words.writer import read_manifest, store_error, write_manifest
from agentformer.memory.backends.faiss.backend import DATABASE_FILE, FaissMemoryBackend
from agentformer.records.sqlite import scopes
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry
from agentformer.types import Query, Scope
from tests.faults.long_form import LONG

SEGMENTS = (".idx", ".pos", ".term", ".store", ".fast", ".fieldnorm", "meta.json", ".managed.json", "every file")


def open_store(folder: Path) -> FaissMemoryBackend:
    return FaissMemoryBackend(folder, HashingEmbedder())


def found(backend: FaissMemoryBackend, word: str) -> list[str]:
    return sorted(hit.entry.content for hit in backend.search(Query(word, limit=500, mode="lexical")))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A store after two commits, a removal and a change, so that there are segments and deletions, and its contents."""
    folder = tmp_path_factory.mktemp("made")
    backend = open_store(folder)
    entries = backend.store([make_entry(f"numbat {n} sleeps") for n in range(40)])
    assert len(found(backend, "numbat")) == 40
    backend.store([make_entry(f"numbat {n} wakes") for n in range(40, 60)])
    backend.remove([entries[0].id])
    backend.update(entries[1].id, {"content": "kakapo 1 sleeps"})
    contents = [e.content for e in backend.list(Scope(), limit=100) if "numbat" in e.content]
    assert found(backend, "numbat") == sorted(contents)
    backend.close()
    return folder, sorted(contents)


@pytest.fixture
def contents(made: tuple[Path, list[str]], tmp_path: Path) -> list[str]:
    """The contents of a copy of the store in `tmp_path`."""
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    return made[1]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 97):
        data[at] ^= 0xFF
    path.write_bytes(data)


def flip_one(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x04
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


HARMS = (truncate, flip, flip_one, Path.unlink, empty)
# Each file with one wrong bit, which only its checksum tells, and each other harm once; all pairs in the long form.
DAMAGES = [*product(SEGMENTS, HARMS if LONG else [flip_one]), *zip(SEGMENTS, HARMS, strict=False)]


@pytest.mark.parametrize(("which", "harm"), DAMAGES)
def test_damaged_files_are_rebuilt_from_the_records(
    contents: list[str], tmp_path: Path, which: str, harm: Callable[[Path], None]
) -> None:
    paths = [p for p in (tmp_path / "words").iterdir() if p.suffix != ".lock" and "lock" not in p.name]
    hit = [path for path in paths if which == "every file" or path.name.endswith(which)]
    assert hit, [path.name for path in paths]
    for path in hit:
        harm(path)
    for _ in range(2):
        backend = open_store(tmp_path)
        assert found(backend, "numbat") == contents
        assert found(backend, "kakapo") == ["kakapo 1 sleeps"]
        backend.close()


def test_a_deleted_folder_is_rebuilt(contents: list[str], tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "words")
    backend = open_store(tmp_path)
    assert found(backend, "numbat") == contents
    backend.close()


def test_a_folder_deleted_while_open_is_rebuilt_at_the_next_change(contents: list[str], tmp_path: Path) -> None:
    backend = open_store(tmp_path)
    assert found(backend, "numbat") == contents
    while (tmp_path / "words").exists():  # a merge in the background may add a file meanwhile
        shutil.rmtree(tmp_path / "words", ignore_errors=True)
    backend.store([make_entry("numbat again")])
    assert found(backend, "numbat") == sorted([*contents, "numbat again"])
    backend.close()
    backend = open_store(tmp_path)
    assert found(backend, "numbat") == sorted([*contents, "numbat again"])
    backend.close()


def test_the_word_index_of_another_store_is_not_used(contents: list[str], tmp_path: Path) -> None:
    backend = open_store(tmp_path / "other")
    backend.store([make_entry(f"a numbat of another store {n}") for n in range(200)])
    assert len(found(backend, "numbat")) == 200
    backend.close()
    shutil.rmtree(tmp_path / "words")
    shutil.copytree(tmp_path / "other" / "words", tmp_path / "words")
    backend = open_store(tmp_path)
    assert found(backend, "numbat") == contents
    assert found(backend, "another") == []
    backend.close()


def test_an_index_of_another_version_of_the_analysis_is_rebuilt(contents: list[str], tmp_path: Path) -> None:
    former = read_manifest(tmp_path / "words", verify=True)
    write_manifest(tmp_path / "words", {**former, "analysis": ANALYSIS - 1})
    backend = open_store(tmp_path)
    assert [check.found for check in backend.verify() if check.name == "words"] == [0]
    assert found(backend, "numbat") == contents
    assert read_manifest(tmp_path / "words", verify=True) == former
    backend.close()


def test_an_index_ahead_of_the_records_is_not_used(tmp_path: Path) -> None:
    """The records were restored from an older copy."""
    backend = open_store(tmp_path)
    backend.store([make_entry("numbat one"), make_entry("numbat two")])
    backend.close()
    old = (tmp_path / DATABASE_FILE).read_bytes()
    backend = open_store(tmp_path)
    backend.store([make_entry(f"lost kakapo {n}") for n in range(5)])
    assert len(found(backend, "kakapo")) == 5
    backend.close()
    (tmp_path / DATABASE_FILE).write_bytes(old)
    backend = open_store(tmp_path)
    backend.store([make_entry("numbat three")])
    assert found(backend, "numbat") == ["numbat one", "numbat three", "numbat two"]
    backend.close()


def test_words_of_removed_and_changed_entries_leave_the_index(tmp_path: Path) -> None:
    database = Database(tmp_path / DATABASE_FILE)
    backend = open_store(tmp_path)
    kept, gone, changed = backend.store(
        [make_entry("numbat kept"), make_entry("numbat gone"), make_entry("numbat old")]
    )
    words = WordIndex(tmp_path / "words", database.store_id)
    words.view(database)
    backend.remove([gone.id])
    backend.update(changed.id, {"content": "kakapo new"})
    words.view(database)
    searcher = words._index.searcher()
    assert searcher.num_docs == 2
    assert sum(1 for _ in searcher.terms_with_prefix("surface", "gone")) in (0, 1)  # a dead term may await a merge
    with database.reading() as connection:
        assert len(scopes.searchable_numbers(connection, Scope())) == 2
    assert found(backend, "numbat") == ["numbat kept"] == [kept.content]
    backend.close()
    database.close()


def test_many_changes_of_one_entry_do_not_grow_the_index(tmp_path: Path) -> None:
    database = Database(tmp_path / DATABASE_FILE)
    backend = open_store(tmp_path)
    (entry,) = backend.store([make_entry("numbat")])
    words = WordIndex(tmp_path / "words", database.store_id)
    for n in range(12):
        backend.update(entry.id, {"content": f"numbat {n}"})
        words.view(database)
    assert words._index.searcher().num_docs == 1
    (hit,) = backend.search(Query("numbat", mode="lexical"))
    assert hit.entry.content == "numbat 11"
    backend.close()
    database.close()


def test_files_of_a_killed_writer_do_not_stop_the_next(tmp_path: Path) -> None:
    """A deletion's file is named by segment and operation; a writer killed before its commit leaves that name taken."""
    backend = open_store(tmp_path)
    entries = backend.store([make_entry(f"numbat {n}") for n in range(400)])
    assert len(found(backend, "numbat")) == 400
    backend.close()
    words = tmp_path / "words"
    (segment,) = [path.stem for path in words.glob("*.idx")]
    for operation in range(1000):
        (words / f"{segment}.{operation}.del").write_bytes(b"left by a writer that was killed")
    backend = open_store(tmp_path)
    backend.remove([entries[0].id])
    assert len(found(backend, "numbat")) == 399
    assert len(list(words.glob("*.del"))) == 1
    backend.close()


def test_a_file_in_the_place_of_the_quarantine_folder_is_replaced(contents: list[str], tmp_path: Path) -> None:
    (tmp_path / "words.damaged").write_text("")
    flip(tmp_path / "words" / "meta.json")
    (tmp_path / "words" / "manifest.json").write_text("[")
    backend = open_store(tmp_path)
    assert found(backend, "numbat") == contents
    assert (tmp_path / "words.damaged").is_dir()
    backend.close()


def test_a_lock_kept_by_a_forked_child_stops_no_search(contents: list[str], tmp_path: Path) -> None:
    held = tantivy.Index(schema(), path=str(tmp_path / "words")).writer(heap_size=15_000_000, num_threads=1)
    backend = open_store(tmp_path)
    backend.store([make_entry(f"numbat {n} dreams") for n in range(100, 140)])
    assert len(found(backend, "numbat")) == len(contents) + 40
    backend.close()
    del held
    reopened = open_store(tmp_path)
    assert len(found(reopened, "numbat")) == len(contents) + 40
    reopened.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("Failed to acquire Lockfile: LockBusy. Some(...)"), StoreError),
        (ValueError("An index writer was killed.. A worker thread encountered an error (io::Error most"), StoreFull),
        (OSError(28, "No space left on device"), StoreFull),
        (OSError(30, "Read-only file system"), StoreFull),
        (ValueError("something else"), StoreError),
    ],
)
def test_failures_of_the_word_index_say_what_to_do(tmp_path: Path, error: Exception, kind: type[StoreError]) -> None:
    made = store_error(error, tmp_path)
    assert type(made) is kind and str(tmp_path) in str(made)
    assert ("forked" in str(made)) == ("LockBusy" in str(error)) and ("disk space" in str(made)) == (kind is StoreFull)
