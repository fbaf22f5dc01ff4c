"""Long texts in parts, and documents from parts: what the readers without pages share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agentformer.errors import DocumentTooLarge, EmptyDocument
from agentformer.readers.sandbox.limits import ReadLimits
from agentformer.types import DocumentText, Heading, Page

SECTION_CHARS = 40_000  # about 15 printed pages: a citation's page still says where to look
_BORDERS = ("\n\n", "\n", ". ", "。", " ")


def parts_of(text: str, size: int = SECTION_CHARS) -> Iterator[str]:
    """`text` in order in parts of at most `size`, cut at the best border in a part's second half."""
    start = 0
    while len(text) - start > size:
        end = start + size
        for border in _BORDERS:
            found = text.rfind(border, start + size // 2, end)
            if found >= 0:
                end = found + len(border)
                break
        yield text[start:end]
        start = end
    yield text[start:]


def page_of(number: int, text: str, label: str = "", headings: tuple[Heading, ...] = (), method: str = "text") -> Page:
    if text.strip():
        return Page(number, text, label, headings=headings, method=method)
    return Page(number, "", label, status="no_text", reason="blank", method=method)


def document_of(media_type: str, pages: Iterable[Page], limits: ReadLimits, title: str = "") -> DocumentText:
    """The document, within its limits. One without a visible character raises `EmptyDocument`."""
    kept: list[Page] = []
    chars = 0
    for page in pages:
        chars += len(page.text)
        if chars > limits.max_chars:
            raise DocumentTooLarge(f"the text has more than {limits.max_chars:,} characters; split the file")
        if len(kept) >= limits.max_pages:
            raise DocumentTooLarge(f"the file has more than {limits.max_pages:,} sections; split it")
        kept.append(page)
    if not any(page.status == "text" for page in kept):
        raise EmptyDocument("the file contains no text, only blanks")
    return DocumentText(media_type, tuple(kept), title)
