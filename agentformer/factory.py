"""The only place that builds concrete parts from `Settings`: `connect()` and what it hands out."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from agentformer.embedders import GuardedEmbedder
from agentformer.errors import EmbedderUnavailable, InvalidInput, MissingExtra
from agentformer.http.guarded import Usage
from agentformer.index.embedding.active import ActiveEmbedder
from agentformer.later import Made
from agentformer.memory.embed_retry import EmbedRetry
from agentformer.memory.usage import UsageCounter
from agentformer.rag.documents import Originals
from agentformer.registry import known, late, lookup, names, ours, promised
from agentformer.settings import Settings, load_settings
from agentformer.tools.shapes import space_json
from agentformer.types import Check, Embedder, EmbeddingSpace, LanguageModel, MemoryBackend, Reembedding

if TYPE_CHECKING:
    from agentformer.archive.backup import BackedUp, Origin, back_up
    from agentformer.archive.importing import Destination, Imported, import_into
    from agentformer.archive.reading import read as read_archive
    from agentformer.archive.writing import Exported, export_to
    from agentformer.building.documents import build_rag
    from agentformer.building.memory import build_cleaner, build_memory
    from agentformer.building.trial import open_trial
    from agentformer.embedders.sbert import why_unavailable
    from agentformer.evaluation.dataset import Question, read_dataset
    from agentformer.evaluation.opened import evaluate_opened
    from agentformer.evaluation.outcomes import Evaluation
    from agentformer.evaluation.trial import Trial
    from agentformer.http.guarded import Breaker
    from agentformer.llms import GuardedModel
    from agentformer.memory.memory_cleaner import MemoryCleaner
    from agentformer.memory.memory_manager import MemoryManager
    from agentformer.memory.routing import RoutedBackend
    from agentformer.rag.verify import StoreParts, verify
    from agentformer.records.integrity.recover import Salvaged
    from agentformer.tools.rag_tool import RAGTool
    from agentformer.tools.toolbox import Toolbox
else:
    build_rag, build_cleaner, build_memory = late("build_rag"), late("build_cleaner"), late("build_memory")
    Breaker, GuardedModel, RoutedBackend = late("Breaker"), late("GuardedModel"), late("RoutedBackend")
    Toolbox, why_unavailable = late("Toolbox"), late("why_unavailable")
    Origin, back_up, export_to = late("Origin"), late("back_up"), late("export_to")
    StoreParts, verify = late("StoreParts"), late("verify")
    Destination, import_into, read_archive = late("Destination"), late("import_into"), late("read_archive")
    open_trial, evaluate_opened, read_dataset = late("open_trial"), late("evaluate_opened"), late("read_dataset")

log = logging.getLogger("agentformer")


class AgentFormer:
    """One opened memory: `.memory` remembers and recalls, `.rag` takes documents and answers from them, `.toolbox`
    lets a language model do both.

    Use it as a context manager, or call `close()`. Any number of them, in any number of processes, may
    have the same folders open. The store is opened at once; each other part is made when it is first asked for.
    """

    def __init__(self, settings: Settings) -> None:
        self._closed = False
        self._making = threading.RLock()
        self.settings = settings
        self.embedder = build_embedder(settings)
        _agree(settings, self.embedder)
        self.backend = build_backend(settings, self.embedder)
        self._usage = UsageCounter(self.backend)
        self._model_usage = Usage()
        self._embed_retry = EmbedRetry(self.backend, settings.embed_retry_seconds)
        if settings.cleanup_interval > 0:
            self.cleaner.start()
        self._embed_retry.start()

    @Made
    def model(self) -> LanguageModel | None:
        """The configured language model; None when none is. Raises `InvalidInput` or `MissingExtra`."""
        return build_model(self.settings, self._model_usage)

    @Made
    def rag(self) -> RAGTool:
        """Takes documents, and answers from them."""
        return build_rag(self.settings, self.backend, self.embedder, lambda: self.model, self._usage)

    @Made
    def cleaner(self) -> MemoryCleaner:
        """Turns old messages into summaries."""
        return build_cleaner(self.settings, self.backend, self.embedder, lambda: self.model)

    @Made
    def memory(self) -> MemoryManager:
        """Remembers and recalls."""
        return build_memory(
            self.settings,
            self.backend,
            self.embedder,
            self.cleaner,
            self._usage,
            lambda digests: self.rag.discard_originals(digests),
        )

    @Made
    def toolbox(self) -> Toolbox:
        """What an agent can do with this memory."""
        return Toolbox(self.memory, self.rag, self.backend, self.status)

    def ready(self) -> Self:
        """Make every part now, as a server does before its first caller. Raises what making one raises, such as
        `InvalidInput` for a language model that does not exist."""
        _ = self.model, self.toolbox
        self.rag.ready()
        return self

    def reembed(
        self, to: str, *, queries: Sequence[str] = (), progress: Callable[[int, int], None] | None = None
    ) -> Reembedding:
        """Move the store to the space of the embedder `to`, such as `minilm:` or `ollama:nomic-embed-text`, while
        everybody goes on working with it; see `MemoryBackend.reembed`."""
        target = named_embedder(to, self.settings)
        self.embedder.use(target)  # before: searches need it from the moment of the switch
        return self.backend.reembed(target, queries=queries, progress=progress)

    def export_to(
        self, folder: str | os.PathLike[str], *, namespaces: Sequence[str] | None = None, vectors: bool = False
    ) -> Exported:
        """Write what is stored, all of one moment, into a new folder, for `import_from` of any memory; docs/ARCHIVE.md
        tells the format. Without `namespaces`, every one. With `vectors`, whoever imports them into the same embedding
        space need not embed. Raises `InvalidInput` for a folder that is not new, and `StoreFull`."""
        self._usage.flush()
        return export_to(Path(folder), self.backend, self.originals, namespaces, vectors=vectors)

    def import_from(
        self, folder: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None
    ) -> Imported:
        """Bring in what `export_to` wrote, with ids, times, counts and former versions. Entries that are there already,
        and the same, are passed over; interrupted, another call goes on. Raises `InvalidInput` for an export that is
        damaged, and `Conflict` where something is there and differs; then nothing was stored. `progress` is told the
        entries stored and those to store."""
        archive = read_archive(Path(folder))
        if archive.vectors and self.settings.embedder == "auto" and not self.backend.spaces():
            with suppress(EmbedderUnavailable):  # a new memory for which none was asked takes the one that they are of
                self.embedder.at(archive.vectors[0].space)
        there = Destination(self.backend, self.originals, self.memory.core, self.rag.discard_originals)
        return import_into(there, archive, progress)

    def backup(self, folder: str | os.PathLike[str]) -> BackedUp:
        """Copy everything into a new folder while it is used: the records as of one moment, and the originals of the
        documents in them. The copy opens like the memory itself. Raises `InvalidInput` for a folder that is not new,
        `StoreFull`, and `StoreDamaged` where the records cannot be read."""
        self._usage.flush()
        return back_up(Path(folder), Origin(self.backend, self.originals, self.settings.index_dir, self._copy_opened))

    def evaluate(
        self, questions: str | os.PathLike[str] | Iterable[Question | Mapping[str, Any]], **options: Any
    ) -> Evaluation:
        """How well questions find what answers them, by words, by vectors and by both.

        `questions` are of this memory: `Question`s or mappings with `text` and `relevant`, which names entries by id,
        records of the host application by theirs, or documents by name, with `#` and a page's number where it matters.
        Or they are a folder with `corpus.jsonl` and `queries.jsonl`: that corpus is measured in a memory of its own
        with the same settings, and this one is not touched. `options` are `evaluation.run.evaluate`'s, and `namespace`
        ("default") of this memory. Nothing counts as used. Raises `InvalidInput`.
        """
        if isinstance(questions, (str, os.PathLike)):
            dataset = read_dataset(Path(questions))
            with trial(self.settings, self.embedder) as apart:
                apart.load(dataset)
                return apart.evaluate(dataset, **options)
        return evaluate_opened(self.backend, questions, **options)

    def verify(self, *, repair: bool = False) -> list[Check]:
        """Compare all that is kept with each other: records, vectors, windows, indexes, documents, originals. Changes
        nothing and raises nothing for what is damaged. With `repair`, what can be derived is made anew, and what cannot
        be read any more is set aside in a file; see `MemoryBackend.verify`."""
        self._usage.flush()
        places = StoreParts(self.backend, self.originals, self.settings.index_dir, self.settings.upload_dir)
        return verify(places, lambda document: self.rag.reingest(document), repair=repair)

    @property
    def originals(self) -> Originals:
        """The uploaded files, as they came."""
        return Originals(self.settings.upload_dir)

    def _copy_opened(self, index_dir: Path) -> MemoryBackend:
        return build_backend(dataclasses.replace(self.settings, index_dir=index_dir), self.embedder)

    def usage(self) -> dict[str, dict[str, Any]]:
        """What each provider was asked in this process and what it cost, by `role provider:model`."""
        used = {}
        for embedder in self.embedder.everyone():
            spec = embedder.known_space.spec if embedder.known_space else self.settings.embedder
            used[f"embedder {spec}"] = embedder.usage.snapshot()
        if self.settings.llm_model:
            used[f"llm {':'.join(_model_spec(self.settings))}"] = self._model_usage.snapshot()
        return used

    def status(self) -> dict[str, Any]:
        """Counts and state of all parts, as JSON values."""
        spaces = [space_json(state) for state in self.backend.spaces()]
        return {**self.memory.status(), "spaces": spaces, "providers": self.usage()}

    def close(self) -> None:
        """Finish the cleaning that was begun, write counts and snapshots, release files. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._embed_retry.close()
        if AgentFormer.cleaner.made(self):
            self.cleaner.close()
        self._usage.flush()
        self.backend.close()

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
    """Open a memory, making its folders where they are missing.

    Every field of `Settings` may be given by name; what is not given comes from the environment
    (`AGENTFORMER_...`) or from the default. Raises `InvalidInput`, `StoreFull` or `StoreDamaged`; what is wrong with a
    part that is made later is raised at its first use, or by `ready()`.
    """
    return AgentFormer(load_settings({"index_dir": index_dir, "upload_dir": upload_dir, **settings}))


