"""The search of the mode `server`, in which Cosmos DB ranks the passages: the policies of the container, and the
queries. A query compares the namespace twice, as the partition key and as a field, and contains values only as
parameters. Cosmos DB returns passages, and their entries are read from the local copy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agentformer.errors import EmbedderError, SpaceMismatch
from agentformer.index.embedding.active import embedder_for
from agentformer.memory.backends.cosmos_db.container import Container
from agentformer.memory.backends.cosmos_db.items import EQUAL, PARTITION_KEY, metadata_pair, partition_of
from agentformer.records import entries as records
from agentformer.records.codec import to_micros
from agentformer.records.database import Database
from agentformer.records.scopes import OWNERS, searchable_numbers
from agentformer.records.spaces import active_space
from agentformer.types import UNSEARCHED_KINDS, Embedder, Hit, Hits, Query, Scope, Span, Vector

LANGUAGE = "en-US"  # language in which the service analyzes words
MAX_ROWS = 1_000  # the client refuses a longer hybrid search
_MAX_TERMS = 30
_READ = ("pk", "seq", "type", "namespace")  # indexed fields that other queries use
_MAX_AMONG = 20_000  # maximum entry numbers in a query, because its text and parameters may have at most 512 kB
_PASSAGES = 4  # requested passages for each wanted entry; an entry can have several
_K = 60  # the score of a hit is 61/(60 + rank), which is 1 for the first hit
_WORDS_ALONE = "only words were searched, because vectors are unavailable: {}"


class ServerQuery(NamedTuple):
    """The text of a query, and the values of its parameters by name."""

    text: str
    parameters: Mapping[str, Any]


def local_properties() -> dict[str, Any]:
    """Return the properties of a container for the mode `local`. Texts and vectors have no index in Cosmos DB, because
    an index would make each write more expensive."""
    return {"indexing_policy": _indexing(())}


def server_properties(dimension: int) -> dict[str, Any]:
    """Return the properties of a container for the mode `server`. `dimension` is the length of the vectors; it cannot
    be changed later."""
    vector = {"path": "/embedding", "dataType": "float32", "distanceFunction": "cosine", "dimensions": dimension}
    indexes = {
        "vectorIndexes": [{"path": "/embedding", "type": "diskANN"}],
        "fullTextIndexes": [{"path": "/text"}],
    }
    return {
        "indexing_policy": {**_indexing(("/scope/*", "/row/space/?")), **indexes},
        "vector_embedding_policy": {"vectorEmbeddings": [vector]},
        "full_text_policy": {
            "defaultLanguage": LANGUAGE,
            "fullTextPaths": [{"path": "/text", "language": LANGUAGE}],
        },
    }


def words_of(text: str) -> list[str]:
    """Return the distinct words of a query in lower case. They are not analyzed here, because Cosmos DB does this."""
    return list(dict.fromkeys(re.findall(r"\w+", text.casefold())))[:_MAX_TERMS]


def search_query(
    scope: Scope,
    space: int,
    terms: Sequence[str],
    vector: Sequence[float] | None,
    limit: int,
    *,
    among: Sequence[int] | None = None,
) -> ServerQuery:
    """Return the query that ranks the passages of a scope by words, by a vector, or by both (`RRF`). `space` is the
    number of the embedding space. At least one term or a vector is required. If `among` is given, only passages of the
    entries with these numbers are ranked."""
    condition, values = scope_condition(scope)
    if among is not None:
        condition, values = f"{condition} AND ARRAY_CONTAINS(@among, c.scope.num)", {**values, "among": [*among]}
    parameters = {**values, "limit": limit, "space": space}
    fields = ["c.scope.num AS num", "c.row.span_start AS spanStart", "c.row.span_end AS spanEnd"]
    rankings = []
    if terms:
        parameters |= {f"term{n}": term for n, term in enumerate(terms)}
        rankings.append(f"FullTextScore(c.text, {', '.join(f'@term{n}' for n in range(len(terms)))})")
    if vector is not None:
        parameters["vector"] = list(vector)
        rankings.append("VectorDistance(c.embedding, @vector)")
        fields.append("VectorDistance(c.embedding, @vector) AS cosine")
    passages = (
        "c.row.space = @space" if vector is not None and not terms else "(c.type = 'entry' OR c.row.space = @space)"
    )
    order = rankings[0] if len(rankings) == 1 else f"RRF({', '.join(rankings)})"
    rank = "" if order.startswith("VectorDistance") else "RANK "
    text = (
        f"SELECT TOP @limit {', '.join(fields)} FROM c WHERE {condition} AND IS_DEFINED(c.text) AND {passages} "
        f"ORDER BY {rank}{order}"
    )
    return ServerQuery(text, parameters)


def scope_condition(scope: Scope) -> ServerQuery:
    """Return the condition that an item is in the scope, and the parameters of the condition.
    Two parts of the scope are missing. `min_salience` is compared with the salience before decay, so some results are
    not in the scope, and the caller must test them. `where` is not included: the caller passes the numbers of the
    matching entries to `search_query` as `among`."""
    parts = [f"c.{PARTITION_KEY} = @partition", "c.namespace = @namespace"]
    values: dict[str, Any] = {"partition": partition_of(scope.namespace), "namespace": scope.namespace}

    def add(condition: str, name: str, value: Any) -> None:
        parts.append(condition)
        values[name] = value

    for name, column in (("tiers", "tier"), ("kinds", "kind"), ("categories", "category"), ("pages", "page")):
        if allowed := getattr(scope, name):
            add(f"ARRAY_CONTAINS(@{name}, c.scope.{column})", name, list(allowed))
    excluded = sorted({*scope.except_kinds, *UNSEARCHED_KINDS})
    add("NOT ARRAY_CONTAINS(@except_kinds, c.scope.kind)", "except_kinds", excluded)
    for name in EQUAL:
        if (value := getattr(scope, name)) is not None:
            free = scope.or_nobody and name in OWNERS
            equal = f"c.scope.{name} = @{name}"
            add(f"({equal} OR IS_NULL(c.scope.{name}))" if free else equal, name, value)
    for name, column, sign in (
        ("occurred_from", "occurred_at", ">="),
        ("occurred_to", "occurred_at", "<"),
        ("since", "happened_at", ">="),
        ("until", "happened_at", "<"),
    ):
        if (bound := getattr(scope, name)) is not None:
            add(f"(IS_NUMBER(c.scope.{column}) AND c.scope.{column} {sign} @{name})", name, to_micros(bound))
    for number, (key, value) in enumerate(scope.metadata.items()):
        add(f"ARRAY_CONTAINS(c.scope.metadata, @metadata{number})", f"metadata{number}", metadata_pair(key, value))
    if scope.min_salience > 0:
        add("c.scope.salience >= @min_salience", "min_salience", scope.min_salience)
    if not scope.include_archived:
        parts.append("IS_NULL(c.scope.archived_at) AND IS_NULL(c.scope.superseded_by)")
    return ServerQuery(" AND ".join(parts), values)


def _indexing(paths: Sequence[str]) -> dict[str, Any]:
    included = [*(f"/{name}/?" for name in _READ), *paths]
    return {
        "indexingMode": "consistent",
        "automatic": True,
        "includedPaths": [{"path": path} for path in included],
        "excludedPaths": [{"path": "/*"}],
    }


class ServerSearch:
    """Searches in the container `container`. `database` is the local copy, from which the entries are read."""

    def __init__(self, container: Container, database: Database, embedder: Embedder) -> None:
        self._container = container
        self._database = database
        self._embedder = embedder

    def search(self, query: Query) -> Hits:
        """Return the hits, best first. More passages are requested until enough entries of the scope are found."""
        if query.limit < 1 or not query.text.strip():
            return Hits()
        with self._database.reading() as connection:
            active = active_space(connection)
            among = searchable_numbers(connection, query.scope).tolist() if query.scope.where else None
        if among is not None and len(among) > _MAX_AMONG:
            among = None  # too many entries match: their passages are selected from the results
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
