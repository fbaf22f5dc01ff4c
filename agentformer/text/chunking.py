"""Cutting text by tokens: chunks for readers and citations, windows for models.

One algorithm serves both. Token offsets are computed once for the whole text, every place between two
tokens gets a strength (paragraph, sentence, clause, word), and pieces are taken greedily: the strongest
cut that does not leave the piece too small, and among equals the latest. So offsets are exact, no piece
exceeds its limit, and the time is linear in the text.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import NamedTuple

from agentformer.text.sentences import sentence_spans
from agentformer.types import Span

# Strength of a cut between two tokens.
_JOINED = 0  # inside a character cluster or a word: only when a single word exceeds the limit
_WORD = 1
_CLAUSE = 2
_SENTENCE = 3
_PARAGRAPH = 4
# A cut of a strength is taken only if the piece keeps this share of the limit: a strong cut may shorten it more.
_KEEP = {_PARAGRAPH: 0.5, _SENTENCE: 0.35, _CLAUSE: 0.6, _WORD: 0.0, _JOINED: 0.0}

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_CLAUSE_END = frozenset(",;:)]}–—、，；：」』）")
# Scripts that set no spaces between words: any character border is a word border there.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)

_MARKS = frozenset({"Mn", "Mc", "Me", "Cf"})  # belong to the character before them

# A piece between white space has as many tokens by itself as in its text, but for what a model does at a text's start
# (a word without the space before it may be cut otherwise). Nearer to the limit than this, it is counted again.
_RECOUNT = 8

Tokens = Sequence[Span]


def split(text: str, tokens: Tokens, limit: int, overlap: int = 0, breaks: Sequence[int] = ()) -> list[Span]:
    """Spans of `text` with at most `limit` of `tokens` each; together they hold every token, in order.

    Neighbours share at most `overlap` tokens, beginning at a sentence where one begins there. `breaks` are
    offsets that count as paragraph borders (headings). Ends are trimmed to tokens. A word is cut only when
    it alone exceeds `limit`.
    """
    if limit < 1 or not 0 <= overlap < limit:
        raise ValueError(f"limit must be at least 1 and overlap below it, got {limit} and {overlap}")
    return [piece.span for piece in _pieces(text, tokens, limit, overlap, breaks)]


class _Piece(NamedTuple):
    """A span, how many tokens it has as a part of the whole text, and whether both its ends stand at white space."""

    span: Span
    tokens: int
    whole_words: bool


def _pieces(text: str, tokens: Tokens, limit: int, overlap: int = 0, breaks: Sequence[int] = ()) -> list[_Piece]:
    if not tokens:
        return []
    tokens = _with_marks(text, tokens)
    strengths = _strengths(text, tokens, breaks)
    pieces: list[_Piece] = []
    first = 0
    while True:
        last = _cut(strengths, first, limit, len(tokens))
        span = Span(tokens[first].start, tokens[last - 1].end)
        free = _at_space(text, span.start - 1) and _at_space(text, span.end)
        pieces.append(_Piece(span, last - first, free))
        if last == len(tokens):
            return pieces
        first = _resume(strengths, first, last, overlap)


def _at_space(text: str, position: int) -> bool:
    """Is there white space, or no text any more, at `position`?"""
    return not 0 <= position < len(text) or text[position].isspace()


def windows(text: str, count: Callable[[str], list[Span]], limit: int) -> list[Span]:
    """Spans of `text` that fit a model reading `limit` tokens: no overlap, even in size, every token in one.

    `count` gives a text's tokens. A piece that is cut inside a run of characters, or nearly fills the limit, is counted
    again by itself, since a model may tokenise the start of a text differently, and is split again if it does not fit.
    """
    tokens = count(text)
    if not tokens:
        stripped = text.strip()
        start = text.find(stripped)
        return [Span(start, start + len(stripped))] if stripped else []
    if len(tokens) <= limit:
        return [Span(tokens[0].start, _past_marks(text, tokens[-1].end, len(text)))]
    pieces = -(-len(tokens) // limit)
    even = min(limit, -(-len(tokens) // pieces) + limit // 8)  # some slack, so that cuts can fall on sentences
    out: list[Span] = []
    for (start, end), size, whole_words in _pieces(text, tokens, even):
        piece = text[start:end]
        if (whole_words and size <= limit - _RECOUNT) or end - start < 2 or len(count(piece)) <= limit:
            out.append(Span(start, end))
        else:
            out += [Span(start + s, start + e) for s, e in windows(piece, count, limit // 2 or 1)]
    return out


def _with_marks(text: str, tokens: Tokens) -> Tokens:
    """Tokens with the marks that follow them: BERT's tokenizer drops vowel signs, accents and joiners."""
    if text.isascii() or not any(unicodedata.category(ch) in _MARKS for ch in set(text)):
        return tokens
    borders = chain((token.start for token in islice(tokens, 1, None)), [len(text)])
    return [Span(start, _past_marks(text, end, border)) for (start, end), border in zip(tokens, borders, strict=True)]


