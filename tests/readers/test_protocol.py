"""What a reader says to its parent: whole, bounded, and nothing that could hurt whoever shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentformer.errors import CorruptDocument, DocumentTooLarge, EncryptedDocument
from agentformer.readers.formats import ReadLimits
from agentformer.readers.sandbox import protocol
from agentformer.readers.sandbox.protocol import (
    DONE,
    Frames,
    NoFrame,
    Overrun,
    draft_frame,
    draft_from_bytes,
    error_frame,
    error_from_bytes,
)
from agentformer.types import DocumentText, Heading, Page, PageTable, Span

ODD_CODE = b'{"error":"EmptyDocument","message":"x","reason_code":"<b>"}\n'
PAGE = Page(
    1,
    "a\nb ö 日本 🦦",
    "iv",
    "text",
    "",
    "pdfium",
    Span(0, 3),
    (Heading("a", 1, 0),),
    (PageTable(0, 3, ("2018", ""), "in millions"),),
)
EMPTY = Page(2, "", status="no_text", reason_code="image")
DOCUMENT = DocumentText("application/pdf", (PAGE, EMPTY), "t", "ready", "r", "image")


def heard(*frames: bytes, most: int = 1 << 20) -> Frames:
    """What a parent has understood of these bytes, which come in small pieces."""
    said = b"".join(frames)
    found = Frames(most)
    for at in range(0, len(said), 7):
        found.feed(said[at : at + 7])
    return found


def draft(about: dict[str, Any], *pages: tuple[dict[str, Any], bytes]) -> bytes:
    lines = [json.dumps(about).encode() + b"\n"]
    lines += [json.dumps(page).encode() + b"\n" + text for page, text in pages]
    return b"".join(lines)


def test_a_document_survives_the_protocol() -> None:
    found = heard(draft_frame(DOCUMENT), DONE)
    assert found.done
    assert draft_from_bytes(found.draft, ReadLimits()) == DOCUMENT


def test_an_error_survives_the_protocol() -> None:
    error = error_from_bytes(heard(error_frame(DocumentTooLarge("too large"))).error)
    assert (type(error), str(error), error.code) == (DocumentTooLarge, "too large", "too_large")
    error = error_from_bytes(heard(error_frame(EncryptedDocument("wrong", "password_wrong"))).error)
    assert (type(error), str(error), error.code) == (EncryptedDocument, "wrong", "password_wrong")


def test_the_last_whole_draft_counts() -> None:
    later = DocumentText("application/pdf", (Page(1, "more"),))
    found = heard(draft_frame(DOCUMENT), draft_frame(later), draft_frame(DOCUMENT)[:-1])
    assert not found.done
    assert draft_from_bytes(found.draft, ReadLimits()) == later


def test_what_could_hurt_a_terminal_or_a_store_is_replaced_in_place() -> None:
    hostile = "a\x1b[2Jb\ud800\u202ec\x9b"
    page = Page(1, hostile, hostile, headings=(Heading(f"{hostile}\n2", 1, 0),))
    found = draft_from_bytes(heard(draft_frame(DocumentText("text/html", (page,), hostile))).draft, ReadLimits())

    assert found.pages[0].text == "a\ufffd[2Jb\ufffd\ufffdc\ufffd"
    assert (found.title, found.pages[0].label, found.pages[0].headings[0].text) == ("a[2Jbc", "a[2Jbc", "a[2Jbc 2")


def test_all_drafts_together_are_bounded_and_the_last_one_stays() -> None:
    found, kept = Frames(1000), draft_frame(DocumentText("text/html", (Page(1, "kept"),)))
    with pytest.raises(Overrun):
        for _ in range(1000 // len(kept) + 1):
            found.feed(kept)
    assert draft_from_bytes(found.draft, ReadLimits()).pages[0].text == "kept"
    assert len(found._unread) < 1000


def test_what_is_no_frame_is_refused_at_once() -> None:
    for said in [b"X" + bytes(8), b"Traceback (most recent call last)"]:
        with pytest.raises(NoFrame):
            Frames(1 << 20).feed(said)


def test_a_frame_that_will_be_too_long_is_refused_before_it_has_come() -> None:
    with pytest.raises(Overrun):
        Frames(1 << 20).feed(b"D" + b"\xff" * 8)


ABOUT = {"media_type": "text/html", "title": "", "status": "ready", "reason": "", "pages": 1}
LINE = {"bytes": 3, "number": 1, "label": "", "status": "text", "reason": "", "method": "", "body": None}
LINE |= {"headings": [], "tables": []}


def test_the_lies_below_are_lies_about_a_draft_that_is_understood() -> None:
    assert draft_from_bytes(draft(ABOUT, (LINE, b"abc")), ReadLimits()).pages[0].text == "abc"


def test_a_draft_that_no_reader_says_is_a_corrupt_document() -> None:
    for payload in [
        b"",
        b"[" * 100_000 + b"\n",
        b"[]\n",
        draft({**ABOUT, "pages": 10**9}),
        draft({**ABOUT, "pages": -1}),
        draft({**ABOUT, "pages": 2}, (LINE, b"abc")),
        draft({**ABOUT, "title": []}, (LINE, b"abc")),
        draft({**ABOUT, "status": "sent"}, (LINE, b"abc")),
        draft({**ABOUT, "reason_code": "<b>"}, (LINE, b"abc")),
        draft(ABOUT, ({**LINE, "reason_code": ["image"]}, b"abc")),
        draft(ABOUT, ({**LINE, "bytes": -1}, b"abc")),
        draft(ABOUT, ({**LINE, "bytes": 4}, b"abc")),
        draft(ABOUT, ({**LINE, "bytes": 10**30}, b"abc")),
        draft(ABOUT, (LINE, b"\xff\xff\xff")),
        draft(ABOUT, ({**LINE, "status": ["text"]}, b"abc")),
        draft(ABOUT, ({**LINE, "body": [2, 9]}, b"abc")),
        draft(ABOUT, ({**LINE, "headings": [["only"]]}, b"abc")),
        draft(ABOUT, ({**LINE, "label": "x" * (4 << 20)}, b"abc")),
    ]:
        with pytest.raises(CorruptDocument, match="invalid output"):
            draft_from_bytes(payload, ReadLimits())


def test_an_error_that_no_reader_says_is_a_corrupt_document() -> None:
    for payload in [b"", b"{}\n", b'{"error":"SystemExit","message":"x"}\n', b'{"error":[]}\n', ODD_CODE]:
        assert type(error_from_bytes(payload)) is CorruptDocument


def test_a_draft_has_bounds() -> None:
    for about, line, data, valid in (
        ({}, {}, b"abc", True),
        ({"pages": 0}, {}, b"", True),
        ({}, {"body": [0, 3]}, b"abc", True),
        ({}, {"body": [3, 3]}, b"abc", True),
        ({}, {"body": [0, 4]}, b"abc", False),
        ({}, {"body": [2, 1]}, b"abc", False),
        ({}, {"body": [-1, 1]}, b"abc", False),
        ({}, {"tables": [[0, 3, ["2018"], ""]]}, b"abc", True),
        ({}, {"tables": [[0, 4, ["2018"], ""]]}, b"abc", False),
        ({}, {"tables": [[2, 1, ["2018"], ""]]}, b"abc", False),
        ({}, {"tables": [[0, 3, [5], ""]]}, b"abc", False),
        ({}, {"bytes": 0}, b"", True),
        ({"title": None}, {}, b"abc", False),
    ):
        payload = draft({**ABOUT, **about}, ({**LINE, **line}, data))
        if valid:
            assert len(draft_from_bytes(payload, ReadLimits()).pages) == about.get("pages", 1)
        else:
            with pytest.raises(CorruptDocument):
                draft_from_bytes(payload, ReadLimits())
    two = draft({**ABOUT, "pages": 2}, (LINE, b"abc"), (LINE, b"def"))
    assert [page.text for page in draft_from_bytes(two, ReadLimits(max_pages=2)).pages] == ["abc", "def"]
    with pytest.raises(CorruptDocument):
        draft_from_bytes(two, ReadLimits(max_pages=1))


def test_names_and_lines_have_a_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "x" * 3_000
    found = draft_from_bytes(
        draft({**ABOUT, "title": long, "reason": long}, ({**LINE, "reason": long}, b"abc")), ReadLimits()
    )
    assert (len(found.title), len(found.reason), len(found.pages[0].reason)) == (2_000, 1_000, 1_000)
    line = protocol._page_line(PAGE, 3)
    for most, headings in ((len(line), 1), (len(line) - 1, 0)):
        monkeypatch.setattr(protocol, "_LINE_BYTES", most)
        assert len(json.loads(protocol._page_line(PAGE, 3))["headings"]) == headings
    payload = b'{"error":"DocumentTooLarge","message":"too large"}\n'
    for most, kind in ((len(payload) - 1, DocumentTooLarge), (len(payload) - 2, CorruptDocument)):
        monkeypatch.setattr(protocol, "_LINE_BYTES", most)
        assert type(error_from_bytes(payload)) is kind


def test_frames_of_exactly_the_limit_are_read() -> None:
    frame = draft_frame(DOCUMENT)
    for most, read in ((len(frame), True), (len(frame) - 1, False)):
        frames = Frames(most)
        if read:
            frames.feed(frame)
            assert frames.draft and frames.ready and not frames.done
        else:
            with pytest.raises(Overrun):
                frames.feed(frame[:9])
