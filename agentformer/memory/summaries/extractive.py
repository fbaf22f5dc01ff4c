"""A summary of the entries' own sentences, word for word and in their order: no model, no embedder, any language.

A sentence is worth its terms, each weighed by how often all entries use it and how few sentences do (the centroid of
Radev et al. 2004), by its place in the graph of likeness (LexRank: Erkan & Radev 2004), and a little by what it is (a
date weighs more than a greeting). Sentences are picked against repetition (maximal marginal relevance: Carbonell &
Goldstein 1998): a term that is there already adds little, and length costs (Lin & Bilmes 2010). Same entries, same
summary; work is bounded however much they hold.

A short conversation keeps all that says something: shortening it would save little and lose facts. What was told as
a decision, an error or a milestone comes before everything else.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from agentformer.memory.facts import MAX_NUMBER_LENGTH
from agentformer.memory.summaries.entries import flatten, line_of, sort_by_time, speaker_of
from agentformer.memory.summaries.sentences import says_something, weight
from agentformer.text.analysis import text_terms
from agentformer.text.languages import FUNCTION_WORDS, detect_language, stem
from agentformer.text.sentences import sentence_spans
from agentformer.types import MemoryEntry

_SHARE = 1 / 2  # of the originals' tokens: what is kept of them
_ROOM = 120  # tokens of sentences that there is room for, however short the originals
_FOREMOST = frozenset({"decision", "error", "milestone", "task_complete"})  # kinds of entries
_WORTH_CUTTING = 12  # tokens of room that a part of a long sentence is worth
_MORE = "…"  # behind a part of a sentence
_OWN = 8  # words; two who say the same in fewer say it each of themselves
_DAMPING = 0.85  # of LexRank; the rest is spread evenly
_ROUNDS = 50  # of the power iteration, which has settled long before
# Round values out of a flat neighbourhood: of 15 settings tried on the development conversations of
# `bench.cleaning`, when a third of the tokens was kept, most came within 3% (terms) and 5% (answers).
_OFTEN = 0.5  # power of a term's count
_CENTRAL = 0.5  # power of a sentence's rank in the graph
_COST = 0.5  # power of its tokens, which its worth is divided by
_AGAIN = 0.3  # of a term's worth is left once it has been told
_LEAST = 0.01  # worth of a sentence without terms, so that its kind still decides
_TRIED = 20  # sentences, where the best do not fit
_READ = 2_000  # sentences looked at; of more, evenly spread ones
_RANKED = 400  # sentences in the graph, whose cost is their square
_CHARACTERS = 20  # code points of a token at most, to bound what is counted
_WORDS = re.compile(r"\w+")
_NUMBER_GOES_ON = re.compile(r"[.,:/'’ \u00a0\u202f-]\d")
_NUMBER_BEFORE = re.compile(r"\d[.,:/'’ \u00a0\u202f-]$")
_UNSPACED = "\u0e00"  # scripts from here on put no spaces between words

Vectors = NDArray[np.float64]  # (sentences, terms) unit rows
CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence, with its place among the entries and inside its entry."""

    entry: int
    place: int
    text: str
    speaker: str
    foremost: bool


def extract(entries: Sequence[MemoryEntry], max_tokens: int, count_tokens: CountTokens) -> str:
    """The sentences that carry most, up to half of all tokens, or all that say something where those are few.

    Never more than `max_tokens`. What is foremost has all the room there is. One line for each run of neighbouring
    sentences, led by its speaker. Empty only when not even a word of them fits.
    """
    entries = sort_by_time(entries)
    sentences = _sentences(entries, max_tokens)
    if not sentences:
        return ""
    total = sum(count_tokens(each.text) for each in sentences)
    languages = [detect_language(entry.content) for entry in entries]
    ranked = _by_worth(_telling(sentences, languages), languages, count_tokens)
    foremost = sum(count_tokens(each.text) for each in ranked if each.foremost)
    page = _Page(entries, max(_ROOM, math.ceil(_SHARE * total), foremost), max_tokens, count_tokens)
    return page.filled(ranked) or _beginning(entries, ranked, max_tokens, count_tokens)


