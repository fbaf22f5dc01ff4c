"""Processes that have different analyzers share one word index.

Each entry of the index names the analyzers that took part in it. A process brings up to date the entries that lack one
of its own, unless another took part that it does not have itself: what it writes is then always more than what was
there, so no two processes write an entry back and forth. Who has less searches what is there, and says so once.
"""

from __future__ import annotations

import logging
from typing import Any

import tantivy

from agentformer.text.analyzers import ANALYZED_LANGUAGES, Analyzer, Analyzers

log = logging.getLogger("agentformer")

FIELD = "analyzers"


class Sharing:
    """What one process makes of an index that others write too. For one thread at a time."""

    def __init__(self, analyzers: Analyzers) -> None:
        self._analysers = analyzers
        self._told: set[str] = set()

    def lacking(self, searcher: Any, schema: Any) -> list[int]:
        """Numbers of the entries of a commit that are to be analysed again. Raises `MissingExtra` for an analyzer that
        is required and cannot be loaded."""
        noted = {name for name, _ in searcher.terms_with_prefix(FIELD, "")}
        own = {each.name for each in self._known()}
        self._tell(noted - own)
        strange = [_term(schema, FIELD, name) for name in noted - own]
        found: set[int] = set()
        for analyzer in self._analysers.of_any:
            found |= self._without(searcher, schema, analyzer, tantivy.Query.all_query(), strange)
        for language in ANALYZED_LANGUAGES:
            for analyzer in self._analysers.of(language):
                spoken = _term(schema, "language", language)
                found |= self._without(searcher, schema, analyzer, spoken, strange)
        return sorted(found)

    def _known(self) -> list[Analyzer]:
        return [
            *self._analysers.of_any,
            *(each for language in ANALYZED_LANGUAGES for each in self._analysers.of(language)),
        ]

    def _without(self, searcher: Any, schema: Any, analyzer: Analyzer, whose: Any, strange: list[Any]) -> set[int]:
        must, never = tantivy.Occur.Must, tantivy.Occur.MustNot
        shut_out = [(never, each) for each in (_term(schema, FIELD, analyzer.name), *strange)]
        query = tantivy.Query.boolean_query([(must, whose), *shut_out])
        count = searcher.search(query, limit=1).count
        if not count or not analyzer.ready():
            return set()
        hits = searcher.search(query, limit=count, count=False).hits
        return {int(num) for num in searcher.fast_field_values("num", [address for _, address in hits])}

    def _tell(self, strange: set[str]) -> None:
        if new := strange - self._told:
            self._told |= new
            log.warning(
                "the word index was made with %s, which this process does not have: it finds by what remains",
                ", ".join(sorted(new)),
            )


def _term(schema: Any, field: str, value: str) -> Any:
    return tantivy.Query.term_query(schema, field, value, "basic")
