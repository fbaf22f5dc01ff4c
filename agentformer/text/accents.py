"""Put detached accents back on their letters.

LaTeX's OT1 fonts draw accents as separate characters. PDF extractors return such an accent before its letter
("ty¨okalu", "p˚a"), some producers write it after the letter ("tyo¨kalu"), and the accent of a capital may drift to the
end of the line ("Oversikt ¨"). A lone accent ("20 ˚C", "the sign ¨") stays.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

Style = Literal["", "before", "after"]

_COMBINING = {
    "\u00a8": "\u0308",  # diaeresis
    "\u02da": "\u030a",  # ring
    "\u00b4": "\u0301",  # acute
    "`": "\u0300",  # grave
    "\u02c6": "\u0302",  # circumflex
    "\u02dc": "\u0303",  # tilde
    "\u02c7": "\u030c",  # caron
    "\u02d8": "\u0306",  # breve
    "\u02d9": "\u0307",  # dot above
    "\u02dd": "\u030b",  # double acute
    "\u00b8": "\u0327",  # cedilla
    "\u02db": "\u0328",  # ogonek
}
# Letters that each accent combines with, to choose between the letters on both sides.
_BASES = {
    "\u00a8": "aouAOU" + "eiyEIY",
    "\u02da": "aA" + "uU",
    "\u00b4": "eaiouyEAIOUY" + "cnszlrCNSZLR",
    "`": "aeiouAEIOU",
    "\u02c6": "aeiouAEIOU",
    "\u02dc": "nNaoAO",
    "\u02c7": "cszrendtCSZRENDT",
    "\u02d8": "agAG",
    "\u02d9": "zZIeE",
    "\u02dd": "ouOU",
    "\u00b8": "cCsStT",
    "\u02db": "aeAEiuIU",
}
_USUAL = frozenset("aouAOU")  # an umlaut is far more frequent on these than on e, i and y
_ACCENT = "[\u00a8\u02da\u00b4`\u02c6\u02dc\u02c7\u02d8\u02d9\u02dd\u00b8\u02db]"
_ANY = re.compile(_ACCENT)
_ATTACHED = re.compile(rf"(?P<left>\w?)(?P<accent>{_ACCENT})(?P<right>\w?)")
_SPACED = re.compile(rf"(?<![\w'\"])(?P<accent>{_ACCENT}) (?P<letter>[A-Z])(?=[a-z])")
_STRAY = re.compile(rf"(?:(?<=\s)|^)(?P<accent>{_ACCENT})(?=\s|$)")
_WORD_START = re.compile(r"(?<![\w.])[A-Z](?=[a-z])")
_DOTLESS = {"\u0131": "i", "\u0237": "j"}
MIN_EVIDENCE = 2  # attached accents needed in a document before stray and spaced ones are moved


def accent_style(texts: Sequence[str]) -> Style:
    """Return the side on which accents stand in this document, "" if too few are attached."""
    before = after = 0
    for text in texts:
        for match in _ATTACHED.finditer(text):
            left, right = _fits(match["accent"], match["left"]), _fits(match["accent"], match["right"])
            before += right and not left
            after += left and not right
    if before + after < MIN_EVIDENCE:
        return ""
    return "before" if before >= after else "after"


def repair_accents(text: str, style: str = "") -> str:
    """Put detached accents on their letters. `style` is the document's `accent_style`; without it only accents that
    touch a letter are moved."""
    if not _ANY.search(text):
        return text
    style = style or accent_style([text])
    for _ in range(3):  # a match consumes the letter that the next accent may need
        text = _ATTACHED.sub(lambda m: _attach(m, style), text)
    if not style or not _ANY.search(text):
        return text
    text = _SPACED.sub(_attach_spaced, text)
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if _STRAY.search(line):
            _place_strays(lines, number)
    return "\n".join(lines)


def compose(accent: str, letter: str) -> str:
    """Return `letter` with `accent`, or "" if no such character exists."""
    both = unicodedata.normalize("NFC", _DOTLESS.get(letter, letter) + _COMBINING[accent])
    return both if len(both) == 1 else ""


def _fits(accent: str, letter: str) -> bool:
    return bool(letter) and (_DOTLESS.get(letter, letter) in _BASES[accent])


def _attach(match: re.Match[str], style: str) -> str:
    left, accent, right = match["left"], match["accent"], match["right"]
    onto_left, onto_right = _fits(accent, left), _fits(accent, right)
    if accent == "`" and not (left.isalpha() and onto_right):  # `code` and ``quotes''
        return match.group()
    if accent == "\u02da" and left.isdigit():  # 90˚ angle
        return match.group()
    if onto_left and onto_right:
        if right in _DOTLESS:
            onto_left = False
        elif accent == "\u00a8" and (left in _USUAL) != (right in _USUAL):
            onto_left = left in _USUAL
        else:
            onto_left = style == "after"
        onto_right = not onto_left
    if onto_right and (style != "after" or left.isalpha()):
        return left + compose(accent, right)
    if onto_left and (style == "after" or right.isalpha()):
        return compose(accent, left) + right
    return match.group()


def _attach_spaced(match: re.Match[str]) -> str:
    accent, letter = match["accent"], match["letter"]
    return compose(accent, letter) if letter in _BASES[accent] and accent != "`" else match.group()


def _place_strays(lines: list[str], number: int) -> None:
    """Put a stray accent on the only capital of its line (or of a neighbour, if alone) that can take it."""
    match = _STRAY.search(lines[number])
    if match is None:
        return
    accent = match["accent"]
    alone = not _ANY.sub("", lines[number]).strip()
    places = (number + 1, number - 1) if alone else (number,)
    for place in places:
        if not 0 <= place < len(lines):
            continue
        capitals = [m.start() for m in _WORD_START.finditer(lines[place]) if m.group() in _BASES[accent]]
        if len(capitals) == 1:
            lines[number] = (lines[number][: match.start()].rstrip(" ") + lines[number][match.end() :]).strip(" ")
            line = lines[place] if place != number else lines[number]
            at = capitals[0]
            lines[place] = line[:at] + compose(accent, line[at]) + line[at + 1 :]
            return
