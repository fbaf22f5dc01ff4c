"""Split a text into sentences, and into pieces with a limited number of tokens: chunks, which readers see and citations
name, or windows, which models read.

The rules for sentences read only a few characters before and after a full stop. A wrong border is worse than a missing
border: a quote that ends after the abbreviation "esim." misleads a reader, but two sentences in one quote do no harm.
So a full stop does not end a sentence if it may belong to an abbreviation or a number.

Chunks and windows are made by the same algorithm. Every border between two tokens has a strength: paragraph, sentence,
clause or word. The text is split from its start. A piece ends at the strongest border at which it has enough tokens; if
there are several such borders, it ends at the last of them. Offsets are exact, no piece exceeds its limit, and the time
is linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import NamedTuple

from agentformer.text.languages.detection import FUNCTION_WORDS, word_list
from agentformer.types import Span, spans_of

_CLOSERS = "\"'”’»›)\\]」』）】"
_CLOSING = _CLOSERS.replace("\\", "")  # the same characters, not escaped
_OPENERS = "\"'“„‘«‹»([「『（【*_¿¡–— \t\n"
_CANDIDATE = re.compile(
    rf"(?P<blank>\r?\n[ \t\r]*\n|[\f\u2029])"
    rf"|(?P<line>\r?\n|\u2028)"
    rf"|(?P<full>[。！？｡]+[{_CLOSERS}]*)"
    rf"|(?P<sure>(?<![.!?…])[!?](?=\s|$))"
    rf"|(?P<stop>(?:(?<![.!?…])[.!?…]++|[।॥؟۔։።])[{_CLOSERS}]*+(?P<note>(?:\[[^\[\]\s]{{1,8}}\]|[⁰¹²³⁴-⁹]{{1,3}}+)*+))(?=\s|$)"
)
# The look-behind prevents a run of stops from being matched again from each of its stops.
_LOOKBACK = 40  # code points: longer than any abbreviation
_TO_WORD = re.compile(r".*[\s\"'“„‘«‹(\[（]", re.DOTALL)  # up to the last word
_SKIPPED = _OPENERS + "\r"  # between a mark and the next sentence
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*•–·▪◦‣]\s|\(?\d{1,3}[.)]\s|\(?[a-z][.)]\s|#{1,6}\s|>|\|)", re.IGNORECASE)
_HEADING = 60  # code points: longer first lines are running text

_QUESTION_MARKS = "?？؟"
_TAIL = 12  # code points at the end of a text in which a question mark is searched; emojis may follow it
_STOPPED = re.compile(r"[^.!?…。！？؟\n]+[.!?…。！？؟]*")
_ENDS_WITH_QUESTION = re.compile(r"[?？؟][^\w?？؟]*\Z")
_EAST_ASIAN = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
_FULL = 100  # code points of a message that states enough: about twenty words
_FULL_EAST_ASIAN = 40  # the same in a script without spaces

# The lists of abbreviations.txt. All languages share them, because quotations and names mix languages. A full stop
# after an abbreviation hardly ever ends a sentence. After a closing abbreviation ("etc."), it does if a capital letter
# follows. In languages in which nouns have capitals, a number is ordinal after a determiner ("im 3. Stock") and before
# certain nouns.
_ABBREVIATIONS, _CLOSING_ABBREVIATIONS, _ORDINAL_NOUNS, _DETERMINERS, _COMPANIES, _NUMBERED = (
    frozenset[str]().union(*word_list(kind).values())
    for kind in ("abbreviations", "closings", "ordinals", "determiners", "companies", "numbered")
)


def sentence_spans(text: str) -> list[Span]:
    """Return the spans of the sentences in order, without overlap. Outside of the spans, there is only white space.

    A blank line always ends a sentence. A single line break ends a sentence only before a list item or after a heading.
    """
    return spans_of(zip(*_sentences(text), strict=True))


def _sentences(text: str) -> tuple[list[int], list[int]]:
    """Return the offsets at which the sentences start and end. Two lists of numbers need less work than spans."""
    starts: list[int] = []
    ends: list[int] = []
    start = 0
    for border in chain(_borders(text), (len(text),)):
        end = border
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        if start < end:
            starts.append(start)
            ends.append(end)
        start = border
    return starts, ends


def _borders(text: str) -> Iterator[int]:
    """Yield the offset after each mark or line break that ends a sentence."""
    caseless = text.islower()  # chat without capitals: a small letter may begin a sentence
    start = paragraph = 0
    for match in _CANDIDATE.finditer(text):
        kind, end = match.lastgroup, match.end()
        if kind == "stop":
            ends = _stop_ends(text, match, caseless)
        elif kind == "line":
            ends = _line_ends(text, start, paragraph, match)
        elif kind == "sure":
            ends = True
        elif kind == "blank":
            ends, paragraph = True, end
        else:
            ends = not (match[0][-1] in "」』）" and text[end : end + 1] in ("と", "の", "を", "は"))
        if ends:
            yield end
            start = end


def _stop_ends(text: str, match: re.Match[str], caseless: bool) -> bool:
    """Return whether the matched mark (a full stop, question mark, ...) ends a sentence. The caller must pass only a
    mark that is followed by white space or the end of the text. `caseless` means that sentences of this text may begin
    with small letters."""
    mark, (start, end) = match[0], match.span()
    if end - start > 1:
        mark = mark.removesuffix(match["note"]).rstrip(_CLOSING)
    elif mark not in ".…":
        return True
    following = text[end : end + _LOOKBACK].lstrip(_SKIPPED)
    if not following:
        return True
    small = following[0].islower() and not caseless
    if mark[-1] in "!?":
        return not (small and end - start != len(mark))  # "Mitä?" hän kysyi: the quote is part of the sentence
    if mark[-1] not in ".…":
        return True
    if small:
        return False
    if mark != ".":
        return True
    least = max(0, start - _LOOKBACK)
    begin = text.rfind(" ", least, start) + 1 or least
    if not text[begin:start].isalnum():  # it may contain another border of a word
        before = _TO_WORD.match(text, least, start)
        begin = before.end() if before else least
    return not _abbreviated(text[begin:start], following, text, begin)


def _abbreviated(word: str, following: str, text: str, start: int) -> bool:
    """Return whether `word`, which precedes a full stop, is an abbreviation, an initial or an ordinal number.
    `following` is the text after the full stop, and `start` is the offset of the word in `text`."""
    kind = _kind_of(word)
    if not kind:
        return False
    if kind == "company":  # "Best Buy Co., Inc. Board"; but "... Ltd. In 2022, ..."
        return _first_word(following) not in FUNCTION_WORDS["en"]
    if kind == "number":
        ordinal = _last_word(text, start) in _DETERMINERS or _first_word(following) in _ORDINAL_NOUNS
        before = text[max(0, start - 8) : start].rstrip(" \t")
        return ordinal or not before or before[-1] in "\r\n"  # at the start of a line: the number of a list item
    if kind == "abbreviation" or (word.casefold() in _NUMBERED and following[0].isdigit()):  # "No. 5", "(c. 1455)"
        return True
    return kind != "numbered" and following[0].isupper() == (kind == "initials")


@lru_cache(maxsize=4_096)
def _kind_of(word: str) -> str:
    """Return the kind of a word before a full stop, or "" if the full stop ends a sentence whatever follows."""
    folded = word.casefold()
    if folded in _COMPANIES:
        return "company"
    if folded in _CLOSING_ABBREVIATIONS:
        return "closing"
    if folded in _ABBREVIATIONS:
        return "abbreviation"
    if len(word) == 1 and word.isalpha():
        initials = word.isupper() and word != "I"  # "J. R. R. Tolkien"
    elif folded.isdigit() and len(folded) <= 3:
        return "number"
    else:
        # "U.S. Army", "J.R.R. Tolkien": single letters between stops
        letters = word.split(".")
        initials = len(letters) > 1 and all(len(letter) == 1 and letter.isupper() for letter in letters)
    return "initials" if initials else "numbered" if folded in _NUMBERED else ""


def _first_word(text: str) -> str:
    match = re.match(r"\w+", text)
    return match[0].casefold() if match else ""


def _last_word(text: str, end: int) -> str:
    """Return the word that ends before `end`, in lower case."""
    words = text[max(0, end - 16) : end].split()
    return words[-1].casefold() if words else ""


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


def ends_with_question(text: str) -> bool:
    """Return whether a text ends with a question."""
    tail = text[-_TAIL:]
    return any(mark in tail for mark in _QUESTION_MARKS) and _ENDS_WITH_QUESTION.search(tail) is not None


def stated(text: str) -> float:
    """Return how much a text states, from 0 to 1. Only the length of the sentences that are not questions counts. About
    twenty words give 1."""
    length, asked = len(text), 0
    if any(mark in text for mark in _QUESTION_MARKS):
        asked = sum(len(sentence) for sentence in _STOPPED.findall(text) if sentence[-1] in _QUESTION_MARKS)
    unspaced = not text.isascii() and _EAST_ASIAN.search(text) is not None
    return min(1.0, (length - asked) / (_FULL_EAST_ASIAN if unspaced else _FULL))


# Strength of the border between two tokens.
# `_JOINED` is inside a word or a group of combined characters; it is used only if a single word exceeds the limit.
_JOINED, _WORD, _CLAUSE, _SENTENCE, _PARAGRAPH = range(5)
# A border is used only if the piece then has at least this share of the limit.
_KEEP = {_PARAGRAPH: 0.5, _SENTENCE: 0.35, _CLAUSE: 0.6, _WORD: 0.0}

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_CLAUSE_END = frozenset(",;:)]}–—、，；：」』）")
# Scripts without spaces: every character border is a word border.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)

_MARKS = frozenset({"Mn", "Mc", "Me", "Cf"})  # combining characters, which belong to the character before them

# The number of tokens of a piece hardly changes when the piece is taken out of the text, if white space is on both
# sides: a model may split only the first word differently. If a piece is within this many tokens of the limit, its
# tokens are counted again.
_RECOUNT = 8

Tokens = Sequence[Span]


def split(
    text: str, tokens: Tokens, limit: int, overlap: int = 0, breaks: Sequence[int] = (), rows: Sequence[int] = ()
) -> list[Span]:
    """Return the spans of the pieces into which `text` is split, in order. A piece has at most `limit` of the given
    `tokens`. Every token is in a piece.

    Neighbouring pieces share at most `overlap` tokens. If possible, the shared text begins with a sentence. `breaks`
    are offsets at which a paragraph begins, such as the offsets of headings. `rows` are the offsets of the rows of
    tables: a piece that ends before a row shares only whole rows. A piece begins and ends at the borders of tokens. A
    word is split only if it has more than `limit` tokens. Raises `ValueError` if `limit` is below 1, or if `overlap` is
    not below `limit`.
    """
    if limit < 1 or not 0 <= overlap < limit:
        raise ValueError(f"limit must be at least 1, and overlap must be below limit, got {limit} and {overlap}")
    return [piece.span for piece in _pieces(text, tokens, limit, overlap, breaks, rows)]


class _Piece(NamedTuple):
    """A piece of a text: its span and its number of tokens. `whole_words` is True if each end of the piece is next to
    white space or at an end of the text."""

    span: Span
    tokens: int
    whole_words: bool


def _pieces(
    text: str, tokens: Tokens, limit: int, overlap: int = 0, breaks: Sequence[int] = (), rows: Sequence[int] = ()
) -> list[_Piece]:
    """Return the pieces that `split` describes. After a piece that ends before a row, the next one begins at a row."""
    if not tokens:
        return []
    tokens = _with_marks(text, tokens)
    strengths = _strengths(text, tokens, (*breaks, *rows))
    starts = [token.start for token in tokens] if rows else []
    row_starts = {bisect_left(starts, offset) for offset in rows}
    pieces: list[_Piece] = []
    first = 0
    while True:
        last = _cut(strengths, first, limit, len(tokens))
        span = Span(tokens[first].start, tokens[last - 1].end)
        whole_words = _at_space(text, span.start - 1) and _at_space(text, span.end)
        pieces.append(_Piece(span, last - first, whole_words))
        if last == len(tokens):
            return pieces
        if last in row_starts:
            first = next((n for n in range(max(first + 1, last - overlap), last) if n in row_starts), last)
        else:
            first = _resume(strengths, first, last, overlap)


def _at_space(text: str, position: int) -> bool:
    """Return whether the character at `position` is white space. Return True if `position` is outside of the text."""
    return not 0 <= position < len(text) or text[position].isspace()


def windows(text: str, count: Callable[[str], list[Span]], limit: int) -> list[Span]:
    """Split `text` into windows for a model that reads at most `limit` tokens, and return their spans. The windows have
    similar sizes, do not overlap, and contain every token. `count` returns the spans of the tokens of a text. A model
    may split a word differently at the start of a text. So the tokens of some windows are counted again: those that
    begin or end inside a run of characters, and those that are close to the limit. A window that is too long is split
    again."""
    tokens = count(text)
    if not tokens:
        stripped = text.strip()
        start = text.find(stripped)
        return [Span(start, start + len(stripped))] if stripped else []
    if len(tokens) <= limit:
        return [Span(tokens[0].start, _past_marks(text, tokens[-1].end, len(text)))]
    pieces = -(-len(tokens) // limit)
    even = min(limit, -(-len(tokens) // pieces) + limit // 8)  # slack, so that borders can fall on sentences
    out: list[Span] = []
    for (start, end), size, whole_words in _pieces(text, tokens, even):
        piece = text[start:end]
        if (whole_words and size <= limit - _RECOUNT) or end - start < 2 or len(count(piece)) <= limit:
            out.append(Span(start, end))
        else:
            out += [Span(start + s, start + e) for s, e in windows(piece, count, limit // 2 or 1)]
    return out


def _with_marks(text: str, tokens: Tokens) -> Tokens:
    """Extend each token by the combining characters that follow it, because the tokenizer of BERT omits them."""
    if text.isascii() or not any(unicodedata.category(ch) in _MARKS for ch in set(text)):
        return tokens
    borders = chain((token.start for token in islice(tokens, 1, None)), [len(text)])
    return [Span(start, _past_marks(text, end, border)) for (start, end), border in zip(tokens, borders, strict=True)]


def _past_marks(text: str, end: int, border: int) -> int:
    while end < border and unicodedata.category(text[end]) in _MARKS:
        end += 1
    return end


def _cut(strengths: Sequence[int], first: int, limit: int, total: int) -> int:
    """Return the index of the token after the piece that begins at token `first`. `strengths` has the strength of the
    border before each token, and `total` is the number of tokens."""
    furthest = first + limit
    if furthest >= total:
        return total
    for strength, share in _KEEP.items():
        least = first + max(1, int(limit * share))
        for last in range(furthest, least - 1, -1):
            if strengths[last] >= strength:
                return last
    return furthest


def _resume(strengths: Sequence[int], first: int, last: int, overlap: int) -> int:
    """Return the index of the first token of the next piece. The piece before it has the tokens from `first` up to
    `last` (exclusive). The next piece begins up to `overlap` tokens before `last`, at a sentence or else at a word."""
    earliest = max(first + 1, last - overlap)
    for strength in (_SENTENCE, _WORD):
        for start in range(earliest, last):
            if strengths[start] >= strength:
                return start
    return last


def _strengths(text: str, tokens: Tokens, breaks: Sequence[int]) -> list[int]:
    """Return the strength of the border before each token. `breaks` are offsets at which a paragraph begins."""
    out = [_PARAGRAPH]
    end = tokens[0].end
    for start, following in islice(tokens, 1, None):  # the hot loop: the two usual borders need no call
        if start - end == 1 and text[end] == " ":
            out.append(_CLAUSE if text[end - 1] in _CLAUSE_END else _WORD)
        elif start == end and text[start - 1 : start + 1].isascii():
            out.append(_JOINED)
        else:
            out.append(_between(text, end, start))
        end = following
    starts = [start for start, _ in tokens]
    for offsets, strength in ((_sentences(text)[0], _SENTENCE), (breaks, _PARAGRAPH)):
        for offset in offsets:
            i = bisect_left(starts, offset)
            if i < len(out) and out[i] < strength:
                out[i] = strength
    return out


def _between(text: str, before: int, after: int) -> int:
    """Return the strength of the border between a token that ends at `before` and one that begins at `after`."""
    if gap := text[before:after]:
        if "\n" in gap and _BLANK_LINE.search(gap):
            return _PARAGRAPH
        return _CLAUSE if "\n" in gap or text[before - 1] in _CLAUSE_END else _WORD
    left, right = text[after - 1 : after], text[after : after + 1]
    if not right or unicodedata.category(right) in _MARKS or left == "\u200d":
        return _JOINED
    if left in _CLAUSE_END and _UNSPACED.match(right):
        return _CLAUSE
    return _WORD if _UNSPACED.match(left) or _UNSPACED.match(right) else _JOINED
