"""A model on torch, through sentence-transformers: any model, on any device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from agentformer.embedders.model_info import PROBES, QUICK_PROBES, fingerprint, mean_cosine, unit
from agentformer.embedders.sbert.runtime import (
    SAME_SPACE,
    ModelFacts,
    Tokenized,
    has_bf16,
    limit_torch_threads,
    replace_surrogates,
)
from agentformer.errors import EmbedderUnavailable
from agentformer.types import Matrix

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class TorchRuntime:
    """A model on `device`; without `device`, torch chooses the device. The model runs in bf16 if the processor supports
    bf16 and the vectors in bf16 match those in float32. The argument `bf16` turns bf16 on or off without this test."""

    def __init__(self, model: str, *, local_only: bool = False, device: str = "", bf16: bool | None = None) -> None:
        self.model = load_model(model, local_only=local_only, device=device)
        self._tokenizer: Any = self.model.tokenizer
        self._lock = threading.Lock()  # a fast tokenizer fails if two threads use it at the same time
        if self.model.device.type == "cpu":
            limit_torch_threads()
            self.model.float()  # weights saved in half precision are slow here
        reference = self._encode(list(PROBES[:QUICK_PROBES]))
        self.facts = facts_of(self.model, reference)
        if self.model.device.type == "cpu" and (has_bf16() if bf16 is None else bf16):
            self._try_bf16(reference)

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """See `Runtime.tokenize`."""
        texts = [replace_surrogates(text) for text in texts]
        with self._lock:
            encoded = self._tokenizer(texts, add_special_tokens=True, truncation=False, verbose=False)
        return [Tokenized(len(ids), text) for ids, text in zip(encoded["input_ids"], texts, strict=True)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """See `Runtime.offsets`."""
        with self._lock:
            encoded = self._tokenizer(
                replace_surrogates(text),
                add_special_tokens=False,
                return_offsets_mapping=True,
                truncation=False,
                verbose=False,
            )
        offsets: list[tuple[int, int]] = encoded["offset_mapping"]
        return offsets

    def rows(self, batch: Sequence[Tokenized]) -> Matrix:
        return self._encode([item.content for item in batch])

    def _encode(self, texts: list[str]) -> Matrix:
        with self._lock:
            rows = self.model.encode(
                texts,
                prompt="",  # the texts already have their prefix; without this the model would add its default prompt
                batch_size=len(texts),
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return np.asarray(rows, dtype=np.float32)

    def _try_bf16(self, reference: Matrix) -> None:
        import torch

        fp32 = {name: weights.detach().clone() for name, weights in self.model.state_dict().items()}
        self.model.to(torch.bfloat16)
        if mean_cosine(self._encode(list(PROBES[:QUICK_PROBES])), reference) < SAME_SPACE:
            self.model.float()
            self.model.load_state_dict(fp32)  # restores the weights from before the rounding to bf16


def load_model(model: str, *, local_only: bool, device: str) -> SentenceTransformer:
    """Load a model by name or folder. Raise `EmbedderUnavailable`."""
    try:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as transformers_logging
    except ImportError:
        raise EmbedderUnavailable("sentence-transformers is not installed: pip install 'agentformer[sbert]'") from None
    transformers_logging.disable_progress_bar()  # loading takes a second
    try:
        return SentenceTransformer(model, local_files_only=local_only, device=device or None)
    except Exception as error:  # the hub's client, transformers and torch raise different classes
        reason = str(error).strip().split("\n", 1)[0][:200]
        raise EmbedderUnavailable(
            f"the model {model!r} could not be loaded ({type(error).__name__}: {reason}); "
            "give a folder that contains it, make it reachable, or use --embedder minilm"
        ) from error


def facts_of(model: SentenceTransformer, reference: Matrix) -> ModelFacts:
    """Return the facts of a loaded model. `reference` are the rows of the first texts of `PROBES`."""
    tokenizer: Any = model.tokenizer
    return ModelFacts(
        dimension=reference.shape[1],
        max_tokens=int(model.max_seq_length or tokenizer.model_max_length),
        special_tokens=len(tokenizer("", add_special_tokens=True)["input_ids"]),
        vocabulary=len(tokenizer),
        prompts={name: text for name, text in (model.prompts or {}).items() if text},
        fingerprint=fingerprint(unit(reference)[0]),
    )
