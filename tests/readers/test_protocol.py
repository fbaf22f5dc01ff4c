"""What a reader says to its parent: whole, bounded, and nothing that could hurt whoever shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentformer.errors import CorruptDocument, DocumentTooLarge
from agentformer.readers.adapters import ReadLimits
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
from agentformer.types import DocumentText, Heading, Page, Span

PAGE = Page(1, "a\nb ö 日本 🦦", "iv", "text", "", "pdfium", Span(0, 3), (Heading("a", 1, 0),))
DOCUMENT = DocumentText("application/pdf", (PAGE, Page(2, "", status="no_text")), "t", "ready", "r")


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
    assert (type(error), str(error)) == (DocumentTooLarge, "too large")


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
LINE |= {"headings": []}


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
    for payload in [b"", b"{}\n", b'{"error":"SystemExit","message":"x"}\n', b'{"error":[]}\n']:
        assert type(error_from_bytes(payload)) is CorruptDocument
