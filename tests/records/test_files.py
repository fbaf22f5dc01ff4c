"""Atomic writing and safe reading of files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agentformer.records.files import atomic_writer, delete, open_regular_file, read_file, write_atomically


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


def test_delete_removes_files_folders_and_links_only(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    (folder / "deep").mkdir(parents=True)
    link.symlink_to(folder)
    delete(link)
    assert folder.is_dir()
    delete(folder)
    delete(tmp_path / "missing")
    assert [*tmp_path.iterdir()] == []
