"""`agentformer doctor` finds what is broken, changes nothing unless it is asked to, and then mends what it can."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import agentformer
from agentformer.cli import main
from agentformer.jobs.store import JobStore
from agentformer.records import entries as records
from agentformer.records.codec import now
from agentformer.records.sqlite.database import Database
from agentformer.testing import make_entry
from agentformer.types import Scope
from tests.edges.conftest import UNCLEANED, Invoke, Shown, copy_memory, folders_of
from tests.readers.conftest import make_pdf

pytestmark = pytest.mark.process
KEYS = "The caretaker keeps the keys in the blue cupboard."
CHUNK = "UPDATE entries SET content = 'x', checksum = NULL WHERE kind = 'chunk' AND page = 2"


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of two pages."""
    file = tmp_path_factory.mktemp("rules") / "rules.pdf"
    file.write_bytes(make_pdf([["Boats are lifted in October."], [KEYS]]))
    return file


def fill(folder: Path, rules: Path) -> None:
    """Make a memory with the document of two pages and a fact."""
    for command in (["ingest", str(rules)], ["remember", "Aino prefers tea.", "--namespace", "ours"]):
        assert CliRunner(env=UNCLEANED).invoke(main, [*command, *folders_of(folder)]).exit_code == 0


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, rules: Path) -> Path:
    folder = tmp_path_factory.mktemp("template")
    fill(folder, rules)
    return folder


@pytest.fixture
def folder(template: Path, rules: Path, tmp_path: Path) -> Path:
    copy_memory(template, tmp_path, lambda folder: fill(folder, rules))
    return tmp_path


def change(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "i" / "memory.sqlite3")) as connection:
        connection.execute(statement)
        connection.commit()


def original(folder: Path) -> Path:
    return next((folder / "u").rglob("*.bin"))


def left_over(folder: Path) -> Path:
    (folder / "u" / "ab").mkdir(exist_ok=True)
    file = folder / "u" / "ab" / f"{'ab' * 32}.bin"
    file.write_bytes(b"left over")
    return file


def garbled(folder: Path) -> None:
    """Overwrite pages of indexes, so that no row is lost."""
    path = folder / "i" / "memory.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        names = ("entries_by_kind", "entries_by_time", "entries_by_origin")
        roots = [
            connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [name]).fetchone()[0]
            for name in names
        ]
    data = bytearray(path.read_bytes())
    for page in roots:
        data[4096 * (page - 1) : 4096 * page] = b"\xa5" * 4096
    path.write_bytes(bytes(data))


def broken_jobs(folder: Path) -> None:
    (folder / "i" / "jobs.sqlite").write_bytes(b"no database" * 100)


def unembedded(folder: Path) -> None:
    fact = "(SELECT num FROM entries WHERE kind = 'fact')"
    change(folder, f"DELETE FROM windows WHERE entry = {fact}")
    change(folder, f"INSERT INTO pending (entry, attempts, last_error) VALUES ({fact}, 1, 'away')")


BROKEN: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "an original that is gone": (lambda at: original(at).unlink(), "originals", "its original file is not in"),
    "an original that was changed": (lambda at: original(at).write_bytes(b"x"), "originals", "checksum differs"),
    "a chunk that is not in its page": (lambda at: change(at, CHUNK), "documents", "differs from its page's text"),
    "a page that is gone": (
        lambda at: change(at, "DELETE FROM entries WHERE kind = 'page' AND page = 1"),
        "documents",
        "has 1 pages instead of 2",
    ),
    "a document that is gone": (
        lambda at: change(at, "DELETE FROM entries WHERE kind = 'document'"),
        "parts",
        "belongs to rules.pdf, which does not exist",
    ),
    "an entry without a vector": (unembedded, "waiting", "1 entries of namespace ours have no vectors yet"),
    "a row that refers to nothing": (
        lambda at: change(at, "INSERT INTO pending (entry, attempts, last_error) VALUES (999999, 1, 'away')"),
        "database",
        "refers to a missing row of entries",
    ),
    "a database with torn pages": (garbled, "database", "malformed"),
    "a list of jobs that is none": (broken_jobs, "jobs", "not a database"),
}
UNMENDED = ("an original that is gone", "an original that was changed", "a list of jobs that is none")


def found(told: Any) -> dict[str, Any]:
    return {check["name"]: check for check in json.loads(told.stdout)["checks"] if check["found"]}


