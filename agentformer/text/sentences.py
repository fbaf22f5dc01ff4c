"""Split text of any language into sentences. The rules read only a few characters before and after a full stop.

A wrong border is worse than a missing border: a quote that ends after the abbreviation "esim." misleads a reader, but
two sentences in one quote do no harm. So a full stop does not end a sentence if it may belong to an abbreviation or a
number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentformer.text.languages import FUNCTION_WORDS, word_list
from agentformer.types import Span

_CLOSERS = "\"'”’»›)\\]」』）】"
_OPENERS = "\"'“„‘«‹»([「『（【*_¿¡–— \t\n"
_CANDIDATE = re.compile(
    rf"(?P<blank>\r?\n[ \t\r]*\n|[\f\u2029])"
    rf"|(?P<line>\r?\n|\u2028)"
    rf"|(?P<full>[。！？｡]+[{_CLOSERS}]*)"
    rf"|(?P<stop>(?:(?<![.!?…])[.!?…]++|[।॥؟۔։።])[{_CLOSERS}]*+(?P<note>(?:\[[^\[\]\s]{{1,8}}\]|[⁰¹²³⁴-⁹]{{1,3}}+)*+))(?=\s|$)"
)
# The look-behind prevents a run of stops from being matched again from each of its stops.
_LOOKBACK = 40  # code points: longer than any abbreviation
_WORD_BEFORE = re.compile(r"[^\s\"'“„‘«‹(\[（]*$")
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*•–·▪◦‣]\s|\(?\d{1,3}[.)]\s|\(?[a-z][.)]\s|#{1,6}\s|>|\|)", re.IGNORECASE)
_HEADING = 60  # code points: longer first lines are running text

_MARKS = "?？؟"
_TAIL = 12  # code points at the end of a text in which a question mark is searched; emojis may follow it
_SENTENCE = re.compile(r"[^.!?…。！？؟\n]+[.!?…。！？؟]*")
_ENDS_WITH_QUESTION = re.compile(r"[?？؟][^\w?？؟]*\Z")
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
_FULL = 100  # code points of a message that states enough: about twenty words
_FULL_UNSPACED = 40  # the same in a script without spaces

# The lists of abbreviations.txt. All languages share them, because quotations and names mix languages. Abbreviations
# hardly ever end a sentence; closing ones ("etc.") do if a capital follows; nouns after ordinals matter where they have
# capitals.
_ABBREVIATIONS, _CLOSING_ABBREVIATIONS, _ORDINAL_NOUNS, _COMPANIES, _NUMBERED = (
    frozenset[str]().union(*word_list(kind).values())
    for kind in ("abbreviations", "closings", "ordinals", "companies", "numbered")
)


def sentence_spans(text: str) -> list[Span]:
    """Return the spans of the sentences in order, without overlap. Outside of the spans, there is only white space.

    A blank line always ends a sentence. A single line break ends a sentence only before a list item or after a heading.
    """
    caseless = text.islower()  # chat without capitals: a small letter may begin a sentence
    spans: list[Span] = []
    start = paragraph = 0
    for match in _CANDIDATE.finditer(text):
        if match.lastgroup == "blank":
            ends, paragraph = True, match.end()
        elif match.lastgroup == "line":
            ends = _line_ends(text, start, paragraph, match)
        elif match.lastgroup == "full":
            ends = not (match[0][-1] in "」』）" and text[match.end() : match.end() + 1] in ("と", "の", "を", "は"))
        else:
            ends = _stop_ends(text, match, caseless)
        if ends:
            spans += _trimmed(text, start, match.end())
            start = match.end()
    spans += _trimmed(text, start, len(text))
    return spans


def _trimmed(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield the span of `text[start:end]` without white space at its start and end. Yield nothing if there is only
    white space."""
    piece = text[start:end]
    if bare := piece.strip():
        start += len(piece) - len(piece.lstrip())
        yield Span(start, start + len(bare))


