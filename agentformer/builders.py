"""Functions that build the parts of an `AgentFormer` from `Settings`. Each function imports the classes that it needs
when it is called, so that a command imports only the parts that it uses. A part that takes time to import or to load,
such as a model, is passed to the parts that need it as a `Lazy` object."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from agentformer.embedders.guarded import token_counter, token_spans
from agentformer.http.fetch_rules import FetchRules, parse_hosts
from agentformer.lazy import Lazy
from agentformer.memory.usage import UsageCounter
from agentformer.rag.originals import Originals
from agentformer.records.offers import offered
from agentformer.registry import SERVERS, backend_names, built_in_names, lookup, names, of_backends
from agentformer.settings import Settings
from agentformer.settings.access import share_with_group
from agentformer.types import Embedder, LanguageModel, MemoryBackend, OriginalsStore

if TYPE_CHECKING:
    from agentformer.access.keys import KeyStore
    from agentformer.http.fetch import Fetcher
    from agentformer.memory.audit import Auditor
    from agentformer.memory.context.builder import ContextBuilder
    from agentformer.memory.learning.learner import Learner
    from agentformer.memory.memory_cleaner import MemoryCleaner
    from agentformer.memory.memory_manager import MemoryManager
    from agentformer.memory.recall import Recall
    from agentformer.memory.summaries.summarizer import Summarizer
    from agentformer.rag.answer.answerer import Answerer
    from agentformer.rag.answer.context import PassageBuilder
    from agentformer.rag.ingest import IngestPipeline
    from agentformer.tools.rag_tool import RAGTool

log = logging.getLogger("agentformer")
_KEY_CONNECTIONS = 4  # number of connections to the database that stores the API keys


def build_backend(settings: Settings, embedder: Embedder) -> MemoryBackend:
    """Return the storage backend of the settings. If the settings name several backends, the result stores each entry
    in the backend that the setting `routes` selects. Raises `InvalidInput` for an unknown name of a backend."""
    share_with_group(settings.file_access == "group")
    builders = {name: lookup("backends", name) for name in backend_names(settings)}
    exists = any(of_backends("present", settings))
    built = {name: _with_sidecar(build(settings, embedder), settings, name) for name, build in builders.items()}
    # Warn if an existing store would be overlooked.
    for name in built_in_names("present") if exists else names("present"):
        if name not in built and name not in SERVERS and lookup("present", name)(settings.index_dir):
            log.warning(
                "%s also holds a store of the backend %s, which is not used, because the settings do not name it",
                settings.index_dir,
                name,
            )
    if len(built) == 1:
        return built[settings.backend]
    from agentformer.memory.routing import RoutedBackend

    targets = {**built, "hierarchical": built[settings.hierarchical_backend or settings.backend]}
    return RoutedBackend(settings.routes, targets, settings.backend, rrf_k=settings.rrf_k)


def _with_sidecar(backend: MemoryBackend, settings: Settings, name: str) -> MemoryBackend:
    """Return the backend. If it lists no absent documents, a file in the index folder has the list and the leases."""
    if offered(backend, OriginalsStore):
        return backend
    from agentformer.memory.backends.sidecar import SidecarStore

    return cast(MemoryBackend, SidecarStore(backend, settings.index_dir / f"sidecar-{name}.json"))


@contextmanager
def open_keys(settings: Settings) -> Iterator[KeyStore]:
    """Yield the API keys of a memory without opening the memory. The keys are in the index folder or, for a memory on a
    server, in the database that all nodes share. Raises `StoreError` if the database cannot be used."""
    from agentformer.access.keys import KeyStore

    share_with_group(settings.file_access == "group")
    if settings.backend not in SERVERS:
        yield KeyStore(settings.index_dir)
        return
    from agentformer.memory.backends.postgres.database import PostgresDatabase, schema_of
    from agentformer.memory.nodes.sharing import DatabaseKeys

    database = PostgresDatabase(settings.postgres_url, schema_of(settings), _KEY_CONNECTIONS)
    try:
        yield KeyStore(DatabaseKeys(database, settings.index_dir))
    finally:
        database.close()


@dataclass(frozen=True, slots=True)
class Base:
    """The objects from which the parts of a memory are built."""

    settings: Settings
    backend: MemoryBackend
    embedder: Embedder
    model: Lazy[LanguageModel | None]
    usage: UsageCounter

    def recall(self) -> Recall:
        """Return the object that searches and ranks."""
        from agentformer.memory.recall import Recall

        return Recall(self.backend, self.embedder, noise_floor=self.settings.noise_floor)


def build_rag(base: Base, originals: Originals) -> RAGTool:
    """Return the tool that ingests documents and answers questions."""
    from agentformer.rag.folder_files import Folders, SizeLimits
    from agentformer.tools.questions import QuestionLimits, Questions
    from agentformer.tools.rag_tool import RAGTool, UploadSources

    settings, backend, embedder = base.settings, base.backend, base.embedder

    def ingest() -> IngestPipeline:
        from agentformer.rag.ingest import IngestPipeline
        from agentformer.readers import ReadLimits

        sizes = {"chunk_tokens": settings.chunk_tokens, "chunk_overlap": settings.chunk_overlap}
        return IngestPipeline(embedder, **sizes, limits=ReadLimits.from_settings(settings))

    def answerer() -> Answerer:
        from agentformer.rag.answer.answerer import Answerer

        limit, abstain, check = settings.answer_tokens, settings.abstain, settings.answer_check
        temperature, model = settings.temperature, base.model.get()
        return Answerer(model, embedder, temperature=temperature, max_tokens=limit, abstain=abstain, check=check)

    def contexts() -> PassageBuilder:
        from agentformer.rag.answer.context import PassageBuilder

        return PassageBuilder(backend, token_spans(embedder))

    hosts = parse_hosts("url_hosts", settings.url_hosts) or None
    private = parse_hosts("url_private_hosts", settings.url_private_hosts)
    rules = FetchRules(hosts, private, seconds=settings.url_seconds, max_bytes=settings.max_file_bytes)

    def fetcher() -> Fetcher:
        from agentformer.http.fetch import Fetcher  # TLS takes time to import

        return Fetcher(rules)

    limits = QuestionLimits(settings.top_k, settings.answer_context_tokens, settings.max_question_chars)
    questions = Questions(backend, Lazy(answerer), Lazy(contexts), base.usage, limits)
    roots = [Path(root) for root in settings.sync_roots.split(os.pathsep) if root]
    folders = Folders(roots, (settings.index_dir, settings.upload_dir))
    sizes = SizeLimits(settings.max_file_bytes, settings.sync_text_bytes)
    sources = UploadSources(sizes, folders, Lazy(fetcher))
    return RAGTool(backend, Lazy(ingest), questions, originals, base.usage, sources)


def build_cleaner(base: Base) -> MemoryCleaner:
    """Return the cleaner, which replaces old messages by summaries. Without a language model, the summaries consist of
    sentences of the messages."""
    from agentformer.memory.memory_cleaner import CleaningOptions, MemoryCleaner, OnDemandSummarizer

    settings = base.settings

    def summarizer(model: LanguageModel | None) -> Summarizer:
        from agentformer.memory.summaries.summarizer import Summarizer

        limit, temperature = settings.summary_tokens, settings.temperature
        return Summarizer(model, token_counter(base.embedder), max_tokens=limit, temperature=temperature)

    options = CleaningOptions(
        every=settings.clean_every,
        keep_recent=settings.clean_keep_recent,
        batch=settings.clean_batch,
        interval=settings.cleanup_interval,
        lease_seconds=settings.lease_seconds,
    )
    on_demand = OnDemandSummarizer(summarizer, base.model, instant=not settings.llm_model)
    return MemoryCleaner(base.backend, on_demand, options)


def build_learner(base: Base) -> Learner:
    """Return the learner, which takes facts from messages. Without a language model, it reads the form of sentences."""
    from agentformer.memory.learning.learner import Learner, LearningOptions

    settings = base.settings
    every, interval = settings.learn_every, settings.cleanup_interval if settings.learn_every else 0.0
    options = LearningOptions(every, interval, settings.lease_seconds)
    return Learner(base.backend, base.model, token_counter(base.embedder), base.recall(), options)


def build_memory(
    base: Base, cleaner: MemoryCleaner, learner: Lazy[Learner], originals: Originals | None = None
) -> MemoryManager:
    """Return the memory manager, which stores and searches entries. `originals` are the files of its documents."""
    from agentformer.memory.hierarchical import CoreMemory, HierarchicalMemory
    from agentformer.memory.memory_manager import LazyParts, MemoryManager

    settings, backend, count_tokens = base.settings, base.backend, token_counter(base.embedder)

    def contexts() -> ContextBuilder:
        from agentformer.memory.context.builder import ContextBuilder

        return ContextBuilder(backend, count_tokens, base.embedder, max_tokens=settings.context_tokens)

    def auditor() -> Auditor:
        from agentformer.memory.audit import Auditor

        return Auditor(backend, count_tokens, settings.core_block_tokens)

    core = CoreMemory(backend, count_tokens, block_tokens=settings.core_block_tokens)
    hierarchical = HierarchicalMemory(backend, core, working_messages=settings.working_messages)
    parts = LazyParts(Lazy(base.recall), Lazy(contexts), Lazy(auditor), learner, settings.learn_every > 0)
    rates, delete = settings.decay_rates, originals.sweep if originals else lambda: None
    return MemoryManager(backend, hierarchical, cleaner, parts, base.usage, decay_rates=rates, delete_originals=delete)
