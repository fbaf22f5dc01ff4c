"""`extract`: makes a summary without a model. The summary consists of sentences of the entries, word for word and in
their order.

The value of a sentence depends on the frequency and rarity of its terms (the centroid of Radev et al. 2004), on its
rank in the graph of similar sentences (LexRank: Erkan & Radev 2004), and on its kind. For example, a sentence with a
date has a greater value than a greeting. A term that is already in the summary adds little value (maximal marginal
relevance: Carbonell & Goldstein 1998). The value of a long sentence is reduced (Lin & Bilmes 2010). Equal entries give
equal summaries. The time is limited for any input. All sentences of a short conversation are kept, except sentences
without content. Sentences of decisions, errors and milestones are selected first.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentformer.memory.summaries import flatten, line_of, sort_by_time, speaker_of
from agentformer.text.analysis import text_terms
from agentformer.text.dates.notation import months, weekdays
from agentformer.text.facts.numbers_and_dates import MAX_NUMBER_LENGTH
from agentformer.text.languages.detection import FUNCTION_WORDS, detect_language, function_stems, word_list
from agentformer.text.splitting import sentence_spans
from agentformer.types import MemoryEntry

_SHARE = 1 / 2  # maximum share of the tokens of the originals
_MIN_ROOM = 120  # tokens that sentences may have in any case, even if the originals are short
_PRIORITY_KINDS = frozenset({"decision", "error", "milestone", "task_complete"})  # kinds of entries
_MIN_CUT = 12  # minimum number of free tokens for the beginning of a long sentence
_ELLIPSIS = "…"  # after a part of a sentence
_OWN_WORDS = 8  # words; shorter equal sentences of two speakers are not repetitions
_DAMPING = 0.85  # damping factor of LexRank; the rest is spread evenly
_ITERATIONS = 50  # steps of the power iteration, which converges long before
# Rounded values that are not critical: 15 settings were tried on the development conversations of `bench.cleaning`,
# with a third of the tokens kept, and the results of most settings differed by less than 3% (terms) and 5% (answers).
_FREQUENCY_POWER = 0.5  # exponent of the count of a term
_CENTRALITY_POWER = 0.5  # exponent of the rank of a sentence in the graph
_LENGTH_POWER = 0.5  # exponent of the tokens of a sentence; its value is divided by the result
_REPEATED = 0.3  # factor for the weight of a term that a selected sentence contains
_MIN_WORTH = 0.01  # value of a sentence without terms, so that its kind can still change its rank
_MAX_TRIED = 20  # sentences that are tried if the best ones do not fit
_MAX_READ = 2_000  # maximum sentences that are read; if there are more, they are chosen at regular intervals
_MAX_RANKED = 400  # maximum sentences in the graph; its computation is quadratic
_MAX_TOKEN_LENGTH = 20  # maximum mean code points of a token, which limits the text whose tokens are counted
_WORDS = re.compile(r"\w+")
_UNSPACED = "\u0e00"  # scripts from this code point on have no spaces between words
_RUN = rf"(?:\d|(?![{_UNSPACED}-\U0010ffff])[^\W_])+"
_WORDS_AND_NUMBERS = re.compile(rf"{_RUN}(?:(?<=\d)[.,:/'’ \u00a0\u202f-](?=\d){_RUN})*")
_WORDS_AND_PARTS = re.compile(rf"{_RUN}(?:(?<=\d)[.,:/'’-](?=\d){_RUN})*")  # "1 234,5" has the parts "1" and "234,5"
_LETTERS = re.compile(r"[^\W\d_]+")
_UNSPACED_WORD = 4  # estimated letters of a word, in scripts without spaces
_FEW_WORDS = 4  # fewer words rarely have content by themselves
_SAMPLE = 400  # code points
_QUESTION = re.compile(r"[?？؟;]\W*$")
_GREETINGS, _ANSWERS, _COMMENTS = (
    frozenset().union(*word_list(kind).values()) for kind in ("greetings", "answers", "comments")
)
_EMPTY = (_GREETINGS | _COMMENTS) - _ANSWERS
_NO_CONTENT = _EMPTY | _ANSWERS
# Beginnings of words about decisions, plans and finished work, in the best supported languages.
_DECISIONS = re.compile(
    r"\b(?:decid|decision|agree|agreed|chose|chosen|plan(?:s|ned|ning)?\b|will\b|deadline|promis|book(?:ed|ing)\b|"
    r"bought|start(?:ed|ing)\b|finish|moved\b|married|born\b|"
    r"päät[iöt]|sovi(?:t|m)|suunnit|lupa[as]|ost[ie]|varas[it]|aloit|muut(?:i|t)|"
    r"beslut|bestäm|bestem|överens|planera|planlæ|planleg|lova(?:de|r)|lovet|köpt|kjøpt|købt|boka|börja|"
    r"beschl(?:oss|uss)|entsch(?:ied|eid)|vereinbar|geplant|gekauft|décid|decidi|決め|決ま|予定|約束)",
    re.IGNORECASE,
)
_DATED, _DECIDED, _QUESTIONED, _GREETED, _CURT = 1.35, 1.2, 0.5, 0.4, 0.6  # factors of a sentence's value

Vectors = NDArray[np.float64]  # (sentences, terms), unit rows
CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class _Sentence:
    entry: int  # index of the entry
    index: int  # position of the sentence in the entry
    text: str
    speaker: str
    priority: bool


def extract(entries: Sequence[MemoryEntry], max_tokens: int, count_tokens: CountTokens) -> str:
    """Return a summary of at most `max_tokens` tokens, which consists of the most valuable sentences. They have at most
    half of the tokens of the entries, with two exceptions. If the entries have few tokens, all sentences with content
    are kept. Decisions, errors and other entries of priority kinds may use more than half. Neighboring sentences
    are on the same line, and each line begins with the speaker. The summary is empty only if `max_tokens` is too small
    for one word."""
    entries = sort_by_time(entries)
    sentences = _sentences(entries, max_tokens)
    if not sentences:
        return ""
    total = sum(count_tokens(sentence.text) for sentence in sentences)
    languages = [detect_language(entry.content) for entry in entries]
    ranked = _rank(_with_content(sentences, languages), languages, count_tokens)
    priority = sum(count_tokens(sentence.text) for sentence in ranked if sentence.priority)
    room = max(_MIN_ROOM, math.ceil(_SHARE * total), priority)
    text = _Selection(entries, room, max_tokens, count_tokens).fill(ranked)
    beginnings = (_cut(entries[one.entry], one.text, max_tokens, count_tokens) for one in ranked[:_MAX_TRIED])
    return text or next(filter(None, beginnings), "")


class _Selection:
    """The sentences that are selected for a summary. They have at most `room` tokens. The text of the summary, which
    also contains the names of the speakers, has at most `limit` tokens."""

    def __init__(self, entries: Sequence[MemoryEntry], room: int, limit: int, count_tokens: CountTokens) -> None:
        self._entries = entries
        self._left = min(room, limit)
        self._limit = limit
        self._count_tokens = count_tokens
        self._selected: list[_Sentence] = []

    def fill(self, ranked: Sequence[_Sentence]) -> str:
        """Select sentences of `ranked`, best first, and return their text. Sentences that do not fit are skipped, but
        the beginning of one long sentence can be added. Return "" if no complete sentence fits."""
        room = self._left
        missed = [sentence for sentence in ranked if sentence.priority and not self._add(sentence)]
        reserved = self._left // 2 if missed else 0  # tokens for the beginning of a long priority sentence
        self._left -= reserved
        missed += [sentence for sentence in ranked if not sentence.priority and not self._add(sentence)]
        self._left += reserved
        if not self._selected:
            self._left = self._limit  # there is only one long sentence
            missed = [sentence for sentence in missed if self._selected or not self._add(sentence)]
        if not self._selected:
            return ""
        if long := next((sentence for sentence in missed if self._count_tokens(sentence.text) > room), None):
            self._add_beginning(long)
        return _text(self._entries, self._selected)

    def _add_beginning(self, sentence: _Sentence) -> None:
        """Add the beginning of a sentence, followed by an ellipsis. Do nothing if too few tokens remain."""
        used = self._count_tokens(_text(self._entries, [*self._selected, replace(sentence, text=_ELLIPSIS)]))
        room = min(self._left - self._count_tokens(_ELLIPSIS), self._limit - used)
        if room >= _MIN_CUT:
            text = _cut(self._entries[sentence.entry], sentence.text, room, self._count_tokens, labelled=False)
            self._add(replace(sentence, text=f"{text} {_ELLIPSIS}"))

    def _add(self, sentence: _Sentence) -> bool:
        size = self._count_tokens(sentence.text)
        if size > self._left or self._count_tokens(_text(self._entries, [*self._selected, sentence])) > self._limit:
            return False
        self._selected.append(sentence)
        self._left -= size
        return True


def _sentences(entries: Sequence[MemoryEntry], max_tokens: int) -> list[_Sentence]:
    """Return all sentences of the entries. If there are too many, return sentences at regular intervals. Very long
    sentences are shortened."""
    spans = [
        (number, index, entry.content[span.start : span.end])
        for number, entry in enumerate(entries)
        for index, span in enumerate(sentence_spans(entry.content))
    ]
    spans = spans[:: max(1, math.ceil(len(spans) / _MAX_READ))]
    max_length = max_tokens * _MAX_TOKEN_LENGTH + 1
    priority = [entry.kind in _PRIORITY_KINDS for entry in entries]
    speakers = [speaker_of(entry) for entry in entries]
    sentences = (
        _Sentence(n, index, flatten(text[: 2 * max_length])[:max_length], speakers[n], priority[n])
        for n, index, text in spans
    )
    return [sentence for sentence in sentences if sentence.text]


def _with_content(sentences: Sequence[_Sentence], languages: Sequence[str]) -> list[_Sentence]:
    """Return the sentences without repetitions and without sentences that have no content, such as greetings. If no
    sentence has content, return all sentences without repetitions. `languages` are the languages of the entries."""
    informative = [one for one in sentences if one.priority or _has_content(one.text, languages[one.entry])]
    seen: set[tuple[str, ...]] = set()
    distinct = []
    for sentence in informative or sentences:
        words = _WORDS.findall(sentence.text.casefold())
        key = (sentence.speaker if len(words) < _OWN_WORDS else "", *words)
        if not words or key not in seen:
            distinct.append(sentence)
        seen.add(key)
    return distinct


def _rank(sentences: Sequence[_Sentence], languages: Sequence[str], count_tokens: CountTokens) -> list[_Sentence]:
    """Return the sentences in the order of selection, best first. `languages` are those of the entries."""
    counts = [_terms(sentence.text, languages[sentence.entry]) for sentence in sentences]
    weights = _term_weights(counts)
    worth = [sum(weights[term] for term in count) for count in counts]
    by_worth = sorted(range(len(counts)), key=lambda i: (not sentences[i].priority, -worth[i]))
    chosen = sorted(by_worth[:_MAX_RANKED])
    sentences, counts = [sentences[i] for i in chosen], [counts[i] for i in chosen]
    factors = [
        _kind_weight(sentence.text)
        * centrality**_CENTRALITY_POWER
        / max(1, count_tokens(sentence.text)) ** _LENGTH_POWER
        for sentence, centrality in zip(sentences, _lexrank(_vectors(counts)), strict=True)
    ]
    return [sentences[i] for i in _selection_order(counts, weights, factors, [one.priority for one in sentences])]


def _terms(sentence: str, prior: str) -> Counter[str]:
    language = detect_language(sentence, prior)
    ignored = function_stems(language)
    return Counter(term for term in text_terms(sentence, language).stems if term not in ignored)


def _term_weights(counts: Sequence[Counter[str]]) -> dict[str, float]:
    """Return the weight of each term. The weight grows with the frequency of the term, and falls with the number of
    sentences that contain the term. `counts` are the terms of each sentence with their frequencies."""
    spread = Counter(term for count in counts for term in count)
    total = Counter(term for count in counts for term in count.elements())
    return {term: times**_FREQUENCY_POWER * (1 + math.log(len(counts) / spread[term])) for term, times in total.items()}


def _vectors(counts: Sequence[Counter[str]]) -> Vectors:
    """Return a TF-IDF vector for each sentence, shape (sentences, terms). The columns are the terms that occur in
    several sentences. Each vector is divided by its length, in which the terms without a column are counted, too. A
    sentence with many terms that no other sentence has is therefore less similar to the others."""
    spread = Counter(term for count in counts for term in count)
    columns = {term: n for n, term in enumerate(sorted(term for term, times in spread.items() if times > 1))}
    rows = np.zeros((len(counts), max(1, len(columns))))
    unshared = np.zeros(len(counts))  # squared length of the terms that only this sentence has
    for n, count in enumerate(counts):
        for term, times in count.items():
            value = (1 + math.log(times)) * (1 + math.log(len(counts) / spread[term]))
            if term in columns:
                rows[n, columns[term]] = value
            else:
                unshared[n] += value * value
    norms = np.sqrt((rows * rows).sum(axis=1) + unshared)[:, None]
    return np.asarray(rows / np.where(norms > 0, norms, 1.0))


def _lexrank(vectors: Vectors) -> list[float]:
    """Return the centrality of each sentence in the graph of similar sentences. The greatest centrality is 1."""
    size = len(vectors)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, 1.0)
    transitions = similarity / similarity.sum(axis=1, keepdims=True)
    ranks = np.full(size, 1 / size)
    for _ in range(_ITERATIONS):
        ranks = _DAMPING * (ranks @ transitions) + (1 - _DAMPING) / size
    return [float(rank) for rank in ranks / ranks.max()]


def _selection_order(
    counts: Sequence[Counter[str]], weights: Mapping[str, float], factors: Sequence[float], priority: Sequence[bool]
) -> list[int]:
    """Return the indexes of all sentences in the order of selection. `counts` contains the terms of each sentence,
    `weights` the weight of each term, and `factors` a factor for the value of each sentence. Sentences with priority
    come first. Each next sentence is the one that adds the most value to the sentences before it."""
    seen: set[str] = set()
    left = dict.fromkeys(range(len(counts)))
    order: list[int] = []

    def gain(i: int) -> tuple[bool, float]:
        worth = sum(weights[term] * (_REPEATED if term in seen else 1.0) for term in counts[i])
        return priority[i], factors[i] * (_MIN_WORTH + worth)

    while left:
        best = max(left, key=gain)
        del left[best]
        order.append(best)
        seen.update(counts[best])
    return order


def _text(entries: Sequence[MemoryEntry], sentences: Iterable[_Sentence]) -> str:
    """Return the text of the sentences in original order. Neighboring sentences of one entry are on the same line."""
    runs: list[list[_Sentence]] = []
    for sentence in sorted(sentences, key=lambda one: (one.entry, one.index)):
        if runs and (runs[-1][-1].entry, runs[-1][-1].index + 1) == (sentence.entry, sentence.index):
            runs[-1].append(sentence)
        else:
            runs.append([sentence])
    return "\n".join(line_of(entries[run[0].entry], " ".join(one.text for one in run)) for run in runs)


def _cut(entry: MemoryEntry, text: str, max_tokens: int, count_tokens: CountTokens, *, labelled: bool = True) -> str:
    """Return the longest beginning of the sentence `text` that has at most `max_tokens` tokens. If `labelled` is true,
    the name of the speaker is put in front if there are enough tokens for the name."""

    def fits(end: int, labelled: bool) -> bool:
        return count_tokens(line_of(entry, text[:end]) if labelled else text[:end]) <= max_tokens

    labelled = labelled and fits(1, True)
    low, high = 0, len(text) + 1  # a beginning of `low` code points fits, and one of `high` code points does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle, labelled) else (low, middle)
    end = _cut_position(text, low)
    return line_of(entry, text[:end]) if labelled and end else text[:end].strip()


def _cut_position(text: str, limit: int) -> int:
    """Return the last position up to `limit` at which the text can be cut after a complete word or number. If there is
    no such position, return one inside a number or inside a very long word. If there is none of these either, return
    0."""
    for units in (_WORDS_AND_NUMBERS, _WORDS_AND_PARTS):
        cut = next((unit for unit in units.finditer(text) if unit.end() > limit), None)
        if end := min(limit, cut.start()) if cut else limit:
            return end
    return limit if limit > MAX_NUMBER_LENGTH else 0


class _Kind(NamedTuple):
    """Properties of a sentence that change its value. `unspaced` is True if its script has no spaces between words."""

    words: list[str]
    dated: bool
    decided: bool
    question: bool
    unspaced: bool


def _kind_of(sentence: str) -> _Kind:
    sample = sentence[:_SAMPLE]
    words = [word.casefold() for word in _LETTERS.findall(sample)]
    named_days = (weekdays(word) or (len(word) > 4 and months(word)) for word in words)
    dated = any(c.isdigit() for c in sample) or any(named_days)
    question = _QUESTION.search(sentence[-8:])
    return _Kind(words, dated, bool(_DECISIONS.search(sample)), bool(question), _is_unspaced(sample))


def _has_content(sentence: str, language: str) -> bool:
    """Return whether a sentence has content. Greetings, thanks, "ok" and questions without details have no content,
    unless they contain a date or a decision."""
    kind = _kind_of(sentence)
    if kind.dated or (kind.decided and not kind.question):
        return True
    ignored = FUNCTION_WORDS.get(language, ())
    content_words = sum(_word_count(word) for word in kind.words if word not in _NO_CONTENT and word not in ignored)
    return content_words > (_FEW_WORDS if kind.question else not _EMPTY.isdisjoint(kind.words))


def _kind_weight(sentence: str) -> float:
    """Return the factor for the value of a sentence. The factor is above 1 for a date or a decision, and below 1 for a
    question, a greeting or a very short sentence."""
    kind = _kind_of(sentence)
    weight = (_DATED if kind.dated else 1.0) * (_DECIDED if kind.decided else 1.0)
    weight *= _QUESTIONED if kind.question else 1.0
    if kind.words and kind.words[0] in _GREETINGS and len(kind.words) <= 2 * _FEW_WORDS:
        weight *= _GREETED
    return weight * (_CURT if len(kind.words) < _FEW_WORDS and not kind.unspaced else 1.0)


def _word_count(word: str) -> int:
    """Return the estimated number of words in a run of letters. In a script without spaces, a run can contain several
    words. A single letter is not a word."""
    return 1 + len(word) // _UNSPACED_WORD if _is_unspaced(word) else int(len(word) > 1)


def _is_unspaced(text: str) -> bool:
    return any(c >= _UNSPACED for c in text)
