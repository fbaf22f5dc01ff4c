"""Passages of one long document speak for each other: where several are found, each is likelier to be on the subject
than one that stands alone in its document.

Only among long ones. Beside a document of one passage, which nothing can speak for, that would be a vote for length:
with Finnish questions over short and middling passages it cost .026 of R@5.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from agentformer.search.fusion import Side

NAME = "document"
_WEIGHT = 0.5  # of the list beside words and vectors; chosen on a development half, see docs/BENCHMARKS.md
_BEST = 3  # passages of a document that are counted, so that a long one does not win by its length
_LOOKED_AT = 200  # passages that may speak
_FIRST = 10  # passages at the head of the list, of which each has to be of a long document
_DOCUMENTS = (
    "SELECT num, document_id FROM entries WHERE document_id IS NOT NULL AND num IN (SELECT value FROM json_each(?))"
)


def of_documents(connection: sqlite3.Connection, order: Sequence[tuple[int, float]]) -> Side:
    """The passages of `order`, which is best first with scores in 0..1, by what their documents come to: the mean of
    the best three, a missing one being 0. Empty where fewer than two documents are among them."""
    order = order[:_LOOKED_AT]
    rows = connection.execute(_DOCUMENTS, [json.dumps([num for num, _ in order])])
    documents: dict[int, str] = dict(rows.fetchall())
    found: dict[str, list[float]] = {}
    for num, score in order:
        if num in documents:
            found.setdefault(documents[num], []).append(score)
    long = all(len(found.get(documents.get(num, ""), ())) >= _BEST for num, _ in order[:_FIRST])
    if len(found) < 2 or not long:
        return Side(NAME, [], _WEIGHT)
    worth = {document: sum(scores[:_BEST]) / _BEST for document, scores in found.items()}
    ranked = sorted((num for num, _ in order if num in documents), key=lambda num: -worth[documents[num]])
    return Side(NAME, ranked, _WEIGHT, [worth[documents[num]] for num in ranked])
