"""`connect()` and the `AgentFormer` that it returns, whose parts `builders` builds from `Settings`.

Parts are imported inside the functions that build them, so that a command imports what it uses and no more.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from agentformer.builders import (
    build_backend,
    build_cleaner,
    build_embedder,
    build_memory,
    build_model,
    build_rag,
    check_space,
    model_spec,
    named_embedder,
    of_backends,
)
from agentformer.errors import EmbedderUnavailable
from agentformer.http.guarded import Usage
from agentformer.memory.background import EmbedRetry
from agentformer.memory.usage import UsageCounter
from agentformer.rag.documents import Originals
from agentformer.settings import Settings, load_settings
from agentformer.types import Check, Embedder, LanguageModel, MemoryBackend, Reembedding

if TYPE_CHECKING:
    from agentformer.archive.backup import BackedUp
    from agentformer.archive.export import Exported
    from agentformer.archive.importer import Imported
    from agentformer.evaluation.dataset import Question
    from agentformer.evaluation.opened import Trial
    from agentformer.evaluation.run import Evaluation
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

T = TypeVar("T")


class _Part(functools.cached_property[T]):
    """A part of `AgentFormer` that is built at its first use, once, also when several threads use it.

    After an error the next use builds again. The part can be replaced by assignment.
    """

    if not TYPE_CHECKING:  # `functools.cached_property` has no lock since Python 3.12

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            with instance._lock:
                return super().__get__(instance, owner)


class AgentFormer:
    """An opened memory: `.memory` stores and searches entries, `.rag` ingests documents and answers from them,
    `.toolbox` offers both to a language model.

    Use it as a context manager, or call `close()`. Any number of instances, in any number of processes, may open the
    same folders. The store is opened at once; each other part is built at its first use.
    """

    def __init__(self, settings: Settings) -> None:
        self._closed = False
        self._lock = threading.RLock()
        self.settings = settings
        self.embedder = build_embedder(settings)
        check_space(settings, self.embedder)
        self.backend = build_backend(settings, self.embedder)
        self._closing = ExitStack()
        self._closing.callback(self.backend.close)
        self._usage = UsageCounter(self.backend)
        self._closing.callback(self._usage.flush)
        self._model_usage = Usage()
        self._embed_retry = EmbedRetry(self.backend, settings.embed_retry_seconds)
        if settings.cleanup_interval > 0:
            self.cleaner.start()
        self._embed_retry.start()

    @_Part
    def model(self) -> LanguageModel | None:
        """The configured language model; None when none is configured. Raises `InvalidInput` or `MissingExtra`."""
        return build_model(self.settings, self._model_usage)

    @_Part
    def rag(self) -> RAGTool:
        """Ingests documents and answers from them."""
        return build_rag(self.settings, self.backend, self.embedder, lambda: self.model, self._usage)

    @_Part
    def cleaner(self) -> MemoryCleaner:
        """Replaces old messages by summaries."""
        cleaner = build_cleaner(self.settings, self.backend, self.embedder, lambda: self.model)
        self._closing.callback(cleaner.close)
        return cleaner

    @_Part
    def memory(self) -> MemoryManager:
        """Stores and searches entries."""

        def discard_originals(digests: Iterable[str]) -> None:
            self.rag.discard_originals(digests)

        return build_memory(self.settings, self.backend, self.embedder, self.cleaner, self._usage, discard_originals)

    @_Part
    def toolbox(self) -> Toolbox:
        """The tools of an agent over this memory."""
        from agentformer.tools.toolbox import Toolbox

        return Toolbox(self.memory, self.rag, self.backend, self.status)

    def ready(self) -> Self:
        """Build every part now, as a server does before its first request. Raises what building a part raises, such
        as `InvalidInput` for an unknown language model."""
        _ = self.model, self.toolbox
        self.rag.ready()
        return self

    def reembed(
        self, to: str, *, queries: Sequence[str] = (), progress: Callable[[int, int], None] | None = None
    ) -> Reembedding:
        """Move the store to the space of the embedder `to`, such as `minilm:` or `ollama:nomic-embed-text`, while it
        stays in use; see `MemoryBackend.reembed`."""
        target = named_embedder(to, self.settings)
        self.embedder.register(target)  # before the move: searches need it from the moment of the switch
        return self.backend.reembed(target, queries=queries, progress=progress)

    def export_to(
        self, folder: str | os.PathLike[str], *, namespaces: Sequence[str] | None = None, vectors: bool = False
    ) -> Exported:
        """Write one moment's contents into a new folder, for `import_from` of any memory; docs/ARCHIVE.md describes
        the format. Without `namespaces`, all are written. With `vectors`, an import into the same embedding space does
        not embed again. Raises `InvalidInput` for a folder that exists, and `StoreFull`."""
        from agentformer.archive.export import export_to

        self._usage.flush()
        return export_to(Path(folder), self.backend, self.originals, namespaces, vectors=vectors)

    def import_from(
        self, folder: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None
    ) -> Imported:
        """Store what `export_to` wrote, with ids, times, counts and former versions.

        Entries that are stored already and equal are skipped, so an interrupted import continues at the next call.
        Raises `InvalidInput` for a damaged export, and `Conflict` if an entry with the same id differs; then nothing
        is stored. `progress` gets the number of entries stored and the number to store.
        """
        from agentformer.archive.importer import Destination, import_into
        from agentformer.archive.reader import read

        archive = read(Path(folder))
        if archive.vectors and self.settings.embedder == "auto" and not self.backend.spaces():
            with suppress(EmbedderUnavailable):  # a new memory without a chosen embedder takes that of the vectors
                self.embedder.for_space(archive.vectors[0].space)
        destination = Destination(self.backend, self.originals, self.memory.core, self.rag.discard_originals)
        return import_into(destination, archive, progress)

    def backup(self, folder: str | os.PathLike[str]) -> BackedUp:
        """Copy the records of one moment and their original files into a new folder, while the memory is in use.

        The copy opens like the memory itself. Raises `InvalidInput` for a folder that exists, `StoreFull`, and
        `StoreDamaged` if the records cannot be read.
        """
        from agentformer.archive.backup import Origin, back_up

        def open_copy(index_dir: Path) -> MemoryBackend:
            return build_backend(dataclasses.replace(self.settings, index_dir=index_dir), self.embedder)

        self._usage.flush()
        return back_up(Path(folder), Origin(self.backend, self.originals, self.settings.index_dir, open_copy))

    def evaluate(
        self, questions: str | os.PathLike[str] | Iterable[Question | Mapping[str, Any]], **options: Any
    ) -> Evaluation:
        """Measure how well searches find the entries that answer questions: by words, by vectors, and by both.

        `questions` are `Question`s or mappings with `text` and `relevant`, which names entries of this memory by id,
        records of the host application by theirs, or documents by name, with `#` and a page number if it matters. Or
        they are a folder with `corpus.jsonl` and `queries.jsonl`: that corpus is measured in a memory of its own with
        the same settings, and this one is not changed. `options` are those of `EvaluationOptions`, and
        `namespace` ("default") of this memory. Nothing counts as used. Raises `InvalidInput`.
        """
        from agentformer.evaluation.dataset import read_dataset
        from agentformer.evaluation.opened import evaluate_opened

        if isinstance(questions, (str, os.PathLike)):
            dataset = read_dataset(Path(questions))
            with trial(self.settings, self.embedder) as corpus_memory:
                corpus_memory.load(dataset)
                return corpus_memory.evaluate(dataset, **options)
        return evaluate_opened(self.backend, questions, **options)

    def verify(self, *, repair: bool = False) -> list[Check]:
        """Compare records, vectors, windows, indexes, documents and original files with each other.

        Changes nothing, and reports damage instead of raising. With `repair`, derived data is rebuilt, and data that
        cannot be read is moved into a separate file; see `MemoryBackend.verify`.
        """
        from agentformer.rag.verify import StoreParts, verify

        self._usage.flush()
        places = StoreParts(self.backend, self.originals, self.settings.index_dir, self.settings.upload_dir)
        return verify(places, lambda document: self.rag.reingest(document), repair=repair)

    @property
    def originals(self) -> Originals:
        """The uploaded files, byte for byte."""
        return Originals(self.settings.upload_dir)

    def usage(self) -> dict[str, dict[str, Any]]:
        """Return requests, tokens and costs of each provider in this process, by `role provider:model`."""
        counts = {}
        for embedder in self.embedder.used():
            spec = embedder.known_space.spec if embedder.known_space else self.settings.embedder
            counts[f"embedder {spec}"] = embedder.usage.snapshot()
        if self.settings.llm_model:
            counts[f"llm {':'.join(model_spec(self.settings))}"] = self._model_usage.snapshot()
        return counts

    def status(self) -> dict[str, Any]:
        """Return counts and state of all parts as JSON values."""
        from agentformer.tools.result_json import space_json

        spaces = [space_json(state) for state in self.backend.spaces()]
        return {**self.memory.status(), "spaces": spaces, "providers": self.usage()}

    def close(self) -> None:
        """Finish the cleaning in progress, write counts and snapshots, and release files. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._embed_retry.close()
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    *,
    index_dir: str | os.PathLike[str] | None = None,
    upload_dir: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> AgentFormer:
    """Open a memory, and create its folders if they are missing.

    Every field of `Settings` is accepted by name; other fields come from the environment (`AGENTFORMER_...`) or from
    the default. Raises `InvalidInput`, `StoreFull` or `StoreDamaged`. Errors of a part that is built later are raised
    at its first use, or by `ready()`.
    """
    return AgentFormer(load_settings({"index_dir": index_dir, "upload_dir": upload_dir, **settings}))


