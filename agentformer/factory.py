"""`connect()` opens a memory and returns an `AgentFormer`. The module `builders` builds the parts of this object from
`Settings`.

Classes are imported inside the functions that use them, so that a command imports only the parts that it uses.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from agentformer.builders import (
    Base,
    build_backend,
    build_cleaner,
    build_learner,
    build_memory,
    build_rag,
)
from agentformer.errors import EmbedderUnavailable, StoreError
from agentformer.http import tracing
from agentformer.http.circuit_breaker import Usage
from agentformer.http.fetch_rules import FetchRules, parse_hosts
from agentformer.index.embedding.choice import build_embedder, check_space, named_embedder
from agentformer.lazy import Lazy
from agentformer.llms.guarded import build_model, model_spec
from agentformer.memory.background import EmbedRetry, Upkeep
from agentformer.memory.usage import UsageCounter
from agentformer.rag.originals import Originals
from agentformer.records import fields
from agentformer.records.integrity.disk import sizes
from agentformer.records.offers import feed_of, leases_of, vectors_of
from agentformer.records.trail import Trail
from agentformer.registry import SERVERS, in_folder, load, of_backends, present
from agentformer.settings import Settings, load_settings
from agentformer.types import (
    DEFAULT_NAMESPACE,
    Check,
    Embedder,
    EmbeddingSpace,
    LanguageModel,
    MemoryBackend,
    RecordStore,
    Reembedding,
    Scope,
    new_id,
)

if TYPE_CHECKING:
    from agentformer.access.keys import KeyStore
    from agentformer.access.limits import KeyLimits
    from agentformer.archive.backup import BackedUp
    from agentformer.archive.chats.importer import ChatsImported
    from agentformer.archive.copy import Copied
    from agentformer.archive.export import Exported
    from agentformer.archive.importer import Imported
    from agentformer.archive.markdown.home import HomeKeeper, MarkdownHomes
    from agentformer.evaluation.dataset import Question
    from agentformer.evaluation.memory_evaluation import Trial
    from agentformer.evaluation.run import Evaluation
    from agentformer.events.delivery import Delivery
    from agentformer.events.event_log import EventLog
    from agentformer.events.webhooks import Webhooks
    from agentformer.jobs.queue import JobFiles
    from agentformer.jobs.store import JobStore
    from agentformer.memory.distributed import DistributedMemory
    from agentformer.memory.learning.learner import Learner
    from agentformer.memory.memory_cleaner import MemoryCleaner
    from agentformer.memory.memory_manager import MemoryManager
    from agentformer.records.integrity.recover import Recovered
    from agentformer.tools.rag_tool import RAGTool
    from agentformer.tools.toolbox import Toolbox

__all__ = [
    "AgentFormer",
    "build_backend",
    "build_embedder",
    "build_model",
    "connect",
    "named_embedder",
    "present",
    "salvage",
    "trial",
]

log = logging.getLogger("agentformer")

T = TypeVar("T")


class ForgottenUser(NamedTuple):
    """The numbers of entries (memories, documents and their parts) and of upload jobs that were deleted."""

    entries: int
    jobs: int


class _Part(functools.cached_property[T]):
    """An attribute of `AgentFormer` that is built when it is first used. If building raises an error, the next use
    tries again. A program can replace the attribute by assignment. Thread-safe."""

    if not TYPE_CHECKING:  # `functools.cached_property` has no lock since Python 3.12

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            with instance._lock:
                return super().__get__(instance, owner)

    def build(self, memory: AgentFormer) -> None:
        """Build the part of a memory, unless it is built."""
        self.__get__(memory)


class AgentFormer:
    """An open memory. `.memory` stores and searches entries, `.rag` ingests documents and answers questions from them,
    and `.toolbox` offers these operations as tools to a language model. Use the object as a context manager, or call
    `close()`. Several objects and processes may open the same folders at the same time. The store is opened at once;
    each other part is built at its first use."""

    def __init__(self, settings: Settings) -> None:
        self._closed = False
        self._lock = threading.RLock()
        self.settings = settings
        self._places = settings.index_dir, settings.upload_dir
        if settings.traces != "off":
            tracing.enable(texts=settings.traces == "texts")
        self.embedder = build_embedder(settings)
        check_space(settings, self.embedder)
        self.backend = build_backend(settings, self.embedder)
        self._closing = ExitStack()
        self._closing.callback(self.backend.close)
        self.originals.settle()  # takes over the files of the documents, and deletes what killed processes left
        self._usage = UsageCounter(self.backend)
        self._closing.callback(self._usage.flush)
        self._model_usage = Usage()
        self._model = Lazy(lambda: build_model(settings, self._model_usage))
        self._base = Base(settings, self.backend, self.embedder, self._model, self._usage)
        self._embed_retry = EmbedRetry(self.backend, settings.embed_retry_seconds)
        if settings.cleanup_interval > 0:
            self.cleaner.start()
            if settings.learn_every > 0:  # the learner has the schedule of the cleaner
                self.learner.start()
        self._embed_retry.start()

    @property
    def model(self) -> LanguageModel | None:
        """The configured language model, or None if no model is configured. Raises `InvalidInput` for an unknown
        provider, and `MissingExtra` if a required package is not installed. A program can assign another model."""
        return self._model.get()

    @model.setter
    def model(self, model: LanguageModel | None) -> None:
        self._model.set(model)

    @_Part
    def originals(self) -> Originals:
        """The uploaded files, stored unchanged."""
        return Originals.of(self.settings, self.backend, self.distributed)

    @_Part
    def keys(self) -> KeyStore:
        """The API keys for a server of this memory. All nodes of a shared memory have the same keys."""
        from agentformer.access.keys import KeyStore

        shared = self.distributed
        return KeyStore(shared.key_place(self.settings.index_dir) if shared else self.settings.index_dir)

    @_Part
    def limits(self) -> KeyLimits:
        """The limits of the keys, which servers and tools check."""
        from agentformer.access.limits import KeyLimits

        return KeyLimits(self.backend, self.keys.questions, self._model)

    @_Part
    def rag(self) -> RAGTool:
        """The document tool, which ingests documents and answers questions from them."""
        return tracing.traced(build_rag(self._base, self.originals), "rag")

    @_Part
    def cleaner(self) -> MemoryCleaner:
        """The cleaner, which replaces old messages by summaries."""
        return self._closing.enter_context(closing(build_cleaner(self._base)))

    @_Part
    def learner(self) -> Learner:
        """The learner, which takes facts from messages."""
        return self._closing.enter_context(closing(build_learner(self._base)))

    @_Part
    def memory(self) -> MemoryManager:
        """The memory manager, which stores and searches entries."""
        memory = build_memory(self._base, self.cleaner, Lazy(lambda: self.learner), self.originals)
        tracing.traced(memory.core, "core")
        return tracing.traced(memory, "memory")

    @_Part
    def toolbox(self) -> Toolbox:
        """The tools that an agent can call to use this memory."""
        from agentformer.tools.toolbox import Toolbox

        return Toolbox(self.memory, self.rag, self.backend, self.status, self.limits)

    @_Part
    def events(self) -> EventLog:
        """The changes of the entries, in order. Raises `NotOffered` if the backend has no change feed."""
        from agentformer.events.event_log import EventLog
        from agentformer.tools.result_json import shown_json

        return EventLog(self._feed, shown_json)

    @_Part
    def trail(self) -> Trail:
        """Who changed what, when, and from where. Raises `NotOffered` if the backend has no change feed."""
        return Trail(self._feed)

    def note(self, action: str, subject: str = "", namespace: str = "") -> None:
        """Write a row about something other than an entry into the trail, if the backend has one. What the row is about
        has been done already, so a row that cannot be written is logged, and is no error."""
        if getattr(self.backend, "feed", None) is None:
            return
        try:
            self.trail.note(action, subject, namespace)
        except StoreError as error:
            log.error("the trail lacks a row (%s %s): %s", action, subject, error)

    @_Part
    def webhooks(self) -> Webhooks:
        """The URLs that get the changes of the entries. Raises `NotOffered` if the backend has no change feed."""
        from agentformer.events.webhooks import Webhooks

        return Webhooks(self._feed)

    @_Part
    def _delivery(self) -> Delivery:
        from agentformer.events.delivery import Delivery
        from agentformer.http.fetch import post

        hosts = parse_hosts("webhook_private_hosts", self.settings.webhook_private_hosts)
        seconds = self.settings.webhook_seconds
        rules = FetchRules(private_hosts=hosts, seconds=seconds, max_bytes=0, prefix="webhook")
        send, leases = functools.partial(post, rules=rules), leases_of(self.backend)
        return self._closing.enter_context(
            closing(Delivery(self.events, self.webhooks, self.keys, leases, send, 3 * seconds))
        )

    @_Part
    def _upkeep(self) -> Upkeep:
        return self._closing.enter_context(closing(Upkeep(self._feed, self.settings.trail_days)))

    @property
    def _feed(self) -> RecordStore:
        return feed_of(self.backend, self.settings.backend)

    @property
    def distributed(self) -> DistributedMemory | None:
        """The backend of a memory that several nodes share, or None for any other backend."""
        if self.settings.backend not in SERVERS:
            return None
        from agentformer.memory.distributed import DistributedMemory

        return self.backend if isinstance(self.backend, DistributedMemory) else None

    def ready(self, role: str = "server") -> Self:
        """Build all parts now, and return this object. A server calls this method before it accepts requests, so that
        errors are raised at the start, such as `InvalidInput` for an unknown language model. In a shared memory, this
        process becomes a node with this role. From then on, this process sends events to webhooks."""
        if self.distributed is not None:
            self.distributed.join(role)
        self._model.get()
        AgentFormer.toolbox.build(self)
        self.rag.ready()
        if self.settings.markdown_home:
            AgentFormer._home_keeper.build(self)
        if getattr(self.backend, "feed", None) is not None:
            self._delivery.start()
            self._upkeep.start()
        return self

    def reembed(
        self, to: str, *, queries: Sequence[str] = (), progress: Callable[[int, int], None] | None = None
    ) -> Reembedding:
        """Replace all vectors by those of the embedder `to`, such as `minilm:` or `ollama:nomic-embed-text`, while
        other calls use the store. `VectorStore.reembed` describes the parameters and the result."""
        target = named_embedder(to, self.settings)
        self.embedder.register(target)  # loaded before the move, because searches need it directly after the switch
        return vectors_of(self.backend).reembed(target, queries=queries, progress=progress)

    def export_to(
        self,
        folder: str | os.PathLike[str],
        *,
        namespaces: Sequence[str] | None = None,
        vectors: bool = False,
        user_id: str | None = None,
    ) -> Exported:
        """Write the stored contents of one moment into a new folder, which `import_from` can read; docs/ARCHIVE.md
        describes the format. If `namespaces` is None, all namespaces are written. If `vectors` is true, the vectors are
        written, too, and a memory with the same embedder can import them instead of embedding the texts again. If
        `user_id` is given, only the memories and documents of this user are written, and the trail records it. Raises
        `InvalidInput` if the folder exists and is not empty, `NotFound` if the user has nothing, and `StoreFull` if the
        folder cannot be written."""
        from agentformer.archive.export import export_to

        user_id = fields.optional_name("user_id", user_id)
        self._usage.flush()
        stored = self.backend, self.originals, namespaces
        done = export_to(Path(folder), *stored, vectors=vectors, user_id=user_id, places=self._places)
        if user_id is not None:
            for namespace in done.namespaces:
                self.note("user-exported", user_id, namespace)
        return done

    def forget_user(self, user_id: str, *, namespace: str = DEFAULT_NAMESPACE) -> ForgottenUser:
        """Delete everything that belongs to a user in a namespace: memories with their history and summaries, documents
        with their original files, and upload jobs with their files, also those that wait. What belongs to no user
        stays, and so does what the user has in other namespaces. The trail records the call. docs/OPERATIONS.md says
        what remains in backups and on a database server. A second call completes an interrupted one. Raises
        `StoreBusy` if an upload of the user is still being stored after a minute."""
        from agentformer.jobs.queue import delete_jobs_of, stored_jobs

        settings = self.settings
        scope = Scope(fields.name("namespace", namespace), user_id=fields.name("user_id", user_id))
        store, files = self.shared_jobs or stored_jobs(settings.index_dir, self.originals.folder, settings.upload_dir)
        try:
            jobs = delete_jobs_of(store, files, namespace, user_id)  # first, because a job stores documents
        finally:
            store.close()
        entries = self.memory.remove(scope)
        self.note("user-forgotten", user_id, namespace)
        return ForgottenUser(entries, jobs)

    @property
    def shared_jobs(self) -> tuple[JobStore, JobFiles] | None:
        """The upload jobs of a memory that several nodes share, and their files, or None for any other memory."""
        if self.distributed is None:
            return None
        from agentformer.jobs.shared import SharedJobFiles, SharedJobStore

        memory = self.distributed
        return SharedJobStore(memory.records), SharedJobFiles(memory.files, memory.locks)

    def import_from(
        self, folder: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None
    ) -> Imported:
        """Store the contents of a folder that `export_to` wrote, or of a ZIP archive of its files. Ids, times, counts
        and former versions stay the same. Equal stored entries are skipped, so a second call continues an interrupted
        import. `progress(stored, total)` is called with the number of entries that are stored, and the number of all
        entries to store. Raises `InvalidInput` for a damaged export. Raises `Conflict` if the memory has a
        different entry with the same id, or another document or core block with the same name. After such an error,
        nothing was stored."""
        from agentformer.archive.importer import Destination, import_into
        from agentformer.archive.reader import read
        from agentformer.archive.unpacking import unpacked

        with unpacked(Path(folder)) as place:
            archive = read(place)
            self._follow([vectors.space for vectors in archive.vectors])
            destination = Destination(self.backend, self.originals, self.memory.core)
            return import_into(destination, archive, progress)

    def _follow(self, spaces: Sequence[EmbeddingSpace]) -> None:
        """Use the embedder of the first of these spaces, if the memory is new and no embedder is configured."""
        if spaces and self.settings.embedder == "auto" and not vectors_of(self.backend).spaces():
            with suppress(EmbedderUnavailable):
                self.embedder.for_space(spaces[0])

    def import_conversations(self, path: str | os.PathLike[str], **options: Any) -> ChatsImported:
        """Store the conversations of a chat export as sessions, each message once.
        `archive.chats.import_chats` describes the `options`."""
        from agentformer.archive.chats.importer import import_chats

        return import_chats(self.backend, path, **options)

    @property
    def markdown(self) -> MarkdownHomes:
        """Exports memories to Markdown folders (`export`), and syncs memories with such folders (`sync`, `follow`)."""
        from agentformer.archive.markdown.home import MarkdownHomes

        return MarkdownHomes(self.memory, self.backend, [*self.settings.decay_rates])

    @_Part
    def _home_keeper(self) -> HomeKeeper:
        return self._closing.enter_context(
            closing(self.markdown.keep(self.settings.markdown_home, self.settings.markdown_seconds))
        )

    def copy_to(
        self, target: AgentFormer, *, delete: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> Copied:
        """Copy entries and original files to `target`, which nobody else may use. Entries that only `target` has are
        removed if `delete` is true; otherwise, they cause `Conflict`, and nothing is changed. See also
        `archive.copy.copy_entries`."""
        from agentformer.archive.copy import copy_entries

        self._usage.flush()
        target._follow([state.space for state in vectors_of(self.backend).spaces() if state.state == "active"])
        copied = copy_entries(self.backend, target.backend, delete=delete, progress=progress)
        self.originals.copy_to(target.originals)
        return copied

    def backup(self, folder: str | os.PathLike[str]) -> BackedUp:
        """Copy the records and original files of one moment into a new folder, while the memory is in use. The copy can
        be opened as a memory. Raises `InvalidInput` if the folder exists and is not empty, `StoreFull` if it cannot be
        written, and `StoreDamaged` if the records cannot be read."""
        from agentformer.archive.backup import Origin, back_up

        def open_copy(index_dir: Path) -> MemoryBackend:
            return build_backend(in_folder(self.settings, index_dir), self.embedder)

        self._usage.flush()
        return back_up(Path(folder), Origin(self.backend, self.originals, self._places, self.keys, open_copy))

    def evaluate(
        self, questions: str | os.PathLike[str] | Iterable[Question | Mapping[str, Any]], **options: Any
    ) -> Evaluation:
        """Measure how well searches by words, by vectors and by both find the entries that answer the questions.

        `questions` are `Question`s, or mappings with `text` and `relevant`, which lists the correct results: ids of
        entries, ids of records of the host application, or names of documents ("report.pdf#3" is page 3). Or
        `questions` is the path of a folder with `corpus.jsonl` and `queries.jsonl`; its corpus is stored in a temporary
        memory with the same settings. `options` are the fields of `evaluation.run.EvaluationOptions` and, for questions
        about this memory, `namespace`. The searches do not change the use counts of entries. Raises `InvalidInput` for
        invalid questions."""
        from agentformer.evaluation.dataset import read_dataset
        from agentformer.evaluation.memory_evaluation import evaluate_opened

        if isinstance(questions, (str, os.PathLike)):
            dataset = read_dataset(Path(questions))
            with trial(self.settings, self.embedder) as corpus_memory:
                corpus_memory.load(dataset)
                return corpus_memory.evaluate(dataset, **options)
        return evaluate_opened(self.backend, questions, **options)

    def verify(self, *, repair: bool = False) -> list[Check]:
        """Check whether records, indexes, documents and original files agree with each other. Damage raises no error.
        With `repair`, derived data is rebuilt, and unreadable data is moved to a file; see `VerifiedStore.verify`."""
        from agentformer.rag.verify import StoreParts, verify

        self._usage.flush()
        private = *self._places, Path(self.settings.markdown_home or os.devnull)
        places = StoreParts(self.backend, self.originals, self.settings.index_dir, private)
        return verify(places, lambda document: self.rag.reingest(document), repair=repair)

    def usage(self) -> dict[str, dict[str, Any]]:
        """Return the usage counts of each embedder and language model, such as calls and tokens. The keys of the
        result are names such as `llm ollama:gemma3`."""
        counts = {}
        for embedder in self.embedder.used():
            spec = embedder.known_space.spec if embedder.known_space else self.settings.embedder
            counts[f"embedder {spec}"] = embedder.usage.snapshot()
        if self.settings.llm_model:
            counts[f"llm {':'.join(model_spec(self.settings))}"] = self._model_usage.snapshot()
        return counts

    def status(self) -> dict[str, Any]:
        """Return entry counts, embedding spaces, the usage of models and the state of parts, as JSON values."""
        from agentformer.tools.result_json import space_json

        spaces = [*map(space_json, vectors_of(self.backend).spaces())]
        return {
            **self.memory.status(),
            "spaces": spaces,
            "providers": self.usage(),
            "disk": sizes(self.settings.index_dir),
        }

    def close(self) -> None:
        """Wait for the end of a running cleaning (the replacement of messages by summaries), write usage counts and
        index snapshots, and close the files. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._embed_retry.close()
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def connect(
    *,
    index_dir: str | os.PathLike[str] | None = None,
    upload_dir: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> AgentFormer:
    """Open a memory and return it. Create its folders if they are missing. Every field of `Settings` can be given by
    name. Other fields come from the environment (`AGENTFORMER_...`), or have their defaults. Raises `InvalidInput` for
    an invalid setting, and `StoreFull` or `StoreDamaged` if the store cannot be opened. Parts that are built later
    raise errors at their first use, or in `ready()`."""
    return AgentFormer(load_settings({"index_dir": index_dir, "upload_dir": upload_dir, **settings}))


@contextmanager
def trial(settings: Settings, embedder: Embedder | None = None, folder: Path | None = None) -> Iterator[Trial]:
    """Open a separate memory for the corpus of an evaluation. If `folder` is given, the memory stays there in local
    files, even if the settings name a server, and a later call can open it again. Otherwise, the memory is deleted at
    the end. The memory makes no summaries. If `embedder` is not given, the embedder of the settings is used."""
    from agentformer.evaluation.memory_evaluation import Trial

    embedder = embedder or build_embedder(settings)
    if folder is not None and settings.backend in SERVERS:
        settings = dataclasses.replace(settings, backend="faiss")
    with tempfile.TemporaryDirectory(prefix="agentformer-eval-") as temporary, ExitStack() as stack:
        index_dir = folder or Path(temporary) / "index"
        schema = f"trial_{new_id().replace('-', '')}"  # schema of a memory on a server
        settings = dataclasses.replace(
            settings, index_dir=index_dir, clean_every=0, learn_every=0, cleanup_interval=0.0, postgres_schema=schema
        )
        if settings.backend in SERVERS:
            stack.callback(lambda: load("agentformer.memory.backends.postgres.database:remove_store")(settings))
        backend = build_backend(settings, embedder)
        stack.callback(backend.close)
        base = Base(settings, backend, embedder, Lazy(lambda: None), UsageCounter(backend))
        memory = build_memory(base, build_cleaner(base), Lazy(functools.partial(build_learner, base)))
        yield Trial(backend, memory, embedder, settings)


def salvage(settings: Settings) -> list[Recovered]:
    """Write the readable records of a memory that cannot be opened to a new file, and rename the damaged file. Raises
    `StoreError` if no record can be read, or if another process has the store open."""
    return [salvaged for salvaged in of_backends("salvagers", settings) if salvaged]


def load_shared_modules(settings: Settings) -> None:
    """Import the modules that every worker of a server needs before the workers are forked, so that the workers share
    their memory, about 35 MB. If a module cannot be imported, the workers report it."""
    with suppress(Exception):  # a broken package can raise anything
        import faiss  # noqa: F401
        import tantivy  # noqa: F401

        from agentformer.index.vectors import follower  # noqa: F401
        from agentformer.index.words import index  # noqa: F401
        from agentformer.search import pipeline  # noqa: F401
    if settings.embedder.partition(":")[0] in ("auto", "minilm", "multilingual", "sbert"):
        with suppress(Exception):
            from agentformer.embedders.sbert.openvino import import_openvino

            if settings.runtime != "torch":
                import_openvino()
    gc.collect()
    gc.freeze()  # the collector of a worker would otherwise write to each object, and so copy its memory
