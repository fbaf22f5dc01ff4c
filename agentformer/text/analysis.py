"""Turn a text into the terms of the word index, and a query into the terms to look up.

The words of a text are reduced to stems by the rules of its language, and each stem is stored with this language:
"fi~työkalu". The language of a query is often uncertain, because a query is short. So a query is stemmed in every
language of the store, and each of these stems matches only texts of the same language. Other terms have no language and
match all texts: numbers, codes, identifiers, surface forms (words as they are written), and characters of scripts
without spaces. A match of a surface form has a lower weight.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from agentformer.text.code import CODE_LANGUAGE, code_parts, is_code
from agentformer.text.language_extras import PLAIN, Analyzers, Splitter
from agentformer.text.language_files import with_trait
from agentformer.text.languages.detection import FUNCTION_WORDS, STEMMERS, detect_language, stem
from agentformer.text.normalize import normalized
from agentformer.text.tokenizer import MAX_TERM, Lexeme, lexemes, lexemes_of_part, parts_without_spaces

# Languages with compound words or stacked endings: pieces of stems find "kone" in "pesukone".
COMPOUNDING = with_trait("compounds")
_PART = 5  # code points of a piece: 4 has the same recall with 25% more terms, 6 has less recall
MAX_QUERY = 4000  # code points; more words cost time and hardly change the result

_LETTER = r"[^\W\d_]"
_JOINED = re.compile(r"[^\W_]+(?:[-_./\\:#+][^\W_]+)*")
# A code: letters and digits that alternate ("9f3ac01b7e"), a long word of letters before or after digits, a long
# number, or parts that marks join: after a letter with three digits in a row ("inv/2026/0007") or two parts of digits
# ("v1.22.33"), or at least three parts, of which one has letters and one has three digits ("12-ab-3456"). "FY2022",
# "python3", "18th-century" and "covid-19" are words, and "20.11.2026" is a date.
_IDENTIFIER = re.compile(
    rf"(?=\w{{6}})(?:{_LETTER}+\d+{_LETTER}[^\W_]*|\d+{_LETTER}+\d[^\W_]*)|\d{{6,}}"
    rf"|(?=\w{{8}})(?:{_LETTER}+\d{{3,}}|\d{{3,}}{_LETTER}+)"
    rf"|(?=.{{6}})(?=.*\d{{3}}){_LETTER}[^\W_]*(?:[\W_][^\W_]+)+|{_LETTER}+\d*(?:[\W_]\d+){{2,}}"
    rf"|(?=.*\d{{3}})(?=.*{_LETTER})[^\W_]+(?:[\W_][^\W_]+){{2,}}"
)

_CACHED_PARTS = 24_576  # for each language, in addition to as many older parts; at most 20 MB in total
_CACHED_LANGUAGES = 4  # the parts of more languages are not cached
_NEVER_LAST = ".,;:!?)\"'"  # no token ends with one of these

_SURE = 0.5  # least confidence of the optional detector: twice as many short texts then get a language, 5% a wrong one
_NONE: frozenset[str] = frozenset()
_UNMARKED = frozenset({"en", ""})  # languages whose stems have no diacritics
_NO_DIGRAPHS = with_trait("no digraphs")  # ä is never written "ae", nor ö "oe"
_DIGRAPHS = str.maketrans({"å": "aa", "æ": "ae", "ø": "oe", "ü": "ue"})
_MORE_DIGRAPHS = _DIGRAPHS | str.maketrans({"ä": "ae", "ö": "oe"})
_STROKES = str.maketrans({"ø": "o", "æ": "ae", "œ": "oe", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ħ": "h", "ı": "i"})


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a text or a query, for the three fields of the word index. A term is repeated for each occurrence of
    its word, because the ranking (BM25) counts terms. A term contains no white space.

    `stems`: stems and codes, which are the strongest evidence of a match. `surface`: the casefolded words. A word with
    diacritics has more forms here: the word without diacritics, the word with two letters for a vowel ("muenchen"), and
    its stem without diacritics, so that "jyvaskylassa" finds "Jyväskylä". `parts`: the parts of words. These are the
    stems of the words inside an identifier, single ideographs, pairs of characters with hiragana, and (in languages
    with compound words) pieces of stems without diacritics. A text has all pieces of a stem, and a query has every
    second piece.
    """

    stems: tuple[str, ...]
    surface: tuple[str, ...]
    parts: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The terms of `surface` that are words and not stems."""
        return tuple(form for form in self.surface if "~" not in form)


def language_of(text: str, prior: str = "", analyzers: Analyzers = PLAIN, detected: str | None = None) -> str:
    """Return the language of the text, or "" if it is unknown. `prior` is the probable language, such as the language
    of the document. It is returned if the text does not show its language. If `prior` is "" in this case, the language
    that the optional detector of `analyzers` finds is returned, unless the detector is uncertain. `detected` is the
    result of `detect_language(text, prior)` if the caller knows it."""
    if detected is None:
        detected = detect_language(text, prior)
    if detected or prior or analyzers.detector is None:
        return detected
    language, sure = analyzers.detector.detect(text)
    return language if sure >= _SURE and language in STEMMERS else ""


def stored_terms(
    text: str, prior: str = "", analyzers: Analyzers = PLAIN, *, detected: str | None = None, of_code: bool = False
) -> tuple[str, Terms]:
    """Return the language of a stored text, and its terms. Source code is analyzed as code, and its language is
    `CODE_LANGUAGE`. If `of_code` is true, the text is a part of source code even if it does not look like code, and its
    language is not detected. `language_of` describes `prior`, `analyzers` and `detected`."""
    if is_code(text):
        return CODE_LANGUAGE, code_terms(text)
    language = CODE_LANGUAGE if of_code else language_of(text, prior, analyzers, detected)
    return language, text_terms(text, language, analyzers)


def code_terms(text: str) -> Terms:
    """Return the terms of source code. Comments are analyzed as prose. Each other word, such as an identifier, counts
    once with its parts, because a name that is used often says no more about the code than a name that is used once.
    A name that the code defines counts twice, because it says what the code is about, as a title does."""
    parts = code_parts(text)
    comments = _terms(lexemes(parts.comments), CODE_LANGUAGE)
    words = _distinct_terms(parts.words)
    names = _distinct_terms(parts.names)
    dotted = [chain.casefold() for chain in parts.chains if len(chain) <= MAX_TERM]  # found with and without the dots
    chains = {code: None for name in dotted for code in (name, _term(name.replace(".", ""), CODE_LANGUAGE))}
    stems = (*comments.stems, *comments.parts, *words.stems, *chains, *names.stems)
    return Terms(stems, (*comments.surface, *words.surface))


def _distinct_terms(words: Iterable[str]) -> Terms:
    """Return the terms of identifiers, each once. The parts of an identifier are among the stems, so that a match of a
    part counts like a match of the whole name."""
    terms = _terms(lexemes(" ".join(dict.fromkeys(words))), CODE_LANGUAGE)
    return Terms(tuple(dict.fromkeys((*terms.stems, *terms.parts))), tuple(dict.fromkeys(terms.surface)))


def text_terms(text: str, language: str, analyzers: Analyzers = PLAIN) -> Terms:
    """Return the terms of a stored text in `language`. If `language` is "" (unknown), the words are not stemmed."""
    stems: list[str] = []
    surface: list[str] = []
    parts: list[str] = []
    if not analyzers.of(language):
        known = _part_terms(language)
        for own_stems, own_surface, own_parts in [known[part] for part in parts_without_spaces(text)]:
            stems += own_stems
            surface += own_surface
            if own_parts:
                parts += own_parts
    if stems or surface or parts:
        return Terms(tuple(stems), tuple(surface), tuple(parts))
    return _terms(lexemes(text), language, analyzers)


_Fields = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


class _PartTerms(dict[str, _Fields]):
    """A cache: part of a text (see `parts_without_spaces`) -> the terms of this part in one language. Most parts of a
    text are words that occur in other texts too. When the cache is full, all items move to `_older`, and an item that
    is used again moves back. Thread-safe."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self._language = language
        self._older: dict[str, _Fields] = {}

    def __missing__(self, part: str) -> _Fields:
        bare = part.rstrip(_NEVER_LAST)
        if bare is not part:  # "word," has the terms of "word"
            return self[bare]
        terms = self._older.get(part) or self._terms(part)
        if len(part) <= MAX_TERM:
            if len(self) >= _CACHED_PARTS:
                self._older = dict(self)
                self.clear()
            self[part] = terms
        return terms

    def _terms(self, part: str) -> _Fields:
        if part.isascii() and part.isalpha() and part[1:].islower() and len(part) <= MAX_TERM:
            word = part.lower()
            term = _term(word, self._language)
            if term.isascii():  # most words; the same as below, and faster
                compound = self._language in COMPOUNDING and word not in FUNCTION_WORDS.get(self._language, _NONE)
                return (term,), (word,), pieces_of_stem(term) if compound else ()
        terms = _terms(lexemes_of_part(part), self._language)
        return terms.stems, terms.surface, terms.parts


