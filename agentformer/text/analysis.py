"""From text to the terms that the word index keeps, and from a query to the terms that it looks up.

A text's words are stemmed in the language of that text, which is known well because texts are long, and each
stem carries its language: "fi~työkalu". A query, whose language is often anybody's guess, is stemmed once for
every language that the store holds; a stem then meets texts of its own language only. Numbers, codes, names
of code and characters of unspaced scripts carry no language and meet everywhere, and so do the surface forms,
which are meant to weigh less.

Text and query go through the same cutter, so whatever it does to the one it does to the other.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from agentformer.text.languages import FUNCTION_WORDS, detect_language, language_of_query, stem, word_list

# Languages that write compounds as one word, or stack endings: pieces of stems find "kone" in "pesukone".
COMPOUNDING = frozenset({"da", "de", "et", "fi", "hu", "is", "nl", "no", "sv"})
_PART = 5  # code points of a piece: 4 gave the same recall from a quarter more terms, 6 less recall
MAX_TERM = 64  # code points: a SHA-256 in hexadecimal stays whole, a megabyte without spaces does not
MAX_QUERY = 4000  # code points: some hundred words, beyond which a search costs more than it can still tell

_CJK = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED = "\u0e00-\u0e7f\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
# Vowel signs and joined accents are part of a word, but not of Python's \w.
_MARKS = "\u0300-\u036f\u0900-\u0963\u0966-\u0dff\u0591-\u05c7\u064b-\u065f"
# Possessive, so that no text can make the cutter go back over it.
_LETTERS = rf"[^\W{_CJK}{_UNSPACED}]++(?:[{_MARKS}]++[^\W{_CJK}{_UNSPACED}]*+)*+"
_TOKEN = re.compile(
    rf"(?P<spaced>(?<![\w.,])\d{{1,3}}(?: \d{{3}})+(?:,\d+)?(?![\w]))"
    rf"|(?P<cjk>[{_CJK}{_UNSPACED}]+)"
    rf"|(?P<word>{_LETTERS}(?:[-.,'@:&+\u2010\u2011]{_LETTERS})*+(?:\+\+|#)?)"
    r"|(?P<symbol>[\U0001f1e6-\U0001f1ff]{2}|[$\u00a2-\u00a9\u00ae\u20a0-\u20cf\u2100-\u24ff\u2600-\u2bff"
    r"\U0001f000-\U0001f3fa\U0001f400-\U0001faff])"
)
# Soft hyphens, joiners, variation selectors, and the vowel points of Hebrew and Arabic.
_INVISIBLE = dict.fromkeys(
    (*map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff\ufe0e\ufe0f\u0640"), *range(0x591, 0x5BE), *range(0x64B, 0x653)),
    None,
)
_PLAIN = re.compile(rf"(?:[^\W\d_]|[{_MARKS}])++")  # possessive: letters of India are in both classes
_NUMBER = re.compile(r"\d+(?:[.,:-]\d+)*")
_RUNS = re.compile(rf"(?:[^\W\d_]|[{_MARKS}])++|\d+")
_MARKS_BETWEEN = re.compile(r"[-.,'@:&+#\u2010\u2011]+")
_JOINTS = re.compile(r"[-.,'@:&+#_\u2010\u2011]+")
_HYPHENATED = re.compile(rf"(?:[^\W\d_]|[{_MARKS}\-\u2010\u2011])++")
_IDEOGRAPH = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_DAY_FIRST = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})")
_YEAR_FIRST = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
_NONE: frozenset[str] = frozenset()
_ENGLISH_TAIL = frozenset({"s", "re", "ve", "ll", "d", "m"})
# Case endings behind a colon, of abbreviations and numbers: "EU:n", "tv:ssä", "3:s".
_COLON_TAIL = frozenset().union(*word_list("colon").values())
_STROKES = str.maketrans({"ø": "o", "æ": "ae", "œ": "oe", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ħ": "h", "ı": "i"})


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms free of white space, one index field each, ranked by BM25 with term frequencies.

    `stems` are the strong evidence. `surface` are words as written, casefolded, plus their form without
    diacritics where that differs. `parts` are what larger words are made of: stems of the words inside an
    identifier, single ideographs, and, in languages that write compounds as one word, pieces of stems without
    diacritics, of which a text has all and a query every other one.
    """

    stems: tuple[str, ...]
    surface: tuple[str, ...]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Lexeme:
    """What one token of the text gives."""

    words: tuple[str, ...] = ()  # to stem
    inner: tuple[str, ...] = ()  # words inside an identifier, to stem as well
    codes: tuple[str, ...] = ()  # terms that no language changes
    parts: tuple[str, ...] = ()  # the same, for the field of this name
    capital: bool = False  # written with a capital letter


