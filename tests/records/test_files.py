"""Atomic writing and safe reading of files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agentformer.errors import InvalidInput
from agentformer.records.integrity.files import (
    atomic_writer,
    delete,
    new_folder,
    open_regular_file,
    read_file,
    safe_file_name,
    write_atomically,
)


def test_a_failed_write_keeps_the_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_atomically(path, b"old", mode=0o600)
    with pytest.raises(KeyError), atomic_writer(path) as file:
        file.write(b"new")
        raise KeyError
    assert read_file(path) == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_temporary_files_of_dead_processes_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    dead, alive = tmp_path / f".state.json.{2**22 + 1}.1", tmp_path / f".state.json.{os.getpid()}.1"
    other = tmp_path / ".state.json.text.1"
    for left in (dead, alive, other):
        left.write_bytes(b"")
    write_atomically(path, b"new")
    assert sorted(tmp_path.iterdir()) == sorted([path, alive, other])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_or_a_folder_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_regular_file(tmp_path / "pipe")
    with pytest.raises(OSError):
        read_file(tmp_path)


def test_a_new_folder_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    dead, alive = tmp_path / f".out.{2**22 + 1}.1", tmp_path / f".out.{os.getpid()}.1"
    for left in (dead, alive, folder):  # an empty folder may be replaced
        left.mkdir()
    (dead / "0").write_bytes(b"")
    with pytest.raises(KeyError), new_folder(folder, "a/b"):
        raise KeyError
    assert [*tmp_path.iterdir()] == [alive]
    with new_folder(folder, "a/b") as partial:
        (partial / "file").write_bytes(b"1")
        assert not folder.exists()
    assert sorted(tmp_path.iterdir()) == sorted([alive, folder])
    assert read_file(folder / "file") == b"1"
    with pytest.raises(InvalidInput, match="is not empty"), new_folder(folder, "a/b"):
        pass
    assert read_file(folder / "file") == b"1"


def test_the_current_and_the_root_folder_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (Path(), tmp_path, Path("/")):
        with pytest.raises(InvalidInput, match="cannot be replaced; give a new folder"), new_folder(folder, "a/b"):
            pass
    assert tmp_path.is_dir()


def test_a_file_name_is_plain_short_and_different_for_each_text() -> None:
    assert safe_file_name("team-1_a") == "team-1_a"
    assert safe_file_name("A/ä.") == "%41%2f%c3%a4%2e"
    assert safe_file_name("a" * 120) == "a" * 120
    long, other = safe_file_name("a" * 121), safe_file_name("a" * 122)
    assert (len(long), long[:61]) == (93, "a" * 60 + "~")
    assert long != other


def test_delete_removes_files_folders_and_links_only(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    (folder / "deep").mkdir(parents=True)
    link.symlink_to(folder)
    delete(link)
    assert folder.is_dir()
    delete(folder)
    delete(tmp_path / "missing")
    assert [*tmp_path.iterdir()] == []
