"""Reading the file of an upload: sizes, kinds of files, and names."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from agentformer.errors import InvalidInput
from agentformer.rag.uploads import _read_file, _safe_name


def test_a_file_of_exactly_the_limit_is_read_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"12345")
    named = io.BytesIO(b"12345")
    named.name = "folder/a.txt"  # type: ignore[attr-defined]
    numbered = io.BytesIO(b"12345")
    numbered.name = 7  # type: ignore[attr-defined]
    for make, name in (
        (lambda: path, "a.txt"),
        (lambda: str(path), "a.txt"),
        (lambda: b"12345", ""),
        (lambda: bytearray(b"12345"), ""),
        (lambda: named, "a.txt"),
        (lambda: numbered, ""),
    ):
        named.seek(0), numbered.seek(0)
        assert _read_file(make(), 5) == (b"12345", name)
        named.seek(0), numbered.seek(0)
        with pytest.raises(InvalidInput, match="more than 4 bytes"):
            _read_file(make(), 4)
    for wrong in (io.StringIO("text"), 7, None):
        with pytest.raises(InvalidInput, match="binary mode"):
            _read_file(wrong, 5)


def test_a_path_that_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "is a folder"), (tmp_path / "none", "does not exist"), ("/dev/null", "a device")):
        with pytest.raises(InvalidInput, match=message):
            _read_file(path, 5)


def test_a_name_keeps_its_last_255_printable_characters() -> None:
    for given, name in (
        ("a.txt", "a.txt"),
        (" 2024 \\ ./../rules\x00.pdf ", "2024/rules.pdf"),
        ("/etc//passwd/", "etc/passwd"),
        ("x" + "y" * 255, "y" * 255),
    ):
        assert _safe_name(given) == name
    for given in ("", "..", " / ", "\x00", 7):
        with pytest.raises(InvalidInput, match="name: "):
            _safe_name(given)
