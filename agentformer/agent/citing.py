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
_SAME = 12  # letters and digits before a name that a copy has in common with what was copied
_REACH = 100  # characters in which they are looked for
_PLAIN = 5  # characters from which a name is one without brackets, too
_WORD = r"(?:pages?|pp?|sivut?|sidan?|sidor|side|Seiten?|s)\b\.?\s*"
_PAGES = r"(?P<pages>\w{1,10}(?:\s?[,&–-]\s?\d{1,5})*)"
_NAMED = r"(?<!\w){name}(?!\w)"
_BRACKETED = (
    rf"\[\s*{_NAMED}\s*(?:[,;:]?\s*(?:{_WORD})?{_PAGES}\s*)?[\];,]"  # "[rules.pdf, 3]", "[rules.pdf, p. 3; ..."
)
_SPOKEN = rf"{_NAMED}[\s,;:(]{{0,3}}{_WORD}{_PAGES}"  # "rules.pdf (page 3)"
# Lists of a tool's result -> the text of an item.
_LISTS = {"citations": "quote", "passages": "content", "memories": "content", "messages": "content"}


@dataclass(frozen=True, slots=True)
class Citations:
    """`unknown`: places that the answer names and the model was never shown. `borrowed`: documents that the answer
    names only where it repeats, word for word, what another text says of them."""

    known: tuple[Cited, ...]
    unknown: tuple[str, ...] = ()
    borrowed: tuple[str, ...] = ()


def citations(answer: str, done: Iterable[Done], entries: Iterable[MemoryEntry]) -> Citations:
    """What `answer` cites of the results of tools and of the memories that the context held. Of a document that it
    names without a page, each place that the document was quoted at; and those of its pages only, where it names
    some."""
    texts = [*_of_tools(done), *_of_memories(entries)]
    shown = [cited for cited, _ in texts if cited.document]
    borrowed: list[str] = []
    known: dict[tuple[str, int | None], Cited] = {}
    unknown: dict[str, None] = {}
    for name in dict.fromkeys(each.document for each in shown):
        own = [each for each in shown if each.document == name]
        there = {page for each in own for page in _names_of(each)}
        own_words = _own_words(answer, name, texts)
        pages = _pages_named(own_words, name)
        if pages is None:
            borrowed += [name] if _pages_named(answer, name) is not None else []
            continue
        unknown.update(dict.fromkeys(f"{name}, {page}" for page in sorted(pages - there) if page.isdecimal()))
        pages = {page for page in pages if page in there or page.isdecimal()}
        for each in own:
            if not pages or pages & _names_of(each):
                known.setdefault((name, each.page), each)
    return Citations(tuple(known.values()), tuple(unknown), tuple(borrowed))


def _own_words(answer: str, name: str, texts: Sequence[tuple[Cited, str]]) -> str:
    """The answer without the places where it names a document as a text of another one does, at the same words: that
    is what the text says, and no citation."""
    named = re.compile(_NAMED.replace("{name}", re.escape(name)), re.IGNORECASE)
    others = [_letters(text) for cited, text in texts if cited.document != name and named.search(text)]
    if not others:
        return answer
    own = [_letters(text) for cited, text in texts if cited.document == name]

    def kept(mention: re.Match[str]) -> str:
        before = _letters(answer[max(0, mention.start() - _REACH) : mention.start()])[-_SAME:]
        copied = len(before) == _SAME and any(before + _letters(mention[0]) in text for text in others)
        return "" if copied and not any(before in text for text in own) else mention[0]

    return named.sub(kept, answer)


def _letters(text: str) -> str:
    """Letters and digits alone: as little as a copy may change."""
    return "".join(ch for ch in text.casefold() if ch.isalnum())


def _pages_named(answer: str, name: str) -> set[str] | None:
    """The pages that the answer names of a document; None where it does not name the document."""
    patterns = [pattern.replace("{name}", re.escape(name)) for pattern in (_BRACKETED, _SPOKEN, _NAMED)]
    bracketed, spoken, plain = ([*re.finditer(pattern, answer, re.IGNORECASE)] for pattern in patterns)
    if not bracketed and not (plain and len(name) >= _PLAIN):
        return None
    return {page for match in (*bracketed, *spoken) for page in re.findall(r"\w+", match["pages"] or "")}


def _names_of(cited: Cited) -> set[str]:
    return {name for name in (str(cited.page or ""), cited.label) if name}


def _of_tools(done: Iterable[Done]) -> Iterator[tuple[Cited, str]]:
    """What the tools gave, each with its whole text; what is of no document has none."""
    for each in done:
        for key, text in _LISTS.items():
            items = (each.value or {}).get(key)
            for item in items if isinstance(items, list) else ():  # the status has counts under the same name
                yield _cited(item, item[text]), item[text]


def _cited(item: dict[str, Any], quote: str) -> Cited:
    own = str(item.get("entry_id") or item.get("id") or "")
    return Cited(item.get("document") or "", item.get("page"), item.get("label") or "", excerpt(quote, _QUOTE), own)


def _of_memories(entries: Iterable[MemoryEntry]) -> Iterator[tuple[Cited, str]]:
    for entry in entries:
        quote = excerpt(entry.content, _QUOTE)
        source = entry.source
        place = (source.name, source.page, source.label) if source else ("", None, "")
        yield Cited(*place, quote, entry.id), entry.content


def warned(cited: Citations) -> list[str]:
    unknown = [f"the answer names {place}, which the model was not shown" for place in cited.unknown]
    return unknown + [
        f"the answer names {name} in words of another text; that is no citation" for name in cited.borrowed
    ]
