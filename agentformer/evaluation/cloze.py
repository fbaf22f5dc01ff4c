"""Make a question from a sentence: its informative words without the most informative one.

Such questions share their words with their passage, so they favour lexical search and do not resemble people's
questions. They serve to compare settings and to discover passages that cannot be found.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from agentformer.text.languages import FUNCTION_WORDS, stem
from agentformer.text.sentences import sentence_spans

_LEAST, _MOST = 4, 8  # words of a question
_LONGEST = 60  # words of a sentence that is looked at; longer ones are tables and lists
_SENTENCES = 200  # of a text that are looked at
# Words; where no spaces stand between them, runs of ideographs and of katakana, since hiragana are mostly endings.
# Vowel signs, accents and joiners are part of a word, but not of Python's \\w.
IDEOGRAPHIC = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar and Khmer, of which no words are known here
_MARKS = "\u0300-\u036f\u0900-\u0963\u0966-\u0dff\u0591-\u05c7\u064b-\u065f\u200c\u200d"
LETTERS = f"[^\\W_{IDEOGRAPHIC}{UNSPACED}](?:[^\\W_{IDEOGRAPHIC}{UNSPACED}]|[{_MARKS}])*+"  # in a row
_WORD = re.compile(
    f"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]{{1,12}}|[\u30a0-\u30ff]{{2,24}}|{LETTERS}(?:[-'’.:/]{LETTERS})*+"
)
_UNKNOWN = re.compile(f"[{UNSPACED}]")


class Cloze(NamedTuple):
    """A question `text` from `sentence`; `left_out` is the word that the question asks for."""

    text: str
    sentence: str
    left_out: str


class Rarity:
    """The informativeness of a term: the fewer texts contain it, the higher."""

    def __init__(self, texts: Iterable[tuple[str, str]]) -> None:
        """`texts` come with their languages."""
        counts: Counter[str] = Counter()
        self._texts = 0
        for text, language in texts:
            self._texts += 1
            counts.update({_term(word, language) for word in _words(text)})
        self._counts: Mapping[str, int] = counts

    def of(self, term: str) -> float:
        return math.log(1 + self._texts / (1 + self._counts.get(term, 0)))


def cloze(text: str, language: str, rarity: Rarity, without: Collection[str] = ()) -> Cloze | None:
    """Return the question of the sentence with the highest mean informativeness, except sentences in `without`. Return
    None if no sentence is informative enough, or if the script has no known word borders (`without_words`)."""
    best: tuple[float, Cloze] | None = None
    for start, end in sentence_spans(text)[:_SENTENCES]:
        sentence = text[start:end]
        words = _telling(sentence, language)
        if without_words(sentence) or sentence in without or len(words) <= _LEAST or len(sentence.split()) > _LONGEST:
            continue
        worth = sum(rarity.of(term) for term in words) / len(words)
        if best is None or worth > best[0]:
            best = worth, _made(sentence, words, rarity)
    return best[1] if best else None


def without_words(text: str) -> bool:
    """Return whether the text is in a script whose word borders are unknown."""
    return _UNKNOWN.search(text) is not None


def _made(sentence: str, words: Mapping[str, str], rarity: Rarity) -> Cloze:
    """Return the words of the sentence in order without the most informative term; among equals the longest."""
    gone = max(words, key=lambda term: (rarity.of(term), len(words[term])))
    kept = [word for term, word in words.items() if term != gone]
    return Cloze(" ".join(_some(kept)), sentence, words[gone])


def _some(words: Sequence[str]) -> Sequence[str]:
    """Return at most as many words as a question has, evenly spread."""
    return words if len(words) <= _MOST else [words[n * len(words) // _MOST] for n in range(_MOST)]


def _telling(sentence: str, language: str) -> dict[str, str]:
    """Return term -> its first word, of all words that are not function words, in order."""
    ignored = FUNCTION_WORDS.get(language, frozenset())
    words: dict[str, str] = {}
    for word in _words(sentence):
        if word.casefold() not in ignored and (len(word) > 1 or not word.isascii()):
            words.setdefault(_term(word, language), word)
    return words


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFC", text))


def _term(word: str, language: str) -> str:
    return stem(word.casefold(), language)
