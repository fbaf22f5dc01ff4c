"""`agentformer doctor` finds what is broken, and changes nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.edges.conftest import Invoke, Shown
from tests.readers.conftest import make_pdf

KEYS = "The caretaker keeps the keys in the blue cupboard."


@pytest.fixture
def folder(shown: Shown, tmp_path: Path) -> Path:
    """A memory with a document of two pages and a fact."""
    (tmp_path / "rules.pdf").write_bytes(make_pdf([["Boats are lifted in October."], [KEYS]]))
    shown("ingest", str(tmp_path / "rules.pdf"))
    shown("remember", "Aino prefers tea.", "--namespace", "ours")
    return tmp_path


def change(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "i" / "memory.sqlite3")) as connection:
        connection.execute(statement)
        connection.commit()


def original(folder: Path) -> Path:
    return next((folder / "u").rglob("*.bin"))


def left_over(folder: Path) -> None:
    (folder / "u" / "ab").mkdir(exist_ok=True)
    (folder / "u" / "ab" / f"{'ab' * 32}.bin").write_bytes(b"left over")


def garbled(folder: Path) -> None:
    path = folder / "i" / "memory.sqlite3"
    data = bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 6] = b"\xa5" * (4096 * 3)
    path.write_bytes(bytes(data))


BROKEN: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "an original that is gone": (lambda at: original(at).unlink(), "originals", "is not in the upload folder"),
    "an original that was changed": (lambda at: original(at).write_bytes(b"x"), "originals", "checksum differs"),
    "a file of no document": (left_over, "uploads", "belongs to no document"),
    "a chunk that is not in its page": (
        lambda at: change(at, "UPDATE entries SET content = 'x' WHERE kind = 'chunk' AND page = 2"),
        "documents",
        "is not what stands in its page",
    ),
    "a page that is gone": (
        lambda at: change(at, "DELETE FROM entries WHERE kind = 'page' AND page = 1"),
        "documents",
        "has 1 pages instead of 2",
    ),
    "an entry without a vector": (
        lambda at: change(
            at,
            "INSERT INTO pending (entry, attempts, last_error) SELECT num, 1, 'away' FROM entries WHERE kind = 'fact'",
        ),
        "vectors",
        "1 entries of namespace ours have no vectors yet",
    ),
    "a row that refers to nothing": (
        lambda at: change(at, "INSERT INTO pending (entry, attempts, last_error) VALUES (999999, 1, 'away')"),
        "records",
        "refers to a row of entries that is not there",
    ),
    "a database with torn pages": (garbled, "records", "memory.sqlite3"),
}


def test_a_memory_that_is_whole_is_well(folder: Path, run: Invoke, shown: Shown) -> None:
    done = run("doctor")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "all is well")
    told = shown("doctor")
    looked_at = {check["name"]: check["looked_at"] for check in told["checks"]}
    assert told["well"] and looked_at == {
        "records": 1,
        "files": 0,
        "vectors": 6,
        "documents": 1,
        "originals": 1,
        "uploads": 1,
    }


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_found_where_it_is_and_left_as_it_is(folder: Path, run: Invoke, what: str) -> None:
    broken, where, said = BROKEN[what]
    run("list")  # so that nothing is left in the write-ahead log
    broken(folder)
    before = {path: path.read_bytes() for path in (folder / "u").rglob("*.bin")}
    told = run("doctor", "--json")
    assert told.exit_code == 1, told.output
    found = {check["name"]: check["findings"] for check in json.loads(told.stdout)["checks"] if check["found"]}
    assert where in found and any(said in finding for finding in found[where]), found
    shown = run("doctor")
    assert (shown.exit_code, "FOUND" in shown.stdout, said in shown.stdout) == (1, True, True)
    assert {path: path.read_bytes() for path in (folder / "u").rglob("*.bin")} == before


def test_a_memory_that_cannot_be_opened_is_found_too(run: Invoke, tmp_path: Path) -> None:
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "memory.sqlite3").write_bytes(b"not a database at all" * 100)
    done = run("doctor", "--json")
    assert done.exit_code == 1 and "Traceback" not in done.stderr
    found = {check["name"]: check["found"] for check in json.loads(done.stdout)["checks"]}
    assert found == {"records": 1, "memory": 1}


def test_a_readable_file_that_is_damaged_is_found(
    run: Invoke, shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFORMER_BACKEND", "local_json")
    shown("remember", "Aino prefers tea.")
    shown("remember", "Aino prefers coffee.", "--namespace", "other")
    (tmp_path / "i" / "memory-default.json").write_text('{"entries": [')
    done = run("doctor")
    assert done.exit_code == 1 and "FOUND files" in done.stdout and "memory-default.json" in done.stdout
