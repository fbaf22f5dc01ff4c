"""The sentences and the rows of tables of a passage, as positions in its text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from agentformer.text.splitting import sentence_spans
from agentformer.text.table_rows import TextTable, find_rows
from agentformer.types import Span

CACHED_TEXTS = 256  # passages whose sentences are cached (about 4 MB)


def _outside(spans: Iterable[Span], tables: Sequence[TextTable], content: str) -> Iterator[Span]:
    """Yield the parts of the spans that are in no table, without white space around them. The spans and the tables are
    sorted."""
    ends = list(accumulate((table.span.end for table in tables), max))
    for span in spans:
        start = span.start
        for n in range(bisect_right(ends, start), len(tables) + 1):
            table = tables[n] if n < len(tables) and tables[n].span.start < span.end else None
            end = table.span.start if table else span.end
            if bare := content[start:end].strip():
                at = content.index(bare, start)
                yield Span(at, at + len(bare))
            if table is None or table.span.end >= span.end:
                break
            start = max(start, table.span.end)


class Layout(NamedTuple):
    """The tables of a text, and its sentences and rows of tables in order, without headers of tables."""

    tables: tuple[TextTable, ...]
    sentences: tuple[Span, ...]


# Questions often find the same passages again.
@lru_cache(maxsize=CACHED_TEXTS)
def layout_of(content: str, context: str) -> Layout:
    """Return the layout of a text. `context` has the headers of a table that begins before the text."""
    tables = tuple(find_rows(content, context))
    outside = _outside(sentence_spans(content), tables, content)
    rows = {row.span for table in tables for row in table.rows}
    return Layout(tables, tuple(sorted((*outside, *rows))))