class _Page:
    """A text that sentences are put on: at most `room` tokens of them, and `limit` with their speakers."""

    def __init__(self, entries: Sequence[MemoryEntry], room: int, limit: int, count_tokens: CountTokens) -> None:
        self._entries = entries
        self._left = min(room, limit)
        self._limit = limit
        self._count_tokens = count_tokens
        self._chosen: list[_Sentence] = []

    def filled(self, ranked: Sequence[_Sentence]) -> str:
        """The text with each next sentence that there is room for, and the beginning of one that is too long for
        any; "" when no whole sentence fits."""
        whole = self._left
        missed = [each for each in ranked if each.foremost and not self._put(each)]
        held = self._left // 2 if missed else 0  # what else there is leaves room to begin what is foremost
        self._left -= held
        missed += [each for each in ranked if not each.foremost and not self._put(each)]
        self._left += held
        if not self._chosen:
            self._left = self._limit  # one long sentence is all there is
            missed = [each for each in missed if self._chosen or not self._put(each)]
        if not self._chosen:
            return ""
        if long := next((each for each in missed if self._count_tokens(each.text) > whole), None):
            self._begin(long)
        return _text(self._entries, self._chosen)

    def _begin(self, sentence: _Sentence) -> None:
        """Put on what there is room for, if that is worth it, with a mark that keeps it from what follows."""
        taken = self._count_tokens(_text(self._entries, [*self._chosen, replace(sentence, text=_MORE)]))
        room = min(self._left - self._count_tokens(_MORE), self._limit - taken)
        if room >= _WORTH_CUTTING:
            text = _cut(self._entries[sentence.entry], sentence.text, room, self._count_tokens, labelled=False)
            self._put(replace(sentence, text=f"{text} {_MORE}"))

    def _put(self, sentence: _Sentence) -> bool:
        """Put the sentence on the page; False where it does not fit."""
        size = self._count_tokens(sentence.text)
        if size > self._left:
            return False
        if self._count_tokens(_text(self._entries, [*self._chosen, sentence])) > self._limit:
            return False
        self._chosen.append(sentence)
        self._left -= size
        return True


def _beginning(
    entries: Sequence[MemoryEntry], ranked: Sequence[_Sentence], max_tokens: int, count_tokens: CountTokens
) -> str:
    """The beginning of the best sentence of which a beginning fits."""
    cuts = (_cut(entries[each.entry], each.text, max_tokens, count_tokens) for each in ranked[:_TRIED])
    return next(filter(None, cuts), "")


def _telling(sentences: Sequence[_Sentence], languages: Sequence[str]) -> list[_Sentence]:
    """Those that say something not said before, or all of them when none does."""
    telling = [each for each in sentences if each.foremost or says_something(each.text, languages[each.entry])]
    told: set[tuple[str, ...]] = set()
    new = []
    for each in telling or sentences:
        words = _WORDS.findall(each.text.casefold())
        said = (each.speaker if len(words) < _OWN else "", *words)
        if not words or said not in told:
            new.append(each)
        told.add(said)
    return new


def _by_worth(sentences: Sequence[_Sentence], languages: Sequence[str], count_tokens: CountTokens) -> list[_Sentence]:
    """The sentences, or of too many the weightiest, in the order in which they are to be kept."""
    counts = [_terms(each.text, languages[each.entry]) for each in sentences]
    weights = _centroid(counts)
    kept = _weightiest(counts, weights, [each.foremost for each in sentences])
    sentences, counts = [sentences[i] for i in kept], [counts[i] for i in kept]
    central = _lexrank(_vectors(counts))
    factor = [
        weight(each.text) * rank**_CENTRAL / max(1, count_tokens(each.text)) ** _COST
        for each, rank in zip(sentences, central, strict=True)
    ]
    first = [each.foremost for each in sentences]
    return [sentences[i] for i in _ranked(counts, weights, factor, first)]


def _sentences(entries: Sequence[MemoryEntry], max_tokens: int) -> list[_Sentence]:
    """All sentences that say something, or evenly spread ones of very many; none longer than could be kept."""
    found = [
        (number, place, entry.content[span.start : span.end])
        for number, entry in enumerate(entries)
        for place, span in enumerate(sentence_spans(entry.content))
    ]
    found = found[:: max(1, math.ceil(len(found) / _READ))]
    longest = max_tokens * _CHARACTERS + 1
    first = [entry.kind in _FOREMOST for entry in entries]
    who = [speaker_of(entry) for entry in entries]
    flattened = [
        _Sentence(number, place, flatten(text[: 2 * longest])[:longest], who[number], first[number])
        for number, place, text in found
    ]
    return [each for each in flattened if each.text]


def _terms(sentence: str, prior: str) -> Counter[str]:
    language = detect_language(sentence, prior)
    ignored = _function_stems(language)
    return Counter(term for term in text_terms(sentence, language).stems if term not in ignored)


@lru_cache(maxsize=64)
def _function_stems(language: str) -> frozenset[str]:
    return frozenset(f"{language}~{stem(word, language)}" for word in FUNCTION_WORDS.get(language, ()))


def _centroid(counts: Sequence[Counter[str]]) -> dict[str, float]:
    """What each term is worth: it is told often, and in few sentences."""
    spread = Counter(term for each in counts for term in each)
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return {term: times**_OFTEN * (1 + math.log(len(counts) / spread[term])) for term, times in total.items()}


