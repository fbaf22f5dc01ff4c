"""A model's tokenizer without transformers: the same Rust code, from the file that it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentformer.embedders.sbert.runtime import Read, needed


class FastTokenizer:
    """`inputs` are the names of what the model reads, in its order. Thread-safe, since nothing of it ever changes.
    Raises `NotFast` where the package tokenizers cannot be used."""

    def __init__(self, file: Path, inputs: Sequence[str], pad_id: int) -> None:
        self._tokenizer = needed("tokenizers").Tokenizer.from_file(str(file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.inputs = list(inputs)
        self.pad_id = pad_id

    def described(self) -> dict[str, object]:
        """What to make it of again, beside its file."""
        return {"inputs": self.inputs, "pad_id": self.pad_id}

    def read(self, texts: Sequence[str]) -> list[Read]:
        """`content` is (ids, type ids)."""
        whole = [sendable(text) for text in texts]
        one_by_one = len(whole) == 1  # threads for one text cost more than they bring
        encoded = [self._tokenizer.encode(whole[0])] if one_by_one else self._tokenizer.encode_batch_fast(whole)
        return [Read(len(one.ids), (one.ids, one.type_ids)) for one in encoded]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        offsets: list[tuple[int, int]] = self._tokenizer.encode(sendable(text), add_special_tokens=False).offsets
        return offsets

    def arrays(self, batch: Sequence[Read], width: int = 0) -> dict[str, NDArray[np.int64]]:
        """What the model reads: by name, (len(batch), the longest or `width`), padded behind."""
        width = max(width, *(read.length for read in batch))
        ids = np.full((len(batch), width), self.pad_id, dtype=np.int64)
        types = np.zeros_like(ids)
        mask = np.zeros_like(ids)
        for row, read in enumerate(batch):
            ids[row, : read.length], types[row, : read.length] = read.content
            mask[row, : read.length] = 1
        known = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
        return {name: known[name] for name in self.inputs}


def sendable(text: str) -> str:
    """Without lone surrogates, which Rust's strings cannot hold; as many characters, so that offsets stay."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
