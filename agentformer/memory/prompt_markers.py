"""Markers around recalled memory in a prompt, and their removal before a text is stored.

Recalled memory is data: it stands between two markers, each entry in a tag of its own. Escaping keeps content from
opening or closing either. The markers also keep recalled text from being stored again as if it were new.
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
    """Return entries between the markers of recalled memory, each with its origin."""
    return "\n".join([RECALLED_OPEN, *(_item(entry, _origin(entry)) for entry in entries), RECALLED_CLOSE])


def core_block(blocks: Iterable[MemoryEntry]) -> str:
    """Return core blocks between the markers of core memory, each with its name."""
    return "\n".join([CORE_OPEN, *(_item(block, {"name": block.title}) for block in blocks), CORE_CLOSE])


def without_recalled(text: str) -> tuple[str, list[str]]:
    """Remove all memory blocks; return the remaining text and the ids of the removed entries.

    A block is a pair of markers around at least one entry; nested blocks are removed as one. Markers around plain words
    are left in. An opening marker without a closing one takes only the entries that follow it directly. Linear in the
    length of the text.
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
    """Extend spans over the entries that follow them, and join overlapping spans."""
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
    """Return the end of the entries that begin at `at`, one per line, or `at` if there is none."""
    while True:
        begin = at + 1 if text[at : at + 1] == "\n" else at
        if not text.startswith(_ITEM_OPEN, begin):
            return at
        end = text.find("<", begin + 1)  # an escaped entry holds no bracket
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