def _weightiest(counts: Sequence[Counter[str]], weights: Mapping[str, float], first: Sequence[bool]) -> list[int]:
    """The sentences to rank, in order: all of them, or of too many the foremost and those that hold most."""
    worth = [sum(weights[term] for term in each) for each in counts]
    return sorted(sorted(range(len(counts)), key=lambda i: (not first[i], -worth[i]))[:_RANKED])


def _vectors(counts: Sequence[Counter[str]]) -> Vectors:
    """TF-IDF of the terms that sentences share, with unit rows; a sentence without any is all zero."""
    spread = Counter(term for each in counts for term in each)
    terms = {term: n for n, term in enumerate(sorted(term for term, times in spread.items() if times > 1))}
    rows = np.zeros((len(counts), max(1, len(terms))))
    own = np.zeros(len(counts))  # what a sentence's unshared terms add to its length
    for n, each in enumerate(counts):
        for term, times in each.items():
            value = (1 + math.log(times)) * (1 + math.log(len(counts) / spread[term]))
            if term in terms:
                rows[n, terms[term]] = value
            else:
                own[n] += value * value
    norms = np.sqrt((rows * rows).sum(axis=1) + own)[:, None]
    return np.asarray(rows / np.where(norms > 0, norms, 1.0))


def _lexrank(vectors: Vectors) -> list[float]:
    """Each sentence's centrality, the highest being 1."""
    size = len(vectors)
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, 1.0)
    steps = likeness / likeness.sum(axis=1, keepdims=True)
    rank = np.full(size, 1 / size)
    for _ in range(_ROUNDS):
        rank = _DAMPING * (rank @ steps) + (1 - _DAMPING) / size
    return [float(each) for each in rank / rank.max()]


def _ranked(
    counts: Sequence[Counter[str]], weights: Mapping[str, float], factor: Sequence[float], first: Sequence[bool]
) -> list[int]:
    """All sentences, the foremost first, each next one being worth most beside those before it. A tie goes to the
    earlier one."""
    told: set[str] = set()
    left = dict.fromkeys(range(len(counts)))
    order: list[int] = []

    def gain(i: int) -> tuple[bool, float]:
        return first[i], factor[i] * (
            _LEAST + sum(weights[term] * (_AGAIN if term in told else 1.0) for term in counts[i])
        )

    while left:
        best = max(left, key=gain)
        del left[best]
        order.append(best)
        told.update(counts[best])
    return order


def _text(entries: Sequence[MemoryEntry], sentences: Iterable[_Sentence]) -> str:
    """The sentences in order; neighbours of one entry share a line."""
    runs: list[list[_Sentence]] = []
    for each in sorted(sentences, key=lambda each: (each.entry, each.place)):
        if runs and (runs[-1][-1].entry, runs[-1][-1].place + 1) == (each.entry, each.place):
            runs[-1].append(each)
        else:
            runs.append([each])
    return "\n".join(line_of(entries[run[0].entry], " ".join(each.text for each in run)) for run in runs)


def _cut(entry: MemoryEntry, text: str, max_tokens: int, count_tokens: CountTokens, *, labelled: bool = True) -> str:
    """The longest beginning of a sentence that fits, ending between words and never inside a number, if it can be;
    led by its speaker, if it is to be and that fits."""

    def fits(end: int, labelled: bool) -> bool:
        return count_tokens(line_of(entry, text[:end]) if labelled else text[:end]) <= max_tokens

    labelled = labelled and fits(1, True)
    low, high = 0, len(text) + 1  # a beginning of `low` fits, one of `high` does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle, labelled) else (low, middle)
    end = _border(text, low)
    return line_of(entry, text[:end]) if labelled and end else text[:end].strip()


def _border(text: str, limit: int) -> int:
    """Where to cut `text` at the latest: behind a word and a whole number, or at least behind a part of a number that
    stands by itself, or inside what is too long to be either. 0 where there is no such place."""
    for allowed in (_parts_number, _parts_word):
        if found := next((end for end in range(limit, 0, -1) if not allowed(text, end)), 0):
            return found
    return limit if limit > MAX_NUMBER_LENGTH else 0


def _parts_number(text: str, end: int) -> bool:
    """Would a cut here part a word or a number, such as "1 234,5"?"""
    return _parts_word(text, end) or bool(
        (text[end - 1].isdigit() and _NUMBER_GOES_ON.match(text, end))
        or (text[end : end + 1].isdigit() and _NUMBER_BEFORE.search(text, max(0, end - 2), end))
    )


def _parts_word(text: str, end: int) -> bool:
    """Would a cut here part a word or a run of digits with its marks?"""
    before, after = text[end - 1], text[end : end + 1]
    if before.isdigit() and (after.isdigit() or re.match(r"[.,:/'’-]\d", text[end : end + 2])):
        return True
    if after.isdigit() and re.search(r"\d[.,:/'’-]$", text[max(0, end - 2) : end]):
        return True
    return before.isalnum() and after.isalnum() and before < _UNSPACED and after < _UNSPACED
