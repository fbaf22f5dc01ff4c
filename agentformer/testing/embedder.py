"""What every embedder owes its callers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from agentformer.errors import TextTooLong
from agentformer.testing.case import raises
from agentformer.text.chunking import windows
from agentformer.types import Embedder

_TEXTS = (
    "The harbour master keeps the keys of the lighthouse.",
    "Sataman päällikkö säilyttää majakan avaimia.",
    "x",
    "日本語のテキスト。",
    "😀 👩‍👩‍👧 🇫🇮",
    "a\n\n\tb  c",
    "naïve café, 1 234,50 € — “quoted”",
)


class EmbedderConformance:
    """Subclasses give `make()`, which may return the same embedder every time."""

    def make(self) -> Embedder:
        raise NotImplementedError

    def test_the_space_describes_the_vectors(self) -> None:
        embedder = self.make()
        space = embedder.space
        assert space.provider and space.dimension > 0 and space.max_tokens > 0
        assert embedder.embed_documents(["a", "b"]).shape == (2, space.dimension)
        assert embedder.embed_query("a").shape == (space.dimension,)
        assert embedder.embed_documents([]).shape == (0, space.dimension)
        assert embedder.space == space

    def test_vectors_are_finite_unit_rows_of_float32(self) -> None:
        embedder = self.make()
        rows = embedder.embed_documents([*_TEXTS, "", " "])
        queries = np.stack([embedder.embed_query(text) for text in _TEXTS])
        for vectors in (rows, queries):
            assert vectors.dtype == np.float32
            assert np.isfinite(vectors).all()
            assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-4)

    def test_a_row_does_not_depend_on_its_neighbours_or_its_place(self) -> None:
        embedder = self.make()
        alone = np.concatenate([embedder.embed_documents([text]) for text in _TEXTS])
        together = embedder.embed_documents(_TEXTS)
        reversed_ = embedder.embed_documents(_TEXTS[::-1])[::-1]
        assert np.allclose(alone, together, atol=1e-5)
        assert np.allclose(alone, reversed_, atol=1e-5)
        assert float(np.abs(alone[0] - alone[2]).max()) > 1e-3

    def test_the_same_words_are_nearest(self) -> None:
        embedder = self.make()
        rows = embedder.embed_documents(_TEXTS)
        for n in (0, 1, 3):
            assert int(np.argmax(rows @ embedder.embed_query(_TEXTS[n]))) == n

    def test_token_spans_are_ordered_inside_the_text_and_miss_no_letter(self) -> None:
        embedder = self.make()
        assert embedder.token_spans("") == [] == embedder.token_spans(" \n ")
        for text in (*_TEXTS, "abc" * 2000):
            spans = embedder.token_spans(text)
            assert all(0 <= start < end <= len(text) for start, end in spans)
            assert all(one.end <= other.start for one, other in pairwise(spans))
            inside = {at for start, end in spans for at in range(start, end)}
            assert [text[at] for at, ch in enumerate(text) if ch.isalnum() and at not in inside] == []

    def test_a_text_that_fits_is_taken_and_a_longer_one_refused(self) -> None:
        embedder = self.make()
        limit = embedder.space.max_tokens
        words = "word " * (limit + 10)
        spans = embedder.token_spans(words)
        fits, longer = words[: spans[limit - 1].end], words[: spans[limit].end]
        assert embedder.embed_documents([fits]).shape[0] == 1
        with raises(TextTooLong):
            embedder.embed_documents(["short", longer])

    def test_the_last_word_that_fits_counts(self) -> None:
        embedder = self.make()
        spans = embedder.token_spans("filler " * 5000)
        per_word = max(1, sum(span.start < len("filler ") for span in spans))
        words = "filler " * (embedder.space.max_tokens // per_word - 8)
        one, other = embedder.embed_documents([words + "volcano", words + "teapot"])
        assert float(one @ other) < 0.99999

    def test_windows_always_fit(self) -> None:
        embedder = self.make()
        long = " ".join(_TEXTS * 60) + " " + "x" * 3000
        spans = windows(long, embedder.token_spans, embedder.space.max_tokens)
        assert len(spans) > 3
        assert len(embedder.embed_documents([long[start:end] for start, end in spans])) == len(spans)

    def test_a_question_longer_than_the_model_is_not_cut(self) -> None:
        embedder = self.make()
        filler = "filler " * (embedder.space.max_tokens * 3)
        one, other = embedder.embed_query(filler + "volcano"), embedder.embed_query(filler + "teapot")
        for vector in (one, other):
            assert abs(float(np.linalg.norm(vector)) - 1) < 1e-4
        assert float(np.abs(one - other).max()) > 1e-4
