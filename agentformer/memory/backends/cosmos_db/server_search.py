"""Runs the searches of the mode `server`: Cosmos DB ranks the passages, and the local copy has their entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentformer.errors import EmbedderError, SpaceMismatch
from agentformer.index.embedding.active import embedder_for
from agentformer.memory.backends.cosmos_db.container import Container
from agentformer.memory.backends.cosmos_db.server_mode import MAX_ROWS, search_query, words_of
from agentformer.records import entries as records
from agentformer.records.database import Database
from agentformer.records.scopes import searchable_numbers
from agentformer.records.spaces import active_space
from agentformer.types import Embedder, Hit, Hits, Query, Span, Vector

_MAX_AMONG = 20_000  # numbers of entries in a query, whose text and parameters have at most 512 kB
_PASSAGES = 4  # requested passages for each wanted entry; an entry can have several
_K = 60  # of the score 61/(60 + rank), which is 1 for the first hit
_WORDS_ALONE = "only words were searched, because vectors are unavailable: {}"


class ServerSearch:
    """Searches in the container `container`. `database` is the local copy."""

    def __init__(self, container: Container, database: Database, embedder: Embedder) -> None:
        self._container = container
        self._database = database
        self._embedder = embedder

    def search(self, query: Query) -> Hits:
        """Return the hits, best first. More passages are requested until there are enough entries in the scope."""
        if query.limit < 1 or not query.text.strip():
            return Hits()
        with self._database.reading() as connection:
            active = active_space(connection)
            among = searchable_numbers(connection, query.scope).tolist() if query.scope.where else None
        if among is not None and len(among) > _MAX_AMONG:
            among = None  # many entries match: their passages are selected from the results
        vector: Vector | None = None
        warnings: tuple[str, ...] = ()
        if active is not None and query.mode != "lexical":
            try:
                vector = embedder_for(self._embedder, active[1]).embed_query(query.text)
            except SpaceMismatch:
                raise
            except EmbedderError as error:
                warnings = (_WORDS_ALONE.format(error),)
        terms = words_of(query.text) if query.mode != "dense" or warnings else []
        if among == [] or (not terms and vector is None):
            return Hits([], warnings)
        values = None if vector is None else [float(value) for value in vector]
        rows, top = 0, min(MAX_ROWS, query.limit * _PASSAGES)
        while True:
            space = active[0] if active else 0
            text, parameters = search_query(query.scope, space, terms, values, top, among=among)
            found = list(self._container.query(text, **parameters))
            hits = self._hits(query, found)
            if len(hits) >= query.limit or len(found) < top or top == MAX_ROWS or len(found) == rows:
                return Hits(hits[: query.limit], warnings, one_sided=bool(warnings))
            rows, top = len(found), min(MAX_ROWS, top * _PASSAGES)

    def _hits(self, query: Query, rows: list[dict[str, Any]]) -> list[Hit]:
        best: dict[int, Mapping[str, Any]] = {}
        for row in rows:
            best.setdefault(int(row["num"]), row)
        with self._database.reading() as connection:
            allowed = set(searchable_numbers(connection, query.scope, list(best)).tolist())
            entries = records.by_num(connection, [num for num in best if num in allowed])
        hits = []
        for rank, num in enumerate((num for num in best if num in entries), 1):
            passage = best[num]
            span = Span(passage["spanStart"], passage["spanEnd"]) if passage.get("spanEnd") is not None else None
            hit = Hit(entries[num], (_K + 1) / (_K + rank), dense_score=passage.get("cosine"), span=span)
            if hit.score >= query.min_score:
                hits.append(hit)
        return hits
