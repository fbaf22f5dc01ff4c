"""A backup opens like its memory, exists wholly or not at all, and shows later changes of its files."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentformer.archive import backup as backing
from agentformer.archive.backup import check_backup
from agentformer.cli import main
from agentformer.errors import InvalidInput, StoreDamaged, StoreError
from agentformer.factory import AgentFormer, connect
from agentformer.rag.originals import Originals
from agentformer.types import Scope
from tests import forked
from tests.archive.conftest import everything, fill
from tests.edges.conftest import copy, run, shown, where  # noqa: F401
from tests.readers.conftest import make_pdf

KEYS = "The caretaker keeps the keys in the blue cupboard."


def opened(folder: Path, backend: str = "faiss", *, restored: bool = False) -> AgentFormer:
    names = ("indexes", "uploads") if restored else ("i", "u")
    index, uploads = (folder / name for name in names)
    return connect(index_dir=index, upload_dir=uploads, embedder="hashing", backend=backend, clean_every=0)


def originals(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.bin")}


def restored(folder: Path, place: Path) -> Path:
    """What the handbook says: both folders copied to where they belong."""
    for name in ("indexes", "uploads"):
        shutil.copytree(folder / name, place / name)
    return place


@pytest.mark.process  # the reader of documents
@pytest.mark.parametrize("backend", ["faiss", "local_json"])
def test_a_backup_opens_like_the_memory_itself(tmp_path: Path, backend: str) -> None:
    with opened(tmp_path, backend) as af:
        fill(af.backend)
        af.rag.upload(make_pdf([["Boats are lifted in October."], [KEYS]]), name="rules.pdf")
        af.rag.upload(b"", name="empty.txt")
        done = af.backup(tmp_path / "copy")
        af.memory.store("what came after the backup")
        before = everything(af.backend)
    assert sum(done.namespaces.values()) == len(before) - 1 and done.originals == 1
    assert check_backup(tmp_path / "copy") == []
    place = restored(tmp_path / "copy", tmp_path / "place")
    assert originals(place / "uploads") == originals(tmp_path / "u")
    with opened(place, backend, restored=True) as af:
        after = everything(af.backend)
        assert after == {entry_id: seen for entry_id, seen in before.items() if entry_id in after}
        assert len(after) == len(before) - 1
        answer = af.rag.query("Who keeps the keys?")
        assert (answer.citations[0].document, answer.citations[0].page) == ("rules.pdf", 2)
        assert all(not check.found for check in af.backend.verify())
        af.memory.store("life goes on")


def test_keys_are_backed_up_with_owner_only_permissions(run, tmp_path: Path) -> None:  # noqa: F811
    assert run("keys add", "reader").exit_code == 0
    assert run("remember", "Aino prefers tea.").exit_code == 0
    assert run("backup", str(tmp_path / "copy")).exit_code == 0
    kept = tmp_path / "copy" / "indexes" / "keys.json"
    assert kept.read_bytes() == (tmp_path / "i" / "keys.json").read_bytes()
    assert kept.stat().st_mode & 0o077 == 0


def test_the_command_reports_counts_and_checks_a_backup(run, shown, tmp_path: Path) -> None:  # noqa: F811
    shown("remember", "Aino prefers tea.")
    told = shown("backup", str(tmp_path / "copy"))
    assert (told["namespaces"], told["originals"], told["missing_originals"]) == ({"default": 1}, 0, [])
    assert shown("backup", str(tmp_path / "copy"), "--check") == {"well": True, "findings": []}
    database = tmp_path / "copy" / "indexes" / "memory.sqlite3"
    data = bytearray(database.read_bytes())
    data[len(data) // 2] ^= 1
    database.write_bytes(data)
    done = run("backup", str(tmp_path / "copy"), "--check")
    assert (done.exit_code, "memory.sqlite3 has changed since the backup" in done.stdout) == (1, True)
    database.unlink()
    assert "memory.sqlite3 cannot be read" in run("backup", str(tmp_path / "copy"), "--check").stdout
    os.mkfifo(database)
    assert "is not a plain file" in run("backup", str(tmp_path / "copy"), "--check").stdout
    done = run("backup", str(tmp_path), "--check")
    assert (done.exit_code, "no manifest.json" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "indexes/../../x", "/etc/passwd", "indexes//x", "other/x", "indexes"]
)
def test_a_check_reads_nothing_outside_the_backup(tmp_path: Path, path: str) -> None:
    manifest = {"format": backing.FORMAT, "files": {path: {"bytes": 1, "sha256": ""}}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (finding,) = check_backup(tmp_path)
    assert "is not a file of a backup" in finding


def test_a_backup_needs_a_new_folder(run, shown, tmp_path: Path) -> None:  # noqa: F811
    shown("remember", "Aino prefers tea.")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    done = run("backup", str(tmp_path / "full"))
    assert (done.exit_code, "not empty" in done.stderr) == (2, True)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    assert not list(tmp_path.glob(".full*"))


def test_a_backup_and_an_export_into_a_folder_of_the_memory_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as af:
        af.memory.store("Aino prefers tea.")
        for folder in (tmp_path / "i" / "monday", tmp_path / "u" / "a" / "b"):
            for copy_into in (af.backup, af.export_to):
                with pytest.raises(InvalidInput, match="a folder of the memory itself; choose another place"):
                    copy_into(folder)
            assert not folder.parent.exists() or not list(folder.parent.glob("*monday*"))
        assert af.backup(tmp_path / "index" / "monday").namespaces == {"default": 1}


def test_missing_and_damaged_originals_are_reported(run, shown, tmp_path: Path) -> None:  # noqa: F811
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"{KEYS} {number}")
        shown("ingest", str(tmp_path / f"{number}.txt"))
    gone, damaged, whole = sorted((tmp_path / "u").rglob("*.bin"))
    gone.unlink()
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    done = run("backup", str(tmp_path / "copy"), "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["originals"], len(told["missing_originals"])) == (1, 1, 2)
    assert [path.name for path in (tmp_path / "copy" / "uploads").rglob("*.bin")] == [whole.name]
    assert run("backup", str(tmp_path / "copy"), "--check").exit_code == 0


@pytest.mark.parametrize("when", ["before the records are copied", "after the records were copied"])
def test_a_document_removed_during_a_backup_is_left_out_entirely(tmp_path: Path, when: str) -> None:
    """A document that comes after originals were copied, and goes around the copy of the records."""
    with opened(tmp_path) as af:
        stays = af.rag.upload(b"This one stays.", name="stays.txt")
        inner = af.backend.backup
        rounds = 0

        def meanwhile(folder: Path) -> None:
            nonlocal rounds
            rounds += 1
            if rounds > 1:
                inner(folder)
                return
            document = af.rag.upload(b"This one goes.", name="goes.txt")
            if when.startswith("before"):
                af.rag.remove(document.id)
            inner(folder)
            if when.startswith("after"):
                af.rag.remove(document.id)

        af.backend.backup = meanwhile  # type: ignore[method-assign]
        done = af.backup(tmp_path / "copy")
    assert rounds == (1 if when.startswith("before") else 2)
    assert (done.missing_originals, done.originals) == ([], 1)
    with opened(restored(tmp_path / "copy", tmp_path / "place"), restored=True) as af:
        assert [document.id for document in af.rag.documents()] == [stays.id]
        assert af.rag.original(stays.id) == b"This one stays."


def test_unreadable_records_give_no_backup(tmp_path: Path) -> None:
    with opened(tmp_path, "local_json") as af:
        af.memory.store("Aino prefers tea.")
        (tmp_path / "i" / "memory-default.json").write_text("{")
        with pytest.raises(StoreDamaged):
            af.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists() and not list(tmp_path.glob(".copy*"))


@pytest.mark.process
@pytest.mark.fault
def test_a_full_disk_leaves_no_partial_folder(tmp_path: Path) -> None:
    with opened(tmp_path) as af:
        af.memory.store_many(f"fact number {n} {'of the harbour ' * 200}" for n in range(80))
    folders = ["--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing"]
    for command in (["backup"], ["export", "--to"]):
        done = forked.ended(forked.command(*command, tmp_path / "copy", *folders, before=_LIMITED))
        seen = done.returncode, "cannot be written" in done.stderr, "Traceback" in done.stderr
        assert seen == (3, True, False), done
        assert not (tmp_path / "copy").exists() and not list(tmp_path.glob(".copy*"))
    with opened(tmp_path) as af:
        assert af.backend.count(Scope()) == 80
        assert af.backup(tmp_path / "copy").namespaces == {"default": 80}
        assert af.export_to(tmp_path / "exported").namespaces == {"default": 80}


_LIMITED = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))"


def test_two_backends_are_backed_up_into_one_folder(tmp_path: Path) -> None:
    settings = {"hierarchical_backend": "local_json", "embedder": "hashing", "clean_every": 0}
    with connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", **settings) as af:
        af.memory.store("Aino prefers tea.")
        af.memory.core.append("persona", "You help.")
        assert af.backup(tmp_path / "copy").namespaces == {"default": 2}
        before = everything(af.backend)
    place = restored(tmp_path / "copy", tmp_path / "place")
    assert sorted(path.name for path in (place / "indexes").iterdir()) == ["memory-default.json", "memory.sqlite3"]
    with connect(index_dir=place / "indexes", upload_dir=place / "uploads", **settings) as af:
        assert everything(af.backend) == before


def test_the_records_are_copied_again_only_if_an_original_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as af:
        for number in range(4):
            af.rag.upload(f"{KEYS} {number}".encode(), name=f"{number}.txt")
        *others, gone = sorted((tmp_path / "u").rglob("*.bin"))
        gone.unlink()
        inner, copy_original = af.backend.backup, backing._copy_original
        copies: list[Path] = []
        lost: set[str] = set()

        def backup(folder: Path) -> None:
            inner(folder)
            copies.append(folder)
            if lose:
                lost.add(others.pop().stem)

        def copied(originals: Originals, digest: str, uploads: Path) -> bool:
            return digest not in lost and copy_original(originals, digest, uploads)

        monkeypatch.setattr(backing, "_copy_original", copied)
        af.backend.backup = backup  # type: ignore[method-assign]
        for lose, rounds, missing in ((False, 1, 1), (True, 3, 4)):  # an original goes during each of three attempts
            copies.clear()
            done = af.backup(tmp_path / f"copy {lose}")
            assert (len(copies), len(done.missing_originals)) == (rounds, missing)


def test_keys_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    with opened(tmp_path) as af:
        af.backup(tmp_path / "without keys")
        assert not (tmp_path / "without keys" / "indexes" / "keys.json").exists()
        (af.settings.index_dir / "keys.json").mkdir()
        with pytest.raises(StoreError, match=r"keys\.json cannot be read \(Is a directory\)"):
            af.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_manifest_of_another_kind_is_refused(tmp_path: Path) -> None:
    for manifest, message in (
        ([], "is not a backup of the format"),
        ({"format": "agentformer-export-2", "files": {}}, "is not a backup of the format"),
        ({"format": backing.FORMAT, "files": []}, "is not a backup of the format"),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(InvalidInput, match=message):
            check_backup(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"format": backing.FORMAT, "files": {"indexes/a": 1}}))
    (finding,) = check_backup(tmp_path)
    assert "is not a file of a backup" in finding
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"cannot be read \(JSONDecodeError\)"):
        check_backup(tmp_path)


def test_only_the_newest_backups_of_a_folder_are_kept(tmp_path: Path) -> None:
    memory = ["--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing"]
    invoke = CliRunner().invoke
    assert invoke(main, ["remember", "The caretaker keeps the keys.", *memory]).exit_code == 0
    backups = tmp_path / "backups"
    for foreign in ("notes", "20261130T031500.000000Z"):  # neither is a backup
        (backups / foreign).mkdir(parents=True)
    made = []
    for number in range(4):
        done = invoke(main, ["backup", str(backups), "--keep", "2", "--json", *memory])
        assert done.exit_code == 0, done.output
        told = json.loads(done.stdout)
        made.append(Path(told["to"]))
        assert told["deleted"] == [str(path) for path in made[:-2][-1:]], number
    assert {path.name for path in backups.iterdir()} == {
        *("notes", "20261130T031500.000000Z"),
        *(path.name for path in made[-2:]),
    }
    checked = invoke(main, ["backup", str(made[-1]), "--check", *memory])
    assert checked.exit_code == 0 and "opens, and its stored data is complete" in checked.output
    assert not (made[-1] / "indexes" / "memory.sqlite3-wal").exists(), "a check opens a copy"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
def test_a_backup_into_a_system_folder_fails_with_a_clear_error(tmp_path: Path) -> None:
    memory = ["--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing"]
    invoke = CliRunner().invoke
    assert invoke(main, ["remember", "The caretaker keeps the keys.", *memory]).exit_code == 0
    for more in (["/proc/x", "--keep", "1"], ["/proc/x/y"]):
        done = invoke(main, ["backup", *more, *memory])
        assert done.exit_code == 3 and "error: /proc/x/" in done.stderr and "cannot be written" in done.stderr


def test_a_check_sees_damage_that_the_checksums_confirm(tmp_path: Path) -> None:
    memory = ["--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", "hashing"]
    invoke = CliRunner().invoke
    assert invoke(main, ["remember", "The caretaker keeps the keys.", *memory]).exit_code == 0
    with closing(sqlite3.connect(tmp_path / "i" / "memory.sqlite3")) as connection:  # one bit of a stored text
        connection.execute("UPDATE entries SET content = 'The caretaker keeps the kegs.'")
        connection.commit()
    assert invoke(main, ["backup", f"{tmp_path}/b", *memory]).exit_code == 0
    done = invoke(main, ["backup", f"{tmp_path}/b", "--check", *memory])
    assert done.exit_code == 1 and "entries: " in done.output
    done = invoke(main, ["backup", f"{tmp_path}/all", "--keep", "1", *memory])
    assert done.exit_code == 3 and "is damaged, and no older one is deleted" in done.output
