"""Every setting, typed and frozen; the only module that reads the environment.

A setting comes from the argument given, else from `AGENTFORMER_<NAME>` in the file `.env` of the current folder,
else from the environment, else from the default below. Defaults carry their reason. The providers' own variables
(`OPENAI_API_KEY`, ...) go by the name that every tool knows. Keys, and credentials in addresses, are in no `repr`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dotenv.parser import parse_stream

from agentformer.errors import InvalidInput
from agentformer.net.address import checked, shown
from agentformer.types import TIERS

log = logging.getLogger("agentformer")

ENV_PREFIX = "AGENTFORMER_"
ENV_FILE = ".env"
SBERT_BACKENDS = ("torch", "onnx", "openvino")


@dataclass(frozen=True, slots=True)
class Route:
    """Where entries of these tiers, kinds and namespaces are kept; an empty tuple fits any. Raises `InvalidInput`."""

    target: str  # "hierarchical", or the name of a backend
    tiers: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := [tier for tier in self.tiers if tier not in TIERS]:
            raise _unusable("routes", f"must name tiers, which are {', '.join(TIERS)}", unknown[0])


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

    # Embedding: `provider:model`, or `auto`: the multilingual model if it can be had, else the packaged one.
    embedder: str = "auto"
    multilingual_model: str = "paraphrase-multilingual-mpnet-base-v2"
    sbert_backend: str = "torch"  # torch, onnx or openvino, as sentence-transformers offers them
    device: str = ""  # "": the model's own choice
    batch_tokens: int = 8192  # per forward pass; a batch of 32 full MiniLM windows, bounded memory on long texts
    embed_base_url: str = ""  # of an embedder over HTTP; "": the provider's own address
    embed_api_key: str = field(default="", repr=False)
    embed_timeout: float = 60.0  # seconds for one batch; a server on a CPU takes its time
    embed_retries: int = 2
    embed_batch: int = 64  # texts of one request; what an interruption can cost
    embed_languages: str = ""  # that a model over HTTP knows: "en fi", "*" for many; "": as known, or as measured
    embed_keep_alive: str = "5m"  # how long Ollama keeps the model loaded
    embed_retry_seconds: float = 5.0  # until what waits for its vectors is tried again, then longer; 0: only when asked
    breaker_seconds: float = 30.0  # for which a server that did not answer is left alone, then longer

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
    llm_stream_seconds: float = 300.0  # for one streamed answer as a whole
    temperature: float = 0.3
    answer_tokens: int = 512

    # The providers' own variables, without our prefix. A model that is not OpenAI's is asked for at the first of
    # these addresses that answers; a key goes to its own address only.
    openai_api_key: str = field(default="", repr=False)
    openai_base_url: str = ""
    lmstudio_base_url: str = ""
    ollama_base_url: str = "http://127.0.0.1:11434"

    # Serving.
    host: str = "127.0.0.1"  # loopback: there is no access control yet
    port: int = 8808
    threads: int = 8
    max_question_chars: int = 8_000

    def __post_init__(self) -> None:
        for name in ("index_dir", "upload_dir"):
            object.__setattr__(self, name, _checked_folder(name, getattr(self, name)))
        for name in ("embedder", "llm_model"):
            object.__setattr__(self, name, getattr(self, name).strip())
        self._check_numbers()
        for name in _ADDRESSES:
            if url := getattr(self, name):
                object.__setattr__(self, name, checked(name, url))
        for name in _KEYS:
            object.__setattr__(self, name, _checked_key(name, getattr(self, name)))
        if self.sbert_backend not in SBERT_BACKENDS:
            raise _unusable("sbert_backend", f"must be one of {', '.join(SBERT_BACKENDS)}", self.sbert_backend)
        object.__setattr__(self, "embed_languages", _checked_languages(self.embed_languages))
        for category, rate in self.decay_rates.items():
            if not 0 < rate <= 1:
                raise _unusable("decay_rates", "must be in 0..1 and above 0", f"{category}={rate}")

    def _check_numbers(self) -> None:
        for names, least in ((_POSITIVE, 1), (_NOT_NEGATIVE, 0)):
            for name in names:
                value = getattr(self, name)
                if not least <= value < math.inf:
                    wanted = f"must be at least {least}"
                    raise _unusable(name, wanted if math.isfinite(value) else f"{wanted} and have an end", value)
        ranges = {**_RANGES, "chunk_overlap": (0, self.chunk_tokens - 1)}
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                raise _unusable(name, f"must be in {low}..{high}", getattr(self, name))

    def __repr__(self) -> str:
        """Every setting but the keys; addresses without user, password and query."""
        told = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.repr}
        told |= {name: shown(told[name]) for name in _ADDRESSES if told[name]}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in told.items())})"


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
    "embed_timeout",
    "embed_batch",
    "breaker_seconds",
    "llm_stream_seconds",
)
_NOT_NEGATIVE = (
    "llm_retries",
    "clean_every",
    "clean_keep_recent",
    "cleanup_interval",
    "embed_retries",
    "embed_retry_seconds",
)
_RANGES = {"noise_floor": (-1, 1), "port": (0, 65535), "temperature": (0, 2)}
_ADDRESSES = ("llm_base_url", "embed_base_url", "openai_base_url", "lmstudio_base_url", "ollama_base_url")
_KEYS = ("llm_api_key", "embed_api_key", "openai_api_key")
_PLAIN = {name: name.upper() for name in ("openai_api_key", "openai_base_url", "lmstudio_base_url", "ollama_base_url")}


_KINDS = {int: "a whole number", float: "a number", str: "text", Path: "a path"}
_GOT = ", got "  # what stands behind it in a message is the value
_TOLD = 20  # characters of a value that a message repeats; keys, which end up in wrong places, are longer
_LANGUAGES = re.compile(r"\*|[a-z]{2,3}( [a-z]{2,3})*")


def _unusable(name: str, wanted: str, value: object) -> InvalidInput:
    shown_value = repr(value)
    return InvalidInput(name, f"{wanted}{_GOT}{shown_value}" if len(shown_value) <= _TOLD + 2 else wanted)


def _checked_folder(name: str, folder: str | Path) -> Path:
    if "\0" in str(folder):
        raise InvalidInput(name, "must be a path, and no path holds a NUL character")
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        raise InvalidInput(name, "begins with ~ and a user who has no home here; write the whole path") from None


def _checked_languages(text: str) -> str:
    languages = " ".join(text.replace(",", " ").lower().split())
    if languages and not _LANGUAGES.fullmatch(languages):
        raise _unusable("embed_languages", "must be codes of languages such as en fi, or * for many", text)
    return languages


def _checked_key(name: str, key: str) -> str:
    """The key without the line break it was copied with. What no HTTP header can carry is refused here, because the
    libraries below would quote it in their error."""
    key = key.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InvalidInput(name, "holds a space, a line break or a letter outside ASCII, as no key does; copy it again")
    return key


def parse_routes(text: str) -> tuple[Route, ...]:
    """Routes as they are written in the environment; see `Settings.routes`. Raises `InvalidInput`."""
    routes = []
    for rule in filter(None, (part.strip() for part in text.split(";"))):
        selector, _, target = (part.strip() for part in rule.partition("="))
        words = [word.strip() for word in selector.split(",") if word.strip()]
        if not words or not target:
            raise _unusable("routes", "must be SELECTOR=TARGET; ..., such as core,working=hierarchical", rule)
        routes.append(
            Route(
                target,
                tiers=tuple(word for word in words if ":" not in word and word != "*"),
                kinds=tuple(word.removeprefix("kind:") for word in words if word.startswith("kind:")),
                namespaces=tuple(word.removeprefix("namespace:") for word in words if word.startswith("namespace:")),
            )
        )
        if unknown := [w for w in words if ":" in w and w.split(":")[0] not in ("kind", "namespace")]:
            raise _unusable("routes", "must have selectors that are tiers, kind:NAME, namespace:NAME or *", unknown[0])
    return tuple(routes)


def _parse_rates(text: str) -> dict[str, float]:
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return {category.strip(): float(rate) for category, _, rate in pairs}


_PARSED: dict[str, Callable[[str], Any]] = {"routes": parse_routes, "decay_rates": _parse_rates}
_EXAMPLES = {"routes": "SELECTOR=TARGET; ...", "decay_rates": "CATEGORY=RATE, ..., such as context=0.9"}
_BY_NAME = {f.name: f for f in dataclasses.fields(Settings)}
_VARIABLES = {name: _PLAIN.get(name, ENV_PREFIX + name.upper()) for name in _BY_NAME}


def load_settings(given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from arguments, then `.env` and the environment (or `environ` in their place), then defaults.
    `None` values in `given` and empty variables count as not given. A variable with our prefix that is no setting
    is warned about, once.

    Raises `InvalidInput` for a name that is not a setting or a value that it cannot have. Of a variable the message
    tells name and file, never the value: keys end up in wrong variables.
    """
    file = _env_file(Path(ENV_FILE)) if environ is None else {}
    environ = {**os.environ, **file} if environ is None else environ
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, variable in _VARIABLES.items():
        if raw := environ.get(variable):
            values[name] = raw
            origins[name] = f"{variable} in {Path(ENV_FILE).resolve()}" if variable in file else variable
    for variable in environ:
        if variable.startswith(ENV_PREFIX) and variable not in _VARIABLES.values():
            _warn_unknown(variable)
    for name, value in (given or {}).items():
        if name not in _BY_NAME:
            raise InvalidInput(name, f"is not a setting; settings are {', '.join(sorted(_BY_NAME))}")
        if value is not None:
            values[name] = value
            origins.pop(name, None)
    try:
        return Settings(**{name: _convert(name, value) for name, value in values.items()})
    except InvalidInput as error:
        problem = error
    if origin := origins.get(problem.field):
        wanted = str(problem).removeprefix(f"{problem.field}: ").partition(_GOT)[0]
        problem = InvalidInput(problem.field, f"{wanted} (set by {origin})")
    raise problem  # out here, so that no traceback shows the value


