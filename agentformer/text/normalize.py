"""Normalise text that was extracted from a file, before the text is stored, shown and searched.

`clean` changes a single text. `normalize_pages` changes all pages of a document, and joins words that were hyphenated
at line ends. The spelling of such a word in other places of the document decides whether the hyphen stays. No
dictionary is used.

An accent that is a separate character is joined with its letter. PDF files that LaTeX wrote with OT1 fonts have the
accent before its letter ("ty¨okalu", "p˚a"). Other programs write the accent after its letter ("tyo¨kalu"). The accent
of a capital letter may be at the end of the line ("Oversikt ¨"). An accent that belongs to no letter stays ("20 ˚C",
"the sign ¨").
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from agentformer.types import Span

_OTHERS = re.compile(r"[\W_]+")
MAX_MARKS = 30  # largest number of combining marks in a row
_JOINER = "\u034f"  # COMBINING GRAPHEME JOINER
# The characters without a combining class that become marks in a normalization form (Unicode 15.0).
_BECOME_MARKS = frozenset("\u0f73\u0f75\u0f81\uff9e\uff9f")
# Combining marks are not in \w. This pattern finds runs that may have too many marks. It looks for half as many
# characters, because some characters become two marks.
_LONG_RUN = re.compile(rf"(?:[^\w\s\x00-\x7f]|[\uff9e\uff9f]){{{MAX_MARKS // 2 + 1},}}")


def normalized(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """Return the text in a Unicode normalization form. If more than 30 combining marks are in a row, a joiner is added
    after every 30 marks, because the normalization of long runs is slow."""
    if text.isascii():
        return text
    return unicodedata.normalize(form, _LONG_RUN.sub(_limited, text))


def bare_letters(text: str) -> str:
    """Return the letters and digits of a text in small letters and without accents."""
    return letters_and_digits(normalized("NFKD", text))


def letters_and_digits(text: str) -> str:
    """Return the letters and digits of a text, in lower case. Spaces and punctuation are removed, because they often
    change when a text is copied."""
    return _OTHERS.sub("", text.casefold())


def _limited(run: re.Match[str]) -> str:
    """Return the run with a joiner after every `MAX_MARKS` combining marks, which are counted in decomposed form."""
    characters: list[str] = []
    marks = 0
    for character in run[0]:
        is_mark = unicodedata.combining(character) or character in _BECOME_MARKS
        added = len(unicodedata.normalize("NFKD", character)) if is_mark else 0
        marks = marks + added if added else 0
        if marks > MAX_MARKS:
            characters.append(_JOINER)
            marks = added
        characters.append(character)
    return "".join(characters)


Style = Literal["", "before", "after"]  # the place of an accent beside its letter; "" if unknown
FindBodies = Callable[[Sequence[str]], Sequence[Span | None]]

# The combining form of each accent, and the letters that it combines with, to choose between the letters on both sides.
_ACCENTS = {
    "\u00a8": ("\u0308", "aouAOUeiyEIY"),  # diaeresis
    "\u02da": ("\u030a", "aAuU"),  # ring
    "\u00b4": ("\u0301", "eaiouyEAIOUYcnszlrCNSZLR"),  # acute
    "`": ("\u0300", "aeiouAEIOU"),  # grave
    "\u02c6": ("\u0302", "aeiouAEIOU"),  # circumflex
    "\u02dc": ("\u0303", "nNaoAO"),  # tilde
    "\u02c7": ("\u030c", "cszrendtCSZRENDT"),  # caron
    "\u02d8": ("\u0306", "agAG"),  # breve
    "\u02d9": ("\u0307", "zZIeE"),  # dot above
    "\u02dd": ("\u030b", "ouOU"),  # double acute
    "\u00b8": ("\u0327", "cCsStT"),  # cedilla
    "\u02db": ("\u0328", "aeAEiuIU"),  # ogonek
}
_USUAL = frozenset("aouAOU")  # an umlaut is far more frequent on these than on e, i and y
_ACCENT = f"[{''.join(_ACCENTS)}]"
_ANY = re.compile(_ACCENT)
_ATTACHED = re.compile(rf"(?P<left>\w?)(?P<accent>{_ACCENT})(?P<right>\w?)")
_SPACED = re.compile(rf"(?<![\w'\"])(?P<accent>{_ACCENT}) (?P<letter>[A-Z])(?=[a-z])")
_STRAY = re.compile(rf"(?:(?<=\s)|^)(?P<accent>{_ACCENT})(?=\s|$)")
_WORD_START = re.compile(r"(?<![\w.])[A-Z](?=[a-z])")
_DOTLESS = {"\u0131": "i", "\u0237": "j"}
MIN_EVIDENCE = 2  # attached accents needed in a document before stray and spaced ones are moved


def accent_style(texts: Sequence[str]) -> Style:
    """Find out how the program that made a document writes separate accents: "before" or "after" their letters.
    `repair_accents` needs this result. Return "" if too few accents touch a letter."""
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
    """Join separate accents with their letters. `style` is the result of `accent_style` for the document. If the style
    is unknown, only accents that touch a letter are joined."""
    if not _ANY.search(text):
        return text
    style = style or accent_style([text])
    for _ in range(3):  # a match consumes the letter that the next accent may need
        text = _ATTACHED.sub(lambda m: _attach(m, style), text)
    if not style or not _ANY.search(text):
        return text
    text = _SPACED.sub(_attach_spaced, text)
    lines = text.split("\n")
    for number in range(len(lines)):
        _place_stray(lines, number)
    return "\n".join(lines)


def _compose(accent: str, letter: str) -> str:
    return normalized("NFC", _DOTLESS.get(letter, letter) + _ACCENTS[accent][0])


def _fits(accent: str, letter: str) -> bool:
    return bool(letter) and (_DOTLESS.get(letter, letter) in _ACCENTS[accent][1])


def _attach(match: re.Match[str], style: str) -> str:
    """Join an accent with the letter before or after it. `style` is that of the document, and "" counts as "before". If
    the accent fits both letters, a dotless letter after it or the only one of `_USUAL` gets it; else, `style` decides.
    If it fits one letter and is between two, it belongs to the word. At the edge of a word it may be another sign, so
    it is joined only as `style` says. Otherwise, return the match unchanged."""
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
        return left + _compose(accent, right)
    if onto_left and (style == "after" or right.isalpha()):
        return _compose(accent, left) + right
    return match.group()


def _attach_spaced(match: re.Match[str]) -> str:
    accent, letter = match["accent"], match["letter"]
    return _compose(accent, letter) if _fits(accent, letter) and accent != "`" else match.group()


def _place_stray(lines: list[str], number: int) -> None:
    """Join an accent that touches no letter with a capital letter of its line. If the line has only accents, join the
    accent with a capital letter of the line after or before it. Nothing is changed unless exactly one capital letter of
    the line fits the accent."""
    match = _STRAY.search(lines[number])
    if match is None:
        return
    accent = match["accent"]
    alone = not _ANY.sub("", lines[number]).strip()
    for place in (number + 1, number - 1) if alone else (number,):
        line = lines[place] if 0 <= place < len(lines) else ""
        capitals = [m.start() for m in _WORD_START.finditer(line) if _fits(accent, m.group())]
        if len(capitals) == 1:
            lines[number] = (lines[number][: match.start()].rstrip(" ") + lines[number][match.end() :]).strip(" ")
            line, at = lines[place], capitals[0]
            lines[place] = line[:at] + _compose(accent, line[at]) + line[at + 1 :]
            return


LINE_HYPHEN = "\ufffe"  # pdfium writes it for a hyphen at a line end and drops the line end

_LINE_ENDS = re.compile(r"\r\n?|[\v\f\x1c-\x1e\x85\u2028]")
_DROPPED = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f"  # controls
    "\u200b\u2060-\u2064\ufeff\ufff9-\ufffb\uffff"  # zero width; ZWJ and ZWNJ stay for scripts and emoji
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # direction marks: a quote could read otherwise than stored
    "\U000e0001-\U000e007f\ue000-\uf8ff]"  # invisible tags; private use area
)
_SYMBOL_AREA = re.compile("[\uf020-\uf07e\uf0a0-\uf0ff]")
_SMALL_CAPITALS = re.compile("[\uf720-\uf77e\uf7a0-\uf7ff]")
_SPACES = re.compile("[\t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_HYPHENS = str.maketrans({"\u2010": "-", "\u2011": "-"})
_BLANKS_AT_LINE_END = re.compile(r"(?<! ) ++(?=\n|$)")
_EMPTY_LINES = re.compile(r"\n{3,}")

# Excluded from NFKC: spacing accents would become a space and a combining mark, "(TM)" would join its word, and "10²"
# and "1½" would read as 102 and 11/2.
_KEPT = "\u00a8\u00af\u00b4\u00b8\u02d8-\u02dd\u2122\u2120\u2026"
_COMPATIBLE = re.compile(rf"((?<=[\d)\]])[\u00b2\u00b3\u00b9\u2070-\u209f\u00bc-\u00be\u2150-\u215f]+|[{_KEPT}])")

_SOFT_HYPHEN = re.compile(r"(?<=\w)\u00ad[ \t]*+(?:\n[ \t]*+)?(?=\w)")
_LINE_END_HYPHEN = re.compile(
    r"(?<![^\W_])(?P<before>[^\W_]++(?:['\u2019-][^\W_]++){0,20}+)"
    r"-[ ]*+(?:\ufffe|\n[ ]*+)(?P<after>[^\W_]++)(?P<more>-?)"
)
_IN_LINE_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_TORN_WORD = re.compile(r"(?<![^\W_])[^\W_]++(?:-[^\W_]++){0,20}+-\n\s*+[^\W_]+")
_VOWELS = frozenset("aeiouyåäöøæ")
# Conjunctions as in "in- och utgång": the hyphen before them marks an omitted part.
_CONJUNCTIONS = frozenset("ja tai sekä eli och eller samt og and or und oder sowie bzw et ou y o e en of i".split())  # noqa: SIM905
_ENGLISH_WORDS = re.compile(r"\b(?:the|of|and|to|is|in|that|for)\b", re.IGNORECASE)
_ENGLISH_SHARE = 0.12  # share of all words: English prose about .2, other languages under .05


def clean(text: str, *, accents: str = "") -> str:
    """Return the text in a uniform notation: control characters are removed, special spaces and ligatures are replaced
    by common characters, and separate accents are joined with their letters. Lines end with LF, and there is at most
    one blank line in a row. A second call changes nothing. Hyphens at line ends stay, because only `join_hyphens` knows
    the spelling in the whole document. `accents` is the `accent_style` of the document."""
    text = _LINE_ENDS.sub("\n", text).replace("\u2029", "\n\n")
    text = re.sub(r"(?<=[^\W_])[ ]*\ufffe", "-\ufffe", text).replace("-\ufffe", "-\n").replace(LINE_HYPHEN, "")
    text = _SOFT_HYPHEN.sub("", text).replace("\u00ad", "")
    text = _SPACES.sub(" ", _DROPPED.sub("", text))
    text = repair_accents(text, accents)
    text = _compatible(text).translate(_HYPHENS)
    return _EMPTY_LINES.sub("\n\n", _BLANKS_AT_LINE_END.sub("", text)).strip("\n")


def from_symbol_area(text: str) -> str:
    """Replace the characters of symbol fonts (U+F020 to U+F0FF) by Latin-1 characters."""
    return _SYMBOL_AREA.sub(lambda m: chr(ord(m.group()) - 0xF000), text)


def from_small_capitals(text: str) -> str:
    """Replace Adobe's small capitals and old-style digits (U+F720 to U+F7FF) by Latin-1 characters."""
    return _SMALL_CAPITALS.sub(lambda m: chr(ord(m.group()) - 0xF700), text)


