"""Conformance suites of embedders, rerankers and language models."""

from __future__ import annotations

import json
import math
import unittest
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from agentformer.errors import InvalidInput, PromptTooLong, TextTooLong
from agentformer.testing.case import raises
from agentformer.text.splitting import windows
from agentformer.types import (
    ChatMessage,
    Embedder,
    LanguageModel,
    Reply,
    Reranker,
    TokenCounter,
    Tool,
    ToolCall,
    Vector,
)

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
    """The contract of `Embedder` as tests. A subclass defines `make()`, which returns the embedder under test."""

    def make(self) -> Embedder:
        """Return the embedder under test. Every call may return the same object."""
        raise NotImplementedError

    def test_the_space_describes_the_vectors(self) -> None:
        """Vectors have the dimension that `space` reports."""
        embedder = self.make()
        space = embedder.space
        assert space.provider and space.dimension > 0 and space.max_tokens > 0
        assert embedder.embed_documents(["a", "b"]).shape == (2, space.dimension)
        assert embedder.embed_query("a").shape == (space.dimension,)
        assert embedder.embed_documents([]).shape == (0, space.dimension)
        assert embedder.space == space

    def test_vectors_are_finite_unit_rows_of_float32(self) -> None:
        """Vectors have the type float32, finite values and unit length."""
        embedder = self.make()
        rows = embedder.embed_documents([*_TEXTS, "", " "])
        queries = np.stack([embedder.embed_query(text) for text in _TEXTS])
        for vectors in (rows, queries):
            assert vectors.dtype == np.float32
            assert np.isfinite(vectors).all()
            assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-4)

    def test_a_row_does_not_depend_on_the_batch(self) -> None:
        """The vector of a text does not depend on the other texts of the batch or on their order."""
        embedder = self.make()
        alone = np.concatenate([embedder.embed_documents([text]) for text in _TEXTS])
        together = embedder.embed_documents(_TEXTS)
        reversed_ = embedder.embed_documents(_TEXTS[::-1])[::-1]
        assert np.allclose(alone, together, atol=1e-5)
        assert np.allclose(alone, reversed_, atol=1e-5)
        assert float(np.abs(alone[0] - alone[2]).max()) > 1e-3

    def test_a_text_is_nearest_to_itself(self) -> None:
        """If a query has the same text as a document, no other document is nearer to the query."""
        embedder = self.make()
        rows = embedder.embed_documents(_TEXTS)
        for n in (0, 1, 3):
            assert int(np.argmax(rows @ embedder.embed_query(_TEXTS[n]))) == n

    def test_token_spans_cover_every_letter_in_order(self) -> None:
        """Token spans are in order, lie inside the text, and cover every letter."""
        embedder = self.make()
        assert embedder.token_spans("") == [] == embedder.token_spans(" \n ")
        for text in (*_TEXTS, "abc" * 2000):
            spans = embedder.token_spans(text)
            assert all(0 <= start < end <= len(text) for start, end in spans)
            assert all(one.end <= other.start for one, other in pairwise(spans))
            inside = {at for start, end in spans for at in range(start, end)}
            assert [text[at] for at, ch in enumerate(text) if ch.isalnum() and at not in inside] == []

    def test_a_text_over_max_tokens_is_refused(self) -> None:
        """A text of `max_tokens` tokens is embedded. A longer text raises `TextTooLong`."""
        embedder = self.make()
        limit = embedder.space.max_tokens
        words = "word " * (limit + 10)
        spans = embedder.token_spans(words)
        fits, longer = words[: spans[limit - 1].end], words[: spans[limit].end]
        assert embedder.embed_documents([fits]).shape[0] == 1
        with raises(TextTooLong):
            embedder.embed_documents(["short", longer])

    def test_the_last_word_that_fits_changes_the_vector(self) -> None:
        """In a text of almost `max_tokens` tokens, the last word changes the vector, because the whole text is read."""
        embedder = self.make()
        spans = embedder.token_spans("filler " * 5000)
        per_word = max(1, sum(span.start < len("filler ") for span in spans))
        words = "filler " * (embedder.space.max_tokens // per_word - 8)
        one, other = embedder.embed_documents([words + "volcano", words + "teapot"])
        assert float(one @ other) < 0.99999

    def test_windows_of_a_long_text_fit(self) -> None:
        """A long text can be split by its token spans into pieces of at most `max_tokens` tokens. The embedder accepts
        every such piece."""
        embedder = self.make()
        long = " ".join(_TEXTS * 60) + " " + "x" * 3000
        spans = windows(long, embedder.token_spans, embedder.space.max_tokens)
        assert len(spans) > 3
        assert len(embedder.embed_documents([long[start:end] for start, end in spans])) == len(spans)

    def test_counts_of_tokens_equal_the_spans(self) -> None:
        """If the embedder counts the tokens of several texts in one call, each count is the number of token spans."""
        embedder = self.make()
        if not isinstance(embedder, TokenCounter):
            raise unittest.SkipTest("the embedder counts the tokens of one text at a time")
        texts = ["", " \n", *_TEXTS, "x" * 300 + " y", "a\ud800b", "e\u0301\u200b"]
        assert embedder.token_counts(texts) == [len(embedder.token_spans(text)) for text in texts]
        assert embedder.token_counts([]) == []

    def test_a_long_query_is_not_cut(self) -> None:
        """If a query exceeds `max_tokens`, its last words still change the vector."""
        embedder = self.make()
        filler = "filler " * (embedder.space.max_tokens * 3)
        one, other = embedder.embed_query(filler + "volcano"), embedder.embed_query(filler + "teapot")
        for vector in (one, other):
            assert abs(float(np.linalg.norm(vector)) - 1) < 1e-4
        assert float(np.abs(one - other).max()) > 1e-4


_QUESTION = "Who keeps the keys of the lighthouse?"
_ANSWER = "The harbour master keeps the keys of the lighthouse."
_PASSAGES = (
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
    """The contract of `Reranker` as tests. A subclass defines `make()`, which returns the reranker under test. If the
    reranker does not understand English, the subclass sets `understands = False`."""

    understands = True  # an English answer scores higher than another sentence; False for random weights

    def make(self) -> Reranker:
        """Return the reranker under test. Every call may return the same object."""
        raise NotImplementedError

    def test_each_text_has_one_finite_score(self) -> None:
        """`scores` returns one score for each text. A score is a finite float32."""
        reranker = self.make()
        assert reranker.name
        self._check_scores(reranker.scores(_QUESTION, _PASSAGES), len(_PASSAGES))
        self._check_scores(reranker.scores("", _PASSAGES[:2]), 2)
        self._check_scores(reranker.scores("\ud800", ["x"]), 1)
        self._check_scores(reranker.scores(_QUESTION, []), 0)

    def test_a_score_does_not_depend_on_the_batch(self) -> None:
        """The score of a text does not depend on the other texts of the batch or on their order."""
        reranker = self.make()
        texts = [*_PASSAGES, _LONG[:3_000]]
        together = reranker.scores(_QUESTION, texts)
        alone = np.concatenate([reranker.scores(_QUESTION, [text]) for text in texts])
        turned = reranker.scores(_QUESTION, texts[::-1])[::-1]
        assert np.allclose(together, alone, atol=1e-4)
        assert np.allclose(together, turned, atol=1e-4)
        assert np.array_equal(together, reranker.scores(_QUESTION, texts))
        assert float(np.ptp(together)) > 1e-3

    def test_an_answer_scores_higher_than_another_sentence(self) -> None:
        """A text that answers the question has a higher score than an unrelated text."""
        if not self.understands:
            raise unittest.SkipTest("this reranker does not understand English")
        reranker = self.make()
        assert int(np.argmax(reranker.scores(_QUESTION, _PASSAGES[:2][::-1]))) == 1
        assert int(np.argmax(reranker.scores("When does the bakery open?", _PASSAGES[:2]))) == 1

    def test_the_end_of_a_long_text_or_question_changes_the_score(self) -> None:
        """The last words of a long text change the score. The last words of a long question also change the score."""
        reranker = self.make()
        scores = reranker.scores(_QUESTION, [f"{_LONG}{ending}" for ending in _ENDINGS])
        self._check_scores(scores, len(_ENDINGS))
        assert len({*scores.tolist()}) > 1
        rows = [reranker.scores(f"{_LONG[:7_000]}{ending}", _PASSAGES[:2]) for ending in ("volcano", "keys teapot")]
        for row in rows:
            self._check_scores(row, 2)
        assert not np.array_equal(rows[0], rows[1])

    def test_a_reranker_is_thread_safe(self) -> None:
        """Calls in several threads return the same scores as calls in one thread."""
        reranker = self.make()
        calls = [(_PASSAGES[n % 2], [*_PASSAGES[n:], _LONG[: 100 * n]]) for n in range(6)] * 6
        expected = [reranker.scores(*call) for call in calls[:6]] * 6
        with ThreadPoolExecutor(8) as pool:
            for scores, right in zip(pool.map(lambda call: reranker.scores(*call), calls), expected, strict=True):
                assert np.allclose(scores, right, atol=1e-4)

    def _check_scores(self, scores: Vector, wanted: int) -> None:
        assert scores.shape == (wanted,) and scores.dtype == np.float32
        assert np.isfinite(scores).all()


ASK = (ChatMessage("system", "You are brief."), ChatMessage("user", "Say something about the harbour."))
COUNT = (ChatMessage("user", "Count from one to a thousand, in words, one after the other, leaving none out."),)
WEATHER = Tool(
    "weather",
    "The weather in a town.",
    {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
)
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "dark": {"type": "boolean"}},
    "required": ["colour", "dark"],
    "additionalProperties": False,
}
VALUE = {"colour": "red", "dark": True}  # a model that repeats its prompt also returns this value


class LanguageModelConformance:
    """The contract of `LanguageModel` as tests. A subclass defines `make()`, which returns the model under test. For a
    model without tools, the subclass sets `tools = False`. For a model without JSON Schemas, it sets `schemas = False`.
    `fits` is the number of tokens that the model accepts, or 0 if this number is unknown."""

    tools = True  # the model accepts tools and their results
    schemas = True  # if the message is JSON that fits the schema, the model returns this JSON
    fits = 0  # tokens of prompt and reply together; 0: unknown, and the limit is not tested

    def make(self) -> LanguageModel:
        """Return the model under test. Every call may return the same object."""
        raise NotImplementedError

    def test_a_reply_has_text_and_token_counts(self) -> None:
        """`complete` returns a reply with a text, token counts and a finish reason."""
        self._check_reply(self.make().complete(ASK, max_tokens=64))

    def test_a_stream_yields_pieces_and_returns_the_reply(self) -> None:
        """`stream` yields pieces of text and returns the reply. The joined pieces equal the text of the reply."""
        pieces, reply = _read_stream(self.make(), 64)
        self._check_reply(reply)
        assert all(pieces)
        assert "".join(pieces) == reply.text

    def test_max_tokens_limits_a_reply(self) -> None:
        """If a reply is cut at `max_tokens`, `finish` of the reply is `length`."""
        model = self.make()
        reply = model.complete(COUNT, max_tokens=6)
        assert (reply.finish, reply.tokens_out <= 6) == ("length", True)
        assert reply.text.strip()

    def test_messages_of_every_role_are_accepted(self) -> None:
        """`complete` accepts messages of the roles system, user and assistant."""
        messages = [*ASK, ChatMessage("assistant", "It is full of boats."), ChatMessage("user", "How many?")]
        self._check_reply(self.make().complete(messages, max_tokens=64))

    def test_a_tool_call_or_a_text_is_returned(self) -> None:
        """A reply has a text or tool calls. `finish` is `tool_calls` if and only if there are tool calls."""
        self._needs("tools")
        reply = self.make().complete([ChatMessage("user", "How is the weather in Turku?")], tools=[WEATHER])
        self._check_reply(reply)
        assert len({call.id for call in reply.tool_calls}) == len(reply.tool_calls)
        assert all(call.id and call.name and isinstance(dict(call.arguments), dict) for call in reply.tool_calls)
        assert (reply.finish == "tool_calls") == bool(reply.tool_calls)

    def test_the_result_of_a_tool_is_accepted(self) -> None:
        """`complete` accepts a conversation that contains a tool call and the result of this call."""
        self._needs("tools")
        messages = [
            ChatMessage("user", "How is the weather in Turku?"),
            ChatMessage("assistant", "", (ToolCall("call_1", "weather", {"town": "Turku"}),)),
            ChatMessage("tool", "12 degrees, rain", tool_call_id="call_1"),
        ]
        self._check_reply(self.make().complete(messages, tools=[WEATHER], max_tokens=64))

    def test_data_is_the_parsed_text_and_fits_the_schema(self) -> None:
        """With a JSON Schema, the text of the reply is JSON that fits the schema, and `data` is the parsed JSON."""
        self._needs("schemas")
        arguments = [ChatMessage("system", "Repeat the message."), ChatMessage("user", json.dumps(VALUE))]
        reply = self.make().complete(arguments, schema=COLOUR, max_tokens=64)
        assert json.loads(reply.text) == reply.data
        assert set(reply.data) == {"colour", "dark"}
        assert reply.data["colour"] in ("red", "green") and isinstance(reply.data["dark"], bool)

    def test_an_invalid_schema_is_refused(self) -> None:
        """An invalid JSON Schema raises `InvalidInput`."""
        self._needs("schemas")
        for wrong in ({"type": "nothing"}, {"properties": 3}):
            with raises(InvalidInput):
                self.make().complete(ASK, schema=wrong)

    def test_invalid_arguments_are_refused(self) -> None:
        """Invalid values of `messages`, `max_tokens` and `temperature` raise `InvalidInput`."""
        wrong: list[dict[str, Any]] = [{"messages": ()}, {"messages": [{"role": "user", "content": "hello"}]}]
        wrong += [{"max_tokens": 0}, *({"temperature": value} for value in (-0.1, 2.1, math.nan, math.inf))]
        for options in wrong:
            self._check_refused(InvalidInput, **{"messages": ASK, **options})

    def test_a_conversation_that_is_too_long_is_refused(self) -> None:
        """A conversation that has more tokens than the model accepts raises `PromptTooLong`."""
        if not self.fits:
            raise unittest.SkipTest("the limit of this model is unknown")
        self._check_refused(PromptTooLong, messages=[ChatMessage("user", "harbour " * self.fits)])

    def test_a_closed_stream_leaves_the_model_usable(self) -> None:
        """If the caller closes a stream before its end, the model still answers the next call."""
        model = self.make()
        stream = model.stream(ASK, max_tokens=64)
        assert next(stream)
        stream.close()
        self._check_reply(model.complete(ASK, max_tokens=64))

    def test_a_model_is_thread_safe(self) -> None:
        """Calls in several threads return complete replies."""
        model = self.make()

        def ask(n: int) -> Reply:
            return model.complete(ASK, max_tokens=16) if n % 2 else _read_stream(model, 16)[1]

        with ThreadPoolExecutor(4) as pool:
            for reply in pool.map(ask, range(8)):
                self._check_reply(reply)

    def _needs(self, ability: str) -> None:
        if not getattr(self, ability):
            raise unittest.SkipTest(f"this model does not support {ability}")

    def _check_refused(self, error: type[Exception], **arguments: Any) -> None:
        model = self.make()
        with raises(error):
            model.complete(**arguments)
        with raises(error):
            list(model.stream(**arguments))

    def _check_reply(self, reply: Reply) -> None:
        assert reply.text.strip() or reply.tool_calls
        counts: list[Any] = [reply.tokens_in, reply.tokens_out]
        assert all(type(count) is int and count >= 0 for count in counts)
        assert reply.finish in ("stop", "length", "tool_calls", "filtered", "")
        assert reply.model


def _read_stream(model: LanguageModel, max_tokens: int) -> tuple[list[str], Reply]:
    stream = model.stream(ASK, max_tokens=max_tokens)
    pieces = []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            assert isinstance(end.value, Reply)
            return pieces, end.value
