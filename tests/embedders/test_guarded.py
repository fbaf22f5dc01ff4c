"""An embedder behind its guard: loaded late, left alone after a failure, never believed blindly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentformer.embedders.guarded import GuardedEmbedder
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.errors import EmbedderUnavailable, MissingExtra, TextTooLong
from agentformer.testing import EmbedderConformance, FlakyEmbedder
from agentformer.types import Embedder, EmbeddingSpace, Matrix, Vector


class TestGuarded(EmbedderConformance):
    def make(self) -> Embedder:
        return GuardedEmbedder(HashingEmbedder)


class Shaped(HashingEmbedder):
    """Returns the rows that it was given, whatever it is asked."""

    def __init__(self, rows: Matrix) -> None:
        super().__init__(8)
        self.rows = rows

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        return self.rows

    def embed_query(self, text: str) -> Vector:
        row: Vector = self.rows[0]
        return row


class Remote(FlakyEmbedder):
    """As an embedder behind a server."""

    request_texts = 2

    @property
    def space(self) -> EmbeddingSpace:
        return self._inner.space

    @property
    def tokens_read(self) -> int:
        return 10 * len(self.documents)


def test_a_dead_embedder_costs_one_call_until_the_wait_is_over() -> None:
    inner = FlakyEmbedder()
    asked: list[int] = []

    def load() -> Embedder:
        asked.append(1)
        if inner.down:
            raise EmbedderUnavailable("nobody answers at the address")
        return inner

    guarded = GuardedEmbedder(load, seconds=1000)
    assert guarded.embed_documents(["a"]).shape == (1, 256)
    inner.down = True
    for _ in range(5):
        with pytest.raises(EmbedderUnavailable):
            guarded.embed_documents(["a"])
    with pytest.raises(EmbedderUnavailable, match="next attempt in"):
        guarded.embed_query("a")
    with pytest.raises(EmbedderUnavailable, match="next attempt in"):
        guarded.token_spans("a")
    assert len(asked) == 1 and guarded.usage.snapshot()["calls"] == 2
    inner.down = False
    guarded.retry_now()
    assert guarded.embed_documents(["a"]).shape == (1, 256)
    assert len(asked) == 2


def test_a_model_that_comes_back_as_another_one_is_refused() -> None:
    flaky = FlakyEmbedder()
    models: list[Embedder] = [flaky, HashingEmbedder(64), HashingEmbedder()]
    guarded = GuardedEmbedder(lambda: models.pop(0), seconds=1000)
    guarded.embed_query("a")
    flaky.down = True
    with pytest.raises(EmbedderUnavailable):
        guarded.embed_query("a")
    guarded.retry_now()
    with pytest.raises(EmbedderUnavailable, match=r"a different model now.*reembed --to hashing:64"):
        guarded.embed_query("a")
    assert guarded.known_space == HashingEmbedder().space
    guarded.retry_now()
    assert guarded.embed_query("a").shape == (256,)


def test_a_model_swapped_under_its_name_and_dimension_is_refused() -> None:
    space = HashingEmbedder().space
    one, other = (replace(space, fingerprint=mark) for mark in ("ADwAAAAAAAA=", "AAAAPAAAAAA="))

    class Named(FlakyEmbedder):
        def __init__(self, given: EmbeddingSpace) -> None:
            super().__init__()
            self.given = given

        @property
        def space(self) -> EmbeddingSpace:
            return self.given

    first = Named(one)
    models = [first, Named(other)]
    guarded = GuardedEmbedder(lambda: models.pop(0))
    guarded.embed_query("a")
    first.down = True
    with pytest.raises(EmbedderUnavailable):
        guarded.embed_query("a")
    guarded.retry_now()
    with pytest.raises(EmbedderUnavailable, match="a different model now"):
        guarded.embed_query("a")


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        (np.full((1, 8), np.nan, np.float32), "finite"),
        (np.full((1, 8), np.inf, np.float32), "finite"),
        (np.zeros((1, 8), np.float32), "unit length"),
        (np.ones((1, 8), np.float32), "unit length"),
        (np.eye(8, dtype=np.float32)[:2], "shape"),
        (np.eye(9, dtype=np.float32)[:1], "shape"),
        (np.zeros((0, 8), np.float32), "shape"),
    ],
)
def test_rows_that_no_index_may_hold_do_not_pass(rows: Matrix, wrong: str) -> None:
    guarded = GuardedEmbedder(lambda: Shaped(rows))
    with pytest.raises(EmbedderUnavailable, match=wrong):
        guarded.embed_documents(["a"])


def test_calls_errors_and_tokens_are_counted() -> None:
    guarded = GuardedEmbedder(Remote)
    guarded.embed_documents(["a", "b"])
    guarded.embed_documents(["c"])
    usage = guarded.usage.snapshot()
    assert (usage["calls"], usage["tokens_in"], usage["errors"]) == (2, 30, {})
    broken = GuardedEmbedder(lambda: Shaped(np.zeros((1, 8), np.float32)))
    with pytest.raises(EmbedderUnavailable):
        broken.embed_documents(["a"])
    usage = broken.usage.snapshot()
    assert usage["errors"] == {"EmbedderUnavailable": 1} and "unit length" in usage["last_error"]


def test_one_behind_a_server_tells_its_space_while_the_server_is_away_and_is_not_made_anew() -> None:
    made: list[Remote] = []

    def load() -> Embedder:
        made.append(Remote())
        return made[0]

    guarded = GuardedEmbedder(load, seconds=1000)
    assert guarded.request_texts == 64
    guarded.embed_query("a")
    assert guarded.request_texts == 2
    made[0].down = True
    with pytest.raises(EmbedderUnavailable):
        guarded.embed_query("a")
    assert guarded.space.dimension == 256
    with pytest.raises(EmbedderUnavailable, match="next attempt in"):
        guarded.embed_query("a")
    made[0].down = False
    guarded.retry_now()
    assert guarded.embed_query("a").shape == (256,) and len(made) == 1


def test_what_a_plugin_raises_and_what_is_not_installed_is_an_embedder_that_cannot_be_used_now() -> None:
    class Broken(HashingEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Matrix:
            raise RuntimeError("a bug of the plugin")

        def embed_query(self, text: str) -> Vector:
            raise TextTooLong("longer than the model reads")

    guarded = GuardedEmbedder(Broken)
    with pytest.raises(EmbedderUnavailable, match=r"hashing:256 failed .RuntimeError: a bug of the plugin"):
        guarded.embed_documents(["a"])
    guarded.retry_now()
    with pytest.raises(TextTooLong):
        guarded.embed_query("a")

    def missing() -> Embedder:
        raise MissingExtra("llm", "an embedder")

    absent = GuardedEmbedder(missing)
    with pytest.raises(EmbedderUnavailable, match=r"\[llm\]"):
        absent.embed_query("a")
    assert absent.usage.snapshot()["errors"] == {"EmbedderUnavailable": 1}


def test_nothing_is_loaded_before_it_is_needed(tmp_path: Path) -> None:
    def load() -> Embedder:
        raise AssertionError("loaded")

    assert GuardedEmbedder(load).known_space is None


def test_a_row_is_unit_length_within_a_thousandth() -> None:
    row = np.zeros((1, 8), np.float32)
    for length, accepted in ((1.0009, True), (0.9991, True), (1.002, False), (0.998, False)):
        row[0, 3] = length
        guarded = GuardedEmbedder(lambda: Shaped(row))
        if accepted:
            assert guarded.embed_documents(["a"])[0, 3] == np.float32(length)
        else:
            with pytest.raises(EmbedderUnavailable, match="unit length"):
                guarded.embed_documents(["a"])
