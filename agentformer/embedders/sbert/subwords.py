"""Tokenizers in plain Python: WordPiece as in BERT (uncased), and Unigram as in SentencePiece. They return the same
tokens as the package `tokenizers`, with a tenth of its memory.

Both map a text code point by code point, divide it into words at spaces, and split each word into pieces of the
vocabulary. The pieces of short words are cached. A text without spaces, such as a Japanese sentence, is one word.
"""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

Offsets = list[tuple[int, int]]
Pieces = tuple[tuple[int, ...], tuple[int, ...]]  # the ids of the pieces of a word, and the end of each piece

# A cached word takes about 300 bytes, a cached code point about 200.
_CACHED_WORDS, _CACHED_CHARACTERS = 16_384, 16_384
_CACHED_WORD = 40  # code points; longer words, such as sentences without spaces, are rarely repeated
_LONGEST_WORD = 100  # code points; BERT has one unknown token for a longer word
_SURROGATES = range(0xD800, 0xE000)
_CHINESE = (
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *(
        (0x2B740, 0x2B81F),
        (0x2B920, 0x2CEAF),
        (0x2F800, 0x2FA1F),
    ),  # the first is 2B820 in BERT, and 2B920 in `tokenizers`
)
_REMOVED = frozenset({"Cc", "Cf", "Co"})  # categories; unassigned code points (Cn) may be assigned later
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_METASPACE = "▁"
_UNKNOWN_PENALTY = 10.0  # SentencePiece: an unknown character scores this much less than the rarest piece
_SPACES = re.compile(" {2,}")
_LAST_WITHOUT_MARKS = "\u02ff"


class Encoding(NamedTuple):
    """The tokens of a text, special tokens included. `offsets` are the start and the end of each token in code points
    of the text; a special token that was added to the text has (0, 0). `special` has 1 for each added token, and 0 for
    each token of the text."""

    ids: list[int]
    offsets: Offsets
    special: list[int]