def _stop_ends(text: str, match: re.Match[str], caseless: bool) -> bool:
    """Return whether the matched mark (a full stop, question mark, ...) ends a sentence. White space or the end of the
    text follows the mark. `caseless` means that sentences of this text begin with small letters."""
    mark = match[0].removesuffix(match["note"]).rstrip(_CLOSERS.replace("\\", ""))
    following = text[match.end() : match.end() + _LOOKBACK].lstrip(_OPENERS + "\r")
    if not following:
        return True
    small = following[0].islower() and not caseless
    if mark[-1] in "!?":
        return not (small and match[0] != mark)  # "Mitä?" hän kysyi: the quote is part of the sentence
    if mark[-1] not in ".…":
        return True
    if small:
        return False
    if mark != ".":
        return True
    before = _WORD_BEFORE.search(text, max(0, match.start() - _LOOKBACK), match.start())
    word = before[0] if before else ""
    return not _abbreviated(word, following, _starts_line(text, match.start() - len(word)))


def _abbreviated(word: str, following: str, first: bool) -> bool:
    """Return whether `word`, which precedes a full stop, is an abbreviation, an initial or an ordinal number.
    `following` is the text after the full stop, and `first` means that `word` begins its line."""
    folded = word.casefold()
    capital = following[0].isupper()
    if folded in _COMPANIES:  # "Best Buy Co., Inc. Board"; but "... Ltd. In 2022, ..."
        return _first_word(following) not in FUNCTION_WORDS["en"]
    if folded in _NUMBERED and following[0].isdigit():  # "No. 5", "(c. 1455)"
        return True
    if folded in _CLOSING_ABBREVIATIONS:
        return not capital
    if folded in _ABBREVIATIONS:
        return True
    if len(word) == 1 and word.isalpha():
        return word.isupper() and capital and word != "I"  # "J. R. R. Tolkien"
    if folded.isdigit() and len(folded) <= 3:
        next_word = re.match(r"\w*", following)
        return first or (next_word is not None and next_word[0].casefold() in _ORDINAL_NOUNS)
    # "U.S. Army", "J.R.R. Tolkien": single letters between stops
    letters = word.split(".")
    return len(letters) > 1 and all(len(letter) == 1 and letter.isupper() for letter in letters) and capital


def _first_word(text: str) -> str:
    match = re.match(r"\w+", text)
    return match[0].casefold() if match else ""


def _starts_line(text: str, position: int) -> bool:
    """Return whether only white space precedes `position` in its line. In this case, a number such as "1." is the
    number of a list item."""
    before = text[max(0, position - 8) : position].rstrip(" \t")
    return not before or before[-1] in "\r\n"


def _line_ends(text: str, start: int, paragraph: int, match: re.Match[str]) -> bool:
    """Return whether the matched line break ends a sentence, because a list item follows or a heading precedes. The
    sentence begins at the offset `start`, and its paragraph begins at the offset `paragraph`."""
    if _LIST_ITEM.match(text, match.end()):
        return True
    line_start = text.rfind("\n", max(start, match.start() - 2 * _HEADING), match.start()) + 1
    line_start = max(line_start, start)
    line = text[line_start : min(match.start(), line_start + 4 * _HEADING)].strip()  # of a longer line, the beginning
    if line.startswith("#"):
        return True
    if start > paragraph or len(line) > _HEADING or match.start() - paragraph > 2 * _HEADING:
        return False
    following = text[match.end() : match.end() + 4 * _HEADING].partition("\n")[0].strip()
    begins = bool(line) and bool(following) and not (line[0].islower() or following[0].islower())
    return begins and line[-1] not in ",;-–(" and len(line) * 5 < len(following) * 3


def is_question(text: str) -> bool:
    """Return whether a text ends with a question."""
    tail = text[-_TAIL:]
    return any(mark in tail for mark in _MARKS) and _ENDS_WITH_QUESTION.search(tail) is not None


def stated(text: str) -> float:
    """Return how much a text says, from 0 to 1. A text of questions gives about 0, because only the length of the other
    sentences counts; about twenty words give 1."""
    length, asked = len(text), 0
    if any(mark in text for mark in _MARKS):
        asked = sum(len(sentence) for sentence in _SENTENCE.findall(text) if sentence[-1] in _MARKS)
    unspaced = not text.isascii() and _UNSPACED.search(text) is not None
    return min(1.0, (length - asked) / (_FULL_UNSPACED if unspaced else _FULL))
