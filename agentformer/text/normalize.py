"""Extracted text made fit to store, show and search. Pure functions; the order of the steps matters.

`clean` works on one text, `normalize_pages` on a document, whose other pages tell how a word torn at a line's
end is written elsewhere. Nothing here looks at a vocabulary: the document is its own.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from agentformer.text.accents import accent_style, repair_accents
from agentformer.types import Span

FindBodies = Callable[[Sequence[str]], Sequence[Span | None]]

LINE_HYPHEN = "\ufffe"  # pdfium puts it where a hyphen ends a line, and drops the line's end

_LINE_ENDS = re.compile(r"\r\n?|[\v\f\x1c-\x1e\x85\u2028]")
_DROPPED = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f"  # controls
    "\u200b\u2060-\u2064\ufeff\ufff9-\ufffb\uffff"  # zero width; ZWJ and ZWNJ stay: scripts and emoji need them
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # direction: can make a quote read otherwise than it is stored
    "\U000e0001-\U000e007f\ue000-\uf8ff]"  # invisible tags; private use: symbols of one font only
)
_SYMBOL_AREA = re.compile("[\uf020-\uf07e\uf0a0-\uf0ff]")
_SPACES = re.compile("[\t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_HYPHENS = str.maketrans({"\u2010": "-", "\u2011": "-"})
_BLANKS_AT_LINE_END = re.compile(r" +(?=\n|$)")
_EMPTY_LINES = re.compile(r"\n{3,}")

# Compatibility forms that NFKC would spoil: spacing accents become a space and a combining mark, "(TM)" would
# stick to its word, and the digits in "10²" and "1½" would read as 102 and 11/2.
_KEPT = "\u00a8\u00af\u00b4\u00b8\u02d8-\u02dd\u2122\u2120\u2026"
_COMPATIBLE = re.compile(rf"(?<=[\d)\]])[\u00b2\u00b3\u00b9\u2070-\u209f\u00bc-\u00be\u2150-\u215f]+|[{_KEPT}]")

_SOFT_HYPHEN = re.compile(r"(?<=\w)\u00ad[ \t]*\n?[ \t]*(?=\w)")
_LINE_END_HYPHEN = re.compile(
    r"(?P<before>[^\W_]+(?:['\u2019-][^\W_]+)*)-[ ]*(?:\ufffe|\n[ ]*)(?P<after>[^\W_]+)(?P<more>-?)"
)
_IN_LINE_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_VOWELS = frozenset("aeiouyåäöøæ")
# Words after which "in- och utgång" goes on: the hyphen before them stands for a part left out.
_CONJUNCTIONS = frozenset(
    [
        "ja",
        "tai",
        "sekä",
        "eli",
        "och",
        "eller",
        "samt",
        "og",
        "and",
        "or",
        "und",
        "oder",
        "sowie",
        "bzw",
        "et",
        "ou",
        "y",
        "o",
        "e",
        "en",
        "of",
        "i",
        "ja/tai",
        "och/eller",
        "and/or",
    ]
)
_ENGLISH_WORDS = re.compile(r"\b(?:the|of|and|to|is|in|that|for)\b", re.IGNORECASE)
_ENGLISH_SHARE = 0.12  # of all words; English prose has about .2, other languages under .05


def clean(text: str, *, accents: str = "") -> str:
    """One text without control characters, exotic spaces, ligatures and detached accents.

    Line ends become LF and blank lines are kept, at most one in a row. Idempotent. Line-end hyphens are left
    for `join_hyphens`, which has to know the document; `accents` is what `accent_style` found there.
    """
    text = _LINE_ENDS.sub("\n", text).replace("\u2029", "\n\n")
    text = re.sub(r"(?<=[^\W_])[ ]*\ufffe", "-\ufffe", text).replace("-\ufffe", "-\n").replace(LINE_HYPHEN, "")
    text = _SOFT_HYPHEN.sub("", text).replace("\u00ad", "")
    text = _SPACES.sub(" ", _DROPPED.sub("", text))
    text = repair_accents(text, accents)
    text = _compatible(text).translate(_HYPHENS)
    return _EMPTY_LINES.sub("\n\n", _BLANKS_AT_LINE_END.sub("", text)).strip("\n")


def from_symbol_area(text: str) -> str:
    """Characters of symbol fonts back where they belong: such fonts put Latin-1 at U+F000 and up."""
    return _SYMBOL_AREA.sub(lambda m: chr(ord(m.group()) - 0xF000), text)


def _compatible(text: str) -> str:
    """NFKC but for the characters where it would change the meaning."""
    if text.isascii():
        return text
    parts: list[str] = []
    at = 0
    for match in _COMPATIBLE.finditer(text):
        parts += (unicodedata.normalize("NFKC", text[at : match.start()]), match.group())
        at = match.end()
    parts.append(unicodedata.normalize("NFKC", text[at:]))
    # A combining mark right after a protected character would make a new character on the next pass.
    return unicodedata.normalize("NFC", "".join(parts))


def normalize_pages(texts: Sequence[str], running: FindBodies | None = None) -> list[str]:
    """Clean every page and join torn words, each decision taken with the whole document in view.

    `running` gives each page's body without running header and footer, or None for all of it: a word torn at
    the body's end goes on overleaf, and not in the footer.
    """
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
    """How often each word, hyphenated or not, stands inside a line (case folded)."""
    counts: Counter[str] = Counter()
    for text in texts:
        for word in _IN_LINE_WORD.findall(_without_torn_words(text)):
            counts[word.casefold()] += 1
    return counts


def _without_torn_words(text: str) -> str:
    return re.sub(r"[^\W_]+(?:-[^\W_]+)*-\n\s*[^\W_]+", "\n", text)


def looks_english(texts: Sequence[str]) -> bool:
    """English writes many compounds with a hyphen where Nordic languages and German write one word."""
    sample = " ".join(text[:2000] for text in texts[:40])
    return len(_ENGLISH_WORDS.findall(sample)) > _ENGLISH_SHARE * max(1, len(sample.split()))


def join_hyphens(text: str, words: Mapping[str, int] | None = None, *, english: bool = False) -> str:
    """Join words torn at a line's end; keep hyphens that belong to the word, and those that stand for a part
    left out ("korkea- ja matalapaine"), which keep their line end too.

    A kept hyphen loses the line end after it ("HLR-flödet"), so that the word is one word to a search.
    """
    known = words if words is not None else vocabulary([text])

    def join(match: re.Match[str]) -> str:
        before, after, more = match["before"], match["after"], match["more"]
        if _suspended(before, after, more, known):
            return match.group()
        hyphen = "-" if _keeps_hyphen(before, after, known, english) else ""
        return f"{before}{hyphen}{after}{more}"

    # A word torn twice in a row needs a second look.
    for _ in range(2):
        text = _LINE_END_HYPHEN.sub(join, text)
    return text


def _suspended(before: str, after: str, more: str, known: Mapping[str, int]) -> bool:
    if more or after.casefold() not in _CONJUNCTIONS:
        return False
    return (before + after).casefold() not in known  # "tutki-\nja" is one word if the document has it


def _keeps_hyphen(before: str, after: str, known: Mapping[str, int], english: bool) -> bool:
    head = before.rsplit("-", 1)[-1]
    first = after[0]
    if not first.islower():
        return True  # names, numbers: "Anna-Liisa", "COVID-19"
    if len(head) == 1 or any(c.isdigit() for c in head) or (head.isupper() and len(head) > 1):
        return True  # "e-post", "3-vuotias", "HLR-flödet"
    with_hyphen = known.get(f"{before}-{after}".casefold(), 0)
    joined = known.get(f"{before}{after}".casefold(), 0)
    if with_hyphen != joined:
        return with_hyphen > joined
    if head[-1].casefold() == first and first in _VOWELS:
        return True  # "linja-auto": a long vowel is one syllable and is never torn, so this is a compound
    both = known.get(head.casefold(), 0) and known.get(after.casefold(), 0)
    return english and bool(both) and min(len(head), len(after)) > 3


def clean_plain(text: str) -> str:
    """A text file's content: composed characters, LF, nothing invisible. Indentation, line-end hyphens and
    compatibility characters stay: in code, tables and logs they are content."""
    text = _LINE_ENDS.sub("\n", text).replace("\u2029", "\n\n")
    text = _DROPPED.sub("", text.replace("\u00ad", "").replace("\u00a0", " "))
    return unicodedata.normalize("NFC", text).strip("\n")
