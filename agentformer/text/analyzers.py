"""Optional analyzers of text: a language detector and splitters of compounds and unspaced text.

An analyzer only adds terms, or detects a language that `detect_language` does not know. So an index made with an
analyzer also serves a process without it, and the other way round: searches then find less, but nothing wrong.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from agentformer.errors import MissingExtra

log = logging.getLogger("agentformer")


class Analyzer(ABC):
    """A library that is loaded at its first use. Thread-safe."""

    name: ClassVar[str]  # recorded in the index, without white space
    extra: ClassVar[str]  # the extra that installs it
    lacking: ClassVar[str]  # the effect of its absence, for a warning

    def __init__(self, *, required: bool) -> None:
        self._required = required
        self._lock = threading.RLock()
        self._loaded: bool | None = None

    def ready(self) -> bool:
        """Load the library and return whether it can be used. A failure is logged once.

        Raises `MissingExtra` if the library is required and cannot be loaded.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = self._try_load()
            return self._loaded

    @property
    def broken(self) -> bool:
        """Whether loading was tried and failed."""
        return self._loaded is False

    def _try_load(self) -> bool:
        try:
            self._load()
        except Exception as error:  # libraries and their system parts raise anything
            missing = error if isinstance(error, MissingExtra) else self._missing(error)
            if self._required:
                raise missing from error
            log.warning("%s: %s", self.lacking, missing)
            return False
        return True

    def _missing(self, error: Exception) -> MissingExtra:
        return MissingExtra(self.extra, self.name, error if isinstance(error, ImportError) else ImportError(str(error)))

    @abstractmethod
    def _load(self) -> None:
        """Import the library and prepare it. May raise anything."""


class Detector(Analyzer):
    """Detects the language of a short text."""

    def detect(self, text: str) -> tuple[str, float]:
        """Return the ISO 639-1 code of the likeliest language and its confidence, 0..1; ("", 0) if there is none or the
        library is not available."""
        return self._detect(text) if self.ready() else ("", 0.0)

    @abstractmethod
    def _detect(self, text: str) -> tuple[str, float]: ...


class Splitter(Analyzer):
    """Splits compounds, or text without spaces, into words."""

    def words(self, written: str) -> tuple[str, ...]:
        """Return the words inside `written` in their dictionary forms, casefolded, each once; () if they are unknown or
        the library is not available."""
        return self._words(written) if self.ready() else ()

    @abstractmethod
    def _words(self, written: str) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Analyzers:
    """The analyzers in use."""

    detector: Detector | None = None
    finnish: Splitter | None = None
    japanese: Splitter | None = None

    @property
    def of_any(self) -> tuple[Analyzer, ...]:
        """Analyzers that apply to every text."""
        return (self.detector,) if self.detector else ()

    def of(self, language: str) -> tuple[Splitter, ...]:
        """Return the splitters for texts in this language."""
        splitter = {"fi": self.finnish, "ja": self.japanese}.get(language)
        return (splitter,) if splitter else ()

    def names(self, language: str) -> tuple[str, ...]:
        """Return the names of the analyzers that apply to texts in this language, without those that failed to load."""
        return tuple(analyzer.name for analyzer in (*self.of_any, *self.of(language)) if not analyzer.broken)


ANALYZED_LANGUAGES = ("fi", "ja")  # languages for which `Analyzers.of` may return a splitter
PLAIN = Analyzers()