_part_terms = lru_cache(maxsize=_CACHED_LANGUAGES)(_PartTerms)


def _terms(tokens: Iterable[Lexeme], language: str, analyzers: Analyzers = PLAIN) -> Terms:
    """Return the terms of the tokens of a text in `language`, in the order of the tokens and with repetitions."""
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
                parts += pieces_of_stem(term)
        for word in lexeme.inner:
            parts.append(_term(word, language))
            surface += _surface(word, spelt)
    return Terms(tuple(stems), tuple(surface), tuple(parts))


@dataclass(frozen=True, slots=True)
class QueryTerms:
    """The analysis of one query: its language, its tokens and its terms. Thread-safe.

    The terms depend on the languages of the searched texts. For each set of languages, the terms are computed once and
    then cached.
    """

    text: str  # at most `MAX_QUERY` code points
    tokens: tuple[Lexeme, ...]
    _derived: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, text: str) -> QueryTerms:
        """Split a query into tokens, and return its analysis. Characters after the first `MAX_QUERY` are ignored."""
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

    @property
    def identifiers(self) -> tuple[str, ...]:
        """The codes of the query as written, in lower case, such as "9f3ac01b7e", "inv-2024-0032" or "4711023"."""
        found = dict.fromkeys(match[0] for match in _JOINED.finditer(self.text.casefold()))
        return tuple(code for code in found if _IDENTIFIER.fullmatch(code))

    def terms(self, languages: Collection[str], analyzers: Analyzers = PLAIN) -> Terms:
        """Return the terms to look up in texts of these `languages`. "" means texts of unknown language.

        Function words, such as articles, are omitted, unless the query has no other words. A word with a capital letter
        inside the sentence is not omitted, because it may be a name: "IT", "US", "May".
        """
        key = tuple(sorted(languages)), analyzers
        if (terms := self._derived.get(key)) is None:
            terms = self._derived[key] = self._lookup_terms(key[0], analyzers)
        return terms

    def as_text(self, language: str) -> Terms:
        """Return the terms of this query, computed as if the query was a stored text in `language`, so that they can be
        compared with the terms of stored texts."""
        if (terms := self._derived.get(key := (language,))) is None:
            terms = self._derived[key] = _terms(self.tokens, language)
        return terms

    def _lookup_terms(self, languages: Sequence[str], analyzers: Analyzers) -> Terms:
        """Compute the result of `terms`: each content word has a stem in each of the `languages`. Pieces of compounds
        are looked up only in the language of the query, or in each language if it is none of them."""
        query_language = detect_language(self.text, *languages) if len(languages) == 1 else self.language
        content = _content(self.tokens, query_language)
        stems = [code for lexeme in content for code in lexeme.codes]
        parts = {part: None for lexeme in content for part in lexeme.parts}
        words = {word for lexeme in content for word in lexeme.words}
        for language in languages:
            has_function_words = not FUNCTION_WORDS.get(language, _NONE).isdisjoint(words)
            own_words = _content(content, language) if has_function_words else content
            own_stems = [_term(word, language) for lexeme in own_words for word in lexeme.words + lexeme.inner]
            stems += own_stems
            parts.update(dict.fromkeys(own_stems))
            if language in COMPOUNDING and (query_language == language or query_language not in languages):
                parts.update((piece, None) for term in own_stems for piece in pieces_of_stem(term)[::2])
            if splitters := analyzers.of(language):
                parts.update((term, None) for lexeme in own_words for term in _inside(lexeme, language, splitters))
        written = [word for lexeme in content for word in lexeme.words + lexeme.inner]
        if "" in languages and query_language:  # the words of a text of unknown language are not stemmed
            stems += (_term(form, "") for word in written if (form := stem(word, query_language)) != word)
        surface = [form for word in written for form in _surface(word, True)]
        bare = [word for word in written if word.isascii()]
        for language in sorted({*languages} - _UNMARKED):  # a word without diacritics is looked up as a bare stem
            surface += (f"{language}~{form}" for word in bare for form in dict.fromkeys((stem(word, language), word)))
        return Terms(tuple(stems), tuple(surface), tuple(parts))


