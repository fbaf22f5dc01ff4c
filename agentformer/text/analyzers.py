"""What takes part in the analysis beside what is always there: parts that extras bring.

Each only adds terms, or tells a language where our own detector does not know it. So an index that was made with one
serves a process that lacks it, and the other way round: they find less well, and never wrongly.
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
    """A library that is loaded when it is first needed. Thread-safe."""

    name: ClassVar[str]  # what an index notes of it, without white space
    extra: ClassVar[str]  # that brings it
    lacking: ClassVar[str]  # what is lacking without it, for people

    def __init__(self, *, required: bool) -> None:
        self._required = required
        self._lock = threading.RLock()
        self._loaded: bool | None = None

    def ready(self) -> bool:
        """Can it be used? Raises `MissingExtra` where it is required and cannot; else that is logged, once."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._tried()
            return self._loaded

    @property
    def broken(self) -> bool:
        """Was it tried, and could not be loaded?"""
        return self._loaded is False

    def _tried(self) -> bool:
        try:
            self._load()
        except Exception as error:  # whatever a library raises, of the system's parts too
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
        """Import it and make what is used. May raise anything."""


class Detector(Analyzer):
    """Tells a language that thin evidence does not tell."""

    def detect(self, text: str) -> tuple[str, float]:
        """ISO 639-1 code of the text's likeliest language, and how sure that is, 0..1; ("", 0) if there is none, or
        if it is not ready."""
        return self._detect(text) if self.ready() else ("", 0.0)

    @abstractmethod
    def _detect(self, text: str) -> tuple[str, float]: ...


class Splitter(Analyzer):
    """Splits what is written as one word."""

    def words(self, written: str) -> tuple[str, ...]:
        """The words that `written` is made of, in their dictionary forms and casefolded, each once and without white
        space; () where it is not known, or if the splitter is not ready."""
        return self._words(written) if self.ready() else ()

    @abstractmethod
    def _words(self, written: str) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Analyzers:
    """Those in force. Of a text each takes part in what concerns it: Finnish, Japanese, or words of any language."""

    detector: Detector | None = None
    finnish: Splitter | None = None
    japanese: Splitter | None = None

    @property
    def of_any(self) -> tuple[Analyzer, ...]:
        """Those that see every text."""
        return (self.detector,) if self.detector else ()

    def of(self, language: str) -> tuple[Splitter, ...]:
        """Those that see texts in this language alone."""
        found = {"fi": self.finnish, "ja": self.japanese}.get(language)
        return (found,) if found else ()

    def names(self, language: str) -> tuple[str, ...]:
        """Of those that have taken part in the analysis of a text in this language, or would have where it had needed
        them: what no text needed is not loaded."""
        return tuple(each.name for each in (*self.of_any, *self.of(language)) if not each.broken)


ANALYZED_LANGUAGES = ("fi", "ja")  # for which `Analyzers.of` may have one
PLAIN = Analyzers()
