"""Split text into lexemes: words, numbers, codes and names. A lexeme has all forms of the word or number that a query
may contain.

The same rules split texts and queries in every language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from agentformer.text.languages.detection import word_list
from agentformer.text.normalize import normalized

MAX_TERM = 64  # code points: a SHA-256 in hexadecimal stays whole, a megabyte without spaces does not

_CJK = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED = "\u0e00-\u0e7f\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
# Vowel signs and combining accents belong to a word, but Python's \w excludes them.
_MARKS = "\u0300-\u036f\u0900-\u0963\u0966-\u0dff\u0591-\u05c7\u064b-\u065f"
# Possessive quantifiers: no text can cause backtracking.
_LETTERS = rf"[^\W{_CJK}{_UNSPACED}]++(?:[{_MARKS}]++[^\W{_CJK}{_UNSPACED}]*+)*+"
# Groups of digits that form one number: telephone numbers (they begin with + or 0), accounts and cards. For speed, each
# pattern begins with a rare character, and only then looks at the text before: most tokens are words.
_GROUPED = r"(?:(?:[ -]?\(\d{1,4}\)[ -]?|[ -])\d{2,8}){1,5}(?!\w|:\d)"  # "14" of "14:30" does not belong to it
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
# A space inside a token follows a digit or a bracket, or a hyphen of a telephone number.
_MAY_CROSS = re.compile(r"[\d()-] [A-Z\d() -]")
# Soft hyphens, joiners, variation selectors, and the vowel points of Hebrew and Arabic.
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff\ufe0e\ufe0f\u0640"))
_INVISIBLE |= dict.fromkeys((*range(0x591, 0x5BE), *range(0x64B, 0x653)))
_PLAIN = re.compile(rf"(?:[^\W\d_]|[{_MARKS}])++")  # possessive: letters of India are in both classes
_NUMBER = re.compile(r"\d+(?:[.,:-]\d+)*")
_RUNS = re.compile(rf"[^\W\d_](?:[^\W\d_]|[{_MARKS}])*+|\d+")  # the marks of a digit or of "_" are not a word
_MARKS_BETWEEN = re.compile(r"[-.,'@:&+#\u2010\u2011]+")
_JOINTS = re.compile(r"[-.,'@:&+#_\u2010\u2011]+")
_HYPHENATED = re.compile(rf"(?:[^\W\d_]|[{_MARKS}\-\u2010\u2011])++")
# Letters and a number in one token: "iPhone15", "SKU1234", "16GB".
_MODEL = re.compile(r"(?P<before>[^\W\d_]{2,}+)\d++|\d++(?P<after>[^\W\d_]{2,}+)")
_DECIMAL = re.compile(r"(?<!\d)\d++(?:\.\d++)+")
_DIGITS = re.compile(r"\d+")
_ACCENTS_ONLY = re.compile("[\u0300-\u036f]*+")
_SUBSCRIBER = 7  # last digits of a telephone number, after country and area code
_VULGAR = re.compile(r"[\u00bc-\u00be](?<=\d.)")
_QUARTERS = {"\u00bc": ".25", "\u00bd": ".5", "\u00be": ".75"}
_IDEOGRAPH = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_IDEOGRAPHS = re.compile("[\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]{2,}")
_HIRAGANA = re.compile("[\u3041-\u309f]")
# Overlapping character pairs: the cheapest unit that finds words in scripts without spaces.
_PAIRS = re.compile("(?=([^\u3041-\u309f]{2}))")
_LOOSE_PAIRS = re.compile("(?=([\u3041-\u309f].|.[\u3041-\u309f]))")
_DAY_FIRST = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})")
_YEAR_FIRST = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
_ENGLISH_TAIL = frozenset({"s", "re", "ve", "ll", "d", "m"})
# Case endings after a colon, in abbreviations and numbers: "EU:n", "tv:ssä", "3:s".
_COLON_TAIL = frozenset().union(*word_list("colon").values())


@dataclass(frozen=True, slots=True)
class Lexeme:
    """The forms of one token (a word, number, code or name) that are indexed and searched. `text.analysis` makes terms
    of them: it reduces the words to stems, and stores codes and parts as they are."""

    words: tuple[str, ...] = ()  # words to stem
    inner: tuple[str, ...] = ()  # words inside an identifier, which are also stemmed
    codes: tuple[str, ...] = ()  # terms that are not stemmed
    parts: tuple[str, ...] = ()  # terms of the field `parts`, which are not stemmed
    capital: bool = False  # written with a capital letter
    run: str = ""  # a run of characters of a script without spaces


def lexemes(text: str) -> Iterator[Lexeme]:
    """Yield the lexemes of `text`. If the text contains no words, yield its symbols, so that a search can find the
    text."""
    text = _unified(text)
    empty = True
    for lexeme in lexemes_of_part(text):
        empty = False
        yield lexeme
    if empty:
        for token in text.split():
            yield Lexeme(codes=tuple(_pieces(token)))


def parts_without_spaces(text: str) -> list[str]:
    """Return the parts of `text` between its spaces, for `lexemes_of_part`. If a lexeme may contain a space, as in a
    telephone number, return the whole text as one part. If the text contains words, the lexemes of the parts are the
    lexemes of the text."""
    text = _unified(text)
    return [text] if _MAY_CROSS.search(text) else text.split()


def lexemes_of_part(part: str) -> Iterator[Lexeme]:
    """Yield the lexemes of a part that `parts_without_spaces` has returned. A part without words has no lexemes."""
    for match in _TOKEN.finditer(part):
        token, kind = match[0], match.lastgroup
        if kind == "word":
            yield _word(token) if len(token) <= MAX_TERM else _long(token)
        elif kind == "cjk":
            yield _unspaced(token)
        elif kind == "symbol":
            yield Lexeme(codes=(token,))
        elif kind == "slashed":
            yield _slashed(token)
        else:
            yield Lexeme(codes=tuple(dict.fromkeys(_grouped(kind, token))))


def _unified(text: str) -> str:
    """Return the text in one spelling: without invisible characters, and in the Unicode form NFKC."""
    if text.isascii():
        return text
    text = text.translate(_INVISIBLE)
    text = normalized("NFKC", _VULGAR.sub(lambda match: _QUARTERS[match[0]], text))
    return text.replace("\u2019", "'")


def _pieces(token: str) -> Iterator[str]:
    return (token[start : start + MAX_TERM] for start in range(0, len(token), MAX_TERM))


def _unspaced(run: str) -> Lexeme:
    """Return the lexeme of a run of characters in a script without spaces. `codes` has pairs of characters without
    hiragana. `parts` has pairs with hiragana (mostly endings), single ideographs, and sequences of ideographs
    (words)."""
    codes = _PAIRS.findall(run) if len(run) > 1 or _HIRAGANA.match(run) else [run]
    together = (piece for word in _IDEOGRAPHS.findall(run) for piece in _pieces(word))
    loose = _LOOSE_PAIRS.findall(run) if len(run) > 1 else _HIRAGANA.findall(run)
    return Lexeme(codes=tuple(codes), parts=(*_IDEOGRAPH.findall(run), *loose, *together), run=run)


def _long(token: str) -> Lexeme:
    """Return the lexeme of a token longer than `MAX_TERM`. Its words are pieces of at most `MAX_TERM` characters."""
    pieces = (piece for part in _MARKS_BETWEEN.split(token.casefold()) for piece in _pieces(part))
    return Lexeme(words=tuple(piece for piece in pieces if not _ACCENTS_ONLY.fullmatch(piece)))


def _grouped(kind: str | None, token: str) -> Iterator[str]:
    """Yield the terms of a token that is written in groups, such as "040 123 456": "040123456" and each group. `kind`
    is "phone" for a telephone number, "spaced" for a number with spaces, and "account" for an account number. "12
    500,50" also gives "12500". A telephone number also gives its last seven digits, because every spelling contains
    them."""
    if kind == "spaced":
        yield token.replace(" ", "").replace(",", ".")
        yield token.partition(",")[0].replace(" ", "")
        yield from token.split(" ")
        return
    groups = _DIGITS.findall(token) if kind == "phone" else token.casefold().split(" ")
    joined = "".join(groups)
    yield joined
    if kind == "phone":
        yield joined[-_SUBSCRIBER:]
    yield from groups


def _slashed(token: str) -> Lexeme:
    """Return the lexeme of "TCP/IP" or "24/7". The whole token is a code, and its parts are words or codes."""
    folded = token.casefold()
    parts = folded.split("/")
    codes = (folded, *(part for part in parts if not part.isalpha()))
    return Lexeme(words=tuple(part for part in parts if part.isalpha()), codes=codes, capital=token[0].isupper())


@lru_cache(maxsize=16384)
def _word(token: str) -> Lexeme:
    capital = token[0].isupper()
    token = _without_ending(token)
    folded = token.casefold()
    if _PLAIN.fullmatch(folded):
        inner = _humps(token)
        return Lexeme(words=(folded,), inner=inner if len(inner) > 1 else (), capital=capital)
    if _NUMBER.fullmatch(folded):
        return Lexeme(codes=tuple(dict.fromkeys(_number(folded))))
    if "'" in folded and folded.replace("'", "").isalpha():
        parts = folded.split("'")  # "leau" and "eau" for "l'eau", "dont" for "don't"
        inside = () if parts[-1] == "t" else (part for part in parts if len(part) > 2)
        return Lexeme(words=("".join(parts), *inside), capital=capital)
    return _compound(token, folded, capital)


def _compound(token: str, folded: str, capital: bool) -> Lexeme:
    """Return the lexeme of words that marks join ("e-mail"), or of an identifier, whose words are in `inner`."""
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
        return Lexeme(words=(joined, *words), inner=tuple(inner), capital=capital)  # "e-mail" also as "email"
    codes = [folded, *(joined,) * (folded[-1] not in "+#" and not joined.isalpha()), *numbers]
    codes += (form for number in _DECIMAL.findall(folded) for form in _number(number))  # "v1.2.3"; "3.2" of "USB3.2"
    if joined.isalpha() and joined != folded and folded[-1] not in "+#":
        words.insert(0, joined)  # "node.js" also as "nodejs"
    return Lexeme(tuple(words), tuple(inner), tuple(dict.fromkeys(filter(None, codes))), capital=capital)


def _humps(part: str) -> tuple[str, ...]:
    """Split an identifier: `getUserName` into "get", "user" and "name"; `PDFReader` into "pdf" and "reader"."""
    runs: list[str] = []
    for run in _RUNS.findall(part):
        start = 0
        if not (run.islower() or run.isupper() or run[1:].islower()):
            for n in range(1, len(run)):
                before, after = run[n - 1], run[n + 1 : n + 2]
                if run[n].isupper() and (before.islower() or (before.isupper() and after.islower())):
                    runs.append(run[start:n])
                    start = n
        runs.append(run[start:])
    return tuple(run.casefold() for run in runs)


def _without_ending(token: str) -> str:
    """Return the token without a Nordic case ending ("EU:n"), an English possessive ("Anna's") or verb ("we're")."""
    head, colon, tail = token.rpartition(":")
    if colon and tail in _COLON_TAIL:
        return head
    head, apostrophe, tail = token.rpartition("'")
    return head if apostrophe and tail.casefold() in _ENGLISH_TAIL else token


def _number(number: str) -> Iterator[str]:
    """Yield the forms of a number: the number as it is written, the number without thousands separators, and the parts
    of a date or of a version."""
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