class WordPiece:
    """BERT's tokenizer for texts without case. Accents and control characters are removed, and each punctuation mark
    and each CJK ideograph is a word. A word is split into the longest pieces from the left; "##" marks the pieces
    inside a word. `vocabulary` has the piece of each id. `literals` are the pieces that a text may contain as they are
    written, such as "[MASK]". Thread-safe."""

    special_tokens = 2

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        begin: str = "[CLS]",
        end: str = "[SEP]",
        pad: str = "[PAD]",
        unknown: str = "[UNK]",
        literals: Collection[str] = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    ) -> None:
        self._ids = {piece: n for n, piece in enumerate(vocabulary)}
        self._begin, self._end, self.unknown_id = self._ids[begin], self._ids[end], self._ids[unknown]
        self.pad_id = self._ids[pad]
        self.vocabulary = len(vocabulary)
        self._longest = max(map(len, vocabulary))
        # A pattern with a group: `split` returns the texts and, at each odd index, the literal between two of them.
        self._literals = re.compile(f"({'|'.join(map(re.escape, sorted(literals, key=len, reverse=True))) or '(?!)'})")
        self._characters = _Characters({}, _bert_character)
        self._words = _Words(self._split)

    def ids(self, text: str) -> list[int]:
        """Return the ids of the tokens of a text, special tokens included."""
        ids = [self._begin]
        for n, part in enumerate(self._literals.split(text)):
            if n % 2:
                ids.append(self._ids[part])
            else:
                ids += self._words.ids(part.translate(self._characters).split())
        ids.append(self._end)
        return ids

    def ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of the tokens of each text, special tokens included."""
        return [self.ids(text) for text in texts]

    def encode(self, text: str) -> Encoding:
        """Return the tokens of a text with their offsets, special tokens included."""
        ids: list[int] = []
        offsets: Offsets = []
        start = 0
        for n, part in enumerate(self._literals.split(text)):
            if n % 2:
                ids.append(self._ids[part])
                offsets.append((start, start + len(part)))
            else:
                mapped, origins = self._characters.mapped(part, start)
                self._words.encode(mapped.split(" "), origins, ids, offsets)
            start += len(part)
        return _with_special(self._begin, ids, offsets, self._end)

    def offsets(self, text: str) -> Offsets:
        """Return the start and the end of each token in the text. Special tokens are left out."""
        return self.encode(text).offsets[1:-1]

    def _split(self, word: str) -> Pieces:
        if len(word) > _LONGEST_WORD:
            return (self.unknown_id,), (len(word),)
        ids: list[int] = []
        ends: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                if (piece := self._ids.get(mark + word[start:end])) is not None:
                    break
            else:
                return (self.unknown_id,), (len(word),)
            ids.append(piece)
            ends.append(end)
            start = end
        return tuple(ids), tuple(ends)


class Unigram:
    """SentencePiece's Unigram tokenizer, as XLM-RoBERTa and multilingual-e5 use it. A word begins with a metaspace (▁),
    and is split into the pieces with the highest sum of scores. `pieces` and `scores` have the piece and the score (a
    logarithm of a probability) of each id. Pieces with the score 0, such as "<mask>", are special tokens, which no text
    contains. `normalisation` has the replacement of each code point that is replaced. `begin`, `end`, `pad` and
    `unknown` are ids. Thread-safe."""

    special_tokens = 2

    def __init__(
        self,
        pieces: Sequence[str],
        scores: Sequence[float],
        normalisation: Mapping[int, str],
        *,
        begin: int = 0,
        end: int = 2,
        pad: int = 1,
        unknown: int = 3,
    ) -> None:
        self.pad_id = pad
        self.vocabulary = len(pieces)
        self._begin, self._end, self.unknown_id = begin, end, unknown
        logs = np.asarray(scores, np.float64)
        self._scores = array("d", logs.tobytes())
        self._unknown_score = float(logs.min()) - _UNKNOWN_PENALTY
        self._ids = dict(zip(pieces, range(len(pieces)), strict=True))
        for special in np.flatnonzero(logs == 0).tolist():
            del self._ids[pieces[special]]
        self._longest = _longest_by_beginning(self._ids)
        self._characters = _Characters({**normalisation, **dict.fromkeys(_SURROGATES, "?")}, chr)
        self._words = _Words(self._split)

    def ids(self, text: str) -> list[int]:
        """Return the ids of the tokens of a text, special tokens included."""
        mapped = text.translate(self._characters)
        if not unicodedata.is_normalized("NFC", mapped):
            mapped = "".join(_composed(mapped, range(len(mapped)))[0])
        mapped = _SPACES.sub(" ", mapped).rstrip(" ").removeprefix(" ")
        return [self._begin, *(self._words.ids(mapped.split(" ")) if mapped else ()), self._end]

    def ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of the tokens of each text, special tokens included."""
        return [self.ids(text) for text in texts]

    def encode(self, text: str) -> Encoding:
        """Return the tokens of a text with their offsets, special tokens included."""
        mapped, origins = self._characters.mapped(text)
        if not unicodedata.is_normalized("NFC", mapped):
            characters, origins = _composed(mapped, origins)
            mapped = "".join(characters)
        mapped, origins = _single_spaces(mapped, origins)
        ids: list[int] = []
        offsets: Offsets = []
        if mapped:
            if not mapped.startswith(" "):  # the metaspace of the first word has the offsets of the first character
                mapped, origins = f" {mapped}", [origins[0], *origins]
            self._words.encode(mapped[1:].split(" "), origins, ids, offsets)
        return _with_special(self._begin, ids, offsets, self._end)

    def offsets(self, text: str) -> Offsets:
        """Return the start and the end of each token in the text. Special tokens are left out."""
        return self.encode(text).offsets[1:-1]

    def _split(self, word: str) -> Pieces:
        """Return the pieces with the highest sum of scores (Viterbi). The ends count the metaspace."""
        word = _METASPACE + word
        size = len(word)
        best = array("d", [-math.inf]) * (size + 1)  # the highest sum of scores of the pieces up to each position
        best[0] = 0.0
        start_of_last = array("L", [0]) * (size + 1)  # the start of the last of these pieces
        piece_of, scores, longest_of = self._ids.get, self._scores, self._longest.get
        for start in range(size):
            so_far = best[start]
            piece = piece_of(word[start])
            total = so_far + (self._unknown_score if piece is None else scores[piece])
            if total > best[start + 1]:
                best[start + 1] = total
                start_of_last[start + 1] = start
            longest = longest_of(word[start : start + 2], 0)
            for end in range(start + 2, min(size, start + longest) + 1):
                if (piece := piece_of(word[start:end])) is not None:
                    total = so_far + scores[piece]
                    if total > best[end]:
                        best[end] = total
                        start_of_last[end] = start
        return self._pieces(word, start_of_last)

    def _pieces(self, word: str, start_of_last: Sequence[int]) -> Pieces:
        """Return the pieces of a word. `start_of_last` has the start of the piece that ends at each position. Adjacent
        unknown characters are one unknown token."""
        ids: list[int] = []
        ends: list[int] = []
        end = len(word)
        while end:
            start = start_of_last[end]
            piece = self._ids.get(word[start:end], self.unknown_id)
            if not (piece == self.unknown_id and ids and ids[-1] == piece):
                ids.append(piece)
                ends.append(end)
            end = start
        return tuple(reversed(ids)), tuple(reversed(ends))


