"""Passages: the hits of a search with their language, their sentences and their terms."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from agentformer.search.relevance import EntryLanguages
from agentformer.text.analysis import Terms, text_terms
from agentformer.text.sentences import sentence_spans
from agentformer.types import Hit, Span


class Passage:
    """A hit with its language, its sentences and their terms. Each of these values is computed at its first use and
    then kept."""

    def __init__(self, hit: Hit, languages: EntryLanguages) -> None:
        self.hit = hit
        self._languages = languages

    @property
    def content(self) -> str:
        """The text of the passage."""
        return self.hit.entry.content

    @cached_property
    def language(self) -> str:
        """The ISO 639-1 code of the language of the passage, or "" if the language is unknown."""
        return self._languages.of(self.hit.entry)

    @cached_property
    def sentences(self) -> list[Span]:
        """The spans of all sentences in the content of the passage."""
        return sentence_spans(self.content)

    @cached_property
    def sentence_terms(self) -> list[Terms]:
        """The terms of each sentence, in the order of `sentences`."""
        return [text_terms(self.content[span.start : span.end], self.language) for span in self.sentences]

    @cached_property
    def stems(self) -> frozenset[str]:
        """The stems of all words in the content of the passage."""
        return frozenset().union(*(terms.stems for terms in self.sentence_terms))

    @cached_property
    def context_terms(self) -> Terms:
        """The terms of the context line of the passage. The context line consists of the title of the document and the
        headings above the passage."""
        return text_terms(self.hit.entry.context, self.language)


def read_passages(hits: Iterable[Hit]) -> list[Passage]:
    """Return a `Passage` for each hit."""
    languages = EntryLanguages()
    return [Passage(hit, languages) for hit in hits]
