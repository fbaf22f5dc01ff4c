"""The file of an upload: its size, kind, name and origin, and the entries that are made from its text."""

from __future__ import annotations

import hashlib
import io
import re
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentformer.errors import InvalidInput
from agentformer.rag import ingest
from agentformer.rag.documents import Document
from agentformer.rag.uploads import Origin, _origin_of, _read_file, _with_folders, checked_on_conflict, safe_name
from agentformer.readers import ReadLimits
from agentformer.types import DocumentText, Embedder, Page, Source, Span


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


def test_a_name_that_must_be_changed_gets_a_part_of_its_hash() -> None:
    for original, name in (
        ("a.txt", "a.txt"),
        ("2024/rules (2).pdf", "2024/rules (2).pdf"),
        ("x" * 251 + ".txt", "x" * 251 + ".txt"),
        (" 2024 \\ ./../rules\x00.pdf ", "2024/rules ~{}.pdf"),
        ("/etc//passwd/", "etc/passwd ~{}"),
        ("x" + "y" * 255, "y" * 245 + " ~{}"),
        ("x" * 252 + ".txt", "x" * 241 + " ~{}.txt"),
        ("a." + "y" * 300, "y" * 245 + " ~{}"),
        ("." * 300 + "/a", "a ~{}"),
        ("." * 300, "~{}"),
        ("\ud800.env", ".env ~{}"),
    ):
        digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        assert safe_name(original) == name.format(digest)
    for nameless in ("", "..", " / ", "\x00", 7):
        with pytest.raises(InvalidInput, match="name: "):
            safe_name(nameless)


@given(st.lists(st.text("a. /\\\t~é\u200b\ud800", min_size=1) | st.sampled_from(["y" * 300, "z/" * 150]), max_size=4))
def test_different_names_remain_different_and_a_safe_name_is_not_changed(pieces: list[str]) -> None:
    names = {}
    for original in {"".join(pieces), "".join(pieces[::-1]), *pieces}:
        try:
            names[original] = safe_name(original)
        except InvalidInput:
            assert not set(original) - set("./\\ \t\u200b\ud800")
    assert len(set(names.values())) == len(names)
    for name in names.values():
        assert safe_name(name) == name and len(name) <= 255 and name.isprintable()
        assert not {"", ".", ".."} & {part.strip() for part in name.split("/")}


def test_a_name_is_made_unique_with_folders_and_then_with_numbers() -> None:
    for origin, name, names in (
        (
            "/a/b/rules.txt",
            "rules.txt",
            ["rules.txt", "b/rules.txt", "a/b/rules.txt", "rules (2).txt", "rules (3).txt"],
        ),
        ("/a/b/rules.txt", "b/rules.txt", ["b/rules.txt", "a/b/rules.txt", "b/rules (2).txt"]),
        ("/a/x.txt", "rules.txt", ["rules.txt", "a/rules.txt", "rules (2).txt"]),
        ("/rules", "rules", ["rules", "rules (2)"]),
    ):
        document = Document(name, "default", "ready", origin=origin)
        assert [*islice(_with_folders(document), len(names))] == names


def test_the_way_to_handle_a_conflict_is_checked() -> None:
    assert [checked_on_conflict(value) for value in ("replace", "keep-both", "fail")] == [
        "replace",
        "keep-both",
        "fail",
    ]
    with pytest.raises(InvalidInput, match="on_conflict: must be 'replace', 'keep-both' or 'fail'"):
        checked_on_conflict("ask")


def test_only_a_file_of_the_file_system_has_an_origin(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"tea")
    here = Origin(path.resolve().as_posix())
    assert _origin_of(path, "b.txt") == _origin_of(str(path), "") == here
    with path.open("rb") as file:
        assert (_origin_of(file, ""), _origin_of(file, "b.txt")) == (here, Origin())
    stream = io.BytesIO(b"tea")
    stream.name = str(path)  # type: ignore[attr-defined]
    assert _origin_of(stream, "") == _origin_of(b"tea", "") == Origin()
    assert Origin.of_file(path, tmp_path) == Origin(here.path, tmp_path.resolve().as_posix())


def test_the_language_is_detected_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_LANGUAGE_SAMPLE", 10)
    for texts, beginning in (
        (("abcdef", "ghijkl", "mno"), "abcdef ghi"),
        (("a" * 8, "bcd"), "a" * 8 + " b"),
        (("a" * 9, "bcd"), "a" * 9),
        (("a" * 11,), "a" * 10),
        ((), ""),
    ):
        pages = [Page(number, text) for number, text in enumerate(texts, 1)]
        blank = Page(0, "no text", status="no_text")
        assert ingest._beginning(DocumentText("text/plain", (blank, *pages))) == beginning


def test_the_entries_of_a_document_have_their_places_in_its_pages() -> None:
    def words(text: str) -> list[Span]:
        return [Span(match.start(), match.end()) for match in re.finditer(r"\w+", text)]

    document = Document("folder/a.txt", "work", "ready", sha256="0", bytes=7, metadata={"site": "north"})
    pages = (
        Page(1, "one two three", "i"),
        Page(2, "hidden", "ii", status="garbled", reason="odd", method="pypdf", reason_code="garbled"),
    )
    text = DocumentText("text/plain", pages, "t" * 301, reason="1 of 2 pages", reason_code="garbled")
    pipeline = ingest.IngestPipeline(
        cast(Embedder, SimpleNamespace(token_spans=words)), chunk_tokens=2, chunk_overlap=0, limits=ReadLimits()
    )
    root, first, second, *chunks = pipeline.entries(document, text)
    assert (root.title, root.content, root.kind) == ("t" * 300, "folder/a.txt", "document")
    counts = {name: root.metadata[name] for name in ("pages", "chunks", "bytes", "status", "reason", "given")}
    given = {"status": "ready", "reason": "1 of 2 pages", "given": {"site": "north"}}
    assert counts == {"pages": 2, "chunks": 2, "bytes": 7, **given}
    assert (first.content, first.source) == ("one two three", Source(root.id, "folder/a.txt", 1, "i", 0, 13))
    assert (second.content, second.source) == ("", Source(root.id, "folder/a.txt", 2, "ii", 0, 6))
    assert second.metadata == {"status": "garbled", "reason": "odd", "reason_code": "garbled", "method": "pypdf"}
    assert (root.metadata["reason_code"], root.metadata["unread_pages"]) == ("garbled", 1)
    assert [(chunk.content, chunk.source and (chunk.source.start, chunk.source.end)) for chunk in chunks] == [
        ("one two", (0, 7)),
        ("three", (8, 13)),
    ]
    assert {entry.parent_id for entry in (first, second, *chunks)} == {root.id}
    assert {(chunk.title, chunk.metadata["site"], chunk.namespace) for chunk in chunks} == {("a", "north", "work")}
