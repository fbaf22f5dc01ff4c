"""Running headers and footers: lines at the edges of pages that come back on other pages, numbers apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from agentformer.types import Span

_EDGE_LINES = 5  # a letterhead or report header of four lines and a rule
_WINDOW = 6  # chapter headers change: look at this many pages on each side
_LEAST = 3  # pages with the same line before it counts as running
_NUMBER = re.compile(r"\d+|\b[ivxlc]+\b")
_LETTERS = 12  # a line with as many is a header whatever numbers it has; "Step 3" may be a slide's title
_DATE = 6  # a line of digits that long and always the same is a date or a number of the document
_MAX_LINE = 200


def bodies(texts: Sequence[str]) -> list[Span | None]:
    """For each page the span without running lines; None where that is the whole page, or nothing of it."""
    lines = [_spans(text) for text in texts]
    tops = [
        [_line(text, s, n) for s in spans[:_EDGE_LINES]]
        for n, (text, spans) in enumerate(zip(texts, lines, strict=True))
    ]
    ends = [
        [_line(text, s, n) for s in spans[::-1][:_EDGE_LINES]]
        for n, (text, spans) in enumerate(zip(texts, lines, strict=True))
    ]
    result: list[Span | None] = []
    for page, (text, spans) in enumerate(zip(texts, lines, strict=True)):
        above, below = _running(tops, page), _running(ends, page)
        if above + below >= len(spans) or not above + below:
            result.append(None)
            continue
        kept = spans[above : len(spans) - below]
        result.append(Span(kept[0].start, kept[-1].end) if any(text[s.start : s.end].strip() for s in kept) else None)
    return result


def _spans(text: str) -> list[Span]:
    return [Span(m.start(), m.end()) for m in re.finditer(r"\S[^\n]*", text)]


def _line(text: str, span: Span, page: int) -> frozenset[str]:
    """What makes this line the same line on another page: its very text, its text with a number that grows as
    the pages do, or its text with any numbers if there is enough of it."""
    line = " ".join(text[span.start : min(span.end, span.start + _MAX_LINE)].casefold().split())
    pattern = _NUMBER.sub("#", line)
    letters = sum(c.isalpha() for c in pattern)
    keys = {f"={line}"} if letters or len(line) >= _DATE else set()
    keys.update(f"{pattern}+{int(n) - page}" for n in _NUMBER.findall(line) if n.isdecimal() and len(n) < 7)
    if letters >= _LETTERS:
        keys.add(pattern)
    return frozenset(keys)


def _running(edges: Sequence[list[frozenset[str]]], page: int) -> int:
    """How many lines from the edge inwards are running on this page."""
    first, last = max(0, page - _WINDOW), min(len(edges), page + _WINDOW + 1)
    seen: Counter[str] = Counter()
    for other in edges[first:last]:
        seen.update({key for keys in other for key in keys})
    count = 0
    for keys in edges[page]:
        if not any(seen[key] >= _LEAST for key in keys):
            break
        count += 1
    return count
