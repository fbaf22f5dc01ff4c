"""Every setting, typed and frozen; the only module that reads the environment.

A setting comes from the argument given, else from `AGENTFORMER_<NAME>` in the environment, else from the
default below. Defaults carry their reason.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.types import TIERS

ENV_PREFIX = "AGENTFORMER_"


@dataclass(frozen=True, slots=True)
class Route:
    """Where entries of these tiers, kinds and namespaces are kept; an empty tuple fits any. Raises `InvalidInput`."""

    target: str  # "hierarchical", or the name of a backend
    tiers: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := [tier for tier in self.tiers if tier not in TIERS]:
            raise InvalidInput("routes", f"{unknown[0]!r} is no tier; they are {', '.join(TIERS)}")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one opened memory. Raises `InvalidInput` for a value out of range."""

    # Where things are kept.
    index_dir: Path = Path("indexes")
    upload_dir: Path = Path("uploads")
    backend: str = "faiss"  # of everything that no route sends elsewhere

    # Memory. The first route that fits an entry decides where it is kept: "SELECTOR=TARGET; ...", a selector being
    # tiers, `kind:NAME` and `namespace:NAME`, separated by commas; a target `hierarchical` or a backend's name.
    routes: tuple[Route, ...] = (Route("hierarchical", tiers=("core", "working")),)
    hierarchical_backend: str = ""  # in which the hierarchical memory keeps its tiers; "": in `backend`
    core_block_tokens: int = 500  # of one core block; four of them are half of a small model's context
    working_messages: int = 10  # of a session: five turns of each side
    context_tokens: int = 4000  # of `build_context`, where the call does not say
    noise_floor: float = 0.2  # cosine below which a hit that shares no term with the query is left out; -1: none is
    decay_rates: Mapping[str, float] = field(  # what is left of a category's salience after a day without use
        default_factory=lambda: {"decisions": 1.0, "summaries": 0.99, "context": 0.90}
    )

    # Cleaning: of a session's episodic entries, all but the newest few become summaries, a few at a time.
    clean_every: int = 10  # messages of a session between two cleanings; 0: only when asked
    clean_keep_recent: int = 5  # entries that stay as they are
    clean_batch: int = 5  # entries of one summary
    cleanup_interval: float = 0.0  # seconds between cleanings of everything; 0: none by the clock
    summary_tokens: int = 512
    lease_seconds: float = 300.0  # after which a cleaner that died gives way; longer than a model takes for one summary

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
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidInput(name, f"must be at least 0, got {getattr(self, name)}")
        for category, rate in self.decay_rates.items():
            if not 0 < rate <= 1:
                raise InvalidInput("decay_rates", f"must be in 0..1 and above 0, got {rate} for {category!r}")
        if not -1 <= self.noise_floor <= 1:
            raise InvalidInput("noise_floor", f"must be in -1..1, got {self.noise_floor}")
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
    "core_block_tokens",
    "working_messages",
    "context_tokens",
    "clean_batch",
    "summary_tokens",
    "lease_seconds",
)
_NOT_NEGATIVE = ("llm_retries", "clean_every", "clean_keep_recent", "cleanup_interval")


def parse_routes(text: str) -> tuple[Route, ...]:
    """Routes as they are written in the environment; see `Settings.routes`. Raises `InvalidInput`."""
    routes = []
    for rule in filter(None, (part.strip() for part in text.split(";"))):
        selector, _, target = (part.strip() for part in rule.partition("="))
        words = [word.strip() for word in selector.split(",") if word.strip()]
        if not words or not target:
            raise InvalidInput("routes", f"must be SELECTOR=TARGET, such as core,working=hierarchical; got {rule!r}")
        routes.append(
            Route(
                target,
                tiers=tuple(word for word in words if ":" not in word and word != "*"),
                kinds=tuple(word.removeprefix("kind:") for word in words if word.startswith("kind:")),
                namespaces=tuple(word.removeprefix("namespace:") for word in words if word.startswith("namespace:")),
            )
        )
        if unknown := [w for w in words if ":" in w and w.split(":")[0] not in ("kind", "namespace")]:
            raise InvalidInput("routes", f"{unknown[0]!r} is no selector; they are tiers, kind:NAME, namespace:NAME, *")
    return tuple(routes)


def _parse_rates(text: str) -> dict[str, float]:
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return {category.strip(): float(rate) for category, _, rate in pairs}


_PARSED: dict[str, Callable[[str], Any]] = {"routes": parse_routes, "decay_rates": _parse_rates}
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
    if name in _PARSED:
        return _parsed(name, value)
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


def _parsed(name: str, value: Any) -> Any:
    """A setting of several parts: as it is, or from its text."""
    try:
        if isinstance(value, str):
            return _PARSED[name](value)
        if name == "decay_rates":
            return {str(key): float(rate) for key, rate in value.items()}
        if not all(isinstance(route, Route) for route in value):
            raise TypeError("a route must be a Route")
        return tuple(value)
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(name, f"cannot be understood: {value!r:.120}") from None
