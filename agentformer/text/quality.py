"""Estimate whether the text that was extracted from a page is readable. The estimate uses statistics of the characters,
but no dictionary and no model.

Garbled text in the index makes every search worse. But if a good page is classified as garbled, searches cannot find
this page. So each limit is far from the values of real prose, tables and code in every script. A short text has too few
letters for statistics, so it is classified only by other signs, such as characters without meaning.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import mul
from typing import Literal

from agentformer.text.language_files import language_files
from agentformer.text.normalize import normalized

Verdict = Literal["good", "doubtful", "garbled", "empty"]

GARBLED_BELOW = 0.5
DOUBTFUL_BELOW = 0.93  # one visible flaw is enough to try the other extractor

# The letter frequencies of unrelated languages. A text is compared with the language that is most similar.
_FREQUENCIES = [file["letter_frequencies"] for file in language_files().values() if "letter_frequencies" in file]
_UNFOLDED = str.maketrans({"ø": "o", "æ": "a", "œ": "o", "ß": "s", "ł": "l", "đ": "d", "ð": "d", "þ": "t", "ı": "i"})

# Strangeness is measured on the distinct words of prose: twice what the cosine of the letter frequencies lacks to 1,
# and what the alternation of vowels and consonants lacks to the best possible one. Few letters are strange by chance:
# the limit is STRANGE plus CHANCE divided by their number. Of 5,700 real pages in forty languages, one is above it; of
# the same pages with randomly substituted letters, 98% of those with 120 letters or more are.
STRANGE = 0.5
CHANCE = 30.0
LESS_UNMAPPED = 0.1  # the limit is lower by this if the font declares that it has no mapping
MANY_UNMAPPED = 0.3  # share of the characters of a page
MIN_LETTERS = 60
MIN_LETTERS_UNMAPPED = 30
LEAST_ALTERNATION = 0.6  # no language is below; random letters, such as those of keys or DNA, are
_VOWELS = frozenset("aeiouy")

_LAYOUT = frozenset("\r\n\t\f\v \u00a0\u00ad\ufffe")  # U+FFFE: pdfium's mark for a hyphen at a line end

# At least three names in a row with the same letters: dates, invoice numbers and paths also have slashes and digits.
_GLYPH_NAMES = re.compile(
    r"(?<!\w)/([A-Za-z]{0,3})\d{1,5}(?:/\1\d{1,5}){2,}+(?!\w)|\(cid:\d+\)|\b(?:uni|glyph|gid)[0-9A-F]{2,6}\b"
)
_FIRST_PRIVATE, _LAST_PRIVATE = "\ue000", "\uf8ff"
_PRIVATE_IN_WORD = re.compile(r"(?<=[^\W\d_])[\ue000-\uf8ff]|[\ue000-\uf8ff](?=[^\W\d_])")
_MOJIBAKE = re.compile(r"Ã[\u0080-\u00bf\u0192\u201a-\u2026\u20ac]|â€[\u0080-\u2122]|Â[\u00a0-\u00bf]|ï»¿")
_WORD = re.compile(r"[^\W\d_]{4,}")  # shorter words are often units and codes
# A word of prose: names in code and serial numbers have other neighbours.
_PROSE_WORD = re.compile(r"(?<![^\s(\[\"'„“«‘‚»-])[^\W\d_]{4,}(?=[.,;:!?)\]\"'”“»«’…]*(?:[\s-]|$))")
_FOREIGN_RUN = re.compile(r"[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f]{3,}")
_LATIN_RUN = re.compile(r"[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f]+")
_CASE_CHAOS = re.compile(r"(?<=[a-z\u00df-\u00f6\u00f8-\u00ff])[A-Z\u00c0-\u00d6\u00d8-\u00de]")
_SYMBOL_IN_WORD = re.compile(
    r"(?<=[^\W\d_])[\u00a1-\u00a7\u00a9\u00ab-\u00b3\u00b6\u00b9\u00bb-\u00bf\u00d7\u00f7](?=[^\W\d_])"
)
_LAM_ALEF_TURNED = re.compile("(?<![\u0621-\u064a])\u0627[\u0622\u0623\u0625]\u0644")

# Letters of no script, and of scripts that put no space between words: they stand beside letters of any script.
_SHARED = {"MATHEMATICAL", "SUPERSCRIPT", "SUBSCRIPT", "MODIFIER", "SMALL", "ROMAN", "DOUBLE"}
_SHARED |= {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH", "KANGXI"}
_SHARED |= {"THAI", "LAO", "KHMER", "MYANMAR"}


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality of the text of a page. `score` is from 0 to 1, and higher is better. `reason` names the main flaw.
    The scores of two extractions of the same page can be compared."""

    score: float
    letters: int  # letters and digits
    verdict: Verdict
    reason: str = ""

    @property
    def is_usable(self) -> bool:
        return self.verdict in ("good", "doubtful")