@lru_cache(maxsize=128)
def analyze_query(text: str) -> QueryTerms:
    """Return the analysis of a query. Recent results are cached, so that all stages of a search share one object."""
    return QueryTerms.of(text)


def query_terms(text: str, languages: Collection[str], analyzers: Analyzers = PLAIN) -> Terms:
    """Return the terms of a query to look up in texts of these `languages`; see `QueryTerms.terms`."""
    return QueryTerms.of(text).terms(languages, analyzers)


def _inside(lexeme: Lexeme, language: str, splitters: Collection[Splitter]) -> Iterator[str]:
    """Yield the stems of the content words that the splitters find in a compound word, or in text without spaces."""
    ignored = FUNCTION_WORDS.get(language, _NONE)
    for written in (lexeme.run,) if lexeme.run else lexeme.words:
        if written not in ignored:
            for splitter in splitters:
                yield from (_term(word, language) for word in splitter.words(written) if word not in ignored)


def _content(tokens: Sequence[Lexeme], language: str) -> Sequence[Lexeme]:
    """Return the lexemes that are not function words of `language`, or all lexemes if there are no others."""
    ignored = FUNCTION_WORDS.get(language, _NONE)

    def empty(token: Lexeme) -> bool:
        if token.codes or token.run:
            return False
        return all(word in ignored and (not token.capital or len(word) == 1) for word in token.words)  # "I", not "IT"

    return [token for token in tokens if not empty(token)] or tokens


