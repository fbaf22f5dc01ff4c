"""Split a text into pieces with a limited number of tokens: chunks, which readers see and citations name, or windows,
which models read.

Chunks and windows are made by the same algorithm. Every border between two tokens has a strength: paragraph, sentence,
clause or word. The text is split from its start. A piece ends at the strongest border at which it has enough tokens; if
there are several such borders, it ends at the last of them. Offsets are exact, no piece exceeds its limit, and the time
is linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import NamedTuple

from agentformer.text.sentences import sentence_spans
from agentformer.types import Span

# Strength of the border between two tokens.
# `_JOINED` is inside a word or a group of combined characters; it is used only if a single word exceeds the limit.
_JOINED, _WORD, _CLAUSE, _SENTENCE, _PARAGRAPH = range(5)
# A border is used only if the piece has at least this share of the limit. A stronger border allows a shorter piece.
_KEEP = {_PARAGRAPH: 0.5, _SENTENCE: 0.35, _CLAUSE: 0.6, _WORD: 0.0}

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_CLAUSE_END = frozenset(",;:)]}–—、，；：」』）")
# Scripts without spaces: every character border is a word border.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)

_MARKS = frozenset({"Mn", "Mc", "Me", "Cf"})  # combining characters, which belong to the character before them

# A piece between white space has about as many tokens alone as inside its text; a model may split only its first word
# differently. A piece nearer to the limit than this is counted again.
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
    """A piece of a text: its span, the number of its tokens, and whether white space or an end of the text is on both
    sides of the piece."""

    span: Span
    tokens: int
    whole_words: bool


def _pieces(
    text: str, tokens: Tokens, limit: int, overlap: int = 0, breaks: Sequence[int] = (), rows: Sequence[int] = ()
) -> list[_Piece]:
    if not tokens:
        return []
    tokens = _with_marks(text, tokens)
    strengths = _strengths(text, tokens, (*breaks, *rows))
    starts = [token.start for token in tokens] if rows else []
    of_rows = {bisect_left(starts, offset) for offset in rows}
    pieces: list[_Piece] = []
    first = 0
    while True:
        last = _cut(strengths, first, limit, len(tokens))
        span = Span(tokens[first].start, tokens[last - 1].end)
        free = _at_space(text, span.start - 1) and _at_space(text, span.end)
        pieces.append(_Piece(span, last - first, free))
        if last == len(tokens):
            return pieces
        if last in of_rows:
            first = next((n for n in range(max(first + 1, last - overlap), last) if n in of_rows), last)
        else:
            first = _resume(strengths, first, last, overlap)


def _at_space(text: str, position: int) -> bool:
    """Return whether the character at `position` is white space. Return True if `position` is outside of the text."""
    return not 0 <= position < len(text) or text[position].isspace()


def windows(text: str, count: Callable[[str], list[Span]], limit: int) -> list[Span]:
    """Split `text` into windows for a model that reads at most `limit` tokens, and return their spans. The windows have
    similar sizes, do not overlap, and contain every token. `count` returns the spans of the tokens of a text. A model
    may split the first word of a text into other tokens than inside a text, so a window that begins or ends inside a
    run of characters, or is close to the limit, is counted again, and split again if needed."""
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
    """Extend each token by the combining characters that follow the token, because the tokenizer of BERT omits these
    characters."""
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
    """Return the index of the first token of the next piece, if the former piece has the tokens from `first` up to
    `last` (exclusive). The next piece begins up to `overlap` tokens before `last`, at a sentence or, if no sentence
    begins there, at a word."""
    earliest = max(first + 1, last - overlap)
    for strength in (_SENTENCE, _WORD):
        for start in range(earliest, last):
            if strengths[start] >= strength:
                return start
    return last


def _strengths(text: str, tokens: Tokens, breaks: Sequence[int]) -> list[int]:
    """Return for each token the strength of the border before this token. `breaks` are offsets at which a paragraph
    begins."""
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
    starts = [token.start for token in tokens]
    borders = chain(
        ((sentence.start, _SENTENCE) for sentence in sentence_spans(text)), ((n, _PARAGRAPH) for n in breaks)
    )
    for offset, strength in borders:
        i = bisect_left(starts, offset)
        if i < len(out):
            out[i] = max(out[i], strength)
    return out


def _between(text: str, before: int, after: int) -> int:
    """Return the strength of the border between two neighbouring tokens. The first token ends at the offset `before`,
    and the second token begins at the offset `after`."""
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
