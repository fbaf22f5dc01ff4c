"""Every setting, typed and frozen; the only module that reads the environment.

A setting comes from the argument given, else from `AGENTFORMER_<NAME>` in the environment, else from the
default below. Defaults carry their reason.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentformer.errors import InvalidInput

ENV_PREFIX = "AGENTFORMER_"


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one opened memory. Raises `InvalidInput` for a value out of range."""

    # Where things are kept.
    index_dir: Path = Path("indexes")
    upload_dir: Path = Path("uploads")
    backend: str = "faiss"

    # Embedding. `auto`: the multilingual model if it can be had, else the packaged one.
    embedder: str = "auto"
    multilingual_model: str = "paraphrase-multilingual-mpnet-base-v2"
    device: str = ""  # "": the model's own choice
    batch_tokens: int = 8192  # per forward pass; a batch of 32 full MiniLM windows, bounded memory on long texts

    # Chunks are what a reader sees and what is cited.
    chunk_tokens: int = 500
    chunk_overlap: int = 50

    # Retrieval.
    top_k: int = 3
    fanout: int = 100  # candidates from each side before fusion
    rrf_k: int = 60  # Cormack et al. 2009; flat enough that one side's first rank does not decide alone

    # Reading files.
    max_file_bytes: int = 256 * 1024 * 1024
    max_pages: int = 10_000
    read_seconds: float = 120.0  # wall clock for one file

    # Language model; none is configured by default, and then answers are extractive.
    llm_model: str = ""
    llm_base_url: str = ""
    llm_api_key: str = field(default="", repr=False)
    llm_timeout: float = 30.0  # seconds
    llm_retries: int = 2
    temperature: float = 0.3
    answer_tokens: int = 512

    # Serving.
    host: str = "127.0.0.1"  # loopback: there is no access control yet
    port: int = 8808
    threads: int = 8
    max_question_chars: int = 8_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "index_dir", Path(self.index_dir).expanduser())
        object.__setattr__(self, "upload_dir", Path(self.upload_dir).expanduser())
        for name in _POSITIVE:
            if not 1 <= getattr(self, name) < math.inf:
                raise InvalidInput(name, f"must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.chunk_overlap < self.chunk_tokens:
            raise InvalidInput("chunk_overlap", f"must be in 0..{self.chunk_tokens - 1}, got {self.chunk_overlap}")
        if self.llm_retries < 0:
            raise InvalidInput("llm_retries", f"must be at least 0, got {self.llm_retries}")
        if not 0 <= self.port <= 65535:
            raise InvalidInput("port", f"must be in 0..65535, got {self.port}")
        if not 0 <= self.temperature <= 2:
            raise InvalidInput("temperature", f"must be in 0..2, got {self.temperature}")


_POSITIVE = (
    "batch_tokens",
    "chunk_tokens",
    "top_k",
    "fanout",
    "rrf_k",
    "max_file_bytes",
    "max_pages",
    "read_seconds",
    "llm_timeout",
    "answer_tokens",
    "threads",
    "max_question_chars",
)

_BY_NAME = {f.name: f for f in dataclasses.fields(Settings)}


def load_settings(given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from arguments, then the environment, then defaults. `None` values in `given` count as not given.

    Raises `InvalidInput` for a name that is not a setting or a value of the wrong type.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for name in _BY_NAME:
        if raw := environ.get(ENV_PREFIX + name.upper()):
            values[name] = raw
    for name, value in (given or {}).items():
        if name not in _BY_NAME:
            raise InvalidInput(name, f"is not a setting; settings are {', '.join(sorted(_BY_NAME))}")
        if value is not None:
            values[name] = value
    return Settings(**{name: _convert(name, value) for name, value in values.items()})


def _convert(name: str, value: Any) -> Any:
    """`value` as the type of the setting's default."""
    wanted: type[Any] = type(_BY_NAME[name].default)
    if isinstance(value, wanted):
        return value
    try:
        if issubclass(wanted, int) and isinstance(value, float) and not value.is_integer():
            raise ValueError(value)
        if issubclass(wanted, Path):
            return Path(value)
        return wanted(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(name, f"must be {wanted.__name__}, got {value!r}") from None