def _surface(word: str, spelt: bool) -> tuple[str, ...]:
    """Return the spellings of a word: the word, the word without diacritics, and the word with two letters for a vowel,
    such as "aa" for "å". If `spelt` is True, "ae" also replaces "ä", and "oe" replaces "ö", as in most languages."""
    return (word,) if word.isascii() else _surfaces(word, spelt)


@lru_cache(maxsize=65536)
def _surfaces(word: str, spelt: bool) -> tuple[str, ...]:
    return tuple(dict.fromkeys((word, _fold(word), _fold(word.translate(_MORE_DIGRAPHS if spelt else _DIGRAPHS)))))


@lru_cache(maxsize=65536)
def _fold(word: str) -> str:
    """Return the word without diacritics and strokes: "jyvaskyla" for "jyväskylä", and "sore" for "søre"."""
    if word.isascii():
        return word
    bare = "".join(mark for mark in normalized("NFD", word) if not "\u0300" <= mark <= "\u036f")
    return normalized("NFC", bare.translate(_STROKES))


def _term(word: str, language: str) -> str:
    """Return the stem of the word, with the language as a prefix: "fi~talo"."""
    return f"{language}~{stem(word, language)}"


@lru_cache(maxsize=65536)
def pieces_of_stem(term: str) -> tuple[str, ...]:
    """Return overlapping pieces of a stem, with which a search finds parts of compound words. Diacritics are removed,
    "_" is added at both ends, and each piece has `_PART` characters. Return () for a stem that is too short."""
    word = _fold(term.partition("~")[2])
    if len(word) < _PART - 1:
        return ()
    word = f"_{word}_"
    return tuple(word[n : n + _PART] for n in range(len(word) - _PART + 1))
