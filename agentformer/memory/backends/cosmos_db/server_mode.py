"""The search of the mode `server`, in which Cosmos DB ranks: the policies of its container, the fields of its items,
and its queries. All functions are pure. A query names the tenant twice, in the partition key and as a field, and
contains values only as parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agentformer.memory.backends.cosmos_db.container import PARTITION_KEY, Item, partition_of
from agentformer.records.codec import to_micros
from agentformer.records.scopes import OWNERS
from agentformer.types import UNSEARCHED_KINDS, Scope

LANGUAGE = "en-US"  # of the analysis of words by the service
MAX_ROWS = 1_000  # the client refuses a longer hybrid search
_MAX_TERMS = 30
_EQUAL = ("session_id", "agent_id", "user_id", "project", "parent_id", "document_id", "source_type", "source_id")
_COPIED = (
    "num",
    "tier",
    "kind",
    "category",
    "page",
    *_EQUAL,
    "occurred_at",
    "salience",
    "archived_at",
    "superseded_by",
)
_READ = ("pk", "seq", "type", "namespace")  # the fields that other queries use


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


def searched_fields(entry: Mapping[str, Any], passage: str, vector: Sequence[float] | None) -> Item:
    """Return the fields of an item that searches use: a passage of an entry with its vector, or the whole entry without
    a vector. `entry` is a row of the table `entries`."""
    metadata = json.loads(entry["metadata"])
    scope = {
        **{name: entry[name] for name in _COPIED},
        "happened_at": entry["created_at"] if entry["occurred_at"] is None else entry["occurred_at"],
        "metadata": [_pair(key, value) for key, value in metadata.items()],
    }
    text = "\n".join(part for part in (entry["title"], entry["context"], passage) if part)
    return {"scope": scope, "text": text, **({} if vector is None else {"embedding": list(vector)})}


def words_of(text: str) -> list[str]:
    """Return the words of a query, each once. The service analyses them."""
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
    number of the embedding space. There must be a term or a vector. If `among` is given, only passages of the entries
    with these numbers are ranked."""
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
    """Return the condition that an item with `searched_fields` is in the scope, and its parameters. The decay of the
    salience is not in the condition: it only lowers the salience, so the caller tests the results. `where` is not in
    the condition either: the caller gives the numbers of the entries that match it."""
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
    for name in _EQUAL:
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
        add(f"ARRAY_CONTAINS(c.scope.metadata, @metadata{number})", f"metadata{number}", _pair(key, value))
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


def _pair(key: str, value: Any) -> str:
    """Return a text that is equal for equal pairs of metadata: numbers are compared by value."""
    return json.dumps([key, _plain(value)], sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
