"""An embedder of hashed character n-grams: similarly spelled texts are near, in any language and without weights.

An example of a plugin in a package of its own. "majakka" and "majakan" share most of their trigrams, so inflected words
are found without a dictionary, but synonyms are not. Cavnar and Trenkle 1994, "N-Gram-Based Text Categorization";
damped counts as in Salton and Buckley 1988.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from agentformer.errors import InvalidInput, TextTooLong
from agentformer.settings import Settings
from agentformer.types import EmbeddingSpace, Matrix, Span, Vector

_TOKEN = re.compile(r"\w{1,12}|[^\w\s]")
_MAX_TOKENS = 512
_SIZES = (3, 4, 5)


class ChargramEmbedder:
    """The embedder `chargrams` or `chargrams:DIMENSION` (default 512)."""

    def __init__(self, dimension: int = 512) -> None:
        # What makes two vectors comparable: a store refuses another model or dimension. "*": knows any language.
        self._space = EmbeddingSpace("chargrams", str(dimension), dimension, _MAX_TOKENS, languages="*")

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> ChargramEmbedder:
        """Return an embedder; the entry point names this function. `model` is the part after the colon, or ""."""
        if model and not (model.isdecimal() and 16 <= int(model) <= 65_536):
            raise InvalidInput("embedder", f"chargrams takes a dimension in 16..65536, not {model!r}")
        return cls(int(model)) if model else cls()

    @property
    def space(self) -> EmbeddingSpace:
        return self._space

    def token_spans(self, text: str) -> list[Span]:
        """Return the offsets of tokens, by which long texts are cut into windows."""
        return [Span(found.start(), found.end()) for found in _TOKEN.finditer(text)]

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return unit rows, (len(texts), dimension). Raises `TextTooLong` instead of cutting a text."""
        for text in texts:
            if (tokens := len(self.token_spans(text))) > _MAX_TOKENS:
                raise TextTooLong(f"{tokens} tokens, and chargrams reads {_MAX_TOKENS}")
        rows = np.zeros((len(texts), self._space.dimension), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            row[:] = self.embed_query(text)
        return rows

    def embed_query(self, text: str) -> Vector:
        """Return a vector, (dimension,), of length 1 for any text, also an empty one."""
        vector = np.zeros(self._space.dimension, dtype=np.float32)
        for gram, count in _grams(text).items():
            place = zlib.crc32(gram.encode("utf-8", "surrogatepass"))  # `hash` differs from process to process
            vector[(place >> 1) % len(vector)] += (1 if place & 1 else -1) * (1 + np.log(count))
        norm = np.linalg.norm(vector)
        if norm == 0:
            vector[0] = norm = np.float32(1)
        return vector / norm


def _grams(text: str) -> Counter[str]:
    padded = f" {' '.join(text.casefold().split())} "
    return Counter(padded[at : at + size] for size in _SIZES for at in range(len(padded) - size + 1))