def _compatible(text: str) -> str:
    """Apply the Unicode form NFKC, except to characters such as "²", because NFKC would change their meaning."""
    if text.isascii():
        return text
    parts = _COMPATIBLE.split(text)  # excluded characters are at odd indexes
    parts[::2] = (normalized("NFKC", part) for part in parts[::2])
    # A combining mark after an excluded character would compose on the next pass otherwise.
    return normalized("NFC", "".join(parts))


def normalize_pages(texts: Sequence[str], running: FindBodies | None = None) -> list[str]:
    """Clean every page, and join words that were hyphenated at line ends. The spelling of a word in the whole document
    decides whether its hyphen stays. `running` returns for each page the span without running header and footer, or
    None for the whole page. Words are joined only inside this span: the second half of the last word is on the next
    page, and not in the footer."""
    style = accent_style(texts)
    pages = [clean(text, accents=style) for text in texts]
    if not any("-\n" in page for page in pages):
        return pages
    words = vocabulary(pages)
    english = looks_english(pages)
    spans = running(pages) if running else [None] * len(pages)
    bodies = [span or Span(0, len(page)) for page, span in zip(pages, spans, strict=True)]
    return [
        page[:start] + join_hyphens(page[start:end], words, english=english) + page[end:]
        for page, (start, end) in zip(pages, bodies, strict=True)
    ]