def text_terms(text: str, language: str) -> Terms:
    """The terms of a stored text that is in `language` ("" when unknown: words are then kept unstemmed)."""
    stems: list[str] = []
    surface: list[str] = []
    parts: list[str] = []
    ignored = FUNCTION_WORDS.get(language, frozenset())
    for lexeme in _lexemes(text):
        stems += lexeme.codes
        parts += lexeme.parts
        for word in lexeme.words:
            stems.append(_term(word, language))
            surface += _surface(word)
            if language in COMPOUNDING and word not in ignored:
                parts += _pieces_of_stem(stems[-1])
        for word in lexeme.inner:
            parts.append(_term(word, language))
            surface += _surface(word)
    return Terms(tuple(stems), tuple(surface), tuple(parts))


def query_terms(text: str, languages: Collection[str]) -> Terms:
    """The terms of a query against a store whose texts are in `languages` ("" among them where unknown).

    Function words are left out, unless nothing else is there. A word with a capital inside the sentence is
    none, whatever the list says: "IT", "US", "May". Of a pasted page only the first `MAX_QUERY` characters count.
    """
    text = text[:MAX_QUERY]
    lexemes = list(_lexemes(text))
    shouted = text.isupper()
    lexemes = [
        replace(lexeme, capital=False) if lexeme.capital and (n == 0 or shouted) else lexeme
        for n, lexeme in enumerate(lexemes)
    ]
    spoken = detect_language(text, *languages) if len(languages) == 1 else language_of_query(text)
    kept = _content(lexemes, spoken)
    stems = [code for lexeme in kept for code in lexeme.codes]
    parts = {part: None for lexeme in kept for part in lexeme.parts}
    words = {word for lexeme in kept for word in lexeme.words}
    for language in sorted(languages):
        own_words = kept if FUNCTION_WORDS.get(language, _NONE).isdisjoint(words) else _content(kept, language)
        own = [_term(word, language) for lexeme in own_words for word in lexeme.words + lexeme.inner]
        stems += own
        parts.update(dict.fromkeys(own))
        if language in COMPOUNDING and (spoken == language or spoken not in languages):
            parts.update((piece, None) for term in own for piece in _pieces_of_stem(term)[::2])
    surface = [form for lexeme in kept for word in lexeme.words + lexeme.inner for form in _surface(word)]
    return Terms(tuple(stems), tuple(surface), tuple(parts))


def _content(lexemes: list[_Lexeme], language: str) -> list[_Lexeme]:
    """The lexemes that are no function words of `language`, or all of them when nothing else is there."""
    ignored = FUNCTION_WORDS.get(language, frozenset())

    def empty(word: str, capital: bool) -> bool:
        return word in ignored and (not capital or len(word) == 1)  # "I", but not "IT"

    return [
        each for each in lexemes if each.codes or not all(empty(word, each.capital) for word in each.words)
    ] or lexemes


def _lexemes(text: str) -> Iterator[_Lexeme]:
    """The text's tokens. A text without any word gives its symbols as they stand, so it can be found too."""
    text = unicodedata.normalize("NFKC", text.translate(_INVISIBLE)).replace("\u2019", "'")
    found = False
    for match in _TOKEN.finditer(text):
        found = True
        token = match[0]
        kind = match.lastgroup
        if kind == "word":
            yield _word(token) if len(token) <= MAX_TERM else _long(token)
        elif kind == "cjk":
            yield _Lexeme(codes=tuple(_bigrams(token)), parts=tuple(_IDEOGRAPH.findall(token)))
        elif kind == "spaced":
            yield _Lexeme(codes=(token.replace(" ", "").replace(",", "."), *token.split(" ")))
        else:
            yield _Lexeme(codes=(token,))
    if not found:
        for token in text.split():
            yield _Lexeme(codes=tuple(_pieces(token)))


def _pieces(token: str) -> Iterator[str]:
    return (token[start : start + MAX_TERM] for start in range(0, len(token), MAX_TERM))


def _bigrams(run: str) -> Iterable[str]:
    """Overlapping pairs of characters: the cheapest unit that finds words where no space divides them."""
    return (run[n : n + 2] for n in range(len(run) - 1)) if len(run) > 1 else (run,)


def _long(token: str) -> _Lexeme:
    """A token above the limit: its parts, and those that are too long themselves cut into pieces."""
    parts = [part for part in _MARKS_BETWEEN.split(token.casefold()) if part]
    return _Lexeme(words=tuple(piece for part in parts for piece in _pieces(part)))


