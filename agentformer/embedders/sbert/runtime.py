"""What computes the vectors of a model: the contract that torch and OpenVINO share."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from agentformer.types import Matrix


class Read(NamedTuple):
    """A text as its runtime wants it. `length` counts tokens, special ones included."""

    length: int
    content: Any


@dataclass(frozen=True, slots=True)
class Facts:
    """What a model is, on whatever runtime."""

    dimension: int
    max_tokens: int  # that the model reads, special ones included
    special_tokens: int  # that are added to every text
    vocabulary: int
    prompts: Mapping[str, str]  # by name, as its configuration has them
    fingerprint: str  # of the space: where the precision is that of the model itself, of its fp32 rows


class Runtime(Protocol):
    """A loaded model. Thread-safe."""

    @property
    def facts(self) -> Facts: ...

    def read(self, texts: Sequence[str]) -> list[Read]:
        """Each text in tokens; nothing is cut off."""
        ...

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Begin and end of each token in the text, without special ones, as the tokenizer tells them."""
        ...

    def rows(self, batch: Sequence[Read]) -> Matrix:
        """(len(batch), dimension) rows of float32 of any length, as the model gives them."""
        ...


class NotFast(Exception):
    """Why the fast runtime cannot be used for a model; torch can."""


class BadExport(NotFast):
    """An export that is there is damaged, or another model's."""


class NotExportable(NotFast):
    """A model that these versions of the packages cannot export, however often it is tried."""


def needed(package: str) -> Any:
    """The package, imported. Raises `NotFast` where it is missing or broken."""
    try:
        return importlib.import_module(package)
    except Exception as error:  # a broken one raises whatever its native part meets
        told = " ".join(str(error).split())[:200]
        raise NotFast(
            f"the package {package} cannot be imported ({type(error).__name__}: {told}); install it anew: "
            f"pip install --force-reinstall {package}"
        ) from error
