"""Places in documents, as citations and context lines show them: a page, a heading, or lines of source code."""

from __future__ import annotations

import re

SEPARATOR = " › "  # between the file name, the title and the headings of a context line
_LINES = re.compile(r"(?P<inside>.*?)lines (?P<first>\d+)-(?P<last>\d+)", re.DOTALL)

_PRINTED = re.compile(r"[0-9ivxlcdm.-]{1,8}", re.IGNORECASE)  # a printed page number


def lines_label(first: int, last: int, inside: str = "") -> str:
    """Return the label of lines: "lines 3-9", or "cell 2, lines 3-9" with `inside`."""
    return f"{inside}, lines {first}-{last}" if inside else f"lines {first}-{last}"


def lines_of(label: str) -> tuple[int, int] | None:
    """Return the first and the last line that a label names, or None if the label names no lines."""
    found = _LINES.fullmatch(label)
    return (int(found["first"]), int(found["last"])) if found else None


def label_of_part(label: str, before: str, part: str) -> str:
    """Return the label of a part of a text, such as "lines 5-7" for a part of "lines 3-9". `label` is the label of the
    text, and `before` the text before the part. A label that names no lines is returned unchanged."""
    found = _LINES.fullmatch(label)
    if not found:
        return label
    first = int(found["first"]) + before.count("\n")
    return f"{found['inside']}lines {first}-{first + part.rstrip().count(chr(10))}"


def page_name(page: int | None, label: str) -> str:
    """Return a page as people read it: "page 5", "page 5 (printed iii)" if another number is printed on the page, or
    "page 5 (Fees)" for a named section. Return the label if there is no number, and "" if there is neither."""
    if not page or not label or label == str(page):
        return f"page {page}" if page else label
    return f"page {page} (printed {label})" if _PRINTED.fullmatch(label) else f"page {page} ({label})"


def cited_place(name: str, page: int | None, label: str) -> str:
    """Return the place of a quotation for people: "rules.pdf, page 5 (printed iii)", or "src/a.py (lines 3-9)". The
    console has the same form (`console/static/source.js`)."""
    if lines_of(label):
        return f"{name} ({label})"
    return ", ".join(filter(None, (name, page_name(page, label))))


def place_name(name: str, page: int | None, label: str) -> str:
    """Return the place of a passage for a model: "rules.pdf, page iv", or "src/a.py (lines 3-9)" for source code."""
    if lines_of(label):
        return f"{name} ({label})"
    return f"{name}, page {label or page}" if label or page else name
