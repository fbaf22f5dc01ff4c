"""The base class of the embedders that call a server over HTTP. It estimates tokens, adds prefixes, makes batches and
checks all vectors.

Embedding servers do not count the tokens of a text for a client. So the number of tokens is estimated, and the estimate
is higher than the real count. If the server still refuses a document as too long, an error is raised; the document is
never cut.

A server may load another model under the same name. So each request for documents also contains a fixed probe text. An
error is raised if the vector of the probe text is not the vector that `EmbeddingSpace.fingerprint` stores.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from agentformer.embedders.model_info import PROBE, ModelCard, fingerprint
from agentformer.errors import EmbedderUnavailable, TextTooLong
from agentformer.http.retry_policy import Policy
from agentformer.settings import Settings
from agentformer.types import EmbeddingSpace, Matrix, Span, Vector, spans_of

log = logging.getLogger("agentformer")

TIMEOUT_ADVICE = "raise AGENTFORMER_EMBED_TIMEOUT, or lower AGENTFORMER_EMBED_BATCH"
UNKNOWN_CONTEXT = 512  # limit of a model if its server does not report one; few embedding models read less
GATEWAY_TIMEOUT = (408, 504)
_CHECK_SECONDS = 30.0  # seconds for which a check of the model is valid for queries; documents are always checked
_FAST_RESPONSES = 8  # consecutive fast responses after which a request may have more texts
_FAST = 1 / 3  # share of the timeout: twice as many texts then still take less than the timeout

# In a language that a subword vocabulary was not made for, a token is about three Latin letters, two letters of another
# alphabet, or one digit, sign or ideogram.
_PIECE = re.compile(r"[A-Za-zÀ-ÖØ-öø-ɏ]{1,3}|(?:(?=[\u0370-\u06ff])\w){1,2}|\S")
_SPECIAL = 4  # tokens that a model adds to a text: two or three, and one more where the prefix meets the text
_SMALLEST_PART = 16  # tokens; if the server refuses such a short part of a query, an error is raised
_PLACEHOLDER = "."  # sent for an empty text, because servers refuse an input without tokens

# One sentence in Finnish, German and Russian. An English vocabulary makes 3.4 tokens of a word here (measured with
# BERT's), multilingual vocabularies fewer than 2.7.
_FOREIGN = (
    "Sataman päällikkö säilyttää majakan avaimia työhuoneensa kaapissa, ja kalastajat hakevat ne aamulla. "
    "Der Hafenmeister bewahrt die Schlüssel des Leuchtturms in seinem Schreibtisch auf, und die Fischer holen sie "
    "morgens. Начальник порта хранит ключи от маяка в своём кабинете, а рыбаки забирают их утром."
)
_FOREIGN_FERTILITY = 2.7


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Options of an embedder over HTTP. If `languages` is not empty, it is used instead of the languages that are
    published for the model or measured."""

    timeout: float = 60.0  # seconds for one request
    retries: int = 2
    batch: int = 64  # texts per request
    languages: str = ""

    @classmethod
    def from_settings(cls, settings: Settings) -> RemoteOptions:
        """Return the options that `settings` contains."""
        return cls(settings.embed_timeout, settings.embed_retries, settings.embed_batch, settings.embed_languages)

    @property
    def policy(self) -> Policy:
        return Policy(self.timeout, retries=self.retries)


class Vectors(NamedTuple):
    """The content of a server's response: `rows` are the vectors in the order of the texts, not checked yet, and
    `tokens` is the number of tokens that the server reports."""

    rows: object
    tokens: int


class TimedOut(Exception):
    """Raised if a request timed out. The message continues a sentence that begins with "PROVIDER:MODEL at ADDRESS"."""


