"""Facts about embedding models, and the probe texts. The facts are the prefixes and the languages in the published
description ("model card") of each model. The probe texts are fixed texts; their vectors show whether two models are the
same model.

The prefixes are from the model cards of nomic-ai/nomic-embed-text-v1.5 and -v2-moe, mixedbread-ai/mxbai-embed-large-v1,
Snowflake/snowflake-arctic-embed-*, BAAI/bge-*-en-v1.5 and bge-m3, intfloat/e5-* and multilingual-e5-*,
google/embeddinggemma-300m and Qwen/Qwen3-Embedding-*, and from OpenAI's guide to embeddings.
"""

from __future__ import annotations

import base64
import re
from typing import NamedTuple

import numpy as np

from agentformer.types import Matrix, Vector

PROBE = "The quick brown fox, 42 työkalua på svenska: 日本語."
PROBES = (
    PROBE,
    "Who holds the keys of the harbour?",
    "Kuka säilyttää sataman avaimia, ja missä ne ovat yöllä?",
    "Invoice 2024-117: 1 234,50 € due on 3 March; see https://example.org/terms?id=7#fees.",
    "x",
    "Nyckeln ligger hos hamnkaptenen. Fyren släcks klockan sex, och båten går först när dimman har lättat.",
    "灯台の鍵は港長が保管しています。夜は事務所の金庫に入れてあります。",
    "Der Leuchtturmwärter übergab die Schlüssel dem Hafenmeister, nachdem der Sturm die Mole beschädigt hatte.",
    "def keys(harbour):\n    return {door: lock.number for door, lock in harbour.doors.items() if lock.closed}",
    "The harbour master keeps the keys of the lighthouse in a locked cabinet beside the window, and signs each of them "
    "out in a book that goes back to 1911. Visitors who want to climb the tower ask at the office, leave a name and a "
    "deposit, and bring the key back before the evening boat. In winter the stairs are closed after the first frost; "
    "whoever needs to reach the lamp then goes with two others and a rope. The rules have been changed three times, "
    "the last time when a storm took the roof of the boathouse and the spare keys with it.",
)
QUICK_PROBES = 4  # every load of a model checks the first probes, which are short


class ModelCard(NamedTuple):
    """The published facts about a model: the prefixes that the model expects before a query and before a document, and
    its languages in the format of `EmbeddingSpace.languages`. A field is "" if the fact is unknown or if the model
    needs no prefix."""

    query_prefix: str = ""
    document_prefix: str = ""
    languages: str = ""


_PASSAGES = "Represent this sentence for searching relevant passages: "
_WEB_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"

# The first pattern that occurs in the model's name is used. So a longer name comes before its parts.
_CARDS: tuple[tuple[str, ModelCard], ...] = (
    (r"nomic-embed-text-v2", ModelCard("search_query: ", "search_document: ", "*")),
    (r"nomic-embed-text", ModelCard("search_query: ", "search_document: ", "en")),
    (r"mxbai-embed-large", ModelCard(_PASSAGES, "", "en")),
    (r"snowflake-arctic-embed-?(2|[ml]-v2)", ModelCard("query: ", "", "*")),
    (r"snowflake-arctic-embed", ModelCard(_PASSAGES, "", "en")),
    (r"bge-m3", ModelCard("", "", "*")),
    (r"bge-(small|base|large)-zh", ModelCard()),
    (r"bge-(small|base|large)", ModelCard(_PASSAGES, "", "en")),
    (r"multilingual-e5-\w+-instruct", ModelCard(_WEB_SEARCH + " ", "", "*")),
    (r"multilingual-e5", ModelCard("query: ", "passage: ", "*")),
    (r"\be5-(small|base|large)", ModelCard("query: ", "passage: ", "en")),
    (r"embedding-?gemma", ModelCard("task: search result | query: ", "title: none | text: ", "*")),
    (r"qwen3-embedding", ModelCard(_WEB_SEARCH, "", "*")),
    (r"paraphrase-multilingual", ModelCard("", "", "*")),
    (r"all-minilm", ModelCard("", "", "en")),
    (r"text-embedding-(3|ada)", ModelCard("", "", "*")),
)


def model_card(model: str) -> ModelCard:
    """Return the published facts about a model. `model` is its name, and may also contain a publisher and a tag, as in
    `publisher/name:tag`. If the model is unknown, all fields of the result are ""."""
    name = model.lower().replace("_", "-")
    return next((card for pattern, card in _CARDS if re.search(pattern, name)), ModelCard())


def fingerprint(probe: Vector) -> str:
    """Return the vector of the first probe text as base64: the fingerprint of a model in its `EmbeddingSpace`."""
    return base64.b64encode(probe.astype("<f2").tobytes()).decode()


def unit(rows: Matrix) -> Matrix:
    """Return the rows as float32, each scaled to the length 1. The scaling is computed in float32, because the less
    exact format bf16 could give a length such as 1.001."""
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    return np.asarray(rows / lengths, dtype=np.float32)


def mean_cosine(rows: Matrix, reference: Matrix) -> float:
    """Measure whether two models compute the same vectors: compare each row with the row of the same index in
    `reference`, and return the mean of the cosines. Return -1.0 if the shapes differ or if a number in `rows` is not
    finite."""
    if rows.shape != reference.shape or not np.isfinite(rows).all():
        return -1.0
    return float((unit(rows) * unit(reference)).sum(axis=1).mean())
