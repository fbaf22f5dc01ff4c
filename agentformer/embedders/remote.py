"""What embedders over HTTP share: an estimate of tokens, prefixes, batches, and no row that was not checked.

No server offers its tokenizer, so texts are measured by an estimate that counts high; what the server still finds too
long is an error, never cut. A server may load other weights under the same name at any time, so each request for
documents carries the probe text as one more input, and its row must have the space's fingerprint.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from agentformer.embedders.known import Habits
from agentformer.embedders.sbert import PROBE, fingerprint
from agentformer.errors import EmbedderUnavailable, TextTooLong
from agentformer.types import EmbeddingSpace, Matrix, Span, Vector

log = logging.getLogger("agentformer")

PATIENCE = "AGENTFORMER_EMBED_TIMEOUT gives it longer, and AGENTFORMER_EMBED_BATCH fewer texts at a time"
_CHECK_SECONDS = 30.0  # for which a query relies on the last sight of the model; documents never do
_QUICK_ANSWERS = 8  # in a row, after which requests may hold more texts again
_QUICK = 1 / 3  # of the timeout: twice the texts will then not take all of it

# Subword vocabularies need about a token for three letters of Latin script in a language that they were not made for,
# for two of another alphabet, and for each digit, sign and ideogram.
_PIECE = re.compile(r"[A-Za-zÀ-ÖØ-öø-ɏ]{1,3}|(?:(?=[\u0370-\u06ff])\w){1,2}|\S")
_SPECIAL = 4  # tokens that a model puts around a text; two or three, and one more for a border that the prefix moves
_LEAST_PART = 16  # tokens: a part of a query that is refused as too long at this size is an error
_NOTHING = "."  # in place of a text without a sign: servers refuse an input without a token

# Whose words they are: Ollama, OpenAI and vLLM, llama.cpp, text-embeddings-inference.
_OVERFLOW = re.compile(
    r"context[ _](length|size|window)|(input|prompt|text) length|maximum (input|context)|tokens per request"
    r"|(input|prompt|text)( \(\d+ tokens\))? is too (large|long)|less than \d+ tokens",
    re.IGNORECASE,
)

# One sentence in Finnish, German and Russian. An English vocabulary makes 3.4 tokens of a word here (measured with
# BERT's), those made for many languages fewer than 2.7.
_FOREIGN = (
    "Sataman päällikkö säilyttää majakan avaimia työhuoneensa kaapissa, ja kalastajat hakevat ne aamulla. "
    "Der Hafenmeister bewahrt die Schlüssel des Leuchtturms in seinem Schreibtisch auf, und die Fischer holen sie "
    "morgens. Начальник порта хранит ключи от маяка в своём кабинете, а рыбаки забирают их утром."
)
_FOREIGN_FERTILITY = 2.7


class Answer(NamedTuple):
    """What a server sent: vectors in the order of the texts, not checked, and how many tokens it says it read."""

    rows: object
    tokens: int


class Slow(Exception):
    """A request had no answer in its time; the text completes "PROVIDER:MODEL at ADDRESS ..."."""


class RemoteEmbedder(ABC):
    """An embedder over HTTP. `tokens_read` counts the tokens that the server said it read, over all calls; those of
    the probe are among them. `languages` beats what is known of the model."""

    provider: str

    def __init__(
        self,
        model: str,
        address: str,
        *,
        batch: int,
        timeout: float,
        languages: str = "",
        batch_tokens: float = float("inf"),
    ) -> None:
        self._who = f"{self.provider}:{model} at {address}"
        self._pace = _Pace(batch, timeout)
        self._given_languages = languages
        self._batch_tokens = batch_tokens - len(self.token_spans(PROBE))
        self._lock = threading.Lock()
        self._recognised = 0.0  # when the model was last seen to be the space's own, on the monotonic clock
        self.tokens_read = 0

    @abstractmethod
    def _ask(self, texts: list[str]) -> Answer:
        """One request. Raises `EmbedderUnavailable`, `TextTooLong` or `Slow`."""

    @property
    def space(self) -> EmbeddingSpace:
        return self._space

    @property
    def request_texts(self) -> int:
        """How many texts one request holds now, beside the probe: fewer after a timeout."""
        return self._pace.texts

    def token_spans(self, text: str) -> list[Span]:
        return [Span(match.start(), match.end()) for match in _PIECE.finditer(text)]

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        space = self._space
        lengths = [len(self.token_spans(text)) for text in texts]
        if texts and max(lengths) > space.max_tokens:
            worst = lengths.index(max(lengths))
            raise TextTooLong(
                f"text {worst} has about {lengths[worst]} tokens, and {self._who} is given {space.max_tokens} at most"
            )
        rows = np.zeros((len(texts), space.dimension), dtype=np.float32)
        for start, end in _batches(lengths, self.request_texts, self._batch_tokens):
            batch = [_sendable(space.document_prefix, text) for text in texts[start:end]]
            rows[start:end] = self._rows(batch, check=True)
        return rows

    def embed_query(self, text: str) -> Vector:
        limit = self._space.max_tokens
        while True:
            parts = [_sendable(self._space.query_prefix, part) for part in self._parts(text, limit)]
            size = self.request_texts
            try:
                rows = [self._rows(parts[i : i + size], check=self._check_due()) for i in range(0, len(parts), size)]
            except TextTooLong:
                if limit <= _LEAST_PART:
                    raise
                limit //= 2
                continue
            mean: Vector = np.concatenate(rows).mean(axis=0)
            return mean / max(np.float32(np.linalg.norm(mean)), np.float32(1e-12))

    def _parts(self, text: str, limit: int) -> list[str]:
        spans = self.token_spans(text)
        groups = [spans[i : i + limit] for i in range(0, len(spans), limit)]
        return [text[group[0].start : group[-1].end] for group in groups] or [text]

    def _describe(
        self, model: str, limit: int, habits: Habits, *, revision: str = "", dimension: int = 0
    ) -> EmbeddingSpace:
        """Ask for what only the model itself can tell. `limit` is the tokens that it reads, everything counted;
        `dimension` the one that was asked for, 0 for the model's own."""
        probe = self._checked(self._asked([habits.document_prefix + PROBE], 1), 1, dimension)[0]
        self._recognised = time.monotonic()
        prefix = max(len(self.token_spans(p)) for p in (habits.query_prefix, habits.document_prefix))
        return EmbeddingSpace(
            provider=self.provider,
            model=model,
            dimension=len(probe),
            max_tokens=max(_LEAST_PART, limit - _SPECIAL - prefix),
            revision=revision,
            query_prefix=habits.query_prefix,
            document_prefix=habits.document_prefix,
            languages=self._given_languages or habits.languages or self._languages(),
            fingerprint=fingerprint(probe),
        )

    def _languages(self) -> str:
        """Of a model that nobody knows: many if its own tokenizer knows words of three, else English."""
        try:
            tokens = self._asked([_FOREIGN], 1).tokens
        except TextTooLong:
            return "en"
        if tokens <= 0:
            _tell_of_languages(self._who)
        known = 0 < tokens <= _FOREIGN_FERTILITY * len(_FOREIGN.split()) + _SPECIAL
        return "*" if known else "en"

    def _rows(self, texts: list[str], *, check: bool) -> Matrix:
        """Of one batch; with `check`, none before the model has been recognised. Some servers hold the batch as a
        whole against their limit, so a refused one is halved, and at last the probe goes in a request of its own."""
        asked = [*texts, self._probe] if check else texts
        try:
            answer = self._asked(asked, len(texts))
        except TextTooLong:
            if len(texts) > 1:
                middle = len(texts) // 2
                halves = texts[:middle], texts[middle:]
                return np.concatenate([self._rows(half, check=check) for half in halves])
            if not check:
                raise
            row = self._rows(texts, check=False)
            self._recognise_alone()
            return row
        rows = self._checked(answer, len(asked), self._space.dimension)
        if check:
            self._recognise(rows[-1])
        return rows[: len(texts)]

    def _asked(self, texts: list[str], count: int) -> Answer:
        """One request of `count` texts, and perhaps the probe."""
        began = time.monotonic()
        try:
            answer = self._ask(texts)
        except Slow as slow:
            self._pace.timed_out(count)
            fewer = f"; the next requests hold {self.request_texts} instead of {count} texts" if count > 1 else ""
            raise EmbedderUnavailable(f"{self._who} {slow}{fewer}; {PATIENCE}") from None
        self._pace.answered(count, time.monotonic() - began)
        return answer

    @property
    def _probe(self) -> str:
        return self._space.document_prefix + PROBE

    def _check_due(self) -> bool:
        return time.monotonic() - self._recognised > _CHECK_SECONDS

    def _recognise_alone(self) -> None:
        try:
            answer = self._asked([self._probe], 1)
        except TextTooLong:  # which the space's own model read
            raise self._swapped() from None
        self._recognise(self._checked(answer, 1, self._space.dimension)[0])

    def _recognise(self, probe: Vector) -> None:
        """Raises `EmbedderUnavailable` unless `probe` is what the space's model makes of the probe text."""
        if self._space.difference(replace(self._space, fingerprint=fingerprint(probe))):
            raise self._swapped()
        self._recognised = time.monotonic()

    def _swapped(self) -> EmbedderUnavailable:
        return EmbedderUnavailable(
            f"{self._who}: another model answers under this name now; put the former one back, or move the store to "
            f"this one: agentformer reembed --to {self._space.spec}"
        )

    def _checked(self, answer: Answer, count: int, dimension: int) -> Matrix:
        """Unit rows. Raises `EmbedderUnavailable` for anything that is not `count` vectors of `dimension` numbers;
        dimension 0: of any."""
        with self._lock:
            self.tokens_read += max(0, answer.tokens)
        try:
            return unit_rows(answer.rows, count, dimension)
        except ValueError as error:
            raise EmbedderUnavailable(
                f"{self._who} {error}; check that the model is still the same, that it makes embeddings and that "
                "nothing rewrites its answers, or choose another with --embedder"
            ) from None

    _space: EmbeddingSpace  # set by the subclass at the end of its constructor, from `_describe`