@lru_cache(maxsize=65536)
def _word(token: str) -> _Lexeme:
    """One token without white space, at most `MAX_TERM` long: a word, a number, a compound or a code."""
    capital = token[0].isupper()
    token = _without_ending(token)
    folded = token.casefold()
    if _PLAIN.fullmatch(folded):
        inner = _humps(token)
        return _Lexeme(words=(folded,), inner=inner if len(inner) > 1 else (), capital=capital)
    if _NUMBER.fullmatch(folded):
        return _Lexeme(codes=tuple(dict.fromkeys(_number(folded))))
    if "'" in folded and folded.replace("'", "").isalpha():
        return _Lexeme(words=_apostrophe(folded), capital=capital)
    return _compound(token, folded, capital)


def _compound(token: str, folded: str, capital: bool) -> _Lexeme:
    """A token of several parts: words joined by marks stay words, those inside an identifier are `inner`."""
    words: list[str] = []
    inner: list[str] = []
    numbers: list[str] = []
    for part in filter(None, _MARKS_BETWEEN.split(token)):
        humps = _humps(part)
        numbers += (hump for hump in humps if hump.isdigit())
        (words if len(humps) == 1 and humps[0] == part.casefold() else inner).extend(
            hump for hump in humps if not hump.isdigit()
        )
    joined = _JOINTS.sub("", folded)
    if not numbers and _HYPHENATED.fullmatch(folded):
        return _Lexeme(words=(joined, *words), inner=tuple(inner), capital=capital)  # "e-mail" is "email" too
    whole = (folded,) if folded[-1] in "+#" else (folded, joined)
    return _Lexeme(tuple(words), tuple(inner), tuple(dict.fromkeys(filter(None, (*whole, *numbers)))), capital=capital)


def _humps(part: str) -> tuple[str, ...]:
    """`getUserName` as get, user, name; `PDFReader` as pdf, reader; `covid19` as covid, 19."""
    runs: list[str] = []
    for run in _RUNS.findall(part):
        start = 0
        if not (run.islower() or run.isupper() or run[1:].islower()):
            for n in range(1, len(run)):
                rises = run[n].isupper() and run[n - 1].islower()
                falls = run[n].isupper() and n + 1 < len(run) and run[n + 1].islower() and run[n - 1].isupper()
                if rises or falls:
                    runs.append(run[start:n])
                    start = n
        runs.append(run[start:])
    return tuple(run.casefold() for run in runs)


def _without_ending(token: str) -> str:
    """Without what is not part of the name: a Nordic case behind a colon, an English possessive or verb."""
    head, colon, tail = token.rpartition(":")
    if colon and tail in _COLON_TAIL:
        return head
    head, apostrophe, tail = token.rpartition("'")
    return head if apostrophe and tail.casefold() in _ENGLISH_TAIL else token


def _apostrophe(folded: str) -> tuple[str, ...]:
    """The forms of "l'eau" are leau and eau, of "o'brien" obrien and brien, of "don't" dont."""
    parts = folded.split("'")
    joined = "".join(parts)
    return (joined,) if parts[-1] == "t" else (joined, *(part for part in parts if len(part) > 2))


def _number(number: str) -> Iterator[str]:
    """A number's forms: as written, without thousands marks, and the parts of a date or version."""
    yield number
    if (day := _DAY_FIRST.fullmatch(number)) or (day := _YEAR_FIRST.fullmatch(number)):
        year, month, date = reversed(day.groups()) if "." in number else day.groups()
        yield f"{year}-{int(month):02}-{int(date):02}"
        yield from (year, str(int(month)), str(int(date)))
        return
    parts = re.split(r"[.,:-]", number)
    if len(parts) == 1:
        return
    marks = [mark for mark in number if not mark.isdigit()]
    if "," in marks or (marks == ["."] and len(parts[1]) == 3):
        decimal = "." if len(set(marks)) == 2 or (marks == [","] and len(parts[-1]) != 3) else ""
        yield "".join(parts[:-1]) + decimal + parts[-1]
    elif len(marks) > 1:
        yield ".".join(parts[:2])
    if marks[0] in ":-":
        yield from parts


def _surface(word: str) -> tuple[str, ...]:
    """The word as it stands, and without diacritics where that is another word."""
    plain = _fold(word)
    return (word,) if plain == word else (word, plain)


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


@lru_cache(maxsize=65536)
def _pieces_of_stem(term: str) -> tuple[str, ...]:
    """Overlapping pieces of "fi~talo" with marked ends, so that a piece tells a word's edge from its middle."""
    word = _fold(term.partition("~")[2])
    if len(word) < _PART - 1:
        return ()
    word = f"_{word}_"
    return tuple(word[n : n + _PART] for n in range(len(word) - _PART + 1))