def trial(
    settings: Settings, embedder: Embedder | None = None, folder: Path | None = None
) -> AbstractContextManager[Trial]:
    """A memory with these settings that is there to be measured: in `folder`, which stays, or in a temporary one. Its
    embedder is the given one, or that of the memory which the settings are of."""
    return open_trial(settings, embedder or build_embedder(settings), build_backend, folder)


def present(settings: Settings) -> bool:
    """Does the index folder hold a store of a configured backend?"""
    return any(_of_backends("present", settings))


def salvage(settings: Settings) -> list[Salvaged]:
    """Save what can be read of a memory that cannot be opened into a new file in the place of the damaged one, which is
    kept. Returns what came of it. Raises `StoreError` where nothing can be saved, or others have it open."""
    return [saved for saved in _of_backends("salvagers", settings) if saved]


def build_backend(settings: Settings, embedder: Embedder) -> MemoryBackend:
    """The configured backend, or those that the routes name, as one. Raises `InvalidInput` for an unknown name."""
    builders = {name: lookup("backends", name) for name in _backend_names(settings)}
    begun = any(_of_backends("present", settings))
    built: dict[str, MemoryBackend] = {name: build(settings, embedder) for name, build in builders.items()}
    for name in ours("present") if begun else names("present"):  # a store that is there is not taken for empty
        if name not in built and lookup("present", name)(settings.index_dir):
            log.warning(
                "%s also holds a store of the backend %s, which these settings (backend, routes) do not read or change",
                settings.index_dir,
                name,
            )
    if len(built) == 1:
        return built[settings.backend]
    targets = {**built, "hierarchical": built[settings.hierarchical_backend or settings.backend]}
    return RoutedBackend(settings.routes, targets, settings.backend, rrf_k=settings.rrf_k)


