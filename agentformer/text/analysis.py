"""From text to the terms that the word index keeps, and from a query to the terms that it looks up.

A text's words are stemmed in the language of that text, which is known well because texts are long, and each
stem carries its language: "fi~työkalu". A query, whose language is often anybody's guess, is stemmed once for
every language that the store holds; a stem then meets texts of its own language only. Numbers, codes, names
of code and characters of unspaced scripts carry no language and meet everywhere, and so do the surface forms,
which are meant to weigh less.

Text and query go through the same cutter, so whatever it does to the one it does to the other.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from agentformer.text.analyzers import PLAIN, Analyzers, Splitter
from agentformer.text.languages import FUNCTION_WORDS, STEMMERS, detect_language, language_of_query, stem
from agentformer.text.tokenizer import MAX_TERM, Lexeme, lexemes

__all__ = ["COMPOUNDING", "MAX_QUERY", "MAX_TERM", "QueryTerms", "Terms", "analyze_query", "query_terms", "text_terms"]

# Languages that write compounds as one word, or stack endings: pieces of stems find "kone" in "pesukone".
COMPOUNDING = frozenset({"da", "de", "et", "fi", "hu", "is", "nl", "no", "sv"})
_PART = 5  # code points of a piece: 4 gave the same recall from a quarter more terms, 6 less recall
MAX_QUERY = 4000  # code points: some hundred words, beyond which a search costs more than it can still tell

_SURE = 0.5  # of a detector, 0..1: on sentences of some words 5% are then wrong, and twice as many known
_NONE: frozenset[str] = frozenset()
_UNMARKED = frozenset({"en", ""})  # languages in which no stem has diacritics that a query may lack
_VOWELS_OF_THEIR_OWN = frozenset({"et", "fi", "hu", "tr"})  # where nobody writes ä as "ae" and ö as "oe"
_DIGRAPHS = str.maketrans({"å": "aa", "æ": "ae", "ø": "oe", "ü": "ue"})
_MORE_DIGRAPHS = _DIGRAPHS | str.maketrans({"ä": "ae", "ö": "oe"})
_STROKES = str.maketrans({"ø": "o", "æ": "ae", "œ": "oe", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ħ": "h", "ı": "i"})


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms free of white space, one index field each, ranked by BM25 with term frequencies.

    `stems` are the strong evidence. `surface` are words as written, casefolded, plus, where it differs, their form
    without diacritics, the one with two letters for a vowel ("muenchen"), and their stem without diacritics, which
    meets a query's word without any in whatever case that stands ("jyvaskylassa"). `parts` are what larger words are
    made of: stems of the words inside an identifier, ideographs, pairs with hiragana, and, in languages that write
    compounds as one word, pieces of stems without diacritics, of which a text has all and a query every other one.
    """

    stems: tuple[str, ...]
    surface: tuple[str, ...]
    parts: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The surface forms without stems."""
        return tuple(form for form in self.surface if "~" not in form)


def language_of(text: str, prior: str = "", analyzers: Analyzers = PLAIN) -> str:
    """`detect_language`; where that knows nothing and there is no `prior`, what the analysers' detector is sure of."""
    found = detect_language(text, prior)
    if found or prior or analyzers.detector is None:
        return found
    language, sure = analyzers.detector.detect(text)
    return language if sure >= _SURE and language in STEMMERS else ""


def text_terms(text: str, language: str, analyzers: Analyzers = PLAIN) -> Terms:
    """Return the terms of a stored text in `language` ("" if unknown: its words are then not stemmed)."""
    return _text_terms(lexemes(text), language, analyzers)


