"""Memories with the corpus, one for each way of splitting and indexing it, each in its folder.

A complete store has a marker file; one that was interrupted while being filled has none and is made anew. Only a few
are kept, because vectors are cached elsewhere and the rest is quickly rebuilt.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentformer.errors import EmbedderUnavailable, StoreFull
from agentformer.evaluation.opened import Trial
from agentformer.evaluation.optimizing.corpus import Corpus
from agentformer.evaluation.optimizing.space import Configuration, present, settings_of, stored_key
from agentformer.records.files import delete, write_atomically

Progress = Callable[[int, int], None]  # passages stored, passages in all

_NAME = re.compile(r"[0-9a-f]{16}")  # of a store; nothing else is deleted
_KEPT = 3  # stores on disk beside that of the present settings: that of the best ones, and some to compare it with


class Stores:
    """The stores of one corpus; `vectors` says whether entries get vectors."""

    def __init__(self, folder: Path, corpus: Corpus, *, vectors: bool) -> None:
        self.vectors = vectors
        self._folder = folder
        self._corpus = corpus
        self._present = self._place(present(corpus.settings))
        self._used: list[Path] = []  # but for the present one; the latest last

    def has(self, configuration: Configuration) -> bool:
        """Return whether a complete store exists."""
        return _whole(self._place(configuration)).exists()

    @contextmanager
    def opened(self, configuration: Configuration, progress: Progress | None = None) -> Iterator[Trial]:
        """Open the store of a configuration, filling it first if needed. Raises `EmbedderUnavailable` if the embedder
        failed, `StoreFull`, and what opening a memory raises."""
        settings, place = settings_of(self._corpus.settings, configuration), self._place(configuration)
        there = self.has(configuration)
        if not there:
            self._make_room(place)
        if place != self._present:
            self._used = [*(path for path in self._used if path != place), place]
        with self._corpus.opens(settings, place) as trial:
            if not there:
                self._fill(trial, place, progress)
            yield trial

    def clear(self) -> None:
        """Delete all stores."""
        try:
            for path in self._made():
                delete(_whole(path))
                delete(path)
            if self._folder.is_dir() and not any(self._folder.iterdir()):
                self._folder.rmdir()
        except OSError as error:
            raise StoreFull(f"{self._folder} cannot be deleted ({error.strerror or error})") from error
        self._used.clear()

    def _fill(self, trial: Trial, place: Path, progress: Progress | None) -> None:
        trial.load(self._corpus.dataset, progress)
        if self.vectors and trial.backend.embed_pending(refused=False):
            raise EmbedderUnavailable("the embedder went away while passages were embedded")
        try:
            write_atomically(_whole(place), b"")
        except OSError as error:
            raise StoreFull(f"{self._folder} cannot be written ({error.strerror or error})") from error

    def _make_room(self, place: Path) -> None:
        """Create an empty folder, and delete stores that were not used lately, also those of earlier processes."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            others = [path for path in self._made() if path not in (place, self._present)]
            old = [*(path for path in others if path not in self._used), *self._used]
            old = [path for path in old if path != place]
            doomed = old[: max(0, len(old) + 1 - _KEPT)] if place != self._present else []
            for path in (*doomed, place):
                delete(_whole(path))
                delete(path)
            self._used = [path for path in old if path not in doomed]
            place.mkdir()
        except OSError as error:
            raise StoreFull(f"{self._folder} cannot be written ({error.strerror or error})") from error

    def _made(self) -> list[Path]:
        """Return the stores on disk, complete or not."""
        if not self._folder.is_dir():
            return []
        return [path for path in self._folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]

    def _place(self, configuration: Configuration) -> Path:
        return (
            self._folder
            / hashlib.blake2b(stored_key(self._corpus.settings, configuration).encode(), digest_size=8).hexdigest()
        )


def _whole(place: Path) -> Path:
    """Return the marker file of a complete store."""
    return place.with_name(f"{place.name}.whole")