def _backend_names(settings: Settings) -> list[str]:
    """Every backend that the settings name, the default one first."""
    routed = [route.target for route in settings.routes]
    own = settings.hierarchical_backend or settings.backend
    return list(dict.fromkeys([settings.backend, *(own if name == "hierarchical" else name for name in routed)]))


def build_embedder(settings: Settings) -> ActiveEmbedder:
    """The configured embedder, loaded at its first use, and after it those of the spaces that the store moves to.
    Raises `InvalidInput` for an unknown provider."""
    asked_for = "" if settings.embedder == "auto" else settings.embedder
    first = (
        named_embedder(asked_for, settings)
        if asked_for
        else GuardedEmbedder(lambda: _automatic(settings), seconds=settings.breaker_seconds)
    )
    return ActiveEmbedder(
        first,
        lambda space: GuardedEmbedder(lambda: _stored(space.spec, settings), seconds=settings.breaker_seconds),
        asked_for=asked_for,
        seconds=settings.breaker_seconds,
    )


def named_embedder(spec: str, settings: Settings) -> GuardedEmbedder:
    """The embedder `provider:model`, loaded at its first use. Raises `InvalidInput` for an unknown provider."""
    provider, _, model = spec.partition(":")
    build = promised("embedders", provider)
    return GuardedEmbedder(lambda: build(model, settings), seconds=settings.breaker_seconds)