@pytest.mark.usefixtures("faiss_files")
def test_a_memory_that_is_whole_is_well(folder: Path, run: Invoke, shown: Shown) -> None:
    done = run("doctor")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "no problems found")
    lines = done.stdout.splitlines()[:-1]
    assert all(line.startswith("OK") and " checked): each " in line for line in lines), lines
    assert "OK        originals (1 checked): each document has its unchanged original file" in lines
    told = shown("doctor")
    looked_at = {check["name"]: check["looked_at"] for check in told["checks"]}
    assert told["well"] and looked_at.pop("database") > 10 and looked_at.pop("facts") > 0
    assert looked_at == {
        "entries": 6,
        "history": 0,
        "links": 0,
        "superseded": 0,
        "changes": 6,
        "leases": 0,
        "vectors": 3,
        "windows": 3,
        "words": 3,
        "snapshot": 3,
        "documents": 1,
        "parts": 4,
        "originals": 1,
        "uploads": 1,
        "waiting": 6,
        "jobs": 0,
    }


@pytest.mark.usefixtures("faiss_files")
def test_a_list_of_jobs_that_was_only_begun_is_no_damage_and_is_gone_on_with(folder: Path, run: Invoke) -> None:
    """Whoever made it was killed before its table was there."""
    path = folder / "i" / "jobs.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    assert path.stat().st_size > 0
    assert run("doctor").stdout.splitlines()[-1] == "no problems found"
    file = JobStore(path)
    with file.reading() as rows:
        assert rows.execute("SELECT count(*) FROM jobs").fetchone()[0] == 0
    file.close()


@pytest.mark.usefixtures("faiss_files")
@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_found_and_left_as_it_is_until_it_is_mended_or_told(
    folder: Path, run: Invoke, shown: Shown, what: str
) -> None:
    broken, where, said = BROKEN[what]
    broken(folder)
    before = {path: path.read_bytes() for path in (folder / "u").rglob("*.bin")}
    told = run("doctor")
    assert (told.exit_code, said in told.stdout) == (1, True), told.output
    lines = told.stdout.splitlines()
    assert lines[-1].endswith("; each line below FOUND ends with what to do")
    ((number, line),) = [(n, line) for n, line in enumerate(lines) if line.startswith(f"FOUND     {where} (")]
    assert " checked, " in line and " wrong): each " in line
    assert all("`" in told or "again" in told for told in lines[number + 1 : number + 2]), lines
    assert {path: path.read_bytes() for path in (folder / "u").rglob("*.bin")} == before

    told = run("doctor", "--repair", "--json")
    assert where in found(told) and any(said in text for text in found(told)[where]["findings"]), told.output
    if what in UNMENDED:
        assert told.exit_code == 1 and found(told)[where]["mended"] == 0
        return
    lost = sum(check["lost"] for check in found(told).values())
    assert (told.exit_code == 1) == bool(lost) == ("document that is gone" in what), told.output
    assert run("doctor").stdout.splitlines()[-1] == "no problems found"
    if "torn" not in what and "document that is gone" not in what:
        assert KEYS in run("search", "who keeps the keys").stdout
    assert [entry["content"] for entry in shown("memories", "--namespace", "ours")["entries"]] == ["Aino prefers tea."]


@pytest.mark.usefixtures("faiss_files")
def test_a_document_of_which_a_page_is_gone_is_read_again(folder: Path, run: Invoke, shown: Shown) -> None:
    (former,) = shown("list")["documents"]
    change(folder, "DELETE FROM entries WHERE kind = 'page'")
    done = run("doctor", "--repair")
    assert done.exit_code == 0 and "ingested again from the original file" in done.stdout, done.output
    (document,) = shown("list")["documents"]
    assert f"the document {former['id']} has the new id {document['id']}\n" in done.stdout
    change(folder, "DELETE FROM entries WHERE kind = 'page'")
    told = found(run("doctor", "--repair", "--json"))["documents"]
    (newest,) = shown("list")["documents"]
    assert told["replaced"] == {document["id"]: newest["id"]}
    assert (document["name"], document["pages"], document["status"]) == ("rules.pdf", 2, "ready")


def test_a_file_of_no_document_is_reported_and_never_deleted(folder: Path, run: Invoke, shown: Shown) -> None:
    left_over(folder)
    (folder / "u" / "notes.txt").write_text("of somebody")
    (folder / "u" / "ab" / "odd.bin").mkdir()
    for command in (("doctor",), ("doctor", "--repair"), ("remove", shown("list")["documents"][0]["id"]), ("doctor",)):
        done = run(*command)
        assert done.exit_code == 0, done.output
        if command[0] == "doctor":
            assert any(line.startswith("NOTE      uploads (") for line in done.stdout.splitlines())
            assert done.stdout.splitlines()[-1] == "no problems found"
            told = f"2 files (20 bytes) in {folder / 'u'} without a document: ab/{'ab' * 32}.bin, notes.txt"
            assert told in done.stdout
        assert (folder / "u" / "ab" / f"{'ab' * 32}.bin").read_bytes() == b"left over"
        assert (folder / "u" / "notes.txt").read_text() == "of somebody"


