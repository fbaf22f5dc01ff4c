"""What models want before their texts, and which languages they know: no server tells, only their makers do.

The sources are the models' cards: nomic-ai/nomic-embed-text-v1.5 and -v2-moe, mixedbread-ai/mxbai-embed-large-v1,
Snowflake/snowflake-arctic-embed-*, BAAI/bge-*-en-v1.5 and bge-m3, intfloat/e5-* and multilingual-e5-*,
google/embeddinggemma-300m, Qwen/Qwen3-Embedding-*; OpenAI's guide to embeddings for its own.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Habits(NamedTuple):
    """Of a model. `languages` as in `EmbeddingSpace`; "" where its maker says nothing that we know of."""

    query_prefix: str = ""
    document_prefix: str = ""
    languages: str = ""


_PASSAGES = "Represent this sentence for searching relevant passages: "
_WEB_SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"

# The first that is found in the model's name; longer names stand before those that are part of them.
_KNOWN: tuple[tuple[str, Habits], ...] = (
    (r"nomic-embed-text-v2", Habits("search_query: ", "search_document: ", "*")),
    (r"nomic-embed-text", Habits("search_query: ", "search_document: ", "en")),
    (r"mxbai-embed-large", Habits(_PASSAGES, "", "en")),
    (r"snowflake-arctic-embed-?(2|[ml]-v2)", Habits("query: ", "", "*")),
    (r"snowflake-arctic-embed", Habits(_PASSAGES, "", "en")),
    (r"bge-m3", Habits("", "", "*")),
    (r"bge-(small|base|large)-zh", Habits()),
    (r"bge-(small|base|large)", Habits(_PASSAGES, "", "en")),
    (r"multilingual-e5-\w+-instruct", Habits(_WEB_SEARCH + " ", "", "*")),
    (r"multilingual-e5", Habits("query: ", "passage: ", "*")),
    (r"\be5-(small|base|large)", Habits("query: ", "passage: ", "en")),
    (r"embedding-?gemma", Habits("task: search result | query: ", "title: none | text: ", "*")),
    (r"qwen3-embedding", Habits(_WEB_SEARCH, "", "*")),
    (r"paraphrase-multilingual", Habits("", "", "*")),
    (r"all-minilm", Habits("", "", "en")),
    (r"text-embedding-(3|ada)", Habits("", "", "*")),
)


def habits(model: str) -> Habits:
    """Of the model of this name, whoever packed it and whatever its tag."""
    name = model.lower().replace("_", "-")
    return next((known for pattern, known in _KNOWN if re.search(pattern, name)), Habits())
