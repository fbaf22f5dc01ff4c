"""Split text by tokens into chunks for readers and citations, or into windows for models.

Both uses share one algorithm. Token offsets are computed once for the whole text. Every border between two tokens has a
strength (paragraph, sentence, clause, word). The text is split from its start. Each piece ends at the strongest border
that leaves the piece large enough; of several such borders, the last one is used. Offsets are exact, no piece exceeds
its limit, and time is linear in the text.
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


def split(text: str, tokens: Tokens, limit: int, overlap: int = 0, breaks: Sequence[int] = ()) -> list[Span]:
    """Return the spans of pieces of `text` in order. A piece has at most `limit` of the `tokens`; no token is left out.

    Neighbouring pieces share at most `overlap` tokens. If possible, the shared text begins with a sentence. `breaks`
    are offsets that count as paragraph borders, such as headings. Spans begin and end at tokens. A word is split only
    if it has more than `limit` tokens. Raises `ValueError` if `limit` is below 1, or if `overlap` is not below `limit`.
    """
    if limit < 1 or not 0 <= overlap < limit:
        raise ValueError(f"limit must be at least 1, and overlap must be below limit, got {limit} and {overlap}")
    return [piece.span for piece in _pieces(text, tokens, limit, overlap, breaks)]


class _Piece(NamedTuple):
    """A span, the number of its tokens inside the whole text, and whether it begins and ends next to white space."""

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
    """Return whether `position` is white space or outside of the text."""
    return not 0 <= position < len(text) or text[position].isspace()


def windows(text: str, count: Callable[[str], list[Span]], limit: int) -> list[Span]:
    """Return spans of `text` for a model of `limit` tokens, with similar sizes, without overlap, with every token.

    `count` returns the token spans of a text. A model may tokenise the start of a text in a different way. So if a
    piece is split inside a run of characters, or is close to the limit, its tokens are counted again, and the piece is
    split again if it is too long.
    """
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
    """Extend tokens by the combining characters that follow them. BERT's tokenizer drops these characters."""
    if text.isascii() or not any(unicodedata.category(ch) in _MARKS for ch in set(text)):
        return tokens
    borders = chain((token.start for token in islice(tokens, 1, None)), [len(text)])
    return [Span(start, _past_marks(text, end, border)) for (start, end), border in zip(tokens, borders, strict=True)]


def _past_marks(text: str, end: int, border: int) -> int:
    while end < border and unicodedata.category(text[end]) in _MARKS:
        end += 1
    return end


def _cut(strengths: Sequence[int], first: int, limit: int, total: int) -> int:
    """Return the token index at which the piece that begins at `first` ends (exclusive)."""
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
    """Return the first token of the next piece: up to `overlap` tokens before `last`, at a sentence or a word."""
    earliest = max(first + 1, last - overlap)
    for strength in (_SENTENCE, _WORD):
        for start in range(earliest, last):
            if strengths[start] >= strength:
                return start
    return last


def _strengths(text: str, tokens: Tokens, breaks: Sequence[int]) -> list[int]:
    """Return the strength of the border before each token."""
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
    """Return the strength of the border between a token that ends at `before` and a token that begins at `after`."""
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
