"""Any cross-encoder that sentence-transformers loads.

That library cuts a pair that is longer than the model reads without a word. Here a long passage is read in windows, and
the best one speaks for it (Dai and Callan, "Deeper Text Understanding for IR", SIGIR 2019); a question that leaves too
little room is read in parts, whose scores are averaged. Of what has more of them than the bounds below, those are read
that lie evenly between its beginning and its end, both among them, and a warning says so.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from agentformer.embedders.sbert.hub import local_folder
from agentformer.embedders.sbert.processor import usable_cpus
from agentformer.embedders.sbert.tokenizing import sendable
from agentformer.errors import InvalidInput, RerankerUnavailable
from agentformer.settings import Settings
from agentformer.text.chunking import windows
from agentformer.types import Span, Vector

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

_MOST = 8192  # tokens of a pair, for a model that names no limit
_SPARE = 8  # tokens that a text may have more of beside another one than by itself
_QUERY_SHARE = 0.5  # of what the model reads; the rest is the passage's
_WINDOWS = 16  # of a passage
_PARTS = 4  # of a question
_HEADS = ("ForSequenceClassification", "ForCausalLM")  # what can score a pair; another model would get a random head
_YES = {"1", "on", "true", "yes"}


_T = TypeVar("_T")


class _Piece(NamedTuple):
    """A window of the text with the number `owner`."""

    owner: int
    text: str
    tokens: int


class CrossEncoderReranker:
    """A cross-encoder on torch. Thread-safe: one batch at a time, whoever's. Raises `RerankerUnavailable` where the
    model cannot be loaded or is no reranker."""

    def __init__(self, model: str, *, device: str = "", batch_tokens: int = 2048) -> None:
        self._name = f"sbert:{model}"
        self._batch_tokens = batch_tokens
        self._lock = threading.Lock()  # fast tokenizers refuse to be borrowed twice at once
        self._model = _loaded(model, device)
        self._tokenizer: Any = self._model.tokenizer
        self._limit = min(int(self._model.max_seq_length or _MOST), _MOST)
        self._frame = self._length("", "")  # special tokens, prompt or template

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> CrossEncoderReranker:
        """`sbert:NAME_OR_FOLDER`."""
        if not model:
            raise InvalidInput("reranker", "names no model; give sbert:NAME_OR_FOLDER of a cross-encoder")
        return cls(model, device=settings.device, batch_tokens=settings.batch_tokens)

    @property
    def name(self) -> str:
        return self._name

    def scores(self, query: str, texts: Sequence[str]) -> Vector:
        return self.judged(query, texts)[0]

    def judged(self, query: str, texts: Sequence[str]) -> tuple[Vector, tuple[str, ...]]:
        if not texts:
            return np.zeros(0, dtype=np.float32), ()
        every = self._query_parts(sendable(query))
        parts = _spread(every, _PARTS)
        used = self._frame + max(len(self._spans(part)) for part in parts) + _SPARE
        found = [[*self._pieces(owner, sendable(text), self._limit - used)] for owner, text in enumerate(texts)]
        pieces = [piece for each in found for piece in _spread(each, _WINDOWS)]
        warnings = []
        if long := sum(len(each) > _WINDOWS for each in found):
            warnings.append(f"of {long} long passages the reranker read {_WINDOWS} parts each, evenly spread")
        if len(parts) < len(every):
            warnings.append(f"of a long question the reranker read {len(parts)} of {len(every)} parts, evenly spread")
        best = [self._best(part, pieces, len(texts), used) for part in parts]
        mean: Vector = np.mean(best, axis=0, dtype=np.float32)
        return mean, tuple(warnings)

    def _query_parts(self, query: str) -> list[str]:
        room = int((self._limit - self._frame) * _QUERY_SHARE)
        return [query[start:end] for start, end in windows(query, self._spans, max(1, room))] or [query]

    def _best(self, query: str, pieces: Sequence[_Piece], texts: int, used: int) -> Vector:
        """(texts,) of each text its best window's score. `used` tokens of a pair are not the window's."""
        best = np.full(texts, -np.inf, dtype=np.float32)
        for batch in self._batches(pieces, used):
            scores = self._predicted([(query, piece.text) for piece in batch])
            np.maximum.at(best, [piece.owner for piece in batch], scores)
        return best

    def _batches(self, pieces: Sequence[_Piece], used: int) -> Iterator[Sequence[_Piece]]:
        """The longest first: those of one batch are padded to the same length."""
        ordered = sorted(pieces, key=lambda piece: -piece.tokens)
        start = 0
        while start < len(ordered):
            end = start + max(1, self._batch_tokens // (used + ordered[start].tokens))
            yield ordered[start:end]
            start = end

    def _pieces(self, owner: int, text: str, room: int) -> Iterator[_Piece]:
        """The text in parts of at most `room` tokens."""
        tokens: list[Span] = []

        def count(part: str) -> list[Span]:
            spans = self._spans(part)
            if part is text and not tokens:
                tokens.extend(spans)
            return spans

        spans = windows(text, count, max(1, room))
        starts = [token.start for token in tokens]
        for start, end in spans or [Span(0, len(text))]:
            yield _Piece(owner, text[start:end], bisect_left(starts, end) - bisect_left(starts, start))

    def _predicted(self, pairs: Sequence[tuple[str, str]]) -> Vector:
        """Of one batch."""
        from torch import nn

        with self._lock:
            scores = self._model.predict(
                list(pairs),
                batch_size=len(pairs),
                activation_fn=nn.Identity(),  # as they come: a sigmoid makes all good ones 1
                show_progress_bar=False,
                processing_kwargs={"text": {"truncation": False}},  # what does not fit is an error, and never cut
            )
        return np.asarray(scores, dtype=np.float32)

    def _spans(self, text: str) -> list[Span]:
        with self._lock:
            encoded = self._tokenizer(
                text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
            )
        spans: list[Span] = []
        end = 0
        for start, stop in encoded["offset_mapping"]:
            start = max(start, end)  # byte-level tokenizers give several tokens to one character
            end = max(stop, start)
            spans.append(Span(start, end))
        return spans

    def _length(self, query: str, text: str) -> int:
        """Tokens of a pair, with all that the model puts around it."""
        prompt = self._model.prompts.get(self._model.default_prompt_name or "")
        features = self._model.preprocess([(query, text)], prompt=prompt)
        return int(features["attention_mask"].sum())


def _spread(items: Sequence[_T], most: int) -> Sequence[_T]:
    """At most so many of them, at even distances from the first to the last."""
    last = len(items) - 1
    return items if last < most else [items[n * last // (most - 1)] for n in range(most)]


def _loaded(model: str, device: str) -> CrossEncoder:
    """A folder is read as one, also where its name could be that of a model on the hub. The hub is asked only for a
    name, and not where `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE` is set: then what its cache holds is a folder too,
    since its own client sends a request even where it is told to read the cache alone."""
    try:
        from sentence_transformers import CrossEncoder
        from transformers.utils import logging as transformers_logging
    except ImportError:
        raise RerankerUnavailable("sentence-transformers is not installed: pip install 'agentformer[sbert]'") from None
    transformers_logging.disable_progress_bar()
    given = Path(model).expanduser()
    folder = given if given.is_dir() else _cached(model) if _offline() else None
    try:
        loaded = CrossEncoder(str(folder or model), device=device or None, local_files_only=folder is not None)
    except Exception as error:  # the hub client, transformers and torch each raise their own kinds
        reason = str(error).strip().split("\n", 1)[0][:200]
        raise RerankerUnavailable(
            f"the reranker {model!r} could not be loaded ({type(error).__name__}: {reason}); "
            "give a folder that holds it, or make it reachable"
        ) from error
    _check(loaded, model)
    if loaded.device.type == "cpu":
        _use_fewer_threads()
        loaded.float()  # weights that were saved in half precision are slow here
    return loaded


def _check(loaded: CrossEncoder, model: str) -> None:
    """Raises `RerankerUnavailable` for a model that gives no single score for a pair."""
    made_for = loaded.config.architectures or [""]
    if not made_for[0].endswith(_HEADS):
        raise RerankerUnavailable(f"{model!r} is no cross-encoder, but {made_for[0] or 'something else'}")
    if loaded.num_labels != 1:
        raise RerankerUnavailable(f"{model!r} sorts pairs into {loaded.num_labels} classes, and gives no score for one")


def _cached(model: str) -> Path:
    """The hub's cached folder of a model. Raises `RerankerUnavailable`."""
    folder = local_folder(model if "/" in model else f"cross-encoder/{model}")
    if folder is None:
        raise RerankerUnavailable(
            f"the reranker {model!r} could not be loaded: it is not on this machine, and the model hub may not be asked"
        )
    return folder


def _offline() -> bool:
    return any(os.environ.get(name, "").strip().lower() in _YES for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def _use_fewer_threads() -> None:
    """Torch counts the machine's cores, also those that this process may not use."""
    import torch

    if torch.get_num_threads() > usable_cpus():
        torch.set_num_threads(usable_cpus())
