"""Which places of documents an answer names, among those that the model had before it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentformer.agent.briefing import excerpt
from agentformer.agent.calls import Done
from agentformer.agent.turns import Cited
from agentformer.types import MemoryEntry

_QUOTE = 500  # characters
_PLAIN = 5  # characters from which a name is one without brackets, too
_WORD = r"(?:pages?|pp?|sivut?|sidan?|sidor|side|Seiten?|s)\b\.?\s*"
_PAGES = r"(?P<pages>\w{1,10}(?:\s?[,&–-]\s?\d{1,5})*)"
_NAMED = r"(?<!\w){name}(?!\w)"
_BRACKETED = (
    rf"\[\s*{_NAMED}\s*(?:[,;:]?\s*(?:{_WORD})?{_PAGES}\s*)?[\];,]"  # "[rules.pdf, 3]", "[rules.pdf, p. 3; ..."
)
_SPOKEN = rf"{_NAMED}[\s,;:(]{{0,3}}{_WORD}{_PAGES}"  # "rules.pdf (page 3)"
_LISTS = {"citations": "quote", "passages": "content", "memories": "content"}  # of a tool's result -> text of an item


@dataclass(frozen=True, slots=True)
class Citations:
    """`unknown`: places that the answer names and the model was never shown."""

    known: tuple[Cited, ...]
    unknown: tuple[str, ...] = ()


def citations(answer: str, done: Iterable[Done], entries: Iterable[MemoryEntry]) -> Citations:
    """What `answer` cites of the results of tools and of the memories that the context held. Of a document that it
    names without a page, each place that the document was quoted at; and those of its pages only, where it names
    some."""
    shown = [*_of_tools(done), *_of_memories(entries)]
    known: dict[tuple[str, int | None], Cited] = {}
    unknown: dict[str, None] = {}
    for name in dict.fromkeys(each.document for each in shown):
        own = [each for each in shown if each.document == name]
        there = {page for each in own for page in _names_of(each)}
        pages = _pages_named(answer, name)
        if pages is None:
            continue
        unknown.update(dict.fromkeys(f"{name}, {page}" for page in sorted(pages - there) if page.isdecimal()))
        pages = {page for page in pages if page in there or page.isdecimal()}
        for each in own:
            if not pages or pages & _names_of(each):
                known.setdefault((name, each.page), each)
    return Citations(tuple(known.values()), tuple(unknown))


def _pages_named(answer: str, name: str) -> set[str] | None:
    """The pages that the answer names of a document; None where it does not name the document."""
    patterns = [pattern.replace("{name}", re.escape(name)) for pattern in (_BRACKETED, _SPOKEN, _NAMED)]
    bracketed, spoken, plain = ([*re.finditer(pattern, answer, re.IGNORECASE)] for pattern in patterns)
    if not bracketed and not (plain and len(name) >= _PLAIN):
        return None
    return {page for match in (*bracketed, *spoken) for page in re.findall(r"\w+", match["pages"] or "")}


def _names_of(cited: Cited) -> set[str]:
    return {name for name in (str(cited.page or ""), cited.label) if name}


def _of_tools(done: Iterable[Done]) -> Iterator[Cited]:
    for each in done:
        for key, text in _LISTS.items():
            items = (each.value or {}).get(key)
            for item in items if isinstance(items, list) else ():  # the status has counts under the same name
                if item.get("document"):
                    yield _cited(item, item[text])


def _cited(item: dict[str, Any], quote: str) -> Cited:
    own = str(item.get("entry_id") or item.get("id") or "")
    return Cited(item["document"], item.get("page"), item.get("label") or "", excerpt(quote, _QUOTE), own)


def _of_memories(entries: Iterable[MemoryEntry]) -> Iterator[Cited]:
    for entry in entries:
        if source := entry.source:
            yield Cited(source.name, source.page, source.label, excerpt(entry.content, _QUOTE), entry.id)


def warned(unknown: Sequence[str]) -> list[str]:
    return [f"the answer names {place}, which the model was not shown" for place in unknown]
