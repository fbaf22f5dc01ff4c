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
from collections import Counter
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from typing import Literal

from agentformer.text import data_lines
from agentformer.text.normalize import normalized

Verdict = Literal["good", "doubtful", "garbled", "empty"]

GARBLED_BELOW = 0.5
DOUBTFUL_BELOW = 0.93  # one visible flaw is enough to try the other extractor

# The letter frequencies of unrelated languages. A text is compared with the language that is most similar.
_LINES = data_lines(Path(__file__).with_name("letter_frequencies.txt"))
_FREQUENCIES = [[int(number) for number in line.split()[1:]] for line in _LINES]
_UNFOLDED = str.maketrans({"ø": "o", "æ": "a", "œ": "o", "ß": "s", "ł": "l", "đ": "d", "ð": "d", "þ": "t", "ı": "i"})

# Measured on the distinct words of real text, and of the same text with randomly substituted letters. With 120 letters,
# the cosine of real pages is at least .80 (1 in 1,000 is below .87), and that of nine in ten substitutions is below
# .74. With 300 letters, the values are .91 and .75.
MIN_LETTERS_FOR_STATISTICS = 120  # a shorter list of names can look like a cipher
MIN_LETTERS_UNMAPPED = 30  # if the font declares that it has no mapping
MANY_LETTERS = 300
LEAST_LIKENESS = 0.82
LEAST_LIKENESS_OF_MANY = 0.87

_LAYOUT = frozenset("\r\n\t\f\v \u00a0\u00ad\ufffe")  # U+FFFE: pdfium's mark for a hyphen at a line end

_GLYPH_NAMES = re.compile(r"/[A-Za-z]{0,3}\d{1,5}(?=[/\s\u25a1]|$)|\(cid:\d+\)|\b(?:uni|glyph|gid)[0-9A-F]{2,6}\b")
_MOJIBAKE = re.compile(r"Ã[\u0080-\u00bf\u0192\u201a-\u2026\u20ac]|â€[\u0080-\u2122]|Â[\u00a0-\u00bf]|ï»¿")
_WORD = re.compile(r"[^\W\d_]{4,}")  # shorter words are often units and codes
_FOREIGN_RUN = re.compile(r"[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f]{3,}")
_LATIN_RUN = re.compile(r"[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f]+")
_CASE_CHAOS = re.compile(r"(?<=[a-z\u00df-\u00f6\u00f8-\u00ff])[A-Z\u00c0-\u00d6\u00d8-\u00de]")
_SYMBOL_IN_WORD = re.compile(
    r"(?<=[^\W\d_])[\u00a1-\u00a7\u00a9\u00ab-\u00b3\u00b6\u00b9\u00bb-\u00bf\u00d7\u00f7](?=[^\W\d_])"
)
_LAM_ALEF_TURNED = re.compile("(?<![\u0621-\u064a])\u0627[\u0622\u0623\u0625]\u0644")

# Scripts that real pages mix count as one.
_SCRIPT_FAMILY = dict.fromkeys(("HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH"), "CJK")
_SHARED = {"MATHEMATICAL", "SUPERSCRIPT", "SUBSCRIPT", "MODIFIER", "FEMININE", "MASCULINE", "MICRO", "DOUBLE"}


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
        (_mojibake(text, letters), "letters of a wrong encoding"),
        (_script_soup(counts), "letters of unrelated scripts mixed"),
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
    bad = sum(n for c, n in counts.items() if c not in _LAYOUT and _meaningless(c))
    glyphs = sum(map(len, _GLYPH_NAMES.findall(text)))
    # Real text has paths such as /v1/12 and "and/or". One meaningless character in eight is garbled.
    return (bad + (glyphs if glyphs * 5 >= visible else 0)) / visible * 4.0


def _meaningless(char: str) -> bool:
    if char < "\x7f":
        return char < " "
    return char in "\ufffd\u25a1" or unicodedata.category(char) in ("Cc", "Co", "Cn", "Cs")


def _mojibake(text: str, letters: int) -> float:
    """Return the penalty for text that was decoded with a wrong encoding. Such text has unusual pairs of letters, and
    capitals or symbols inside words. `letters` is the number of letters and digits."""
    if letters < 8:
        return 0.0
    pairs = sum(2 for _ in _MOJIBAKE.finditer(text))
    runs = sum(len(m) for m in _FOREIGN_RUN.findall(text))
    penalty = (pairs * 6.0 + max(0.0, runs - 0.05 * letters) * 3.0) / letters
    if letters >= 40:
        chaos = len(_CASE_CHAOS.findall(text)) / letters
        symbols = len(_SYMBOL_IN_WORD.findall(text)) / letters
        # camelCase in code stays below .10; a wrong code page gives both capitals and symbols inside words
        penalty += max(0.0, chaos - 0.10) * 6.0 + max(0.0, symbols - 0.005) * 20.0
    return penalty


def _script_soup(counts: Counter[str]) -> float:
    scripts: Counter[str] = Counter()
    for char, n in counts.items():
        if char.isalpha():
            scripts[_script(char)] += n
    del scripts["SHARED"]
    total = scripts.total()
    if total < 40:
        return 0.0
    return 0.3 * max(0, sum(n / total >= 0.03 for n in scripts.values()) - 3)


def _script(char: str) -> str:
    if char < "\u0250":
        return "LATIN"
    word = unicodedata.name(char, "UNKNOWN").partition(" ")[0].partition("-")[0]
    return "SHARED" if word in _SHARED else _SCRIPT_FAMILY.get(word, word)


def _cipher(text: str, counts: Counter[str], unmapped: float) -> float:
    """Return the penalty for text in which other letters replace the true letters, because the font has no Unicode map.
    The letters of such text have the frequencies of no language."""
    # Each word once: repetitions say nothing about the language.
    likeness, letters = _letter_likeness(Counter("".join(set(_WORD.findall(text.lower())))))
    digits = sum(n for c, n in counts.items() if c.isdecimal())
    if letters < digits:  # tables and hexadecimal dumps are not prose
        return 0.0
    if letters < MIN_LETTERS_FOR_STATISTICS:
        needed = LEAST_LIKENESS - 0.1 if unmapped > 0.5 and letters >= MIN_LETTERS_UNMAPPED else 0.0
    else:
        needed = LEAST_LIKENESS_OF_MANY if letters >= MANY_LETTERS else LEAST_LIKENESS
        needed += 0.04 if unmapped > 0.3 else 0.0
    return max(0.0, (needed - likeness) * 10.0)  # a likeness .05 below the limit is garbled


def _letter_likeness(counts: Counter[str]) -> tuple[float, int]:
    """Return the cosine of the letter frequencies with those of the nearest language, and the number of letters."""
    folded: Counter[str] = Counter()
    for char, n in counts.items():
        if char.isalpha() and char < "\u1f00":
            base = normalized("NFD", char.lower().translate(_UNFOLDED))[:1]
            if base.isascii():
                folded[base] += n
    total = folded.total()
    if not total:
        return 1.0, 0
    seen = [folded[c] for c in "abcdefghijklmnopqrstuvwxyz"]
    norm = math.hypot(*seen)
    cosines = (sum(map(mul, seen, language)) / (norm * math.hypot(*language)) for language in _FREQUENCIES)
    return max(cosines), total


def _lost_spaces(text: str) -> float:
    """Return the penalty for lost spaces. Runs of more than 24 letters count, because compound words are rarely so
    long."""
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
