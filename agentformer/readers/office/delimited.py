"""Read tables in text files: CSV, with commas, semicolons, tabs or "|" between the cells. Each line is a row, and the
first line has the headers."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator

from agentformer.errors import CorruptDocument
from agentformer.readers import plain
from agentformer.readers.adapters import ReadOptions
from agentformer.readers.media_type import TSV
from agentformer.readers.office.grid import GridPages
from agentformer.readers.sections import document_of
from agentformer.types import DocumentText

_DELIMITERS = ",;\t|"
_SAMPLE = 1 << 16  # characters from which the delimiter is chosen
_LEAST = 0.8  # share of the rows of the sample that must have the same number of cells
_LONGEST_CELL = 1 << 20  # characters; a longer one follows a quotation mark that is never closed


def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
    """Yield the document. Its pages have the rows of the table. A file whose lines have different numbers of cells is
    read as plain text. Raises `CorruptDocument` if a quotation mark is not closed."""
    text = plain.decode(data).replace("\0", "")
    delimiter = _delimiter(text, options.media_type)
    if not delimiter:
        yield from plain.parse(data, options)
        return
    csv.field_size_limit(_LONGEST_CELL)
    pages = GridPages("csv", options.limits)
    try:
        pages.add("", csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise CorruptDocument(
            f"a row of the table cannot be read ({error}); close its quotation marks, or rename the file to .txt"
        ) from error
    yield document_of(options.media_type, pages.pages, options.limits)


def _delimiter(text: str, media_type: str) -> str:
    """Return the delimiter with which most rows have the same number of cells, at least two; or "" if there is none. A
    file of tab-separated values (`media_type`) can only have tabs."""
    sample = text[:_SAMPLE]
    if len(text) > _SAMPLE:
        sample = sample.rpartition("\n")[0] or sample
    best, most = "", 0.0
    for delimiter in "\t" if media_type == TSV else _DELIMITERS:
        try:
            sizes = Counter(len(row) for row in csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter) if row)
        except csv.Error:
            continue
        size, count = max(sizes.items(), key=lambda item: item[1], default=(0, 0))
        share = count / max(1, sizes.total())
        if size > 1 and share >= _LEAST and share * size > most:
            best, most = delimiter, share * size
    return best