def _past_marks(text: str, end: int, border: int) -> int:
    while end < border and unicodedata.category(text[end]) in _MARKS:
        end += 1
    return end


def _cut(strengths: Sequence[int], first: int, limit: int, total: int) -> int:
    """The token index where the piece that begins at `first` ends (exclusive)."""
    furthest = first + limit
    if furthest >= total:
        return total
    for strength in (_PARAGRAPH, _SENTENCE, _CLAUSE, _WORD):
        least = first + max(1, int(limit * _KEEP[strength]))
        for last in range(furthest, least - 1, -1):
            if strengths[last] >= strength:
                return last
    return furthest


def _resume(strengths: Sequence[int], first: int, last: int, overlap: int) -> int:
    """Where the next piece begins: up to `overlap` tokens back, at a sentence, else at a word."""
    earliest = max(first + 1, last - overlap)
    for strength in (_SENTENCE, _WORD):
        for start in range(earliest, last):
            if strengths[start] >= strength:
                return start
    return last


def _strengths(text: str, tokens: Tokens, breaks: Sequence[int]) -> list[int]:
    """Per token, how good a cut right before it is."""
    out = [_PARAGRAPH]
    end = tokens[0].end
    for start, following in islice(tokens, 1, None):  # what cutting costs: the two usual borders need no more calls
        if start - end == 1 and text[end] == " ":
            out.append(_CLAUSE if text[end - 1] in _CLAUSE_END else _WORD)
        elif start == end and text[start - 1 : start + 1].isascii():
            out.append(_JOINED)
        else:
            out.append(_between(text, end, start))
        end = following
    starts = [token.start for token in tokens]
    for sentence in sentence_spans(text):
        i = bisect_left(starts, sentence.start)
        if i < len(out):
            out[i] = max(out[i], _SENTENCE)
    for offset in breaks:
        i = bisect_right(starts, offset - 1)
        if i < len(out):
            out[i] = _PARAGRAPH
    return out


def _between(text: str, before: int, after: int) -> int:
    """How good a cut is between a token that ends at `before` and the next one, which begins at `after`."""
    gap = text[before:after]
    if not gap:
        return _without_gap(text, after)
    if "\n" in gap and _BLANK_LINE.search(gap):
        return _PARAGRAPH
    if "\n" in gap or text[before - 1] in _CLAUSE_END:
        return _CLAUSE
    return _WORD


def _without_gap(text: str, at: int) -> int:
    left, right = text[at - 1 : at], text[at : at + 1]
    if not right or unicodedata.category(right) in _MARKS or left == "\u200d":
        return _JOINED
    if left in _CLAUSE_END and _UNSPACED.match(right):
        return _CLAUSE
    return _WORD if _UNSPACED.match(left) or _UNSPACED.match(right) else _JOINED
