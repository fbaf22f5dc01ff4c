"""A vector as one line of an export, and back again with every value checked."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from agentformer.archive.layout import damaged, lines
from agentformer.records import fields
from agentformer.records.vectors import HASH_BYTES
from agentformer.types import EmbeddingSpace, StoredVector, Vector

_MOST_DIMENSIONS = 65_536
_UNIT = 1e-3  # how far a length may be from 1, as for what an embedder gives
_space = TypeAdapter(EmbeddingSpace)


class VectorFile(NamedTuple):
    """A file of vectors of one space."""

    path: str
    space: EmbeddingSpace
    total: int


def vector_line(each: StoredVector) -> str:
    """The hash of the text, and its vector as float32, little-endian, in base64."""
    data = base64.b64encode(np.ascontiguousarray(each.vector, "<f4").tobytes()).decode("ascii")
    return json.dumps({"hash": each.hash.hex(), "vector": data}, sort_keys=True) + "\n"


def read_vectors(folder: Path, file: VectorFile) -> Iterator[StoredVector]:
    """The vectors of a file. Raises `InvalidInput` that names the line."""
    before, number = b"", 0
    for number, line in enumerate(lines(folder, file.path), 1):
        try:
            key, vector = _read_line(line, file.space.dimension)
            if key <= before:
                raise ValueError("is not in the order of hashes, or there twice")
        except (ValueError, KeyError, RecursionError) as error:
            raise damaged(f"{file.path}, line {number}: {str(error)[:200]}") from None
        before = key
        yield StoredVector(file.space, key, vector)
    if number != file.total:
        raise damaged(f"{file.path} has {number} vectors, and the manifest says {file.total}")


def read_space(values: Any) -> EmbeddingSpace:
    """The space that a manifest describes. Raises `ValueError`."""
    try:
        space = _space.validate_json(json.dumps(values, ensure_ascii=False).encode(), strict=True)
    except ValidationError:
        raise ValueError("a space is not described as it must be") from None
    for name in ("provider", "model"):
        fields.name(name, getattr(space, name))
    if not 1 <= space.dimension <= _MOST_DIMENSIONS or space.max_tokens < 1:
        raise ValueError("the dimension or the tokens of a space are none")
    base64.b64decode(space.fingerprint, validate=True)
    return space


def _read_line(line: bytes, dimension: int) -> tuple[bytes, Vector]:
    values = json.loads(line.decode("utf-8"))
    if not isinstance(values, dict) or values.keys() != {"hash", "vector"}:
        raise ValueError("is no vector")
    if not all(isinstance(value, str) for value in values.values()):
        raise ValueError("is no vector")
    key = bytes.fromhex(values["hash"])
    data = base64.b64decode(values["vector"], validate=True)
    if len(key) != HASH_BYTES or len(data) != 4 * dimension:
        raise ValueError("the hash or the vector is not of its length")
    vector = np.frombuffer(data, "<f4").astype(np.float32, copy=False)
    if not np.isfinite(vector).all() or abs(float(np.linalg.norm(vector)) - 1) > _UNIT:
        raise ValueError("the vector is not finite, or not of unit length")
    return key, vector
