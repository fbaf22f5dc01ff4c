"""What every reranker owes its callers."""

from __future__ import annotations

import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from agentformer.types import Reranker, Vector

_QUESTION = "Who keeps the keys of the lighthouse?"
_ANSWER = "The harbour master keeps the keys of the lighthouse."
_TEXTS = (
    _ANSWER,
    "The bakery opens at six, and on Sundays at eight.",
    "Sataman päällikkö säilyttää majakan avaimia.",
    "日本語のテキスト。",
    "😀 👩‍👩‍👧 🇫🇮",
    "a\n\n\tb  c",
    "x",
    "",
    " \n ",
    "\ud800 half of a surrogate pair",
)
_ENDINGS = ("volcano", "teapot", "keys", "the harbour master", "short of a word", "0123456789", "?!", "日本")
_LONG = "filler " * 4_000  # more than most models read at once


class RerankerConformance:
    """Subclasses give `make()`, which may return the same reranker every time."""

    understands = True  # English, well enough to tell an answer from another sentence; False for random weights

    def make(self) -> Reranker:
        raise NotImplementedError

    def test_each_text_has_one_finite_score(self) -> None:
        reranker = self.make()
        assert reranker.name
        self._sound(reranker.scores(_QUESTION, _TEXTS), len(_TEXTS))
        self._sound(reranker.scores("", _TEXTS[:2]), 2)
        self._sound(reranker.scores("\ud800", ["x"]), 1)
        self._sound(reranker.scores(_QUESTION, []), 0)

    def test_a_score_does_not_depend_on_the_other_texts_or_the_place(self) -> None:
        reranker = self.make()
        texts = [*_TEXTS, _LONG[:3_000]]
        together = reranker.scores(_QUESTION, texts)
        alone = np.concatenate([reranker.scores(_QUESTION, [text]) for text in texts])
        turned = reranker.scores(_QUESTION, texts[::-1])[::-1]
        assert np.allclose(together, alone, atol=1e-4)
        assert np.allclose(together, turned, atol=1e-4)
        assert np.array_equal(together, reranker.scores(_QUESTION, texts))
        assert float(np.ptp(together)) > 1e-3

    def test_an_answer_is_better_than_another_sentence(self) -> None:
        if not self.understands:
            raise unittest.SkipTest("this reranker understands nothing")
        reranker = self.make()
        assert int(np.argmax(reranker.scores(_QUESTION, _TEXTS[:2][::-1]))) == 1
        assert int(np.argmax(reranker.scores("When does the bakery open?", _TEXTS[:2]))) == 1

    def test_the_end_of_a_long_text_is_read(self) -> None:
        scores = self.make().scores(_QUESTION, [f"{_LONG}{ending}" for ending in _ENDINGS])
        self._sound(scores, len(_ENDINGS))
        assert len({*scores.tolist()}) > 1

    def test_the_end_of_a_long_question_is_read(self) -> None:
        reranker = self.make()
        rows = [reranker.scores(f"{_LONG[:7_000]}{ending}", _TEXTS[:2]) for ending in ("volcano", "keys teapot")]
        for row in rows:
            self._sound(row, 2)
        assert not np.array_equal(rows[0], rows[1])

    def test_threads_may_share_a_reranker(self) -> None:
        reranker = self.make()
        asked = [(_TEXTS[n % 2], [*_TEXTS[n:], _LONG[: 100 * n]]) for n in range(6)] * 6
        expected = [reranker.scores(*each) for each in asked[:6]] * 6
        with ThreadPoolExecutor(8) as pool:
            for scores, right in zip(pool.map(lambda each: reranker.scores(*each), asked), expected, strict=True):
                assert np.allclose(scores, right, atol=1e-4)

    def _sound(self, scores: Vector, wanted: int) -> None:
        assert scores.shape == (wanted,) and scores.dtype == np.float32
        assert np.isfinite(scores).all()
