"""The steps of reading a PDF file at the level of one function, with drafts of pages and without a parser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentformer.errors import CorruptDocument, DocumentTooLarge
from agentformer.readers.formats import PDF, ReadLimits, ReadOptions
from agentformer.readers.pdf import reader as pdf
from agentformer.readers.pdf.engines import PageContent, Unreadable
from agentformer.readers.pdf.layout import Title
from agentformer.readers.pdf.reader import _Draft
from agentformer.readers.sections import outcome_of
from agentformer.text.quality import Quality
from agentformer.types import Page, Span


def draft(verdict: Any = "good", letters: int = 100, score: float = 1.0, **fields: Any) -> _Draft:
    return _Draft("text", "pdfium", Quality(score, letters, verdict, "odd letters"), **fields)


def test_a_file_with_more_pages_than_bytes_is_corrupt() -> None:
    for data, corrupt in (
        (b"/Type /Pages /Count 1000000", True),
        (b"/Type /Pages /Count 999999", False),  # too few digits to be checked
        (b"/Type /Outlines /Count 1000000", False),
        (b"/Count 1000000 " + b"x" * 393 + b"/Pages", True),
        (b"/Count 1000000 " + b"x" * 394 + b"/Pages", False),
        (b"/Pages" + b"x" * 394 + b"/Count 1000000", True),
        (b"/Pages" + b"x" * 395 + b"/Count 1000000", False),
    ):
        if corrupt:
            with pytest.raises(CorruptDocument, match="it claims 1,000,000 pages"):
                pdf._check_page_count(data)
        else:
            pdf._check_page_count(data)


def test_the_better_of_two_texts_is_used() -> None:
    for first, second, better in (
        (draft(failed=True), draft("empty", 0, 0.0), 2),
        (draft("empty", 0, 0.0), draft("good", 60), 2),
        (draft("empty", 0, 0.0), draft("good", 59), 1),
        (draft("empty", 0, 0.0), draft("doubtful", 60), 2),
        (draft("empty", 0, 0.0), draft("garbled", 90), 1),
        (draft(letters=100, score=0.5), draft(letters=50), 2),
        (draft(letters=100, score=0.5), draft(letters=49), 1),
        (draft(score=0.5), draft(score=0.53), 2),
        (draft(score=0.5), draft(score=0.51), 1),
    ):
        assert pdf._better(first, second) is (first, second)[better - 1], (first, second)


def test_pages_without_text_are_read_again_last() -> None:
    pages = [
        draft(),
        draft("empty"),
        draft("doubtful"),
        draft("empty", blank=True),
        draft("garbled"),
        draft(failed=True),
        draft("garbled", blank=True),
    ]
    assert pdf._doubtful(pages) == [2, 4, 5, 1]
    assert pdf._without_text(pages) == [1, 4]


def test_passwords_are_tried_in_order() -> None:
    for password, tried in (
        (None, ("",)),
        ("", ("",)),
        ("a", ("a", "")),
        ("a\u00a0b", ("a\u00a0b", "a b", "")),
        ("a\u00adb", ("a\u00adb", "ab", "")),
        ("\u2168", ("\u2168", "IX", "")),
    ):
        assert pdf._passwords(password) == tried


def test_each_page_without_text_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "without_text", lambda ocr, *, recognised: ("image", "advice"))
    for page, text, status, reason, code in (
        (draft(failed=True), "text", "text", "", ""),
        (draft(failed=True), " ", "failed", "the page is damaged and cannot be read", "page_damaged"),
        (draft("garbled"), "", "garbled", "the text of the page is unusable (odd letters); advice", "garbled"),
        (draft("empty", blank=True), "", "no_text", "the page is blank", "blank"),
        (draft("empty"), "", "no_text", "the page is an image; advice", "image"),
    ):
        assert pdf._page_status(page, text, ReadOptions("a.pdf", PDF)) == (status, reason, code)
    text, failed, garbled, blank = (
        Page(1, "a"),
        Page(2, "", status="failed", reason="x", reason_code="page_damaged"),
        Page(3, "", status="garbled", reason="y", reason_code="garbled"),
        Page(4, "", status="no_text", reason="z", reason_code="blank"),
    )
    for pages, outcome in (
        ([text], ("ready", "", "")),
        ([text, failed], ("ready", "1 of 2 pages have no usable text: x", "page_damaged")),
        ([text, blank], ("ready", "1 of 2 pages have no usable text: z", "blank")),
        ([text, blank, garbled], ("ready", "2 of 3 pages have no usable text: y", "garbled")),
        ([failed], ("no_text", "1 of 1 pages have no usable text: x", "page_damaged")),
        ([failed, garbled], ("garbled", "2 of 2 pages have no usable text: x", "page_damaged")),
    ):
        assert outcome_of(pages) == outcome


class Fast:
    """PDFium with scripted pages. An exception is raised."""

    encrypted = False

    def __init__(self, *texts: str | Exception, values: tuple[tuple[str, str], ...] = ()) -> None:
        self.texts, self.values = texts, values

    def text(self, number: int) -> PageContent:
        if isinstance(text := self.texts[number], Exception):
            raise text
        return PageContent(text, 0.0, [Title("Title", 0)])

    def has_objects(self, number: int) -> bool:
        return number > 1

    def form_values(self, number: int) -> tuple[tuple[str, str], ...]:
        return self.values

    def label(self, number: int) -> str:
        return "iv" if number else ""

    def size(self, number: int) -> tuple[float, float]:
        return 595.0, 842.0

    def largest_image(self, number: int) -> int:
        return 1

    def outline(self) -> Iterator[Any]:
        return iter(())

    def title(self) -> str:
        return ""


def test_every_page_is_read_up_to_the_limit_of_characters() -> None:
    fast: Any = Fast("a page of text", "", "", Unreadable())
    for most, raised in ((14, False), (13, True)):
        pages = [_Draft(failed=True) for _ in range(4)]
        options = ReadOptions("a", PDF, limits=ReadLimits(max_chars=most))
        if raised:
            with pytest.raises(DocumentTooLarge, match="more than 13 characters"):
                pdf._read_all(fast, pages, options)
        else:
            pdf._read_all(fast, pages, options)
            assert [(page.failed, page.blank) for page in pages] == [
                (False, False),
                (False, True),
                (False, False),
                (True, False),
            ]
            assert [len(page.titles) for page in pages] == [1, 0, 0, 0]  # text that is not used has no titles


def test_text_in_the_area_of_symbol_fonts_is_moved_if_it_is_better() -> None:
    text = "The caretaker keeps the keys in the blue cupboard."
    fast: Any = Fast("".join(chr(0xF000 + ord(char)) for char in text), text)
    pages = [_Draft(failed=True), _Draft(failed=True)]
    pdf._read_all(fast, pages, ReadOptions("a", PDF))
    assert [page.raw for page in pages] == [text, text]


def test_filled_fields_follow_the_text_of_a_page() -> None:
    fast: Any = Fast("", values=(("Name", "Aino"), ("", "Oulu"), ("Boat", "known")))
    assert pdf._form_text(0, "known", fast) == "\n\nName: Aino\nOulu"
    assert pdf._form_text(0, "Aino known Oulu", fast) == ""
    options = ReadOptions("a", PDF, ocr=False)
    page = pdf._page(0, draft(), "a text is known", Span(2, 15), fast, options)
    assert (page.number, page.label, page.body) == (1, "1", Span(2, 32))
    assert page.text == "a text is known\n\nName: Aino\nOulu"
    page = pdf._page(1, draft(), "", None, fast, options)
    assert (page.number, page.label, page.body, page.text) == (2, "iv", None, "Name: Aino\nOulu\nBoat: known")
    page = pdf._page(1, draft("empty"), "", None, Fast(""), options)  # type: ignore[arg-type]
    assert (page.method, page.reason) == ("", "the page is an image; text recognition (OCR) is switched off")


def test_recognition_needs_a_few_letters_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(pdf.time, "monotonic", lambda: clock[0])
    results: list[str | Exception] = ["abc", "ab", Unreadable(), "abcd", "never"]

    def recognise(document: Any, number: int) -> str:
        clock[0] += 11.0
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(pdf, "recognise", recognise)
    pages = [draft("empty") for _ in range(5)]
    drafts = [*pdf._recognised(Fast(*[""] * 5), pages, ReadOptions("a", PDF, deadline=43.0))]  # type: ignore[arg-type]
    assert [(page.method, page.recognised) for page in pages] == [
        ("tesseract", False),
        ("pdfium", True),
        ("pdfium", False),
        ("tesseract", False),
        ("pdfium", False),
    ]
    assert len(drafts) == 1 and results == ["never"]  # a draft follows after 22 of 20 seconds
    assert pdf.DRAFT_SECONDS == 20.0


def test_time_of_the_second_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(pdf.time, "monotonic", lambda: clock[0])

    class Slow:
        def __len__(self) -> int:
            return 3

        def text(self, number: int) -> str | None:
            clock[0] += 13.0
            return "a better text of the page" if number != 1 else None

    for fast, read in ((Fast(), [0, 1]), (None, [0, 1, 2])):
        clock[0] = 0.0
        pages = [draft(failed=True) for _ in range(4)]
        pdf._second_reading(b"", pages, [0, 1, 2, 3], fast, Slow(), ReadOptions("a", PDF, deadline=100.0))  # type: ignore[arg-type]
        assert [n for n, page in enumerate(pages) if page.method == "pypdf"] == [n for n in read if n != 1]


def test_a_page_is_drawn_at_300_dots_an_inch_up_to_a_size() -> None:
    assert pdf.scale_for(595, 842) == pytest.approx(300 / 72)
    assert 0 < pdf.scale_for(5000, 5000) < 300 / 72
    assert pdf.scale_for(5000, 5000) ** 2 * 5000 * 5000 <= pdf.MAX_PIXELS
    for width, height, scale in ((8_000, 5_000, 1.0), (8_001, 5_000, 0.0), (1, 1, 0.0), (float("inf"), 1, 0.0)):
        assert pdf.scale_for(width, height) == scale
