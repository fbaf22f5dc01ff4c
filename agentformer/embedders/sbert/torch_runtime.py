"""A model on torch, by sentence-transformers: any model that there is, on any device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from agentformer.embedders.sbert.fidelity import PROBES, QUICK, SAME_SPACE, agreement, fingerprint, unit
from agentformer.embedders.sbert.processor import has_bf16, usable_cpus
from agentformer.embedders.sbert.runtime import Facts, Read
from agentformer.embedders.sbert.tokenizing import sendable
from agentformer.errors import EmbedderUnavailable
from agentformer.types import Matrix

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class TorchRuntime:
    """On the device it chooses itself unless one is given; in bf16 where the processor has it and the model bears it
    (`bf16` says otherwise)."""

    def __init__(self, model: str, *, local_only: bool = False, device: str = "", bf16: bool | None = None) -> None:
        self.model = load_model(model, local_only=local_only, device=device)
        self._tokenizer: Any = self.model.tokenizer
        self._lock = threading.Lock()  # fast tokenizers refuse to be borrowed twice at once
        if self.model.device.type == "cpu":
            _use_fewer_threads()
            self.model.float()  # weights that were saved in half precision are slow here
        reference = self._encode(list(PROBES[:QUICK]))
        self.facts = facts_of(self.model, reference)
        if self.model.device.type == "cpu" and (has_bf16() if bf16 is None else bf16):
            self._try_bf16(reference)

    def read(self, texts: Sequence[str]) -> list[Read]:
        texts = [sendable(text) for text in texts]
        with self._lock:
            encoded = self._tokenizer(texts, add_special_tokens=True, truncation=False, verbose=False)
        return [Read(len(ids), text) for ids, text in zip(encoded["input_ids"], texts, strict=True)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        with self._lock:
            encoded = self._tokenizer(
                sendable(text), add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
            )
        found: list[tuple[int, int]] = encoded["offset_mapping"]
        return found

    def rows(self, batch: Sequence[Read]) -> Matrix:
        return self._encode([read.content for read in batch])

    def _encode(self, texts: list[str]) -> Matrix:
        with self._lock:
            rows = self.model.encode(
                texts,
                prompt="",  # the prefix is there already; without this the model would add its default prompt
                batch_size=len(texts),
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return np.asarray(rows, dtype=np.float32)

    def _try_bf16(self, reference: Matrix) -> None:
        import torch

        fp32 = {name: weights.detach().clone() for name, weights in self.model.state_dict().items()}
        self.model.to(torch.bfloat16)
        if agreement(self._encode(list(PROBES[:QUICK])), reference) < SAME_SPACE:
            self.model.float()
            self.model.load_state_dict(fp32)  # what was rounded does not come back by itself


def load_model(model: str, *, local_only: bool, device: str) -> SentenceTransformer:
    """Raises `EmbedderUnavailable`."""
    try:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as transformers_logging
    except ImportError:
        raise EmbedderUnavailable("sentence-transformers is not installed: pip install 'agentformer[sbert]'") from None
    transformers_logging.disable_progress_bar()  # loading takes a second, and our own output is what a user reads
    try:
        return SentenceTransformer(model, local_files_only=local_only, device=device or None)
    except Exception as error:  # the hub client, transformers and torch each raise their own kinds
        raise EmbedderUnavailable(
            f"the model {model!r} could not be loaded ({type(error).__name__}: {_first_line(error)}); "
            "give a folder that holds it, make it reachable, or use --embedder minilm"
        ) from error


def facts_of(model: SentenceTransformer, reference: Matrix) -> Facts:
    """What the loaded model says of itself. `reference` are the rows of `PROBES`, or of the first ones."""
    tokenizer: Any = model.tokenizer
    return Facts(
        dimension=reference.shape[1],
        max_tokens=int(model.max_seq_length or tokenizer.model_max_length),
        special_tokens=len(tokenizer("", add_special_tokens=True)["input_ids"]),
        vocabulary=len(tokenizer),
        prompts={name: text for name, text in (model.prompts or {}).items() if text},
        fingerprint=fingerprint(unit(reference)[0]),
    )


def _use_fewer_threads() -> None:
    """Torch counts the machine's cores, also those that this process may not use. More than it has are never asked."""
    import torch

    if torch.get_num_threads() > usable_cpus():
        torch.set_num_threads(usable_cpus())


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:200]