@pytest.mark.usefixtures("faiss_files")
@pytest.mark.parametrize(
    "lost",
    [
        ("UPDATE entries SET content = 'x.pdf' WHERE kind = 'document'",),
        ("DELETE FROM entries WHERE source_name = 'rules.pdf'", "DELETE FROM entries WHERE kind = 'document'"),
    ],
)
def test_what_is_left_of_a_lost_document_stays_and_is_brought_in_again(
    folder: Path, run: Invoke, shown: Shown, lost: tuple[str, ...]
) -> None:
    file = original(folder)
    os.utime(file, (1, 1))
    for statement in lost:
        change(folder, statement)
    for _ in range(3):
        done = run("doctor", "--repair")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "no problems found"), done.output
    name = str(file.relative_to(folder / "u"))
    assert f"without a document: {name}; ingest a file again to restore a lost document" in done.stdout
    assert shown("list")["documents"] == [] and file.exists()
    shown("ingest", str(file))
    done = run("doctor")
    assert done.exit_code == 0 and "no document:" not in done.stdout
    assert KEYS in run("search", "who keeps the keys").stdout


def test_an_original_is_put_back_by_who_has_the_file(folder: Path, rules: Path, run: Invoke) -> None:
    file = original(folder)
    whole = file.read_bytes()
    for damaged in (whole[:-1] + b"x", b"x", None):
        if damaged is None:
            shutil.rmtree(folder / "u")
        else:
            file.write_bytes(damaged)
        done = run("doctor")
        assert done.exit_code == 1 and "ingest the same file again with `agentformer ingest`" in done.stdout, (
            done.output
        )
        assert run("ingest", str(rules)).exit_code == 0
        assert run("doctor").exit_code == 0 and file.read_bytes() == whole


@pytest.mark.usefixtures("faiss_files")
def test_forget_tells_where_a_repair_has_kept_something(folder: Path, run: Invoke, shown: Shown) -> None:
    (kept,) = shown("memories", "--namespace", "ours")["entries"]
    shown("remember", "Aino likes rye bread.", "--namespace", "ours", "--user", "aino")
    assert "set aside" not in run("forget", kept["id"], "--namespace", "ours").stderr
    change(folder, "UPDATE entries SET title = 'x' WHERE user_id = 'aino'")
    assert run("doctor", "--repair").exit_code == 1  # a fact is lost
    (aside,) = (folder / "i").glob("damaged-*.jsonl")
    assert "rye bread" in aside.read_text(encoding="utf-8")
    done = run("forget", "--user", "aino", "--namespace", "ours")
    assert done.exit_code == 0 and f"may still contain the deleted entries: {aside.name};" in done.stderr
    again = run("forget", "--user", "aino", "--namespace", "ours", "--json")
    assert json.loads(again.stdout) == {"forgotten": 0, "jobs": 0}


@pytest.mark.usefixtures("faiss_files")
def test_a_file_that_is_no_database_is_left_alone(run: Invoke, tmp_path: Path) -> None:
    (tmp_path / "i").mkdir()
    path = tmp_path / "i" / "memory.sqlite3"
    path.write_bytes(b"not a database at all" * 100)
    for options in ((), ("--repair",)):
        done = run("doctor", "--json", *options)
        assert done.exit_code == 3 and "Traceback" not in done.stderr
        assert list(found(done)) == ["memory"]
        assert path.read_bytes() == b"not a database at all" * 100
    assert "nothing in memory.sqlite3 can be read" in done.stdout
    assert [each.name for each in path.parent.iterdir()] == ["memory.sqlite3"]


@pytest.mark.usefixtures("faiss_files")
def test_a_memory_that_cannot_be_opened_is_saved_as_far_as_it_can_be_read(
    folder: Path, run: Invoke, shown: Shown
) -> None:
    change(folder, "UPDATE meta SET value = 'x' WHERE key = 'store_id'")
    assert run("doctor").exit_code == 3
    done = run("doctor", "--repair")
    assert done.exit_code == 0 and "6 entries were copied to a new file" in done.stdout, done.output
    assert run("doctor").stdout.splitlines()[-1] == "no problems found"
    assert KEYS in run("search", "who keeps the keys").stdout
    assert len(list((folder / "i").glob("memory.sqlite3.damaged-*"))) == 1


