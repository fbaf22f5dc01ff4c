"""Cross-encoders on torch, through sentence-transformers.

Sentence-transformers cuts a pair that is longer than the model reads. Here a long passage is split into windows, and
its score is that of the best window (Dai and Callan, "Deeper Text Understanding for IR", SIGIR 2019). A long question
is split into parts, and the scores of the parts are averaged. If there are more windows or parts than the limits below,
the model reads some of them at even distances, and a warning reports the limit.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from agentformer.embedders.sbert.runtime import (
    limit_torch_threads,
    loading,
    local_folder,
    replace_surrogates,
    token_offsets,
    token_spans,
)
from agentformer.errors import InvalidInput, RerankerUnavailable
from agentformer.settings import Settings
from agentformer.text.chunking import windows
from agentformer.types import Span, Vector

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

_T = TypeVar("_T")
_MAX_TOKENS = 8192  # tokens of a pair, for a model without a limit
_SPARE = 8  # tokens that a text may gain when it is joined with another text
_QUERY_SHARE = 0.5  # share of the model's tokens for the question; the passage gets the rest
_WINDOWS = 16  # windows of a passage
_PARTS = 4  # parts of a question
# These models can score a pair. Any other model would get a head with random weights.
_HEADS = ("ForSequenceClassification", "ForCausalLM")
_TRUE = {"1", "on", "true", "yes"}


class _Window(NamedTuple):
    """A part of the text with the number `text_index`."""

    text_index: int
    text: str
    tokens: int


class CrossEncoderReranker:
    """A cross-encoder on torch. It computes one batch at a time. Thread-safe. Raises `RerankerUnavailable` if the model
    cannot be loaded or is not a reranker."""

    def __init__(self, model: str, *, device: str = "", batch_tokens: int = 2048) -> None:
        self._name = f"sbert:{model}"
        self._batch_tokens = batch_tokens
        self._lock = threading.Lock()  # a fast tokenizer fails if two threads use it at the same time
        self._model = _load(model, device)
        self._tokenizer: Any = self._model.tokenizer
        self._limit = min(int(self._model.max_seq_length or _MAX_TOKENS), _MAX_TOKENS)
        prompt = self._model.prompts.get(self._model.default_prompt_name or "")
        features = self._model.preprocess([("", "")], prompt=prompt)
        self._overhead = int(features["attention_mask"].sum())  # special tokens, a prompt or a template

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> CrossEncoderReranker:
        """Load `sbert:NAME_OR_FOLDER`."""
        if not model:
            raise InvalidInput("reranker", "names no model; give sbert:NAME_OR_FOLDER of a cross-encoder")
        return cls(model, device=settings.device, batch_tokens=settings.batch_tokens)

    @property
    def name(self) -> str:
        return self._name

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        return self.judged(query, texts)[0]

    def judged(self, query: str, texts: Sequence[str]) -> tuple[Vector, tuple[str, ...]]:
        """See `BoundedReranker.judged`."""
        if not texts:
            return np.zeros(0, dtype=np.float32), ()
        all_parts = self._query_parts(replace_surrogates(query))
        parts = _evenly_spaced(all_parts, _PARTS)
        used = self._overhead + max(len(self._spans(part)) for part in parts) + _SPARE
        per_text = [[*self._windows(i, replace_surrogates(text), self._limit - used)] for i, text in enumerate(texts)]
        selected = [window for all_windows in per_text for window in _evenly_spaced(all_windows, _WINDOWS)]
        warnings = []
        if long := sum(len(all_windows) > _WINDOWS for all_windows in per_text):
            warnings.append(f"the reranker read {_WINDOWS} evenly spaced parts of each of {long} long passages")
        if len(parts) < len(all_parts):
            warnings.append(f"the reranker read {len(parts)} of {len(all_parts)} parts of a long question")
        best = [self._best_scores(part, selected, len(texts), used) for part in parts]
        mean: Vector = np.mean(best, axis=0, dtype=np.float32)
        return mean, tuple(warnings)

    def _query_parts(self, query: str) -> list[str]:
        limit = int((self._limit - self._overhead) * _QUERY_SHARE)
        return [query[start:end] for start, end in windows(query, self._spans, max(1, limit))] or [query]

    def _best_scores(self, query: str, selected: Sequence[_Window], count: int, used: int) -> Vector:
        """Return (count,) scores: for each text the score of its best window. A pair has `used` other tokens."""
        best = np.full(count, -np.inf, dtype=np.float32)
        for batch in self._batches(selected, used):
            scores = self._predict([(query, window.text) for window in batch])
            np.maximum.at(best, [window.text_index for window in batch], scores)
        return best

    def _batches(self, selected: Sequence[_Window], used: int) -> Iterator[Sequence[_Window]]:
        """Yield batches, the longest windows first, because all windows of a batch are padded to the same length."""
        ordered = sorted(selected, key=lambda window: -window.tokens)
        start = 0
        while start < len(ordered):
            end = start + max(1, self._batch_tokens // (used + ordered[start].tokens))
            yield ordered[start:end]
            start = end

    def _windows(self, text_index: int, text: str, limit: int) -> Iterator[_Window]:
        tokens: list[Span] = []

        def count(part: str) -> list[Span]:
            spans = self._spans(part)
            if part is text and not tokens:
                tokens.extend(spans)
            return spans

        borders = windows(text, count, max(1, limit))
        starts = [token.start for token in tokens]
        for start, end in borders or [Span(0, len(text))]:
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
    """Return at most `count` items at even distances, from the first item to the last item."""
    last = len(items) - 1
    return items if last < count else [items[n * last // (count - 1)] for n in range(count)]


def _load(model: str, device: str) -> CrossEncoder:
    """Load a model from a folder, or by its name on the model hub. If the environment switches the hub off, the hub's
    cache folder is used directly, because the hub's client would still send a request."""
    with loading(RerankerUnavailable, f"the reranker {model!r}", "or make it reachable"):
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
    """Return the local folder of a model, or None if the model hub is to be used. Raise `RerankerUnavailable`."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    if not any(os.environ.get(name, "").strip().lower() in _TRUE for name in names):
        return None
    if cached := local_folder(model, "cross-encoder"):
        return cached
    raise RerankerUnavailable(
        f"the reranker {model!r} could not be loaded: it is not on this machine, and the environment switches the "
        "model hub off"
    )
