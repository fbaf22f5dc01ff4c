"""Headings of a PDF's outline, found again in the text of their pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from agentformer.readers.pdf.pdfium import OutlineEntry
from agentformer.text.normalize import clean
from agentformer.types import Heading, Page

MAX_TITLE = 300
MAX_LEVEL = 9


def page_headings(pages: list[Page], outline: Iterable[OutlineEntry]) -> list[Page]:
    """The pages with their outline entries as headings, in the order of the text."""
    found: dict[int, list[Heading]] = {}
    for entry in outline:
        title = " ".join(clean(entry.title).split())[:MAX_TITLE]
        if title:
            page = pages[entry.page]
            after = found[entry.page][-1].start + 1 if entry.page in found and found[entry.page][-1].start else 0
            heading = Heading(title, min(entry.level, MAX_LEVEL), locate(title, page, after))
            found.setdefault(entry.page, []).append(heading)
    result = list(pages)
    for number, headings in found.items():
        ordered = tuple(sorted(headings, key=lambda h: h.start))
        result[number] = replace(pages[number], headings=ordered)
    return result


def locate(title: str, page: Page, after: int = 0) -> int:
    """Where the title stands on its page, at a line's start if possible; the body's start if it is not there.

    A number before the title ("2.1") may be on the page only, or in the outline only.
    """
    words = r"\s+".join(re.escape(word) for word in title.split())
    bare = r"\s+".join(re.escape(word) for word in re.sub(r"^[\d.]+\s+", "", title).split())
    for pattern in (rf"(?m)^[ \t]*(?:[\dA-Z.]+\s+)?({words})", rf"(?m)^[ \t]*(?:[\dA-Z.]+\s+)?({bare})", f"({words})"):
        for start in (after, 0):
            match = re.compile(pattern, re.IGNORECASE).search(page.text, start)
            if match:
                return match.start() + len(match.group()) - len(match.group().lstrip())
    return page.body.start if page.body else 0
