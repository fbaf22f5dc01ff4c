"""The sources of an answer: chunks of documents, and memories, such as facts, messages and summaries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Literal, get_args

from agentformer.errors import InvalidInput
from agentformer.records import fields
from agentformer.types import DOCUMENT_KINDS, NOBODY, Hit, Hits, Scope

SourceName = Literal["documents", "memories"]
SOURCES: tuple[SourceName, ...] = get_args(SourceName)
_MESSAGE = "message"
# Chosen on even questions about filings.
_FIRST = 10  # hits that decide which document a question is about
_KEPT = 2  # best hits of the question that stay before the hits for the items of a ratio
_ITEM_HITS = 3  # hits for the items of a ratio that are added


@dataclass(frozen=True, slots=True)
class Found:
    """The result of the search for a question. `hits` are the best hits, which an answer shows. `more` are the hits
    after them in the ranking: an extractive answer may also quote one of these if its document also has a hit in
    `hits`, and then shows it, too. `given` are the passages that a language model receives, with the numbers 1, 2 and
    so on; if `given` is empty, the model receives `hits`. `searched` are the sources that were searched."""

    question: str
    hits: Sequence[Hit]
    more: Sequence[Hit] = ()
    given: Sequence[Hit] = ()
    searched: Sequence[SourceName] = SOURCES


def checked_sources(values: Any) -> tuple[SourceName, ...]:
    """Return the sources that the caller chose, or all sources for None. Raises `InvalidInput` for another value."""
    if values is None:
        return SOURCES
    if not isinstance(values, Collection) or isinstance(values, (str, bytes, Mapping)) or not values:
        raise InvalidInput("sources", f"must be a list of {' and '.join(map(repr, SOURCES))}, got {values!r:.80}")
    for value in values:
        if value not in SOURCES:
            raise InvalidInput("sources", f"must contain only {' and '.join(map(repr, SOURCES))}, got {value!r:.80}")
    return tuple(name for name in SOURCES if name in values)


def with_sources(documents: Scope, given: Mapping[str, Any]) -> Scope:
    """Return the scope to search for an answer. `given` contains the parameters of the request, which select the
    sources. `documents` is the scope for a search in documents only. A question about one document (`document_id`) is
    answered from this document. Raises `InvalidInput` for an invalid parameter.

    The memories and documents of the user in `given` are included, and those that belong to no user. Without a user,
    only the latter are included, so that an answer does not show the messages of one user to another one. If
    `every_user` in `given` is true, those of all users are included. A document that `given` names by its id is
    included, unless it belongs to another user than the one in `given`."""
    sources = checked_sources(given.get("sources"))
    user = fields.optional_name("user_id", given.get("user_id"))
    project = fields.optional_name("project", given.get("project"))
    every_user = fields.flag("every_user", given.get("every_user", False)) or documents.document_id is not None
    documents = replace(documents, user_id=None if every_user and user is None else user or NOBODY, or_nobody=True)
    if "memories" not in sources or (documents.document_id is not None and given.get("sources") is None):
        return documents
    if documents.document_id is not None:
        raise InvalidInput(
            "document_id",
            "selects one document, so `sources` must not contain 'memories'; leave out one of these parameters",
        )
    excluded = () if "documents" in sources else tuple(sorted(DOCUMENT_KINDS))
    if not fields.flag("messages", given.get("messages", True)):
        excluded = (*excluded, _MESSAGE)
    return replace(documents, kinds=(), except_kinds=excluded, project=project)


def main_document(hits: Sequence[Hit]) -> str | None:
    """Return the id of the document that the question is probably about: the one with the highest sum of scores among
    the first hits. Return None if none of these hits belongs to a document."""
    scores: defaultdict[str, float] = defaultdict(float)
    for hit in hits[:_FIRST]:
        if hit.entry.source and hit.entry.source.document_id:
            scores[hit.entry.source.document_id] += hit.score
    return max(scores, key=lambda document: scores[document]) if scores else None


def with_items(hits: Hits, items: Sequence[Hit]) -> Hits:
    """Return the hits of a question that names a ratio, together with the first few of `items`, which are the hits for
    the items of the ratio (see `PassageBuilder.items`). The best two hits stay first. After them, the hits of `items`
    alternate with the other hits. A hit of `items` gets the score of the first hit. Each entry occurs only once."""
    added = [replace(hit, score=hits[0].score) for hit in items[:_ITEM_HITS]]
    rest = list(hits[_KEPT:])
    turns = (hit for pair in zip_longest(added, rest) for hit in pair if hit)
    unique: dict[str, Hit] = {}
    for hit in (*hits[:_KEPT], *turns):
        unique.setdefault(hit.entry.id, hit)
    return hits.with_hits(list(unique.values()))
