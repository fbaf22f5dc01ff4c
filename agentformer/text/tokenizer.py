"""From text to lexemes: words, numbers, codes and names, each with the forms that it may be asked for in.

Whatever is done to a text is done to a query too. Nothing here knows a language.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from agentformer.text.languages import word_list

MAX_TERM = 64  # code points: a SHA-256 in hexadecimal stays whole, a megabyte without spaces does not

_CJK = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED = "\u0e00-\u0e7f\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
# Vowel signs and joined accents are part of a word, but not of Python's \w.
_MARKS = "\u0300-\u036f\u0900-\u0963\u0966-\u0dff\u0591-\u05c7\u064b-\u065f"
# Possessive, so that no text can make the cutter go back over it.
_LETTERS = rf"[^\W{_CJK}{_UNSPACED}]++(?:[{_MARKS}]++[^\W{_CJK}{_UNSPACED}]*+)*+"
# Groups of digits that are one number to people: of telephones, which begin with + or 0, and of accounts and cards.
# Each begins with characters that few tokens begin with, and only then looks back: most tokens are words.
_GROUPED = r"(?:(?:[ -]?\(\d{1,4}\)[ -]?|[ -])\d{2,8}){1,5}(?!\w|:\d)"  # "14" of "14:30" is no part of it
_PHONE = (
    rf"\+(?<![\w.,+]\+)(?:\d{{7,15}}(?!\w)|(?=\d(?:[ ()-]{{0,2}}\d){{6}})\d{{1,5}}{_GROUPED})"
    rf"|0(?<![\w.,+]0)(?!\d-\d\d-(?:19|20)\d\d(?!\d))"
    rf"(?:\d{{8,14}}(?!\w)|(?=(?:[ ()-]{{0,2}}\d){{8}})\d{{1,4}}{_GROUPED})"
    rf"|\(0(?<![\w.,+]\(0)(?=(?:[ ()-]{{0,2}}\d){{8}})\d{{1,4}}\){_GROUPED}"
)
_ACCOUNT = (
    r"[A-Z\d](?<!\w[A-Z\d])[A-Z\d]\d\d"
    r"(?: (?=[A-Z]{0,3}\d)[A-Z\d]{4}){2,7}(?: (?=[A-Z]{0,2}\d)[A-Z\d]{1,3})?(?!\w)"
)
_SHORT = rf"[^\W{_CJK}{_UNSPACED}]{{1,3}}+"
_TOKEN = re.compile(
    rf"(?P<phone>{_PHONE})"
    rf"|(?P<account>{_ACCOUNT})"
    r"|(?P<spaced>\d(?<![\w.,]\d)\d{0,2}(?: \d{3})+(?:,\d+)?(?![\w]))"
    rf"|(?P<cjk>[{_CJK}{_UNSPACED}]+)"
    rf"|(?P<slashed>{_SHORT}(?:/{_SHORT}){{1,2}}+(?![\w/]))"
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
# Letters and a number as one: "iPhone15", "SKU1234", "16GB".
_MODEL = re.compile(r"(?P<before>[^\W\d_]{2,}+)\d++|\d++(?P<after>[^\W\d_]{2,}+)")
_DECIMAL = re.compile(r"\d+(?:\.\d+)+")
_DIGITS = re.compile(r"\d+")
_SUBSCRIBER = 7  # digits at the end of a telephone number, behind country and area
_VULGAR = re.compile(r"[\u00bc-\u00be](?<=\d.)")
_QUARTERS = {"\u00bc": ".25", "\u00bd": ".5", "\u00be": ".75"}
_IDEOGRAPH = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_IDEOGRAPHS = re.compile("[\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]{2,}")
_HIRAGANA = re.compile("[\u3041-\u309f]")
# Overlapping pairs of characters: the cheapest unit that finds words where no space divides them.
_PAIRS = re.compile("(?=([^\u3041-\u309f]{2}))")
_LOOSE_PAIRS = re.compile("(?=([\u3041-\u309f].|.[\u3041-\u309f]))")
_DAY_FIRST = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})")
_YEAR_FIRST = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
_ENGLISH_TAIL = frozenset({"s", "re", "ve", "ll", "d", "m"})
# Case endings behind a colon, of abbreviations and numbers: "EU:n", "tv:ssä", "3:s".
_COLON_TAIL = frozenset().union(*word_list("colon").values())


@dataclass(frozen=True, slots=True)
class Lexeme:
    """What one token of the text gives."""

    words: tuple[str, ...] = ()  # to stem
    inner: tuple[str, ...] = ()  # words inside an identifier, to stem as well
    codes: tuple[str, ...] = ()  # terms that no language changes
    parts: tuple[str, ...] = ()  # the same, for the field of this name
    capital: bool = False  # written with a capital letter
    run: str = ""  # of a script that puts no spaces between words


def lexemes(text: str) -> Iterator[Lexeme]:
    """The text's tokens. A text without any word gives its symbols as they stand, so it can be found too."""
    text = text.translate(_INVISIBLE)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _VULGAR.sub(_decimal, text)).replace("\u2019", "'")
    found = False
    for match in _TOKEN.finditer(text):
        found = True
        token = match[0]
        kind = match.lastgroup
        if kind == "word":
            yield _word(token) if len(token) <= MAX_TERM else _long(token)
        elif kind == "cjk":
            yield _unspaced(token)
        elif kind == "symbol":
            yield Lexeme(codes=(token,))
        elif kind == "slashed":
            yield _slashed(token)
        else:
            yield Lexeme(codes=tuple(dict.fromkeys(_GROUPS[kind](token))))
    if not found:
        for token in text.split():
            yield Lexeme(codes=tuple(_pieces(token)))


