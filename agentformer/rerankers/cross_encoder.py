"""Any cross-encoder that sentence-transformers loads.

That library cuts a pair that is longer than the model reads without a word. Here a long passage is read in windows, and
the best one speaks for it (Dai and Callan, "Deeper Text Understanding for IR", SIGIR 2019); a question that leaves too
little room is read in parts, whose scores are averaged.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
_HEADS = ("ForSequenceClassification", "ForCausalLM")  # what can score a pair; another model would get a random head
_YES = {"1", "on", "true", "yes"}


class CrossEncoderReranker:
    """A cross-encoder on torch. Thread-safe: one call at a time. Raises `RerankerUnavailable` where the model cannot be
    loaded or is no reranker."""

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
        if not texts:
            return np.zeros(0, dtype=np.float32)
        with self._lock:
            parts = [self._best(part, texts) for part in self._query_parts(sendable(query))]
        mean: Vector = np.mean(parts, axis=0, dtype=np.float32)
        return mean

    def _query_parts(self, query: str) -> list[str]:
        room = int((self._limit - self._frame) * _QUERY_SHARE)
        return [query[start:end] for start, end in windows(query, self._spans, max(1, room))] or [query]

    def _best(self, query: str, texts: Sequence[str]) -> Vector:
        """(len(texts),) of each text its best window's score."""
        used = self._frame + len(self._spans(query)) + _SPARE
        pairs: list[tuple[str, str]] = []
        owners: list[int] = []
        longest = 0
        for owner, text in enumerate(map(sendable, texts)):
            for piece, tokens in self._pieces(text, self._limit - used):
                pairs.append((query, piece))
                owners.append(owner)
                longest = max(longest, used + tokens)
        best = np.full(len(texts), -np.inf, dtype=np.float32)
        np.maximum.at(best, owners, self._predicted(pairs, longest))
        return best

    def _pieces(self, text: str, room: int) -> Iterator[tuple[str, int]]:
        """The text in parts of at most `room` tokens, with how many each has."""
        spans = windows(text, self._spans, max(1, room))
        for start, end in spans or [Span(0, len(text))]:
            yield text[start:end], len(self._spans(text[start:end]))

    def _predicted(self, pairs: Sequence[tuple[str, str]], longest: int) -> Vector:
        from torch import nn

        scores = self._model.predict(
            list(pairs),
            batch_size=max(1, self._batch_tokens // longest),
            activation_fn=nn.Identity(),  # as they come: a sigmoid makes all good ones 1
            show_progress_bar=False,
            processing_kwargs={"text": {"truncation": False}},  # what does not fit is an error, and never cut
        )
        return np.asarray(scores, dtype=np.float32)

    def _spans(self, text: str) -> list[Span]:
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