def _text_terms(tokens: Iterable[Lexeme], language: str, analyzers: Analyzers) -> Terms:
    stems: list[str] = []
    surface: list[str] = []
    parts: list[str] = []
    ignored = FUNCTION_WORDS.get(language, _NONE)
    spelt = language not in _VOWELS_OF_THEIR_OWN
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
    """A query analyzed once: its language, its tokens, and its terms in the languages of the texts it is compared with.

    The terms of each set of languages are derived from the same tokens, once. Thread-safe.
    """

    text: str  # at most `MAX_QUERY` code points
    language: str  # ISO 639-1, "" if unknown
    tokens: tuple[Lexeme, ...]
    _derived: dict[object, Terms] = field(default_factory=dict, compare=False, repr=False)

    def terms(self, languages: Collection[str], analyzers: Analyzers = PLAIN) -> Terms:
        """Return the terms to look up among texts in `languages` ("" for texts of unknown language).

        Function words are left out, unless the query has nothing else. A word with a capital inside the sentence is no
        function word: "IT", "US", "May".
        """
        key = tuple(sorted(languages)), analyzers
        if (terms := self._derived.get(key)) is None:
            terms = self._derived[key] = self._lookup_terms(key[0], analyzers)
        return terms

    def as_text(self, language: str) -> Terms:
        """Return the terms that a stored text in `language` with these words has."""
        if (terms := self._derived.get(language)) is None:
            terms = self._derived[language] = _text_terms(self.tokens, language, PLAIN)
        return terms

    def _lookup_terms(self, languages: Sequence[str], analyzers: Analyzers) -> Terms:
        spoken = detect_language(self.text, *languages) if len(languages) == 1 else self.language
        kept = _content(self.tokens, spoken)
        stems = [code for lexeme in kept for code in lexeme.codes]
        parts = {part: None for lexeme in kept for part in lexeme.parts}
        words = {word for lexeme in kept for word in lexeme.words}
        for language in languages:
            own_words = kept if FUNCTION_WORDS.get(language, _NONE).isdisjoint(words) else _content(kept, language)
            own = [_term(word, language) for lexeme in own_words for word in lexeme.words + lexeme.inner]
            stems += own
            parts.update(dict.fromkeys(own))
            if language in COMPOUNDING and (spoken == language or spoken not in languages):
                parts.update((piece, None) for term in own for piece in _pieces_of_stem(term)[::2])
            if splitters := analyzers.of(language):
                parts.update((term, None) for lexeme in own_words for term in _inside(lexeme, language, splitters))
        written = [word for lexeme in kept for word in lexeme.words + lexeme.inner]
        surface = [form for word in written for form in _surface(word, True)]
        for language in sorted({*languages} - _UNMARKED):  # "smorgas" is itself a bare stem, and stemmed further
            surface += (f"{language}~{form}" for word in written if word.isascii() for form in _bare(word, language))
        return Terms(tuple(stems), tuple(surface), tuple(parts))


@lru_cache(maxsize=512)
def analyze_query(text: str) -> QueryTerms:
    """Analyze a query. Only its first `MAX_QUERY` characters count. The last queries are cached."""
    text = text[:MAX_QUERY]
    shouted = text.isupper()
    tokens = tuple(
        replace(lexeme, capital=False) if lexeme.capital and (n == 0 or shouted) else lexeme
        for n, lexeme in enumerate(lexemes(text))
    )
    return QueryTerms(text, language_of_query(text), tokens)


def query_terms(text: str, languages: Collection[str], analyzers: Analyzers = PLAIN) -> Terms:
    """Return the terms of a query against texts in `languages`; see `QueryTerms.terms`."""
    return analyze_query(text).terms(languages, analyzers)


def _inside(lexeme: Lexeme, language: str, splitters: Collection[Splitter]) -> Iterator[str]:
    """Stems of the words that the lexeme's words, or its run of unspaced characters, are made of."""
    ignored = FUNCTION_WORDS.get(language, _NONE)
    for written in (lexeme.run,) if lexeme.run else lexeme.words:
        if written not in ignored:
            for splitter in splitters:
                yield from (_term(word, language) for word in splitter.words(written) if word not in ignored)


def _content(tokens: Sequence[Lexeme], language: str) -> Sequence[Lexeme]:
    """The lexemes that are no function words of `language`, or all of them when nothing else is there."""
    ignored = FUNCTION_WORDS.get(language, frozenset())

    def empty(word: str, capital: bool) -> bool:
        return word in ignored and (not capital or len(word) == 1)  # "I", but not "IT"

    return [
        each for each in tokens if each.codes or each.run or not all(empty(word, each.capital) for word in each.words)
    ] or tokens


def _surface(word: str, spelt: bool) -> tuple[str, ...]:
    """The word as it stands and, where that is another word, without diacritics, and with "ae" for "ä" if `spelt`."""
    return (word,) if word.isascii() else _surfaces(word, spelt)


@lru_cache(maxsize=65536)
def _surfaces(word: str, spelt: bool) -> tuple[str, ...]:
    return tuple(dict.fromkeys((word, _fold(word), _fold(word.translate(_MORE_DIGRAPHS if spelt else _DIGRAPHS)))))


@lru_cache(maxsize=65536)
def _fold(word: str) -> str:
    """The word without diacritics and strokes: "jyväskylä" as "jyvaskyla", "søre" as "sore"."""
    if word.isascii():
        return word
    bare = "".join(mark for mark in unicodedata.normalize("NFD", word) if not "\u0300" <= mark <= "\u036f")
    return unicodedata.normalize("NFC", bare.translate(_STROKES))


def _term(word: str, language: str) -> str:
    """The word's stem behind its language: "fi~talo"."""
    return f"{language}~{stem(word, language)}"


def _bare(word: str, language: str) -> tuple[str, ...]:
    """What the stem of a word written without diacritics may be: the word's stem, and the word."""
    return tuple(dict.fromkeys((stem(word, language), word)))


@lru_cache(maxsize=65536)
def _pieces_of_stem(term: str) -> tuple[str, ...]:
    """Overlapping pieces of "fi~talo" with marked ends, so that a piece tells a word's edge from its middle."""
    word = _fold(term.partition("~")[2])
    if len(word) < _PART - 1:
        return ()
    word = f"_{word}_"
    return tuple(word[n : n + _PART] for n in range(len(word) - _PART + 1))
