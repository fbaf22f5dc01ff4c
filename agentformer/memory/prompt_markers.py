"""How recalled memory is marked in a prompt, and how it is taken out again before a text is stored.

What was recalled is data: it stands between two markers, each entry in a tag of its own, and no content can open
or close either, since it is escaped. The same markers keep recalled text from being stored as if
somebody had just said it.
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
_LONGEST_VALUE = 200  # code points of an attribute


def recalled_block(entries: Iterable[MemoryEntry]) -> str:
    """Entries between the markers of recalled memory, each with what is known of where it comes from."""
    return "\n".join([RECALLED_OPEN, *(_item(entry, _origin(entry)) for entry in entries), RECALLED_CLOSE])


def core_block(blocks: Iterable[MemoryEntry]) -> str:
    """Core blocks between their own markers, each with its name."""
    return "\n".join([CORE_OPEN, *(_item(block, {"name": block.title}) for block in blocks), CORE_CLOSE])


def without_recalled(text: str) -> tuple[str, list[str]]:
    """The text with all blocks of ours cut out, and the ids of the entries that stood there.

    A block is what stands between these markers and holds an entry; nested ones go as one. Markers around nothing
    but words are somebody's words, and stay. An opening that is never closed takes only the entries that follow it
    directly. Linear in the text.
    """
    kept, ids, at = [], [], 0
    for start, end in _covered(text):
        held = _ID.findall(text, start, end)
        if not held:
            continue
        kept.append(text[at:start])
        ids += held
        at = end + 1 if text[end : end + 1] == "\n" else end
    kept.append(text[at:])
    return "".join(kept), list(dict.fromkeys(ids))


def _covered(text: str) -> list[tuple[int, int]]:
    """The spans of all blocks, in order, without overlap."""
    unclosed: dict[str, list[re.Match[str]]] = {"recalled": [], "core": []}
    found: list[tuple[int, int]] = []
    for marker in _MARKER.finditer(text):
        waiting = unclosed[marker["frame"]]
        if not marker["close"]:
            waiting.append(marker)
        elif waiting:
            found.append((waiting.pop().start(), marker.end()))
    found += [marker.span() for waiting in unclosed.values() for marker in waiting]
    return list(_merged(text, sorted(found)))


def _merged(text: str, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Spans grown over the entries that follow them, and joined where they overlap."""
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
    """The end of the entries that begin at `at`, one a line; `at` itself where none does."""
    while True:
        begin = at + 1 if text[at : at + 1] == "\n" else at
        if not text.startswith(_ITEM_OPEN, begin):
            return at
        end = text.find("<", begin + 1)  # no entry of ours holds a bracket
        if not text.startswith(_ITEM_CLOSE, end):
            return at
        at = end + len(_ITEM_CLOSE)


def _item(entry: MemoryEntry, attributes: dict[str, str]) -> str:
    known = "".join(f' {name}="{_value(value)}"' for name, value in {"id": entry.id, **attributes}.items() if value)
    return f"<memory{known}>{escape_text(entry.content)}</memory>"


def _origin(entry: MemoryEntry) -> dict[str, str]:
    source = entry.source
    page = (source.label or str(source.page or "")) if source else ""
    return {
        "kind": entry.kind,
        "date": entry.occurred_at.date().isoformat() if entry.occurred_at else "",
        "speaker": entry.speaker or entry.role,
        "title": "" if source else entry.title,
        "document": source.name if source else "",
        "page": page,
    }


def _value(value: str) -> str:
    """One line of bounded length that cannot leave its quotes."""
    return escape_line(value[:_LONGEST_VALUE])