def _decimal(match: re.Match[str]) -> str:
    return _QUARTERS[match[0]]


def _pieces(token: str) -> Iterator[str]:
    return (token[start : start + MAX_TERM] for start in range(0, len(token), MAX_TERM))


def _unspaced(run: str) -> Lexeme:
    """Pairs of characters. Hiragana are mostly endings and particles, so pairs with one are parts; so are ideographs,
    singly and as far as they stand together, since that is mostly one word."""
    codes = _PAIRS.findall(run) if len(run) > 1 or _HIRAGANA.match(run) else [run]
    together = (piece for word in _IDEOGRAPHS.findall(run) for piece in _pieces(word))
    loose = _LOOSE_PAIRS.findall(run) if len(run) > 1 else _HIRAGANA.findall(run)
    return Lexeme(codes=tuple(codes), parts=(*_IDEOGRAPH.findall(run), *loose, *together), run=run)


def _long(token: str) -> Lexeme:
    """A token above the limit: its parts, and those that are too long themselves cut into pieces."""
    parts = [part for part in _MARKS_BETWEEN.split(token.casefold()) if part]
    return Lexeme(words=tuple(piece for part in parts for piece in _pieces(part)))


def _spaced(token: str) -> Iterator[str]:
    """ "12 500,50" as 12500.50, 12500 and its groups."""
    whole, comma, _ = token.partition(",")
    yield token.replace(" ", "").replace(",", ".")
    if comma:
        yield whole.replace(" ", "")
    yield from token.split(" ")


def _phone(token: str) -> Iterator[str]:
    """All its digits, its groups, and the last seven digits, which are there however the rest is written."""
    groups = _DIGITS.findall(token)
    digits = "".join(groups)
    yield digits
    yield digits[-_SUBSCRIBER:]
    yield from groups


def _account(token: str) -> Iterator[str]:
    groups = token.casefold().split(" ")
    yield "".join(groups)
    yield from groups


_GROUPS: dict[str | None, Callable[[str], Iterator[str]]] = {"spaced": _spaced, "phone": _phone, "account": _account}


def _slashed(token: str) -> Lexeme:
    """Short things around a slash, such as "A/B", "TCP/IP", "km/h" and "24/7": one name, and its words."""
    folded = token.casefold()
    parts = folded.split("/")
    codes = (folded, *(part for part in parts if not part.isalpha()))
    return Lexeme(words=tuple(part for part in parts if part.isalpha()), codes=codes, capital=token[0].isupper())


@lru_cache(maxsize=65536)
def _word(token: str) -> Lexeme:
    """One token without white space, at most `MAX_TERM` long: a word, a number, a compound or a code."""
    capital = token[0].isupper()
    token = _without_ending(token)
    folded = token.casefold()
    if _PLAIN.fullmatch(folded):
        inner = _humps(token)
        return Lexeme(words=(folded,), inner=inner if len(inner) > 1 else (), capital=capital)
    if _NUMBER.fullmatch(folded):
        return Lexeme(codes=tuple(dict.fromkeys(_number(folded))))
    if "'" in folded and folded.replace("'", "").isalpha():
        return Lexeme(words=_apostrophe(folded), capital=capital)
    return _compound(token, folded, capital)


def _compound(token: str, folded: str, capital: bool) -> Lexeme:
    """A token of several parts: words joined by marks stay words, those inside an identifier are `inner`."""
    words: list[str] = []
    inner: list[str] = []
    numbers: list[str] = []
    for part in filter(None, _MARKS_BETWEEN.split(token)):
        humps = _humps(part)
        named = [hump for hump in humps if not hump.isdigit()]
        if len(named) < len(humps):
            numbers += (part.casefold(), *(hump for hump in humps if hump.isdigit()))
        if model := _MODEL.fullmatch(part):
            words.append((model["before"] or model["after"]).casefold())
            inner += named if len(named) > 1 else ()
        else:
            (words if len(humps) == 1 and humps[0] == part.casefold() else inner).extend(named)
    joined = _JOINTS.sub("", folded)
    if not numbers and _HYPHENATED.fullmatch(folded):
        return Lexeme(words=(joined, *words), inner=tuple(inner), capital=capital)  # "e-mail" is "email" too
    codes = [folded, *(joined,) * (folded[-1] not in "+#" and not joined.isalpha()), *numbers]
    codes += (form for number in _DECIMAL.findall(folded) for form in _number(number))  # of "v1.2.3", "3.2" of "USB3.2"
    if joined.isalpha() and joined != folded and folded[-1] not in "+#":
        words.insert(0, joined)  # "node.js" is "nodejs" too
    return Lexeme(tuple(words), tuple(inner), tuple(dict.fromkeys(filter(None, codes))), capital=capital)


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
    if set(marks) == {"-"} and len(joined := "".join(parts)) >= _SUBSCRIBER:
        yield joined
