"""Estimate the quality of text that was extracted from a page. The estimate uses statistics, but no dictionary and no
model.

Garbled text in the index makes every search worse. But a good page that is classified as garbled is lost. So each
threshold is far from the values of real prose, tables, code and all scripts. A short text is judged only by signs that
need no statistics.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["good", "doubtful", "garbled", "empty"]

GARBLED_BELOW = 0.5
DOUBTFUL_BELOW = 0.93  # one visible flaw is enough to try the other extractor

# Published letter frequencies (per mille, a..z, without accents) of unrelated languages, rounded. A text is compared
# with the nearest.
_FREQUENCIES: dict[str, tuple[int, ...]] = {
    #        a   b   c   d   e   f   g   h   i   j   k   l   m   n   o   p   q   r   s   t   u   v   w   x   y   z
    "en": (82, 15, 28, 43, 127, 22, 20, 61, 70, 2, 8, 40, 24, 67, 75, 19, 1, 60, 63, 91, 28, 10, 24, 2, 20, 1),
    "de": (71, 19, 31, 51, 164, 17, 30, 46, 66, 3, 14, 34, 25, 98, 30, 8, 0, 70, 73, 62, 52, 9, 19, 0, 0, 11),
    "fr": (81, 9, 33, 37, 176, 11, 9, 7, 76, 6, 1, 55, 30, 71, 56, 25, 14, 67, 79, 73, 64, 18, 0, 4, 1, 3),
    "es": (125, 14, 45, 59, 137, 7, 11, 7, 69, 5, 0, 50, 32, 70, 95, 25, 9, 69, 80, 46, 41, 9, 0, 2, 9, 5),
    "it": (117, 9, 45, 37, 118, 10, 16, 11, 113, 0, 0, 65, 25, 69, 98, 31, 5, 64, 50, 56, 33, 21, 0, 0, 0, 9),
    "fi": (158, 3, 3, 10, 80, 2, 4, 19, 108, 20, 50, 58, 32, 88, 61, 18, 0, 29, 79, 88, 50, 23, 1, 0, 18, 1),
    "sv": (130, 15, 15, 47, 102, 20, 29, 21, 58, 6, 31, 53, 35, 85, 58, 18, 0, 84, 66, 77, 19, 24, 1, 2, 7, 1),
    "da": (75, 20, 6, 59, 155, 24, 41, 16, 60, 7, 34, 52, 32, 72, 52, 18, 0, 90, 58, 69, 20, 23, 1, 0, 7, 0),
    "pl": (99, 15, 43, 33, 88, 3, 14, 11, 83, 23, 35, 39, 28, 57, 85, 31, 0, 46, 46, 40, 25, 0, 46, 0, 38, 65),
    "tr": (119, 28, 21, 47, 89, 5, 31, 12, 134, 0, 47, 59, 38, 75, 33, 9, 0, 67, 48, 33, 51, 10, 0, 0, 33, 15),
    "id": (204, 26, 8, 50, 83, 3, 37, 27, 80, 9, 51, 33, 42, 93, 13, 26, 0, 46, 42, 56, 50, 2, 5, 0, 15, 0),
    "ja": (130, 18, 9, 25, 65, 4, 19, 42, 110, 8, 75, 2, 28, 75, 120, 2, 0, 45, 60, 62, 95, 1, 16, 0, 25, 8),
    "cs": (123, 16, 25, 36, 107, 3, 3, 13, 76, 21, 37, 38, 32, 66, 87, 34, 0, 50, 52, 58, 40, 47, 0, 1, 19, 32),
    "vi": (85, 15, 50, 35, 45, 0, 55, 85, 75, 0, 10, 25, 35, 115, 75, 15, 6, 22, 15, 75, 70, 20, 0, 5, 20, 0),
    "et": (123, 10, 0, 41, 113, 1, 16, 15, 92, 13, 42, 56, 32, 66, 60, 15, 0, 30, 79, 62, 56, 23, 0, 0, 0, 0),
}
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_UNFOLDED = str.maketrans({"ø": "o", "æ": "a", "œ": "o", "ß": "s", "ł": "l", "đ": "d", "ð": "d", "þ": "t", "ı": "i"})

# Measured on distinct words, real text against random substitutions of its letters: with 120 letters real pages have a
# cosine of at least .80 (1 in 1,000 below .87) and nine in ten substitutions below .74; with 300 letters .91 and .75.
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
_SCRIPT_FAMILY = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "HANGUL": "CJK", "BOPOMOFO": "CJK", "FULLWIDTH": "CJK"}
_SHARED = frozenset(
    {"MATHEMATICAL", "SUPERSCRIPT", "SUBSCRIPT", "MODIFIER", "FEMININE", "MASCULINE", "MICRO", "DOUBLE"}
)


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality of a page's text. `score` is in 0..1, and higher is better. Scores of two extractions of the same
    page can be compared."""

    score: float
    letters: int  # letters and digits
    verdict: Verdict
    reason: str = ""