class _Characters(dict[int, str]):
    """The replacement of each code point, for `str.translate`. A code point that is not yet in the mapping has the
    replacement that `replace` returns."""

    def __init__(self, known: Mapping[int, str], replace: Callable[[int], str]) -> None:
        super().__init__(known)
        self._replace = replace
        self._most = len(known) + _CACHED_CHARACTERS

    def __missing__(self, code: int) -> str:
        found = self._replace(code)
        if len(self) < self._most:
            self[code] = found
        return found

    def mapped(self, text: str, start: int = 0) -> tuple[str, Sequence[int]]:
        """Return the text with each code point replaced, and the origin of each code point of the result: its index in
        `text`, plus `start`."""
        parts = list(map(self.__getitem__, map(ord, text)))
        mapped = "".join(parts)
        if all(map(len, parts)) and len(mapped) == len(text):
            return mapped, range(start, start + len(text))
        return mapped, [origin for origin, part in enumerate(parts, start) for _ in part]


class _Words(dict[str, Pieces]):
    """The pieces of words. Those of the last short words are cached; if too many are cached, all are forgotten. `split`
    returns the pieces of a word. Each method of `dict` is atomic, so no lock is needed."""

    def __init__(self, split: Callable[[str], Pieces]) -> None:
        super().__init__()
        self._split = split

    def __missing__(self, word: str) -> Pieces:
        found = self._split(word)
        if len(word) <= _CACHED_WORD:
            if len(self) >= _CACHED_WORDS:
                self.clear()
            self[word] = found
        return found

    def ids(self, words: Iterable[str]) -> Iterable[int]:
        """Return the ids of the pieces of the words."""
        return itertools.chain.from_iterable(map(itemgetter(0), map(self.__getitem__, words)))

    def encode(self, words: Iterable[str], origins: Sequence[int], ids: list[int], offsets: Offsets) -> None:
        """Append the ids and the offsets of the pieces of the words. `origins` has the position in the text of each
        code point of the words and of the single spaces between them."""
        at = 0
        for word in words:
            found, ends = self[word]
            ids += found
            start = at
            for end in ends:
                offsets.append((origins[start], origins[at + end - 1] + 1))
                start = at + end
            at += len(word) + 1


def _bert_character(code: int) -> str:
    """Return the replacement of a code point in BERT's texts without case. A word of its own is between spaces."""
    character = "?" if code in _SURROGATES else chr(code)
    if character in "\t\n\r":
        return " "
    if unicodedata.category(character) in _REMOVED or character == "\ufffd":
        return ""
    if character.isspace():
        return " "
    if any(first <= code <= last for first, last in _CHINESE):
        return f" {unicodedata.normalize('NFD', character)} "
    plain = (c.lower() for c in unicodedata.normalize("NFD", character) if unicodedata.category(c) != "Mn")
    return "".join(f" {c} " if c in _ASCII_PUNCTUATION or unicodedata.category(c)[0] == "P" else c for c in plain)


def _composed(characters: str, origins: Iterable[int]) -> tuple[list[str], list[int]]:
    """Replace each letter and its mark by one character, where Unicode has it, as SentencePiece does. NFC would also
    sort the marks of a letter, but the vocabulary has the usual order of Arabic and Burmese. `origins` has the origin
    of each character; a composed character has the origin of its letter."""
    composed: list[str] = []
    kept: list[int] = []
    for character, origin in zip(characters, origins, strict=True):
        if composed and character > _LAST_WITHOUT_MARKS:
            pair = unicodedata.normalize("NFC", composed[-1] + character)
            if len(pair) == 1:
                composed[-1] = pair
                continue
        composed.append(character)
        kept.append(origin)
    return composed, kept


def _single_spaces(text: str, origins: Sequence[int]) -> tuple[str, Sequence[int]]:
    """Replace each run of spaces by the last of them, and remove the spaces at the end. `origins` has the origin of
    each code point."""
    text = text.rstrip(" ")
    runs = [match.span() for match in _SPACES.finditer(text)]
    if not runs:
        return text, origins
    kept: list[int] = []
    done = 0
    for start, end in runs:
        kept += origins[done:start]
        done = end - 1
    kept += origins[done : len(text)]
    return _SPACES.sub(" ", text), kept


def _longest_by_beginning(pieces: Iterable[str]) -> dict[str, int]:
    """Return the length of the longest piece that begins with each two characters."""
    longest: dict[str, int] = {}
    length_of = longest.get
    for piece in pieces:
        beginning = piece[:2]
        if len(piece) > length_of(beginning, 0):
            longest[beginning] = len(piece)
    return longest


def _with_special(begin: int, ids: list[int], offsets: Offsets, end: int) -> Encoding:
    return Encoding([begin, *ids, end], [(0, 0), *offsets, (0, 0)], [1, *([0] * len(ids)), 1])
