"""An embedder with precomputed rows, to measure a store without a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentformer.embedders.calibration import CALIBRATIONS, Calibration
from agentformer.registry import PARTS
from agentformer.settings import Settings
from agentformer.types import EmbeddingSpace, Matrix, Span, Vector
from bench.speed.passages import WINDOW, lengths, tokenizer

SPEC = "prepared"
SPACE = EmbeddingSpace(SPEC, "rows", 384, WINDOW)
SHELF: dict[str, Vector] = {}  # vectors of all texts that the run embeds


class Prepared:
    """An embedder with the packaged model's tokens, so that texts are cut and languages judged as with that model."""

    def __init__(self, model: str, settings: Settings) -> None:
        self.space = SPACE
        self._tokenizer = tokenizer()

    def token_spans(self, text: str) -> list[Span]:
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return [Span(start, end) for start, end in offsets]

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        return lengths(texts)

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        return np.stack([SHELF[text] for text in texts])

    def embed_query(self, text: str) -> Vector:
        return SHELF[text]


def register() -> None:
    """Make `connect(embedder="prepared")` find it like a plugin. Its rows are those of all-MiniLM-L6-v2, whose scale is
    known. Without it, the samples of a scale would be embedded, and the embedder would fail, because it has no rows of
    them; all searches would then use only words."""
    PARTS["embedders"][SPEC] = "bench.speed.prepared:Prepared"
    CALIBRATIONS.add(SPACE, Calibration())