def assess(text: str, *, unmapped: float = 0.0) -> Quality:
    """Return the quality of a page's raw text, before the text is normalised.

    `unmapped` is the share of characters, 0..1, that the font does not map to Unicode. Such text may still be correct,
    because many fonts use ASCII codes. So `unmapped` only makes the statistical limits stricter.
    """
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
    glyphs = sum(len(m) for m in _GLYPH_NAMES.findall(text))
    if glyphs * 5 < visible:  # real text has paths such as /v1/12 and "and/or"
        glyphs = 0
    return (bad + glyphs) / visible * 4.0  # one in eight is garbled


def _meaningless(char: str) -> bool:
    if char < "\x7f":
        return char < " "
    return char in "\ufffd\u25a1" or unicodedata.category(char) in ("Cc", "Co", "Cn", "Cs")


def _mojibake(text: str, letters: int) -> float:
    """Return the penalty for text of UTF-8 or another code page that was decoded as Latin-1. Signs are unusual pairs,
    and capitals or symbols inside words."""
    if letters < 8:
        return 0.0
    pairs = sum(2 for _ in _MOJIBAKE.finditer(text))
    runs = sum(len(m) for m in _FOREIGN_RUN.findall(text))
    penalty = (pairs * 6.0 + max(0.0, runs - 0.05 * letters) * 3.0) / letters
    if letters >= 40:
        chaos = len(_CASE_CHAOS.findall(text)) / letters
        symbols = len(_SYMBOL_IN_WORD.findall(text)) / letters
        # camelCase in code stays below .10; a wrong code page has capitals and symbols inside words alike
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
    present = sum(1 for n in scripts.values() if n / total >= 0.03)
    return 0.3 * max(0, present - 3)


def _script(char: str) -> str:
    if char < "\u0250":
        return "LATIN"
    word = unicodedata.name(char, "UNKNOWN").split(maxsplit=1)[0].split("-", 1)[0]
    return "SHARED" if word in _SHARED else _SCRIPT_FAMILY.get(word, word)


def _cipher(text: str, counts: Counter[str], unmapped: float) -> float:
    """Return the penalty for letters with frequencies of no language, as from a font without a Unicode map."""
    # Each word once: repetitions say nothing about the language.
    likeness, letters = letter_likeness(Counter("".join(set(_WORD.findall(text.lower())))))
    digits = sum(n for c, n in counts.items() if c.isdecimal())
    if letters < digits:  # tables and hexadecimal dumps are not prose
        return 0.0
    if letters < MIN_LETTERS_FOR_STATISTICS:
        needed = LEAST_LIKENESS - 0.1 if unmapped > 0.5 and letters >= MIN_LETTERS_UNMAPPED else 0.0
    else:
        needed = LEAST_LIKENESS_OF_MANY if letters >= MANY_LETTERS else LEAST_LIKENESS
        needed += 0.04 if unmapped > 0.3 else 0.0
    return max(0.0, (needed - likeness) * 10.0)  # .05 below the line is garbled


def letter_likeness(counts: Counter[str]) -> tuple[float, int]:
    """Return the highest cosine between the letter frequencies of the text and of a language (0..1), and the number of
    Latin letters."""
    folded: Counter[str] = Counter()
    for char, n in counts.items():
        if char.isalpha() and char < "\u1f00":
            base = unicodedata.normalize("NFD", char.lower().translate(_UNFOLDED))[:1]
            if base.isascii():
                folded[base] += n
    total = folded.total()
    if not total:
        return 1.0, 0
    seen = [folded[c] for c in _ALPHABET]
    norm = math.hypot(*seen)
    best = max(
        sum(a * b for a, b in zip(seen, language, strict=True)) / (norm * math.hypot(*language))
        for language in _FREQUENCIES.values()
    )
    return best, total


def _lost_spaces(text: str) -> float:
    """Return the penalty for runs of letters that are too long for words. Compounds rarely have more than 24
    letters."""
    runs = _LATIN_RUN.findall(text)
    total = sum(map(len, runs))
    if total < 40:
        return 0.0
    long = sum(len(r) for r in runs if len(r) > 24)
    # One long compound on a short page is normal.
    return max(0.0, long / total - 0.2) * 0.6


def _turned_ligatures(text: str) -> float:
    """Return the penalty for Arabic lam-alef ligatures in visual order. No word begins with alef and hamza-alef."""
    turned = len(_LAM_ALEF_TURNED.findall(text))
    return min(0.3, 0.08 + 0.01 * turned) if turned else 0.0
