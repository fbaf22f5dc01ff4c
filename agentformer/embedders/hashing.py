"""A deterministic embedder that needs no model. Each word, and each group of three characters in a word, increases or
decreases one number of the vector. A hash of the word or group determines which number, and in which direction.

Use this embedder for tests and as an example of an embedder. Two texts are similar if they have words or parts of words
in common. The method is signed feature hashing: Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask
Learning".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence

import numpy as np

from agentformer.errors import InvalidInput, TextTooLong
from agentformer.settings import Settings
from agentformer.types import EmbeddingSpace, Matrix, Span, Vector, spans_of

_TOKEN = re.compile(r"\w{1,16}|[^\w\s]")
_MAX_TOKENS = 256
_TRIGRAM_WEIGHT = 0.3  # less than the 1.0 of a word, so that an exact word scores higher than a similar word


class HashingEmbedder:
    """The embedder `hashing` or `hashing:DIMENSION` in the settings. The default dimension is 256."""

    def __init__(self, dimension: int = 256) -> None:
        if not 8 <= dimension <= 65_536:
            raise InvalidInput("embedder", f"the dimension of 'hashing' must be between 8 and 65536, not {dimension}")
        self._space = EmbeddingSpace("hashing", str(dimension), dimension, _MAX_TOKENS, languages="*")

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> HashingEmbedder:
        """Return the embedder. `model` is the dimension of the vectors as a text, such as "256"; if it is empty, the
        dimension is 256. Raise `InvalidInput` for an invalid dimension."""
        if model and not model.isdecimal():
            raise InvalidInput("embedder", f"the dimension must be a number, as in hashing:256, not {model!r}")
        return cls(int(model)) if model else cls()

    @property
    def space(self) -> EmbeddingSpace:
        return self._space

    def token_spans(self, text: str) -> list[Span]:
        return spans_of(match.span() for match in _TOKEN.finditer(text))

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        return [len(_TOKEN.findall(text)) for text in texts]

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors of the texts, as `Embedder.embed_documents` describes."""
        for count in self.token_counts(texts):
            if count > _MAX_TOKENS:
                raise TextTooLong(
                    f"the text has {count} tokens, but the embedder 'hashing' reads at most {_MAX_TOKENS} tokens; "
                    "split the text into shorter texts"
                )
        if not texts:
            return np.zeros((0, self._space.dimension), dtype=np.float32)
        return np.stack([self.embed_query(text) for text in texts])

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query, as `Embedder.embed_query` describes. The query may have any length."""
        vector = np.zeros(self._space.dimension, dtype=np.float32)
        for feature, weight in _features(text):
            digest = int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=8).digest(), "little")
            vector[(digest >> 1) % len(vector)] += weight if digest & 1 else -weight
        norm = float(np.linalg.norm(vector))
        if norm == 0.0:  # there are no features, or their sum is zero: use a fixed unit vector
            vector[0] = norm = 1.0
        return vector / np.float32(norm)


def _features(text: str) -> Iterator[tuple[str, float]]:
    for match in _TOKEN.finditer(text.casefold()):
        word = match.group()
        yield word, 1.0
        padded = f"^{word}$"
        for i in range(len(padded) - 2):
            yield padded[i : i + 3], _TRIGRAM_WEIGHT