def vocabulary(texts: Sequence[str]) -> Counter[str]:
    """Count the casefolded words of the texts for `join_hyphens`, except words that a line end divides."""
    return Counter(word.casefold() for text in texts for word in _IN_LINE_WORD.findall(_TORN_WORD.sub("\n", text)))


def looks_english(texts: Sequence[str]) -> bool:
    """Return whether the texts are in English, judged by common English words. `join_hyphens` needs this result,
    because many English compound words have a hyphen, while German and the Nordic languages write them as one word."""
    sample = " ".join(text[:2000] for text in texts[:40])
    return len(_ENGLISH_WORDS.findall(sample)) > _ENGLISH_SHARE * max(1, len(sample.split()))


def join_hyphens(text: str, words: Mapping[str, int] | None = None, *, english: bool = False) -> str:
    """Join words that were hyphenated at a line end. `words` has the number of occurrences of each word in the
    document, and `english` says whether it is in English. If the hyphen belongs to the word, only the line end is
    removed ("HLR-flödet"). If it marks an omitted part of a word ("korkea- ja matalapaine"), the hyphen and the line
    end stay."""
    counts = words if words is not None else vocabulary([text])

    def join(match: re.Match[str]) -> str:
        before, after, more = match["before"], match["after"], match["more"]
        # "tutki-\nja" is one word if the document contains it.
        if not more and after.casefold() in _CONJUNCTIONS and (before + after).casefold() not in counts:
            return match.group()
        hyphen = "-" if _keeps_hyphen(before, after, counts, english) else ""
        return f"{before}{hyphen}{after}{more}"

    for _ in range(2):  # a word hyphenated twice needs a second pass
        text = _LINE_END_HYPHEN.sub(join, text)
    return text


