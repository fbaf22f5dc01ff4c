"""Rerankers that read the question and a passage together (cross-encoders). They run on torch, through the package
sentence-transformers.

A model can read a limited number of tokens, and sentence-transformers cuts a longer text without an error. So this
module splits a long passage into shorter texts ("windows"), and the score of the passage is the score of its best
window (Dai and Callan, "Deeper Text Understanding for IR", SIGIR 2019). A long question is split into parts, and the
mean of their scores is used. If a passage has more than 16 windows, or a question more than 4 parts, only 16 windows or
4 parts at equal distances are read, and a warning is returned.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from agentformer.embedders.hub import local_folder
from agentformer.embedders.sbert.runtime import (
    limit_torch_threads,
    loading,
    replace_surrogates,
    token_offsets,
    token_spans,
)
from agentformer.errors import InvalidInput, RerankerUnavailable
from agentformer.settings import Settings
from agentformer.text.splitting import windows
from agentformer.types import Span, Vector

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

_T = TypeVar("_T")
_MAX_TOKENS = 8192  # tokens of a pair, for a model without a limit
_SPARE = 8  # tokens that a text may gain when it is joined with another text
_QUERY_SHARE = 0.5  # share of the model's tokens for the question; the passage gets the rest
_WINDOWS = 16  # at most this many windows of a passage are read
_PARTS = 4  # at most this many parts of a question are read
# These models can score a pair. Any other model would get a head with random weights.
_HEADS = ("ForSequenceClassification", "ForCausalLM")
_TRUE = {"1", "on", "true", "yes"}


class _Window(NamedTuple):
    """A part of a passage, with the index of the passage in the list of passages and the number of its tokens."""

    text_index: int
    text: str
    tokens: int


class CrossEncoderReranker:
    """A cross-encoder that runs on torch. Thread-safe: if several threads call it, their batches are computed one after
    another. Raises `RerankerUnavailable` if the model cannot be loaded or is not a reranker."""

    def __init__(self, model: str, *, device: str = "", batch_tokens: int = 1024) -> None:
        self._name = f"sbert:{model}"
        self._batch_tokens = batch_tokens
        self._lock = threading.Lock()  # a fast tokenizer fails if two threads use it at the same time
        self._model = _load(model, device)
        self._tokenizer: Any = self._model.tokenizer
        self._limit = min(int(self._model.max_seq_length or _MAX_TOKENS), _MAX_TOKENS)  # tokens of a pair
        prompt = self._model.prompts.get(self._model.default_prompt_name)
        features = self._model.preprocess([("", "")], prompt=prompt)
        self._overhead = int(features["attention_mask"].sum())  # special tokens, a prompt or a template

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> CrossEncoderReranker:
        """Load the cross-encoder with the name `sbert:NAME_OR_FOLDER` in the settings. `model` is the text after
        `sbert:`. Raise `InvalidInput` if it is empty."""
        if not model:
            raise InvalidInput(
                "reranker", "names no model; write sbert:NAME_OR_FOLDER with the name or the folder of a cross-encoder"
            )
        return cls(model, device=settings.device, batch_tokens=settings.batch_tokens)

    @property
    def name(self) -> str:
        return self._name

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        return self.judged(query, texts)[0]

    def judged(self, query: str, texts: Sequence[str]) -> tuple[Vector, tuple[str, ...]]:
        """Return one score for each text, and warnings about texts that were not read completely, as
        `BoundedReranker.judged` describes."""
        if not texts:
            return np.zeros(0, dtype=np.float32), ()
        all_parts = self._query_parts(replace_surrogates(query))
        parts = _evenly_spaced(all_parts, _PARTS)
        used = self._overhead + max(len(self._spans(part)) for part in parts) + _SPARE
        per_text = [[*self._windows(i, replace_surrogates(text), self._limit - used)] for i, text in enumerate(texts)]
        selected = [window for all_windows in per_text for window in _evenly_spaced(all_windows, _WINDOWS)]
        warnings = []
        if long := sum(len(all_windows) > _WINDOWS for all_windows in per_text):
            warnings.append(
                f"the reranker read only {_WINDOWS} parts of each very long passage; very long passages: {long}"
            )
        if len(parts) < len(all_parts):
            warnings.append(
                f"the question is very long: the reranker read only {len(parts)} of its {len(all_parts)} parts"
            )
        best = [self._best_scores(part, selected, len(texts), used) for part in parts]
        mean: Vector = np.mean(best, axis=0, dtype=np.float32)
        return mean, tuple(warnings)

    def _query_parts(self, query: str) -> list[str]:
        limit = int((self._limit - self._overhead) * _QUERY_SHARE)
        return [query[start:end] for start, end in windows(query, self._spans, max(1, limit))] or [query]

    def _best_scores(self, query: str, selected: Sequence[_Window], count: int, used: int) -> Vector:
        """Return an array of `count` scores, one for each passage: the score of its best window. `query` is one part of
        the question, and `selected` are the windows of all passages. `used` is the number of tokens that the model
        reads with each window: the tokens of the question and special tokens."""
        best = np.full(count, -np.inf, dtype=np.float32)
        for batch in self._batches(selected, used):
            scores = self._predict([(query, window.text) for window in batch])
            np.maximum.at(best, [window.text_index for window in batch], scores)
        return best

    def _batches(self, selected: Sequence[_Window], used: int) -> Iterator[Sequence[_Window]]:
        """Yield batches of windows, with the longest windows first: windows of a similar length are then in the same
        batch, and little padding is needed. `used` is the number of tokens that the model reads in addition to each
        window; the size of a batch depends on it."""
        ordered = sorted(selected, key=lambda window: -window.tokens)
        start = 0
        while start < len(ordered):
            end = start + max(1, self._batch_tokens // (used + ordered[start].tokens))
            yield ordered[start:end]
            start = end

    def _windows(self, text_index: int, text: str, limit: int) -> Iterator[_Window]:
        tokens = self._spans(text)

        def count(part: str) -> list[Span]:
            return tokens if part is text else self._spans(part)

        starts = [token.start for token in tokens]
        for start, end in windows(text, count, max(1, limit)) or [Span(0, len(text))]:
            yield _Window(text_index, text[start:end], bisect_left(starts, end) - bisect_left(starts, start))

    def _predict(self, pairs: Sequence[tuple[str, str]]) -> Vector:
        from torch import nn

        with self._lock:
            scores = self._model.predict(
                list(pairs),
                batch_size=len(pairs),
                activation_fn=nn.Identity(),  # raw scores: a sigmoid would turn every high score into 1
                show_progress_bar=False,
                processing_kwargs={"text": {"truncation": False}},  # if a pair is too long, this is an error
            )
        return np.asarray(scores, dtype=np.float32)

    def _spans(self, text: str) -> list[Span]:
        with self._lock:
            return token_spans(token_offsets(self._tokenizer, text))


def _evenly_spaced(items: Sequence[_T], count: int) -> Sequence[_T]:
    """Return at most `count` items: the first, the last, and items at equal distances between these two."""
    last = len(items) - 1
    return items if last < count else [items[n * last // (count - 1)] for n in range(count)]


def _load(model: str, device: str) -> CrossEncoder:
    """Load a cross-encoder from a folder, or by its name on the model hub. If environment variables switch the hub off,
    the model is loaded from the folder in the hub's cache, because the client of the hub would send a request in spite
    of these variables."""
    with loading(RerankerUnavailable, f"the reranker {model!r}", "or check the connection to the model hub"):
        from sentence_transformers import CrossEncoder

        folder = _folder(model)
        loaded = CrossEncoder(str(folder or model), device=device or None, local_files_only=folder is not None)
    architecture = (loaded.config.architectures or [""])[0]
    if not architecture.endswith(_HEADS):
        raise RerankerUnavailable(f"{model!r} is not a cross-encoder (its architecture is {architecture or 'unknown'})")
    if loaded.num_labels != 1:
        raise RerankerUnavailable(
            f"{model!r} is a classifier with {loaded.num_labels} classes; a reranker needs a model with one score"
        )
    if loaded.device.type == "cpu":
        limit_torch_threads()
        loaded.float()  # weights saved in half precision are slow here
    return loaded


def _folder(model: str) -> Path | None:
    """Return the local folder of a model, or None if the model must be loaded from the model hub. Raise
    `RerankerUnavailable` if environment variables switch the hub off and the model is not on this machine."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    if not any(os.environ.get(name, "").strip().lower() in _TRUE for name in names):
        return None
    if cached := local_folder(model, "cross-encoder"):
        return cached
    raise RerankerUnavailable(
        f"the reranker {model!r} could not be loaded: it is not on this machine, and HF_HUB_OFFLINE or "
        "TRANSFORMERS_OFFLINE forbids a download; unset these variables, or give the folder of the model"
    )
