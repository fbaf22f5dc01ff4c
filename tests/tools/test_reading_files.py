"""`rag_upload` reads files below one folder, and by no trick any other."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentformer
from agentformer.factory import AgentFormer
from agentformer.tools.caller import Caller
from agentformer.tools.toolbox import ToolResult
from agentformer.types import ToolCall

SECRET = "The safe opens with 4711."


@pytest.fixture
def af(tmp_path: Path) -> Iterator[AgentFormer]:
    with agentformer.connect(index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing") as af:
        yield af


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where files may be read; beside it lies one that may not."""
    folder = tmp_path / "shared"
    (folder / "2026").mkdir(parents=True)
    (folder / "a.txt").write_text("The crane is blue.")
    (folder / "2026" / "a.txt").write_text("The crane is green.")
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "shared-too").mkdir()
    (tmp_path / "shared-too" / "secret.txt").write_text(SECRET)
    return folder


def upload(af: AgentFormer, folder: Path | None, path: str, **more: object) -> ToolResult:
    return af.toolbox.run(ToolCall("1", "rag_upload", {"path": path, **more}), Caller(folder=folder))


def test_a_file_is_called_by_its_place_so_that_equal_names_do_not_replace_each_other(
    af: AgentFormer, folder: Path
) -> None:
    for path in ("a.txt", "./2026/../2026/a.txt", str(folder / "a.txt")):
        assert not upload(af, folder, path).failed
    assert [document.name for document in af.rag.documents()] == ["a.txt", "2026/a.txt"]
    upload(af, folder, "2026/a.txt", name="other.txt", namespace="named")
    assert [document.name for document in af.rag.documents(namespace="named")] == ["other.txt"]


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "2026/../../secret.txt",
        "../shared-too/secret.txt",
        "../nothing.txt",
        "/etc/passwd",
        "/",
        "..",
        "link",
        "linked/secret.txt",
        "loop",
        "a.txt\0.pdf",
        "",
        ".",
        "2026",
        "pipe",
        "zero",
        "~/secret.txt",
        "x" * 300,
        "x/" * 5_000,
        "nothing.txt",
        "con.pdf",
        "file:///etc/passwd",
        "..\\secret.txt",
    ],
    ids=lambda path: repr(path[:30]),
)
def test_nothing_else_is_read_and_no_path_of_the_machine_is_told(
    af: AgentFormer, folder: Path, tmp_path: Path, path: str
) -> None:
    (folder / "link").symlink_to(tmp_path / "secret.txt")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "zero").symlink_to("/dev/zero")
    if sys.platform != "win32":
        os.mkfifo(folder / "pipe")
    outcome = upload(af, folder, path)
    assert outcome.failed
    assert outcome.text.startswith("path: ")
    assert str(tmp_path) not in outcome.text
    assert len(outcome.text) < 400
    assert af.rag.documents() == []


def test_what_lies_outside_is_not_told_apart_from_what_is_not_there(af: AgentFormer, folder: Path) -> None:
    assert upload(af, folder, "../secret.txt").text == upload(af, folder, "../nothing.txt").text


@pytest.mark.parametrize("path", [".env", ".git/config"])
def test_hidden_files_are_not_read(af: AgentFormer, folder: Path, path: str) -> None:
    (folder / ".git").mkdir()
    (folder / path).write_text(SECRET)
    assert "hidden" in upload(af, folder, path).text
    assert af.rag.documents() == []


def test_a_link_that_stays_inside_is_followed(af: AgentFormer, folder: Path) -> None:
    (folder / "newest.txt").symlink_to(folder / "2026" / "a.txt")
    assert not upload(af, folder, "newest.txt").failed
    assert [document.name for document in af.rag.documents()] == ["2026/a.txt"]


def test_without_a_folder_no_file_is_read(af: AgentFormer, folder: Path) -> None:
    for path in ("a.txt", str(folder / "a.txt"), "/etc/passwd"):
        assert upload(af, None, path).text == (
            "path: names a file, but this caller may not read files; give text or content_base64"
        )


def test_a_file_over_the_limit_is_refused(tmp_path: Path, folder: Path) -> None:
    (folder / "large.txt").write_text("x" * 2_000)
    with agentformer.connect(
        index_dir=tmp_path / "i", upload_dir=tmp_path / "u", embedder="hashing", max_file_bytes=1_000
    ) as af:
        assert "more than 1000 bytes" in upload(af, folder, "large.txt").text
        assert af.rag.documents() == []