def assess(text: str, *, unmapped: float = 0.0) -> Quality:
    """Return the quality of the text of a page. The text must not be normalised yet. `unmapped` is the share of the
    characters, 0..1, for which the font gives no Unicode value. Such characters may still be correct, because many of
    these fonts use ASCII codes. So a high share is no flaw by itself, but it makes the limits of the statistics
    stricter."""
    counts = Counter(text)
    visible = sum(n for c, n in counts.items() if c not in _LAYOUT and not c.isspace())
    if not visible:
        return Quality(0.0, 0, "empty")
    letters = sum(n for c, n in counts.items() if c.isalnum())
    penalties = [
        (_unreadable(text, counts, visible), "characters without meaning"),
        (_mojibake(text, letters, unmapped), "letters of a wrong encoding"),
        (_script_soup(text), "letters of unrelated scripts mixed"),
        (_cipher(text, counts, unmapped), "letters replaced by others"),
        (_lost_spaces(text), "spaces between words are lost"),
        (_turned_ligatures(text), "letters in the wrong order"),
    ]
    score = math.prod(1.0 - min(1.0, p) for p, _ in penalties)
    worst = max(penalties)
    if score < GARBLED_BELOW:
        return Quality(score, letters, "garbled", worst[1])
    return Quality(score, letters, "doubtful" if score < DOUBTFUL_BELOW else "good", worst[1] if worst[0] else "")


def _unreadable(text: str, counts: Counter[str], visible: int) -> float:
    """Return the penalty for characters without meaning. `visible` is the number of characters, without white space."""
    bad = sum(n for c, n in counts.items() if c not in _LAYOUT and _meaningless(c))
    # Icons, boxes to tick and paths are normal. They are signs of garbled text if they replace letters of words, or if
    # half of the page consists of them.
    private = sum(n for c, n in counts.items() if _FIRST_PRIVATE <= c <= _LAST_PRIVATE)
    glyphs = sum(len(match.group()) for match in _GLYPH_NAMES.finditer(text))
    in_words = len(_PRIVATE_IN_WORD.findall(text))
    bad += sum(n for n in (private, glyphs, counts["\u25a1"]) if n * 2 >= visible) or in_words
    return bad / visible * 4.0  # one meaningless character in eight is garbled


def _meaningless(char: str) -> bool:
    if char < "\x7f":
        return char < " "
    return char == "\ufffd" or unicodedata.category(char) in ("Cc", "Cn", "Cs")


def _mojibake(text: str, letters: int, unmapped: float) -> float:
    """Return the penalty for text that was decoded with a wrong encoding. Such text has unusual pairs of letters, and
    capitals or symbols inside words. `letters` is the number of letters and digits."""
    if letters < 8:
        return 0.0
    pairs = sum(2 for _ in _MOJIBAKE.finditer(text))
    runs = sum(len(m) for m in _FOREIGN_RUN.findall(text))
    penalty = (pairs * 6.0 + max(0.0, runs - 0.05 * letters) * 3.0) / letters
    if letters >= 40:
        # Keys and code have capitals inside words of ASCII letters, too.
        words = (word for word in text.split() if unmapped > MANY_UNMAPPED or not word.isascii())
        chaos = sum(len(_CASE_CHAOS.findall(word)) for word in words) / letters
        symbols = len(_SYMBOL_IN_WORD.findall(text)) / letters
        # A wrong code page gives both capitals and symbols inside words.
        penalty += max(0.0, chaos - 0.10) * 6.0 + max(0.0, symbols - 0.005) * 20.0
    return penalty


def _script_soup(text: str) -> float:
    """Return the penalty for words with letters of two scripts. A page may have words of many scripts."""
    letters = mixed = 0
    for word in _WORD.findall(text):
        letters += len(word)
        if not word.isascii():
            mixed += len(word) if len({_script(char) for char in word} - {"SHARED"}) > 1 else 0
    # If half of the letters are in such words, the page is garbled.
    return max(0.0, mixed / letters - 0.05) * 1.25 if letters >= 40 else 0.0


