"""Markers around recalled memory in a prompt, and the removal of recalled memory before a text is stored.

Recalled memory is data. It is written between two markers, and each entry is in a separate tag. The content is escaped,
so it cannot contain a marker or a tag. The markers also prevent that recalled text is stored again as new text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from agentformer.text.prompt_quoting import escape_line, escape_text
from agentformer.types import MemoryEntry

RECALLED_OPEN, RECALLED_CLOSE = "<recalled-memory>", "</recalled-memory>"
CORE_OPEN, CORE_CLOSE = "<core-memory>", "</core-memory>"

_MARKER = re.compile("<(?P<close>/?)(?P<frame>recalled|core)-memory>")
_ITEM_OPEN, _ITEM_CLOSE = "<memory id=", "</memory>"
_ID = re.compile('<memory id="([^"<>\n]{1,200})"')
_MAX_ATTRIBUTE = 200  # code points


def recalled_block(entries: Iterable[MemoryEntry]) -> str:
    """Return entries between the markers of recalled memory. The origin of each entry is included."""
    return "\n".join([RECALLED_OPEN, *(_item(entry, _origin(entry)) for entry in entries), RECALLED_CLOSE])


def core_block(blocks: Iterable[MemoryEntry]) -> str:
    """Return core blocks between the markers of core memory. The name of each block is included."""
    return "\n".join([CORE_OPEN, *(_item(block, {"name": block.title}) for block in blocks), CORE_CLOSE])


def without_recalled(text: str) -> tuple[str, list[str]]:
    """Remove all memory blocks. Return the remaining text and the ids of the removed entries.

    A block is a pair of markers around at least one entry. Nested blocks are removed as one block. Markers around other
    text are not removed. If an opening marker has no closing marker, only the entries directly after the opening marker
    are removed. The time is linear in the length of the text.
    """
    remaining, ids, at = [], [], 0
    for start, end in _block_spans(text):
        block_ids = _ID.findall(text, start, end)
        if not block_ids:
            continue
        remaining.append(text[at:start])
        ids += block_ids
        at = end + 1 if text[end : end + 1] == "\n" else end
    remaining.append(text[at:])
    return "".join(remaining), list(dict.fromkeys(ids))


def _block_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of all blocks, in order, without overlap."""
    unclosed: dict[str, list[re.Match[str]]] = {"recalled": [], "core": []}
    spans: list[tuple[int, int]] = []
    for marker in _MARKER.finditer(text):
        opened = unclosed[marker["frame"]]
        if not marker["close"]:
            opened.append(marker)
        elif opened:
            spans.append((opened.pop().start(), marker.end()))
    spans += [marker.span() for opened in unclosed.values() for marker in opened]
    return list(_merged(text, sorted(spans)))


def _merged(text: str, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Extend each span to the end of the entries that follow it, and join overlapping spans."""
    start = end = -1
    for first, last in spans:
        if first >= end:
            if start >= 0:
                yield start, end
            start, end = first, last
        end = _after_items(text, max(end, last))
    if start >= 0:
        yield start, end


def _after_items(text: str, at: int) -> int:
    """Return the end of the entries that begin at `at`, with one entry per line. Return `at` if there is no entry."""
    while True:
        begin = at + 1 if text[at : at + 1] == "\n" else at
        if not text.startswith(_ITEM_OPEN, begin):
            return at
        end = text.find("<", begin + 1)  # an escaped entry contains no bracket
        if not text.startswith(_ITEM_CLOSE, end):
            return at
        at = end + len(_ITEM_CLOSE)


def _item(entry: MemoryEntry, attributes: dict[str, str]) -> str:
    values = {"id": entry.id, **attributes}
    written = "".join(f' {name}="{escape_line(v[:_MAX_ATTRIBUTE])}"' for name, v in values.items() if v)
    return f"<memory{written}>{escape_text(entry.content)}</memory>"


def _origin(entry: MemoryEntry) -> dict[str, str]:
    source = entry.source
    return {
        "kind": entry.kind,
        "date": entry.occurred_at.date().isoformat() if entry.occurred_at else "",
        "speaker": entry.speaker or entry.role,
        "title": "" if source else entry.title,
        "document": source.name if source else "",
        "page": (source.label or str(source.page or "")) if source else "",
    }