@pytest.mark.usefixtures("faiss_files")
@pytest.mark.parametrize("opens", [True, False])
def test_what_is_lost_of_a_file_is_told_by_the_exit_code_that_once(folder: Path, run: Invoke, opens: bool) -> None:
    with agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u") as af:
        af.memory.store_many([f"{'a heron stands ' * 20}and heron {n} flies" for n in range(40)])
    path = folder / "i" / "memory.sqlite3"
    data = bytearray(path.read_bytes())
    page = data.index(b"and heron 20 flies") // 4096 * 4096
    data[page : page + 4096] = bytes(4096)
    path.write_bytes(data)
    if not opens:
        change(folder, "UPDATE meta SET value = 'x' WHERE key = 'store_id'")
    done = run("doctor", "--repair", "--json")
    check = found(done)["database" if opens else "memory"]
    assert done.exit_code == 1 and check["found"] == check["mended"] > check["lost"] > 0, done.output
    with agentformer.connect(index_dir=folder / "i", upload_dir=folder / "u") as af:
        left = sum("flies" in entry.content for entry in af.backend.list(Scope(), limit=1000))
    assert check["lost"] == 40 - left == str(check).count(" is lost; restore it from a backup")
    assert run("doctor").stdout.splitlines()[-1] == "no problems found"


@pytest.mark.usefixtures("faiss_files")
def test_the_log_of_another_store_is_told_and_no_repair_is_offered(folder: Path, run: Invoke, tmp_path: Path) -> None:
    """As it is left beside a backup that was put back."""
    with closing(Database(tmp_path / "other.sqlite3")) as other:
        with other.writing() as connection:
            records.insert(connection, [make_entry("a seal", created_at=now(), updated_at=now())])
        shutil.copy(f"{other.path}-wal", folder / "i" / "memory.sqlite3-wal")
    before = {path.name: path.read_bytes() for path in (folder / "i").glob("memory.sqlite3*")}
    for options in ((), ("--repair",)):
        done = run("doctor", *options)
        assert done.exit_code == 3 and "does not belong to memory.sqlite3" in done.stdout, done.output
        assert (
            "move memory.sqlite3-wal and memory.sqlite3-shm to another folder" in done.stdout
            and "--repair" not in done.stdout
        )
        assert {name: (folder / "i" / name).read_bytes() for name in before} == before
    for left in ("-wal", "-shm"):
        (folder / "i" / f"memory.sqlite3{left}").unlink(missing_ok=True)
    assert run("doctor").stdout.splitlines()[-1] == "no problems found"


@pytest.mark.usefixtures("faiss_files")
def test_a_file_that_another_process_has_open_is_not_replaced(folder: Path, run: Invoke) -> None:
    run("list")
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) FROM meta').fetchall();"
            "print('open', flush=True); sys.stdin.read()",
            str(folder / "i" / "memory.sqlite3"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "open\n"
        garbled(folder)
        before = (folder / "i" / "memory.sqlite3").stat().st_ino
        done = run("doctor", "--repair")
        assert done.exit_code == 1 and "is open in another process" in done.stdout, done.output
        assert (folder / "i" / "memory.sqlite3").stat().st_ino == before
        assert not list((folder / "i").glob("*damaged*"))
        holder.communicate("")
    assert run("doctor", "--repair").exit_code == 0
    assert run("doctor").exit_code == 0


def test_a_readable_file_that_is_damaged_is_found(
    run: Invoke, shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFORMER_BACKEND", "local_json")
    shown("remember", "Aino prefers tea.")
    shown("remember", "Aino prefers coffee.", "--namespace", "other")
    assert run("doctor").exit_code == 0
    (tmp_path / "i" / "memory-default.json").write_text('{"entries": [')
    done = run("doctor", "--json")
    assert done.exit_code == 1 and list(found(done)) == ["files"]
    assert "memory-default.json" in found(done)["files"]["findings"][0]
    assert run("doctor", "--repair").exit_code == 1


@pytest.mark.usefixtures("faiss_files")
def test_a_fact_that_nothing_makes_anew_is_told_as_lost_by_the_exit_code_that_once(folder: Path, run: Invoke) -> None:
    change(folder, "UPDATE entries SET content = 'Aino prefers gin.' WHERE kind = 'fact'")
    told = run("doctor", "--repair")
    assert (told.exit_code, "lost, unless a backup has it: 1" in told.stdout) == (1, True), told.output
    assert (run("doctor").exit_code, run("doctor").stdout.splitlines()[-1]) == (0, "no problems found")
    assert "Aino prefers gin." in next((folder / "i").glob("damaged-*.jsonl")).read_text()


def test_a_folder_without_a_memory_is_not_well_and_stays_without_one(folder: Path, run: Invoke) -> None:
    typo = folder / "typo"
    for command in (["doctor"], ["doctor", "--repair"], ["backup", str(folder / "copy")]):
        told = run(*command, "--index-dir", str(typo))
        assert (told.exit_code, "there is no memory in" in told.stderr) == (2, True), told.output
    assert not typo.exists() and not (folder / "copy").exists()