def _script(char: str) -> str:
    if char < "\u0250":
        return "SHARED" if char in "ªµº" else "LATIN"
    word = unicodedata.name(char, "UNKNOWN").partition(" ")[0].partition("-")[0]
    return "SHARED" if word in _SHARED else word


def _cipher(text: str, counts: Counter[str], unmapped: float) -> float:
    """Return the penalty for text in which other letters replace the true letters, because the font has no Unicode map.
    The letters of such text have the frequencies of no language, and its vowels do not alternate with its consonants.
    """
    # Each word once: repetitions say nothing about the language.
    words = set((_WORD if unmapped > MANY_UNMAPPED else _PROSE_WORD).findall(text.lower()))
    likeness, letters = _letter_likeness(Counter("".join(words)))
    digits = sum(n for c, n in counts.items() if c.isdecimal())
    latin = sum(n for c, n in counts.items() if c.isalpha() and c < "\u0250")
    others = sum(n for c, n in counts.items() if c.isalpha()) - latin
    if letters < digits or latin < others:  # tables, dumps and Latin names in another script are no prose
        return 0.0
    if letters < (MIN_LETTERS_UNMAPPED if unmapped > 0.5 else MIN_LETTERS):
        return 0.0
    alternation, best = _alternation(words)
    if best < LEAST_ALTERNATION and unmapped <= MANY_UNMAPPED:
        return 0.0
    limit = STRANGE + CHANCE / letters - (LESS_UNMAPPED if unmapped > MANY_UNMAPPED else 0.0)
    strangeness = 1 - alternation / best + 2 * (1 - likeness)
    return max(0.0, strangeness - limit + 0.1) * 5.0  # above the limit, the page is garbled


def _alternation(words: Iterable[str]) -> tuple[float, float]:
    """Return the share of the pairs of neighbouring letters that consist of a vowel and a consonant, and the greatest
    share that another choice of vowels gives (Sukhotin 1962). Vowels are a, e, i, o, u, y and those with accents."""
    pairs: Counter[tuple[str, str]] = Counter()
    for word in words:
        pairs.update(pairwise("".join(map(_base, word))))
    neighbours: dict[str, Counter[str]] = defaultdict(Counter)
    for (first, second), n in pairs.items():
        neighbours[first][second] += n
        neighbours[second][first] += n if first != second else 0
    sums = {letter: near.total() - near[letter] for letter, near in neighbours.items()}
    vowels = set()
    while sums and sums[letter := max(sums, key=sums.__getitem__)] > 0:
        vowels.add(letter)
        del sums[letter]
        for other in sums:
            sums[other] -= 2 * neighbours[letter][other]
    own, best = (
        sum(n for (a, b), n in pairs.items() if (a in chosen) != (b in chosen)) / (pairs.total() or 1)
        for chosen in (_VOWELS, vowels)
    )
    return own, max(own, best, 1e-9)


@lru_cache(maxsize=4096)
def _base(char: str) -> str:
    """Return the letter without accents as an ASCII letter, or "" if the character has none."""
    base = normalized("NFD", char.lower().translate(_UNFOLDED))[:1] if char < "\u1f00" else ""
    return base if base.isascii() and base.isalpha() else ""


def _letter_likeness(counts: Counter[str]) -> tuple[float, int]:
    """Return the cosine of the letter frequencies with those of the nearest language, and the number of letters."""
    folded: Counter[str] = Counter()
    for char, n in counts.items():
        folded[_base(char)] += n
    del folded[""]
    total = folded.total()
    if not total:
        return 1.0, 0
    seen = [folded[c] for c in "abcdefghijklmnopqrstuvwxyz"]
    norm = math.hypot(*seen)
    cosines = (sum(map(mul, seen, language)) / (norm * math.hypot(*language)) for language in _FREQUENCIES)
    return max(cosines), total


def _lost_spaces(text: str) -> float:
    """Return the penalty for lost spaces: for runs of more than 24 letters. Compound words are rarely so long."""
    runs = _LATIN_RUN.findall(text)
    total = sum(map(len, runs))
    if total < 40:
        return 0.0
    # One long compound on a short page is normal.
    return max(0.0, sum(len(run) for run in runs if len(run) > 24) / total - 0.2) * 0.6


def _turned_ligatures(text: str) -> float:
    """Return the penalty for Arabic text in which the letters of the ligature lam-alef are in the wrong order. Words
    that begin with alef and hamza-alef show this, because no Arabic word begins with these letters."""
    turned = len(_LAM_ALEF_TURNED.findall(text))
    return min(0.3, 0.08 + 0.01 * turned) if turned else 0.0
