"""A memory that is there to be measured, with vectors that need no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

from agentformer.embedders import guarded as embedders
from agentformer.embedders.guarded import estimated_spans
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.evaluation.memory_evaluation import Trial
from agentformer.factory import trial
from agentformer.settings import Settings

Opens = Callable[..., Trial]


@pytest.fixture
def opens() -> Iterator[Opens]:
    """A trial with these settings."""
    with ExitStack() as open_ones:

        def opened(**settings: Any) -> Trial:
            return open_ones.enter_context(trial(Settings(embedder="hashing", **settings)))

        yield opened


@pytest.fixture(scope="module", autouse=True)
def _each_text_is_hashed_once() -> Iterator[None]:
    """An optimization divides and embeds the same long texts for many settings, and these tests run a hundred of
    them."""
    spans, vector = HashingEmbedder.token_spans, HashingEmbedder.embed_query
    kept_spans = cache(lambda text: tuple(spans(HashingEmbedder(), text)))
    kept_estimates = cache(lambda text: tuple(estimated_spans(text)))
    kept_vector = cache(lambda dimension, text: vector(HashingEmbedder(dimension), text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedders, "estimated_spans", lambda text: list(kept_estimates(text)))
        patch.setattr(HashingEmbedder, "token_spans", lambda self, text: list(kept_spans(text)))
        patch.setattr(HashingEmbedder, "embed_query", lambda self, text: kept_vector(self.space.dimension, text).copy())
        yield
