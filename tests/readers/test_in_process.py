"""Reading a file in this process: what is read here, which files are refused, and the encodings of broken text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import agentformer.readers as readers
from agentformer.errors import CorruptDocument, DocumentError, DocumentTooLarge, EmptyDocument, UnsupportedFormat
from agentformer.readers import ReadLimits, encodings, formats, markdown, read
from agentformer.readers.formats import BINARY, DOCX, HTML, MARKDOWN, PDF, PLAIN, ReadOptions
from agentformer.readers.sandbox import process
from agentformer.types import DocumentText, Page


def test_a_file_has_a_greatest_size() -> None:
    assert read(b"text", "a.txt", limits=ReadLimits(max_bytes=4)).pages[0].text == "text"
    with pytest.raises(DocumentTooLarge, match="has 5 bytes; the limit is 4 bytes"):
        read(b"texts", "a.txt", limits=ReadLimits(max_bytes=4))
    with pytest.raises(EmptyDocument):
        read(b"", "a.txt")


def test_only_short_plain_text_is_read_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    isolated: list[str] = []

    def read_isolated(data: bytes, options: ReadOptions) -> DocumentText:
        isolated.append(options.media_type)
        return DocumentText(options.media_type, (Page(1, "isolated"),))

    monkeypatch.setattr(readers, "read_isolated", read_isolated)
    assert (readers._PLAIN, readers._PLAIN_ASCII) == (2**14, 2**20)
    monkeypatch.setattr(readers, "_PLAIN", 10)
    monkeypatch.setattr(readers, "_PLAIN_ASCII", 20)
    for data, simple in (
        ("ä" * 5, True),
        ("ä" * 5 + "b", False),
        ("a" * 20, True),
        ("a" * 21, False),
        ("a" * 15 + "\x1b", False),
    ):
        isolated.clear()
        read(data.encode(), "a.txt")
        assert bool(isolated) is not simple, data
    assert not readers._is_simple(b"a" * 15 + b"\0")
    isolated.clear()
    for name, media_type in (("a.md", MARKDOWN), ("a.html", HTML)):
        read(b"<p>text", name)
        assert isolated.pop() == media_type
    assert read(b"# text", "a.md", isolate=False).media_type == MARKDOWN and not isolated


def test_the_last_draft_of_an_adapter_is_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = [DocumentText(PLAIN, (Page(1, text),)) for text in ("one", "two", "three")]

    def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
        yield from drafts

    monkeypatch.setattr(readers, "adapter_for", lambda media_type: SimpleNamespace(parse=parse))
    assert read(b"text", "a.txt").pages[0].text == "three"
    drafts.clear()
    with pytest.raises(CorruptDocument):
        read(b"text", "a.txt")


def test_a_name_must_agree_with_the_content() -> None:
    for media_type, name, message in (
        (PDF, "a.pdf", ""),
        (PDF, "a.txt", ""),
        (PLAIN, "a.pdf", "is not a PDF: its content is text/plain"),
        (DOCX, "a.docx", ""),
        (PLAIN, "a.DOCX", "is not a Word document: its content is text"),
        (HTML, "a.docx", ""),
        (PLAIN, "a.txt", ""),
        (BINARY, "a.bin", "the type of the file is unknown"),
        ("image/gif", "a.gif", "files of type image/gif cannot be read"),
    ):
        if message:
            with pytest.raises(UnsupportedFormat, match=message):
                readers._refuse_unreadable(b"", media_type, name)
        else:
            readers._refuse_unreadable(b"", media_type, name)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(formats.ADAPTERS, PDF, "agentformer_missing.pdf")
    with pytest.raises(DocumentError, match="because agentformer_missing is not installed"):
        formats.adapter_for(PDF)


def test_sections_of_markdown_have_their_path() -> None:
    source = "---\ntitle: 'Book'\n---\nIntro\n# One\na\n## Two\nb\n# Three\nc\n### Four\nd\n## Five\ne"
    (document,) = markdown.parse(source.encode(), ReadOptions("a.md", MARKDOWN))
    assert document.title == "Book"
    assert [(page.label, [(each.text, each.level) for each in page.headings]) for page in document.pages] == [
        ("", []),
        ("One", [("One", 1)]),
        ("One > Two", [("Two", 2)]),
        ("Three", [("Three", 1)]),
        ("Three > Four", [("Four", 3)]),
        ("Three > Five", [("Five", 2)]),
    ]
    assert document.pages[1].text == "# One\na"
    for source, title in (("a\n## B\n# C\n# D", "C"), ("## B", ""), ("text", "")):
        (document,) = markdown.parse(source.encode(), ReadOptions("a.md", MARKDOWN))
        assert document.title == title


def test_broken_utf_8_is_refused_if_most_of_it_is_valid() -> None:
    for good, broken, refused in (
        (4, 0, True),
        (3, 0, False),
        (5, 1, True),
        (4, 1, False),
        (9, 2, True),
        (8, 2, False),
    ):
        data = "ä".encode() * good + b" a\xff" * broken
        error = UnicodeDecodeError("utf-8", data, 7, 8, "invalid")
        if refused:
            with pytest.raises(CorruptDocument, match="the text is mostly UTF-8, but the byte at offset 7 is not"):
                encodings._refuse_broken_utf8(data, error)
        else:
            encodings._refuse_broken_utf8(data, error)


def test_western_text_has_few_accents_and_symbols() -> None:
    for text, western in (
        ("ä" * 2 + "a" * 2, True),
        ("ä" * 2 + "a", False),
        ("ä" * 10 + "a" * 20, False),  # three and more in a row
        ("äa" * 10 + "a" * 10, True),
        ("äa" * 10 + "a" * 9, False),
        ("äa" * 10 + "a" * 9 + "1" * 9, False),
        ("aÄ" + "a" * 50, False),
        ("a¤a", False),
        ("a ¤a", True),
        ("éàü" + "x" * 50, False),
        ("éàü" + " é" * 17 + "x" * 50, True),
        ("abc ©®", True),
        ("abc ©®©", False),
        ("ä aa ä aa ä aa ©®©", True),
    ):
        data = text.encode("cp1252")
        assert bool(encodings._western(data, data)) is western, text
    assert encodings._western(b"\x81", b"\x81") == ""
    assert encodings._western(b"25 \xa4", b"25 \xa4") == "25 €"


def test_a_declared_encoding_is_used_if_it_fits() -> None:
    for data, declared, text in (
        ("ä".encode("cp1252"), "iso-8859-1", "ä"),
        (b"\x80", "latin-1", "€"),
        ("ж".encode("koi8_r"), "koi8-r", "ж"),
        (b"\xff", "utf-8", ""),
        (b"a", "no-such-encoding", ""),
    ):
        assert encodings._declared(data, declared) == text


def test_bytes_are_given_to_a_pipe_as_it_takes_them() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    todo = [memoryview(b"ab"), memoryview(b"c")]
    assert not process._write_some(writing, todo) and todo == []
    assert os.read(reading, 10) == b"abc"
    todo = [memoryview(bytes(10_000_000)), memoryview(b"c")]
    assert process._write_some(writing, todo)
    assert 0 < len(todo[0]) < 10_000_000 and len(todo) == 2
    os.close(reading)
    assert not process._write_some(writing, todo)
    os.close(writing)


def test_a_process_that_ran_out_of_processor_time_has_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter([-process.signal.SIGXCPU, -11, 0])

    def popen(arguments: list[str], **options: Any) -> Any:
        assert options["start_new_session"] and options["cwd"] is None
        return SimpleNamespace(returncode=next(codes))

    monkeypatch.setattr(process, "_FORKS", False)
    monkeypatch.setattr(process, "_Process", popen)
    monkeypatch.setattr(process, "exchange", lambda *arguments, **options: False)
    outcomes = [process._run(b"", ReadOptions("a", PLAIN)) for _ in range(3)]
    assert [outcome.timed_out for outcome in outcomes] == [True, False, False]
