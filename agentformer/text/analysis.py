"""Turn a text into the terms of the word index, and a query into the terms to look up.

The words of a text are stemmed in its language, which can be detected reliably in a long text. Each stem includes its
language: "fi~työkalu". The language of a query is often uncertain. So a query is stemmed in every language of the
store, and a stem matches only texts of its own language. Numbers, codes, identifiers, surface forms and characters of
scripts without spaces have no language and match everywhere. Surface forms have a lower weight.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from agentformer.text.analyzers import PLAIN, Analyzers, Splitter
from agentformer.text.languages import FUNCTION_WORDS, STEMMERS, detect_language, stem
from agentformer.text.tokenizer import Lexeme, lexemes

# Languages with compound words or stacked endings: pieces of stems find "kone" in "pesukone".
COMPOUNDING = frozenset({"da", "de", "et", "fi", "hu", "is", "nl", "no", "sv"})
_PART = 5  # code points of a piece: 4 has the same recall with 25% more terms, 6 has less recall
MAX_QUERY = 4000  # code points; more words cost time and hardly change the result

_SURE = 0.5  # least confidence of the detector, 0..1: with it, it detects twice as many short sentences; 5% are wrong
_NONE: frozenset[str] = frozenset()
_UNMARKED = frozenset({"en", ""})  # languages whose stems have no diacritics
_NO_DIGRAPHS = frozenset({"et", "fi", "hu", "tr"})  # ä is never written "ae", nor ö "oe"
_DIGRAPHS = str.maketrans({"å": "aa", "æ": "ae", "ø": "oe", "ü": "ue"})
_MORE_DIGRAPHS = _DIGRAPHS | str.maketrans({"ä": "ae", "ö": "oe"})
_STROKES = str.maketrans({"ø": "o", "æ": "ae", "œ": "oe", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ħ": "h", "ı": "i"})


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms for three fields of the word index, ranked by BM25 with term frequencies. A term contains no white space.

    `stems`: the strongest evidence. `surface`: the casefolded words and, if different, their forms without diacritics,
    their forms with two letters for a vowel ("muenchen"), and their stems without diacritics ("jyvaskylassa" has such a
    stem). `parts`: stems of the words inside an identifier, ideographs, character pairs with hiragana, and in languages
    with compounds pieces of stems without diacritics. A text has all pieces of a stem, and a query has every second
    piece.
    """

    stems: tuple[str, ...]
    surface: tuple[str, ...]
    parts: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The surface forms that are not stems."""
        return tuple(form for form in self.surface if "~" not in form)


def language_of(text: str, prior: str = "", analyzers: Analyzers = PLAIN) -> str:
    """Return `detect_language` or, if it returns "", the language of which the optional detector is certain."""
    detected = detect_language(text, prior)
    if detected or prior or analyzers.detector is None:
        return detected
    language, sure = analyzers.detector.detect(text)
    return language if sure >= _SURE and language in STEMMERS else ""


def text_terms(text: str, language: str, analyzers: Analyzers = PLAIN) -> Terms:
    """Return the terms of a stored text in `language`. If `language` is "" (unknown), the words are not stemmed."""
    return _terms(lexemes(text), language, analyzers)


def _terms(tokens: Iterable[Lexeme], language: str, analyzers: Analyzers = PLAIN) -> Terms:
    stems: list[str] = []
    surface: list[str] = []
    parts: list[str] = []
    ignored = FUNCTION_WORDS.get(language, _NONE)
    spelt = language not in _NO_DIGRAPHS
    splitters = analyzers.of(language)
    for lexeme in tokens:
        stems += lexeme.codes
        parts += lexeme.parts
        if splitters:
            parts += _inside(lexeme, language, splitters)
        for word in lexeme.words:
            term = _term(word, language)
            stems.append(term)
            surface += _surface(word, spelt)
            if not term.isascii():
                surface.append(_fold(term))
            if language in COMPOUNDING and word not in ignored:
                parts += _pieces_of_stem(term)
        for word in lexeme.inner:
            parts.append(_term(word, language))
            surface += _surface(word, spelt)
    return Terms(tuple(stems), tuple(surface), tuple(parts))


@dataclass(frozen=True, slots=True)
class QueryTerms:
    """The analysis of one query: its language, its tokens, and its terms for each set of languages.

    The terms for a set of languages are computed once, from the same tokens. Thread-safe.
    """

    text: str  # at most `MAX_QUERY` code points
    tokens: tuple[Lexeme, ...]
    _derived: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, text: str) -> QueryTerms:
        """Analyze a query. Characters after the first `MAX_QUERY` are ignored."""
        text = text[:MAX_QUERY]
        shouted = text.isupper()
        tokens = (
            replace(lexeme, capital=False) if lexeme.capital and (n == 0 or shouted) else lexeme
            for n, lexeme in enumerate(lexemes(text))
        )
        return cls(text, tuple(tokens))

    @property
    def language(self) -> str:
        """The language of the query (ISO 639-1), or "" if it is unknown."""
        if (language := self._derived.get("language")) is None:
            language = self._derived["language"] = detect_language(self.text)
        return str(language)

    def terms(self, languages: Collection[str], analyzers: Analyzers = PLAIN) -> Terms:
        """Return the terms to look up in texts of these `languages`. "" means texts of unknown language.

        Function words are left out, unless the query has no other words. A word with a capital letter inside the
        sentence does not count as a function word: "IT", "US", "May".
        """
        key = tuple(sorted(languages)), analyzers
        if (terms := self._derived.get(key)) is None:
            terms = self._derived[key] = self._lookup_terms(key[0], analyzers)
        return terms

    def as_text(self, language: str) -> Terms:
        """Return the terms that a stored text with these words would have in `language`."""
        if (terms := self._derived.get(key := (language,))) is None:
            terms = self._derived[key] = _terms(self.tokens, language)
        return terms

    def _lookup_terms(self, languages: Sequence[str], analyzers: Analyzers) -> Terms:
        query_language = detect_language(self.text, *languages) if len(languages) == 1 else self.language
        content = _content(self.tokens, query_language)
        stems = [code for lexeme in content for code in lexeme.codes]
        parts = {part: None for lexeme in content for part in lexeme.parts}
        words = {word for lexeme in content for word in lexeme.words}
        for language in languages:
            unmixed = FUNCTION_WORDS.get(language, _NONE).isdisjoint(words)
            own_words = content if unmixed else _content(content, language)
            own = [_term(word, language) for lexeme in own_words for word in lexeme.words + lexeme.inner]
            stems += own
            parts.update(dict.fromkeys(own))
            if language in COMPOUNDING and (query_language == language or query_language not in languages):
                parts.update((piece, None) for term in own for piece in _pieces_of_stem(term)[::2])
            if splitters := analyzers.of(language):
                parts.update((term, None) for lexeme in own_words for term in _inside(lexeme, language, splitters))
        written = [word for lexeme in content for word in lexeme.words + lexeme.inner]
        surface = [form for word in written for form in _surface(word, True)]
        bare = [word for word in written if word.isascii()]
        for language in sorted({*languages} - _UNMARKED):  # a word without diacritics is looked up as a bare stem
            surface += (f"{language}~{form}" for word in bare for form in dict.fromkeys((stem(word, language), word)))
        return Terms(tuple(stems), tuple(surface), tuple(parts))


@lru_cache(maxsize=512)
def analyze_query(text: str) -> QueryTerms:
    """Return the analysis of a query. Recent analyses are cached, so all stages of a search use the same object."""
    return QueryTerms.of(text)


def query_terms(text: str, languages: Collection[str], analyzers: Analyzers = PLAIN) -> Terms:
    """Return the terms of a query for texts in `languages`; see `QueryTerms.terms`."""
    return QueryTerms.of(text).terms(languages, analyzers)


def _inside(lexeme: Lexeme, language: str, splitters: Collection[Splitter]) -> Iterator[str]:
    """Yield the stems of the words inside compounds, or inside text without spaces."""
    ignored = FUNCTION_WORDS.get(language, _NONE)
    for written in (lexeme.run,) if lexeme.run else lexeme.words:
        if written not in ignored:
            for splitter in splitters:
                yield from (_term(word, language) for word in splitter.words(written) if word not in ignored)


def _content(tokens: Sequence[Lexeme], language: str) -> Sequence[Lexeme]:
    """Return the lexemes that are not function words of `language`. If there are no others, return all lexemes."""
    ignored = FUNCTION_WORDS.get(language, _NONE)

    def empty(token: Lexeme) -> bool:
        if token.codes or token.run:
            return False
        return all(word in ignored and (not token.capital or len(word) == 1) for word in token.words)  # "I", not "IT"

    return [token for token in tokens if not empty(token)] or tokens


def _surface(word: str, spelt: bool) -> tuple[str, ...]:
    """Return the word, its form without diacritics and, with `spelt`, its form with "ae" for "ä"."""
    return (word,) if word.isascii() else _surfaces(word, spelt)


@lru_cache(maxsize=65536)
def _surfaces(word: str, spelt: bool) -> tuple[str, ...]:
    return tuple(dict.fromkeys((word, _fold(word), _fold(word.translate(_MORE_DIGRAPHS if spelt else _DIGRAPHS)))))


@lru_cache(maxsize=65536)
def _fold(word: str) -> str:
    """Remove diacritics and strokes: "jyväskylä" becomes "jyvaskyla", and "søre" becomes "sore"."""
    if word.isascii():
        return word
    bare = "".join(mark for mark in unicodedata.normalize("NFD", word) if not "\u0300" <= mark <= "\u036f")
    return unicodedata.normalize("NFC", bare.translate(_STROKES))


def _term(word: str, language: str) -> str:
    """Return the stem with its language as a prefix: "fi~talo"."""
    return f"{language}~{stem(word, language)}"


@lru_cache(maxsize=65536)
def _pieces_of_stem(term: str) -> tuple[str, ...]:
    """Return overlapping pieces of the stem. The two ends of the stem are marked with "_"."""
    word = _fold(term.partition("~")[2])
    if len(word) < _PART - 1:
        return ()
    word = f"_{word}_"
    return tuple(word[n : n + _PART] for n in range(len(word) - _PART + 1))
