"""Passages: the hits of a search with their language, their sentences and their terms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

from agentformer.rag.chunks import CARRIED
from agentformer.search.relevance import EntryLanguages
from agentformer.text.analysis import Terms, text_terms
from agentformer.text.languages import likelier_of_alike
from agentformer.text.places import SEPARATOR
from agentformer.text.sentences import sentence_spans
from agentformer.text.table_rows import TableRow, TextTable, find_rows
from agentformer.types import Hit, Span

_NAMES = 2  # parts of the context line that name the document: its file and its title
_CONTINUED = re.compile(r"\w+[\u00ad\ufffe-]$")  # a word that is cut at the end of the page


class Passage:
    """A hit with its language, its sentences and their terms. Each of these values is computed at its first use and
    then kept."""

    def __init__(self, hit: Hit, languages: EntryLanguages, likely: str = "") -> None:
        self.hit = hit
        self._languages = languages
        self._likely = likely

    @property
    def content(self) -> str:
        """The text of the passage."""
        return self.hit.entry.content

    @cached_property
    def language(self) -> str:
        """The ISO 639-1 code of the language of the passage, or "" if the language is unknown."""
        return self._languages.of(self.hit.entry) or self._likely

    @cached_property
    def rows(self) -> dict[Span, TableRow]:
        """The rows of the tables in the content of the passage, by their spans."""
        return {row.span: row for table in self.tables for row in table.rows}

    @cached_property
    def sentences(self) -> list[Span]:
        """The spans of all sentences and rows of tables in the content of the passage. The headers of a table are not
        included."""
        spans: list[Span] = []
        for span in sentence_spans(self.content):
            spans += _outside(span, self.tables, self.content)
        return sorted([*spans, *self.rows])

    @cached_property
    def sentence_terms(self) -> list[Terms]:
        """The terms of each sentence, in the order of `sentences`. If the first sentence begins on the previous page,
        its terms include those of this beginning. The terms of a row do not include those of its headers."""
        texts = [self.content[slice(*span)] for span in self.sentences]
        texts[:1] = [self.carried + text for text in texts[:1]]
        return [text_terms(text, self.language) for text in texts]

    @cached_property
    def header_stems(self) -> dict[Span, frozenset[str]]:
        """A dictionary: span of each row of a table -> the stems of the title, the headers and the group above the row.
        A stem that also occurs in a row of the table is left out, because it describes only some of the rows."""
        own = {span: frozenset(terms.stems) for span, terms in zip(self.sentences, self.sentence_terms, strict=True)}
        found: dict[Span, frozenset[str]] = {}
        for table in self.tables:
            inside = frozenset[str]().union(*(own.get(row.span, frozenset()) for row in table.rows))
            above = {text: frozenset(text_terms(text, self.language).stems) for text in {r.above for r in table.rows}}
            found |= {row.span: above[row.above] - inside for row in table.rows}
        return found

    @cached_property
    def carried(self) -> str:
        """The beginning of the first sentence if this sentence begins on the previous page, else "". The beginning is
        stored in the context of the chunk. A heading in the context does not count: the content must go on with a small
        letter, a digit or a script without case."""
        carried = self.hit.entry.context.partition(CARRIED)[2]
        first = self.content.lstrip()[:1]
        goes_on = first.islower() or first.isdigit() or (first.isalpha() and first.lower() == first.upper())
        if not carried or not goes_on:
            return ""
        if _CONTINUED.search(carried) and first.islower():
            return carried[:-1]
        return carried + ("" if "\u3040" <= carried[-1] <= "\u9fff" else " ")

    @cached_property
    def tables(self) -> list[TextTable]:
        """The tables in the content of the passage."""
        return find_rows(self.content, self.hit.entry.context.partition(CARRIED)[0].split(SEPARATOR)[-1])

    @cached_property
    def stems(self) -> frozenset[str]:
        """The stems of all words in the content of the passage."""
        return frozenset().union(*(terms.stems for terms in self.sentence_terms))

    @cached_property
    def name_stems(self) -> frozenset[str]:
        """The stems of the name and the title of the document, which begin the context line."""
        names = self.hit.entry.context.partition(CARRIED)[0].split(SEPARATOR)[:_NAMES]
        return frozenset(text_terms(" ".join(names), self.language).stems)

    @cached_property
    def name_letters(self) -> str:
        """The casefolded letters and digits of the name of the document, without spaces, to recognise words of the name
        in the labels of table rows."""
        return "".join(filter(str.isalnum, self.hit.entry.context.partition(SEPARATOR)[0].casefold()))

    @cached_property
    def context_terms(self) -> Terms:
        """The terms of the context line of the passage. The context line consists of the title of the document and the
        headings above the passage."""
        return text_terms(self.hit.entry.context, self.language)


def read_passages(hits: Iterable[Hit], likely: str = "") -> list[Passage]:
    """Return a `Passage` for each hit. If the passages are too short to detect a language, `likely`, the language of
    the question, is assumed. If this language is unknown, too, as for a question of one word, a passage that is Danish,
    Norwegian or Swedish has the likeliest of these languages."""
    languages = EntryLanguages()
    if not likely:
        return [Passage(hit, languages, likelier_of_alike(hit.entry.content)) for hit in hits]
    passages = [Passage(hit, languages) for hit in hits]
    if not any(passage.language for passage in passages):
        return [Passage(passage.hit, languages, likely) for passage in passages]
    return passages


def _outside(span: Span, tables: Iterable[TextTable], content: str) -> Iterator[Span]:
    """Yield the parts of a span that are in no table, without white space around them."""
    start = span.start
    for table in [*tables, None]:
        end = min(span.end, table.span.start) if table else span.end
        if bare := content[start:end].strip():
            at = content.index(bare, start)
            yield Span(at, at + len(bare))
        start = max(start, table.span.end) if table else start