def build_model(settings: Settings, usage: Usage | None = None) -> LanguageModel | None:
    """The configured language model behind its breaker, counted by `usage`; None when none is, and then answers are
    extractive."""
    if not settings.llm_model:
        return None
    provider, model = _model_spec(settings)
    llm: LanguageModel = lookup("llms", provider)(model, settings)
    return GuardedModel(llm, breaker=Breaker(settings.breaker_seconds), usage=usage or Usage())


def _model_spec(settings: Settings) -> tuple[str, str]:
    """`provider:model` for a registered provider; any other name, colons and all, is one that an OpenAI-compatible
    server knows."""
    provider, _, model = settings.llm_model.partition(":")
    return (provider, model) if known("llms", provider) else ("openai", settings.llm_model)


def _automatic(settings: Settings) -> Embedder:
    """The store's own embedder if it has vectors, or the one that it waits for; else the multilingual model; else the
    packaged one."""
    if space := _stored_space(settings):
        return _stored(space.spec, settings)
    if wanted := next(filter(None, _of_backends("wanted_embedders", settings)), ""):
        log.warning("embedder of this memory: %s, for which its entries wait", wanted)
        return _stored(wanted, settings)
    name = settings.multilingual_model
    reason = why_unavailable(name)
    if not reason:
        log.warning("embedder of this new memory: sbert:%s (multilingual): it is cached, or the hub has it", name)
        return _stored(f"sbert:{name}", settings)
    embedder = _stored("minilm", settings)
    log.warning("embedder of this new memory: minilm (packaged, English), because %s: %s", name, reason)
    return embedder


def _of_backends(group: str, settings: Settings) -> Iterator[Any]:
    """What each configured backend tells about its folder."""
    return (lookup(group, name)(settings.index_dir) for name in _backend_names(settings) if known(group, name))


def _stored_space(settings: Settings) -> EmbeddingSpace | None:
    return next((space for space in _of_backends("stored_spaces", settings) if space is not None), None)


def _agree(settings: Settings, embedder: ActiveEmbedder) -> None:
    """A store in another space than that of the embedder asked for is not opened. One that cannot be loaded now is
    held against the store when it can. Raises `SpaceMismatch`."""
    space = _stored_space(settings)
    if space is None or settings.embedder in ("auto", space.spec):
        embedder.agree()
        return
    if _shortened(settings.embedder, space):
        return
    try:
        embedder.at(space)
    except EmbedderUnavailable as error:
        log.warning("the embedder %s cannot be used now: %s", settings.embedder, error)


def _shortened(spec: str, space: EmbeddingSpace) -> bool:
    """Does `spec` most likely stand for this space: by the provider alone, for its default model, or as `minilm:int8`
    does? It is not loaded to learn that; its first use tells."""
    provider, _, model = spec.partition(":")
    return provider == space.provider != "hashing" and (not model or space.model.endswith(f"@{model}"))


def _stored(spec: str, settings: Settings) -> Embedder:
    """The embedder of a space that is there, or of `auto`: nobody names it now, so what is wrong with it is no error
    of the caller's. Raises `EmbedderUnavailable`."""
    provider, _, model = spec.partition(":")
    try:
        embedder: Embedder = lookup("embedders", provider)(model, settings)
    except (EmbedderUnavailable, InvalidInput, MissingExtra) as error:
        raise EmbedderUnavailable(
            f"the embedder {spec} cannot be had: {error}. Until then, everything is kept and found by its words"
        ) from error
    return embedder