def _keeps_hyphen(before: str, after: str, counts: Mapping[str, int], english: bool) -> bool:
    """Return whether a hyphen at a line end belongs to the word. If the letters do not show it, the spelling that is
    more frequent in `counts` decides, and then the language."""
    head = before.rsplit("-", 1)[-1]
    first = after[0]
    if not first.islower():
        return True  # names, numbers: "Anna-Liisa", "COVID-19"
    if len(head) == 1 or any(c.isdigit() for c in head) or head.isupper():
        return True  # "e-post", "3-vuotias", "HLR-flödet"
    with_hyphen = counts.get(f"{before}-{after}".casefold(), 0)
    joined = counts.get(f"{before}{after}".casefold(), 0)
    if with_hyphen != joined:
        return with_hyphen > joined
    if head[-1].casefold() == first and first in _VOWELS:
        return True  # "linja-auto": a long vowel is never split, so this is a compound
    both = counts.get(head.casefold(), 0) and counts.get(after.casefold(), 0)
    return english and bool(both) and min(len(head), len(after)) > 3


def clean_plain(text: str) -> str:
    """Return the content of a text file in the Unicode form NFC, with LF as line end, and without invisible characters.
    Indentation, hyphens at line ends and special characters stay, for code, tables and logs."""
    text = _LINE_ENDS.sub("\n", text).replace("\u2029", "\n\n")
    text = _DROPPED.sub("", text.replace("\u00ad", "").replace("\u00a0", " "))
    return normalized("NFC", text).strip("\n")
