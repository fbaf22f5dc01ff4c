"""The texts of a Chroma database (`chroma.sqlite3`, Chroma 0.4 and later), with their ids and metadata."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from agentformer.archive.chats.items import Chat, ChatMessage
from agentformer.errors import InvalidInput
from agentformer.records import fields

CHROMA = "chroma"
HEAD = b"SQLite format 3\x00"  # the first bytes of the file
_DOCUMENT = "chroma:document"
_TEXTS = """
    SELECT collections.name, embeddings.embedding_id, metadata.key,
        coalesce(metadata.string_value, metadata.int_value, metadata.float_value, metadata.bool_value)
    FROM embeddings
    JOIN segments ON segments.id = embeddings.segment_id JOIN collections ON collections.id = segments.collection
    JOIN embedding_metadata AS metadata ON metadata.id = embeddings.id
    ORDER BY collections.name, embeddings.id, metadata.key
"""


def chroma_values(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each text of the database as a JSON object: `collection`, `id`, `text` and `metadata`. Raises
    `InvalidInput` if the file is not a database of Chroma."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            present: tuple[str, str] | None = None
            values: dict[str, Any] = {}
            for collection, key, name, value in connection.execute(_TEXTS):
                if present != (collection, key):
                    if present:
                        yield _value(*present, values)
                    present, values = (collection, key), {}
                values[name] = value
            if present:
                yield _value(*present, values)
    except sqlite3.Error as error:
        raise InvalidInput("path", f"{path.name} is not a database of Chroma: {str(error)[:120]}") from None


def _value(collection: str, key: str, values: dict[str, Any]) -> dict[str, Any]:
    return {CHROMA: collection, "id": key, "text": values.pop(_DOCUMENT, ""), "metadata": values}


def chroma_chat(value: Mapping[str, Any]) -> Chat:
    """Convert an object of `chroma_values` to a fact."""
    if fields.is_blank(value["text"]):
        return Chat(CHROMA, value[CHROMA], skipped=1)
    fact = ChatMessage(value["id"], "", value["text"], kind="fact", metadata=value["metadata"])
    return Chat(CHROMA, value[CHROMA], messages=[fact])