def _env_file(path: Path) -> dict[str, str]:
    """What the file sets to something, as it is written: a `$` in a key stands for itself. Nothing where there is no
    file. Lines that are no assignment are warned about, once, by their number. Raises `InvalidInput` for a file that
    cannot be read or is no UTF-8."""
    try:
        if path.is_symlink() and not path.exists():
            _warn(f"{path.absolute()} is a link to {path.readlink()}, which is not there; no setting is read from it")
        if not path.is_file():  # a folder of this name is a virtual environment
            return {}
        with path.open(encoding="utf-8-sig") as lines:
            found = list(parse_stream(lines))
    except (OSError, ValueError) as error:
        reason = "is not UTF-8 text" if isinstance(error, ValueError) else f"cannot be read ({type(error).__name__})"
        raise InvalidInput(ENV_FILE, f"{path.resolve()} {reason}; mend it or take it away") from None
    for line in found:
        if line.error:
            text = line.original.string
            number = line.original.line + text[: len(text) - len(text.lstrip())].count("\n")
            _warn(f"{path.resolve()}, line {number}: this is not NAME=value, and has no effect")
    last = {line.key: line.value for line in found if line.key}
    return {name: value for name, value in last.items() if value}


@functools.cache
def _warn(message: str) -> None:
    """Once for a process."""
    log.warning("%s", message)


def _warn_unknown(variable: str) -> None:
    """Say what the variable was meant to be called, and never its value."""
    bare = variable.removeprefix(ENV_PREFIX)
    near = [bare] if bare in _PLAIN.values() else difflib.get_close_matches(variable, _VARIABLES.values(), 1)
    _warn(f"{variable} is not a setting and has no effect{f'; did you mean {near[0]}?' if near else ''}")


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
        raise _unusable(name, f"must be {_KINDS[wanted]}", value) from None


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
        raise _unusable(name, f"must be {_EXAMPLES[name]}", value) from None