@contextmanager
def trial(settings: Settings, embedder: Embedder | None = None, folder: Path | None = None) -> Iterator[Trial]:
    """Open a memory for a measurement, in `folder`, which stays, or in a temporary folder that is deleted at the end.

    It summarises no messages. Without an embedder, the one of the settings is used.
    """
    from agentformer.evaluation.opened import Trial

    embedder = embedder or build_embedder(settings)
    with tempfile.TemporaryDirectory(prefix="agentformer-eval-") as temporary, ExitStack() as closing:
        index_dir = folder or Path(temporary) / "index"
        settings = dataclasses.replace(settings, index_dir=index_dir, clean_every=0, cleanup_interval=0.0)
        backend = build_backend(settings, embedder)
        closing.callback(backend.close)
        cleaner = build_cleaner(settings, backend, embedder, lambda: None)
        memory = build_memory(settings, backend, embedder, cleaner, UsageCounter(backend), lambda digests: None)
        yield Trial(backend, memory, embedder, settings)


def present(settings: Settings) -> bool:
    """Return whether the index folder holds a store of a configured backend."""
    return any(of_backends("present", settings))


def salvage(settings: Settings) -> list[Recovered]:
    """Copy the readable records of a memory that cannot be opened into a new file in place of the damaged one, which
    is kept. Raises `StoreError` if nothing can be read, or another process has the store open."""
    return [salvaged for salvaged in of_backends("salvagers", settings) if salvaged]