class _Pace:
    """How many texts a request may hold: half as many after a timeout, twice as many after some quick answers.
    A server that is only slow is so asked for what it can do; one that is hung costs one timeout a call anyway."""

    def __init__(self, most: int, timeout: float) -> None:
        self.texts = most
        self._most = most
        self._timeout = timeout
        self._quick = 0
        self._lock = threading.Lock()

    def timed_out(self, texts: int) -> None:
        with self._lock:
            self._quick = 0
            if texts > 1:
                self.texts = min(self.texts, texts // 2)

    def answered(self, texts: int, seconds: float) -> None:
        with self._lock:
            if texts < self.texts:  # tells nothing of a fuller request
                return
            self._quick = self._quick + 1 if seconds < self._timeout * _QUICK else 0
            if self._quick >= _QUICK_ANSWERS:
                self.texts, self._quick = min(2 * self.texts, self._most), 0


@functools.cache
def _tell_of_languages(who: str) -> None:
    """Once for a process: the guess may be wrong, and nothing else would show it."""
    log.warning(
        "%s tells no token counts, so it is taken for a model of English alone; if it knows more, set "
        "AGENTFORMER_EMBED_LANGUAGES to their codes, such as: en fi; or to * for many",
        who,
    )


def overflows(message: str) -> bool:
    """Whether a server's words mean that a text is longer than its model reads."""
    return bool(_OVERFLOW.search(message))


def unit_rows(rows: object, count: int, dimension: int) -> Matrix:
    """Checked, as unit rows of float32. Raises `ValueError` that says what was sent instead."""
    if not isinstance(rows, list):
        raise ValueError("sent no list of vectors that belong to the texts")
    if len(rows) != count:
        raise ValueError(f"sent {len(rows)} vectors for {count} texts")
    dimension = dimension or (len(rows[0]) if rows and isinstance(rows[0], list) else 0)
    for row in rows:
        if not isinstance(row, list) or not row:
            raise ValueError("sent something that is not a vector, or an empty one")
        if len(row) != dimension:
            raise ValueError(f"sent a vector of {len(row)} numbers where {dimension} were expected")
        if any(type(number) is not float and type(number) is not int for number in row):
            raise ValueError("sent a vector that holds something that is not a number")
    try:
        values = np.array(rows, dtype=np.float64)
    except OverflowError:
        raise ValueError("sent numbers that are not finite") from None
    if not np.isfinite(values).all():
        raise ValueError("sent numbers that are not finite")
    largest = np.abs(values).max(axis=1, keepdims=True)
    if not largest.all():
        raise ValueError("sent a vector of zeros")
    values /= largest  # so that squares neither overflow nor vanish
    unit: Matrix = (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)
    return unit


def _sendable(prefix: str, text: str) -> str:
    """As it goes over the wire: no lone surrogates, which UTF-8 cannot carry, and never nothing."""
    return prefix + (text.encode("utf-8", "replace").decode() if text.strip() else _NOTHING)


def _batches(lengths: Sequence[int], count: int, tokens: float) -> Iterator[tuple[int, int]]:
    """Borders of consecutive groups of at most `count` texts and `tokens` tokens; a longer text is alone."""
    start = held = 0
    for at, length in enumerate(lengths):
        if at > start and (at - start == count or held + length > tokens):
            yield start, at
            start, held = at, 0
        held += length
    if start < len(lengths):
        yield start, len(lengths)