class RemoteEmbedder(ABC):
    """The base class of an embedder over HTTP. `tokens_read` is the number of tokens that the server has reported in
    all calls; the tokens of the probe text are included. The last statement in the constructor of a subclass must be a
    call of `_describe`, which already sends requests."""

    def __init__(
        self, provider: str, model: str, address: str, options: RemoteOptions, *, batch_tokens: float = float("inf")
    ) -> None:
        self._provider = provider
        self._title = f"{provider}:{model} at {address}"
        self._request_size = _RequestSize(options.batch, options.timeout)
        self._languages_given = options.languages
        self._batch_tokens = batch_tokens - len(self.token_spans(PROBE))  # the probe text may be in the request, too
        self._lock = threading.Lock()
        self._checked_at = 0.0  # monotonic time of the last successful check of the model
        self.tokens_read = 0

    @abstractmethod
    def _request(self, texts: list[str]) -> Vectors:
        """Send one request with these texts and return the vectors. Raise `TextTooLong` if the server refuses a text as
        too long, `TimedOut` after a timeout, and `EmbedderUnavailable` after any other failure."""

    @property
    def space(self) -> EmbeddingSpace:
        return self._space

    @property
    def request_texts(self) -> int:
        """The largest number of texts in the next request. The probe text, a fixed text with which requests check
        the model of the server, is not counted. The number is halved after a timeout."""
        return self._request_size.texts

    def token_spans(self, text: str) -> list[Span]:
        """Return the start and the end of each estimated token in the text."""
        return spans_of(match.span() for match in _PIECE.finditer(text))

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors of the texts, as `Embedder.embed_documents` describes. Each request also checks that the
        server still runs the same model."""
        space = self._space
        lengths = [len(self.token_spans(text)) for text in texts]
        if texts and max(lengths) > space.max_tokens:
            longest = lengths.index(max(lengths))
            raise TextTooLong(
                f"the text at index {longest} has about {lengths[longest]} tokens, but {self._title} reads at most "
                f"{space.max_tokens} tokens; split the text into shorter texts"
            )
        rows = np.zeros((len(texts), space.dimension), dtype=np.float32)
        for start, end in _batches(lengths, self.request_texts, self._batch_tokens):
            batch = [_input(space.document_prefix, text) for text in texts[start:end]]
            rows[start:end] = self._embed(batch, check=True)
        return rows

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query, as `Embedder.embed_query` describes. If the server refuses a part of the query
        as too long, the query is split into smaller parts."""
        limit = self._space.max_tokens
        while True:
            parts = [_input(self._space.query_prefix, part) for part in self._split(text, limit)]
            size = self.request_texts
            rows = []
            try:
                for i in range(0, len(parts), size):
                    due = time.monotonic() - self._checked_at > _CHECK_SECONDS
                    rows.append(self._embed(parts[i : i + size], check=due))
            except TextTooLong:
                if limit <= _SMALLEST_PART:
                    raise
                limit //= 2
                continue
            mean: Vector = np.concatenate(rows).mean(axis=0)
            return mean / max(np.float32(np.linalg.norm(mean)), np.float32(1e-12))

    def _split(self, text: str, limit: int) -> list[str]:
        spans = self.token_spans(text)
        groups = [spans[i : i + limit] for i in range(0, len(spans), limit)]
        return [text[group[0].start : group[-1].end] for group in groups] or [text]

    def _describe(self, model: str, limit: int, card: ModelCard, *, revision: str = "", dimension: int = 0) -> None:
        """Set the `EmbeddingSpace` of the model on the server. `card` has the published facts about the model, and
        `revision` identifies its files. `limit` is the number of tokens that the model can read, special tokens
        included. `dimension` is the dimension that was requested, or 0 for the default dimension of the model."""
        probe = self._checked(self._send([card.document_prefix + PROBE], 1), 1, dimension)[0]
        self._checked_at = time.monotonic()
        prefix = max(len(self.token_spans(p)) for p in (card.query_prefix, card.document_prefix))
        self._space = EmbeddingSpace(
            provider=self._provider,
            model=model,
            dimension=len(probe),
            max_tokens=max(_SMALLEST_PART, limit - _SPECIAL - prefix),
            revision=revision,
            query_prefix=card.query_prefix,
            document_prefix=card.document_prefix,
            languages=self._languages_given or card.languages or self._measure_languages(),
            fingerprint=fingerprint(probe),
        )

    def _measure_languages(self) -> str:
        """Return "*" if the model knows many languages, and "en" if it seems to know only English. The server counts
        the tokens of a text in Finnish, German and Russian: a model that knows these languages needs fewer tokens. If
        the server does not report the count, the result is "en"."""
        try:
            tokens = self._send([_FOREIGN], 1).tokens
        except TextTooLong:
            return "en"
        if tokens <= 0:
            _warn_languages(self._title)
        return "*" if 0 < tokens <= _FOREIGN_FERTILITY * len(_FOREIGN.split()) + _SPECIAL else "en"

    def _embed(self, texts: list[str], *, check: bool) -> Matrix:
        """Return the vectors of one batch of texts. If the server refuses the batch as too long, its two halves are
        sent separately. With `check`, the probe text is sent with the texts, and `EmbedderUnavailable` is raised if the
        server runs another model. If the probe text and a single text are too long together, each is sent alone."""
        inputs = [*texts, self._space.document_prefix + PROBE] if check else texts
        try:
            vectors = self._send(inputs, len(texts))
        except TextTooLong:
            if len(texts) > 1:
                middle = len(texts) // 2
                return np.concatenate([self._embed(half, check=check) for half in (texts[:middle], texts[middle:])])
            if not check:
                raise
            row = self._embed(texts, check=False)
            try:
                vectors = self._send([self._space.document_prefix + PROBE], 1)
            except TextTooLong:  # the model of the space can read the probe text
                raise self._swapped() from None
            self._match(self._checked(vectors, 1, self._space.dimension)[0])
            return row
        rows = self._checked(vectors, len(inputs), self._space.dimension)
        if check:
            self._match(rows[-1])
        return rows[: len(texts)]

    def _send(self, texts: list[str], count: int) -> Vectors:
        """Send one request and return its vectors. `count` of the texts come from the caller. If there is one more
        text, it is the probe text. After a timeout, raise `EmbedderUnavailable`, and the next requests contain fewer
        texts."""
        start = time.monotonic()
        try:
            vectors = self._request(texts)
        except TimedOut as error:
            self._request_size.timed_out(count)
            fewer = f"; the next requests contain {self.request_texts} texts instead of {count}" if count > 1 else ""
            raise EmbedderUnavailable(f"{self._title} {error}{fewer}; {TIMEOUT_ADVICE}") from None
        self._request_size.responded(count, time.monotonic() - start)
        return vectors

    def _match(self, probe: Vector) -> None:
        if self._space.difference(replace(self._space, fingerprint=fingerprint(probe))):
            raise self._swapped()
        self._checked_at = time.monotonic()

    def _swapped(self) -> EmbedderUnavailable:
        return EmbedderUnavailable(
            f"{self._title}: a different model has this name now; restore the former model, or compute all vectors "
            f"with this model: agentformer reembed --to {self._space.spec}"
        )

    def _checked(self, vectors: Vectors, count: int, dimension: int) -> Matrix:
        """Return the vectors of a response, scaled to the length 1. Raise `EmbedderUnavailable` unless the response has
        `count` vectors of `dimension` finite numbers. If `dimension` is 0, the vectors may have any dimension, but it
        must be the same for all vectors."""
        with self._lock:
            self.tokens_read += max(0, vectors.tokens)
        try:
            return _unit_rows(vectors.rows, count, dimension)
        except ValueError as error:
            raise EmbedderUnavailable(
                f"{self._title} {error}; check that the server runs the same model as before, that this model makes "
                "embeddings, and that no proxy changes the responses, or choose another embedder with --embedder"
            ) from None


