"""A reranker behind its guard, and how settings name one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from agentformer.errors import InvalidInput, MissingExtra, RerankerUnavailable, install_command
from agentformer.rerankers.guarded import GuardedReranker, named_reranker
from agentformer.settings import Settings
from agentformer.testing import OverlapReranker, RerankerConformance
from agentformer.types import Reranker


class TestOverlap(RerankerConformance):
    def make(self) -> Reranker:
        return OverlapReranker()


class TestGuarded(RerankerConformance):
    def make(self) -> Reranker:
        return GuardedReranker("overlap", OverlapReranker)


class Says(OverlapReranker):
    """Gives back what it was made with, or raises it."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def scores(self, query: str, texts: Sequence[str]) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def guarded(reranker: Reranker, seconds: float = 1000.0) -> GuardedReranker:
    return GuardedReranker("test:one", lambda: reranker, seconds=seconds)


def test_it_is_loaded_at_its_first_use_and_once() -> None:
    made: list[OverlapReranker] = []

    def load() -> Reranker:
        made.append(OverlapReranker())
        return made[-1]

    reranker = GuardedReranker("test:one", load)
    assert reranker.name == "test:one" and len(reranker.scores("keys", [])) == 0 and not made
    for _ in range(3):
        reranker.scores("keys", ["the keys"])
    assert len(made) == 1 and len(made[0].asked) == 3


def test_what_is_no_score_for_each_text_is_told_and_not_believed() -> None:
    for answer, said in [
        (np.zeros(3), r"shape \(3,\), not \(2,\)"),
        (np.zeros((2, 1)), r"shape \(2, 1\), not \(2,\)"),
        ([0.5, float("nan")], "not finite"),
        ([0.5, float("inf")], "not finite"),
        (None, "test:one"),
        (["good", "bad"], r"failed \(ValueError"),
        (RuntimeError("out\nof memory"), r"failed \(RuntimeError: out of memory"),
        (MissingExtra("sbert", "a cross-encoder"), re.escape(install_command("sbert"))),
        (RerankerUnavailable("asleep"), "^asleep$"),
    ]:
        with pytest.raises(RerankerUnavailable, match=said):
            guarded(Says(answer)).scores("keys", ["a", "b"])


def test_one_that_failed_is_left_alone_for_a_while_and_then_asked_again() -> None:
    inner = OverlapReranker(down=True)
    reranker = guarded(inner)
    with pytest.raises(RerankerUnavailable, match="switched off"):
        reranker.scores("keys", ["a"])
    for _ in range(3):
        with pytest.raises(RerankerUnavailable, match="switched off by a test; next attempt in"):
            reranker.scores("keys", ["a"])
    assert len(inner.asked) == 1

    again = guarded(inner, seconds=0.0)
    with pytest.raises(RerankerUnavailable):
        again.scores("keys", ["a"])
    inner.down = False
    assert len(again.scores("keys", ["a", "b"])) == 2


def test_settings_name_one_and_load_nothing() -> None:
    assert named_reranker(Settings()) is None
    named = named_reranker(Settings(reranker=" sbert:nowhere/to/be/found "))
    assert named is not None and named.name == "sbert:nowhere/to/be/found"
    with pytest.raises(InvalidInput, match="rerankers: there is no 'bert'; the known names are sbert"):
        named_reranker(Settings(reranker="bert:x"))
    with pytest.raises(InvalidInput, match="rerank_hits"):
        Settings(rerank_hits=0)
