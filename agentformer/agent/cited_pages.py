"""The documents and pages that an answer cites, and excerpts of texts for people. A citation is valid only if the model
has read text of the cited page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentformer.text.normalize import letters_and_digits
from agentformer.text.places import lines_of
from agentformer.types import MemoryEntry

_QUOTE = 500  # characters
_EXCERPT = 200  # characters
_COMMON = 12  # equal letters and digits before a name in two texts; then the sentence is copied
_BEFORE = 100  # characters before a name in which these letters are searched
_MAX_LINES = 10_000  # of one citation
_MIN_NAME = 5  # characters of a name that counts without brackets
_WORD = r"(?:lines?|pages?|pp?|sivut?|sidan?|sidor|side|Seiten?|s)\b\.?\s*+"
_PAGES = r"(?P<pages>\w{1,10}(?:\s?[,&–-]\s?\d{1,5})*)"
_NAMED = r"(?<!\w){name}(?!\w)"
_BRACKETED = (
    rf"\[\s*+{_NAMED}\s*+(?:[,;:]?\s*+(?:{_WORD})?{_PAGES}\s*+)?[\];,]"  # "[rules.pdf, 3]", "[rules.pdf, p. 3; ..."
)
_WITH_WORD = rf"{_NAMED}[\s,;:(]{{0,3}}{_WORD}{_PAGES}"  # "rules.pdf (page 3)"
# List in a tool's result -> field with the text of an item.
_LISTS = {"citations": "quote", "passages": "content", "memories": "content", "messages": "content"}


@dataclass(frozen=True, slots=True)
class Cited:
    """A citation of a document in the answer. The model has read the cited text. `quote` is the beginning of this text.
    `label` is the page number that is printed on the page, the name of the section, or the lines of code."""

    document: str
    page: int | None
    label: str
    quote: str
    entry_id: str


@dataclass(frozen=True, slots=True)
class Citations:
    """The citations of an answer. `known` has the citations of text that the model has read. `unknown` has the cited
    pages that the model has not read, such as "rules.pdf, 7". `copied` are documents whose names appear only in
    sentences that the model copied from another document."""

    known: tuple[Cited, ...]
    unknown: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()

    def warnings(self) -> list[str]:
        """Return a warning for each item of `unknown` and `copied`."""
        unknown = [
            f"the answer cites {place}, but the model has not read this page; check the citation"
            for place in self.unknown
        ]
        copied = [
            f"the answer contains the name {name} only in copied text, so {name} is not cited" for name in self.copied
        ]
        return unknown + copied


def find_citations(
    answer: str, results: Iterable[Mapping[str, Any] | None], entries: Iterable[MemoryEntry]
) -> Citations:
    """Return the citations in `answer`. The model has read `results`, the values that tools have returned, and
    `entries`, the memories in the prompt. If the answer names a document without pages, each page of it that the model
    has read is cited."""
    texts = [*_of_results(results), *_of_memories(entries)]
    quoted = [cited for cited, _ in texts if cited.document]
    copied: list[str] = []
    known: dict[tuple[str, int | str | None], Cited] = {}
    unknown: dict[str, None] = {}
    for name in dict.fromkeys(cited.document for cited in quoted):
        places = [cited for cited in quoted if cited.document == name]
        readable = {page for cited in places for page in _page_names(cited)}
        pages = _named_pages(_without_copies(answer, name, texts), name)
        if pages is None:
            copied += [name] if _named_pages(answer, name) is not None else []
            continue
        unknown.update(dict.fromkeys(f"{name}, {page}" for page in sorted(pages - readable) if page.isdecimal()))
        pages = {page for page in pages if page in readable or page.isdecimal()}
        for cited in places:
            if not pages or pages & _page_names(cited):
                known.setdefault((name, cited.label if lines_of(cited.label) else cited.page), cited)
    return Citations(tuple(known.values()), tuple(unknown), tuple(copied))


def _without_copies(answer: str, name: str, texts: Sequence[tuple[Cited, str]]) -> str:
    """Return the answer without those mentions of the document `name` that the model copied from another document,
    because they do not count as citations. A mention is a copy if the words before it are copied, too."""
    pattern = re.compile(_NAMED.replace("{name}", re.escape(name)), re.IGNORECASE)
    others = [letters_and_digits(text) for cited, text in texts if cited.document != name and pattern.search(text)]
    if not others:
        return answer
    own = [letters_and_digits(text) for cited, text in texts if cited.document == name]

    def replacement(mention: re.Match[str]) -> str:
        before = letters_and_digits(answer[max(0, mention.start() - _BEFORE) : mention.start()])[-_COMMON:]
        is_copy = len(before) == _COMMON and any(before + letters_and_digits(mention[0]) in text for text in others)
        return "" if is_copy and not any(before in text for text in own) else mention[0]

    return pattern.sub(replacement, answer)


def _named_pages(answer: str, name: str) -> set[str] | None:
    """Return the page numbers and labels that the answer names for a document. Return None if the answer does not
    name the document."""
    patterns = [pattern.replace("{name}", re.escape(name)) for pattern in (_BRACKETED, _WITH_WORD, _NAMED)]
    bracketed, with_word, plain = ([*re.finditer(pattern, answer, re.IGNORECASE)] for pattern in patterns)
    if not bracketed and not (plain and len(name) >= _MIN_NAME):
        return None
    return {page for match in (*bracketed, *with_word) for page in re.findall(r"\w+", match["pages"] or "")}


def _page_names(cited: Cited) -> set[str]:
    """Return the number and the label of the cited page. If source code is cited, return the line numbers."""
    if lines := lines_of(cited.label):
        return {str(line) for line in range(lines[0], min(lines[1], lines[0] + _MAX_LINES) + 1)}
    return {name for name in (str(cited.page or ""), cited.label) if name}


def _of_results(results: Iterable[Mapping[str, Any] | None]) -> Iterator[tuple[Cited, str]]:
    """Yield the texts that the model has read in results of tools, as (citation, complete text). If the text is not
    from a document, the citation has an empty document name."""
    for result in results:
        for key, field in _LISTS.items():
            items = (result or {}).get(key)
            for item in items if isinstance(items, list) else ():  # `memory_status` has counts under the same keys
                entry_id = str(item.get("entry_id") or item.get("id") or "")
                place = (item.get("document") or "", item.get("page"), item.get("label") or "")
                yield Cited(*place, excerpt(item[field], _QUOTE), entry_id), item[field]


def _of_memories(entries: Iterable[MemoryEntry]) -> Iterator[tuple[Cited, str]]:
    for entry in entries:
        source = entry.source
        place = (source.name, source.page, source.label) if source else ("", None, "")
        yield Cited(*place, excerpt(entry.content, _QUOTE), entry.id), entry.content


def excerpt(text: str, limit: int = _EXCERPT) -> str:
    """Return the beginning of a text on one line: at most `limit` characters, and an ellipsis if the text is longer."""
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit and len(text) <= 4 * limit else f"{line[:limit]}…"