class _RequestSize:
    """Chooses the number of texts in a request. It is halved after a timeout, and doubled after eight fast responses in
    a row."""

    def __init__(self, largest: int, timeout: float) -> None:
        self.texts = largest
        self._largest = largest
        self._timeout = timeout
        self._fast = 0
        self._lock = threading.Lock()

    def timed_out(self, texts: int) -> None:
        """Record a timeout with this number of texts. The next requests have at most half as many texts."""
        with self._lock:
            self._fast = 0
            if texts > 1:
                self.texts = min(self.texts, texts // 2)

    def responded(self, texts: int, seconds: float) -> None:
        """Record that a request with `texts` texts got a response after `seconds`. A request with fewer texts than
        allowed is ignored, because it does not show that a larger request is fast too."""
        with self._lock:
            if texts < self.texts:
                return
            self._fast = self._fast + 1 if seconds < self._timeout * _FAST else 0
            if self._fast >= _FAST_RESPONSES:
                self.texts, self._fast = min(2 * self.texts, self._largest), 0


@functools.cache
def _warn_languages(title: str) -> None:
    """Log that the languages of the model are a guess, because the server reports no token counts. The warning appears
    once in a process for each model."""
    log.warning(
        "%s does not report the number of tokens, so the model is assumed to know only English; if it knows other "
        "languages, set AGENTFORMER_EMBED_LANGUAGES to the codes of all its languages, such as 'en fi', or to '*' "
        "for many languages",
        title,
    )


def _unit_rows(rows: object, count: int, dimension: int) -> Matrix:
    """Check the vectors of a response, and return them as float32, scaled to the length 1. `count` is the expected
    number of vectors, and `dimension` is their expected dimension, or 0 for any. Raise `ValueError` with a description
    of the problem."""
    if not isinstance(rows, list):
        raise ValueError("did not send a list with one vector for each text")
    if len(rows) != count:
        raise ValueError(f"sent {len(rows)} vectors for {count} texts")
    dimension = dimension or (len(rows[0]) if rows and isinstance(rows[0], list) else 0)
    for row in rows:
        if not isinstance(row, list) or not row:
            raise ValueError("sent an empty list or another value instead of a vector")
        if len(row) != dimension:
            raise ValueError(f"sent a vector of {len(row)} numbers instead of {dimension}")
        if any(type(number) is not float and type(number) is not int for number in row):
            raise ValueError("sent a vector with a value that is not a number")
    try:
        values = np.array(rows, dtype=np.float64)
    except OverflowError:  # an integer is too large
        values = np.array([np.inf])
    if not np.isfinite(values).all():
        raise ValueError("sent a vector with a number that is not finite")
    largest = np.abs(values).max(axis=1, keepdims=True)
    if not largest.all():
        raise ValueError("sent a vector that contains only zeros")
    values /= largest  # so that the squares neither overflow nor become 0
    rows_unit: Matrix = (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)
    return rows_unit


def _input(prefix: str, text: str) -> str:
    """Return the prefix and the text in the form that can be sent. Lone surrogates are replaced, because UTF-8 cannot
    encode them. An empty text becomes ".", because servers refuse a text without tokens."""
    return prefix + (text.encode("utf-8", "replace").decode() if text.strip() else _PLACEHOLDER)


def _batches(lengths: Sequence[int], count: int, tokens: float) -> Iterator[tuple[int, int]]:
    """Divide texts into consecutive batches, and yield the start and the end of each batch. `lengths` are the numbers
    of tokens of the texts. A batch has at most `count` texts and at most `tokens` tokens. A text with more than
    `tokens` tokens gets a batch of its own."""
    start = total = 0
    for at, length in enumerate(lengths):
        if at > start and (at - start == count or total + length > tokens):
            yield start, at
            start, total = at, 0
        total += length
    if start < len(lengths):
        yield start, len(lengths)
