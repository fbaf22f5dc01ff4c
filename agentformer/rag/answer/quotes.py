"""The sentences and table rows of the passages, ranked by how well they answer the question, and their quotes.

A score is a weighted sum of features (`features.py`). All sentences are first ranked by their words. Only the best of
these are embedded, in one batch. Vectors of sentences are cached, because the same chunks answer many questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from agentformer.embedders.calibration import FOREIGN, Calibration
from agentformer.embedders.late_interaction import AskedTokens, least_alike, likeness, word_tokens
from agentformer.embedders.recent import RecentVectors
from agentformer.errors import EmbedderUnavailable
from agentformer.rag.answer.confidence import is_foreign
from agentformer.rag.answer.features import Features, Link, SentenceFeatures
from agentformer.rag.answer.passages import Passage, Sentence, read_sentences
from agentformer.rag.answer.quote_text import MAX_QUOTE, Quote, whole_quote
from agentformer.text.analysis import QueryTerms
from agentformer.text.languages.detection import FUNCTION_WORDS
from agentformer.text.table_rows import TableRow
from agentformer.types import Embedder, Hit, Span

# The odds of two sentences are exp(difference of their scores). The weights were fitted to questions of five families
# of sets and rounded (`python -m bench.answers --fit`). The sets contain hardly any sentence that is a question or
# names another numbered thing, so the weights of `asks` and `other` were set by hand.
_WEIGHTS = Features(
    words=3.2, pieces=1.3, phrase=1.3, before=0.7, heading=2.1, carried=1.8, around=1.1, passage=2.5, asks=-4.0,
    typed=2.5, label=2.0, selected=4.0, other=-3.0, likeness=6.8, asked=1.5,
)  # fmt: skip
_OF_COSINE = 0.7  # likeness of a sentence whose cosine is 1, if the embedder has no vectors of tokens
_TYPED = 60  # the best sentences by words, in which candidates are searched; tables have many similar rows
_COMPARED = 5  # sentences that are embedded for one question
_WINDOW = 1_200  # maximum code points of neighboring sentences that are embedded as one text
_TITLE = 60  # code points of the words above a row that are embedded with the row
_UNRELATED = 0.0974  # cosine of a token, on the common scale, that gives the likeness 0; the weights were fitted to it
_LETTERS = 1.5  # minimum mean letters of a token; with fewer, the model reads single letters (Japanese with MiniLM)
_OF_PASSAGE = 1  # best sentences of each passage, which are chosen before all others
_PASSAGES = 3  # passages of which the best sentence is embedded in any case
_CLOSE = 0.07  # a sentence is quoted if it has at least this share of the first quote's probability
_ALIKE = 0.3  # a neighbor is quoted with a sentence if it has at least this share of its probability
_SAY = 0.3  # minimum weight (0..1) of the vectors; a search lowers it for languages that the embedder hardly knows


@dataclass(frozen=True, slots=True)
class RankedSentence:
    """A sentence of a hit with its score. `span` is the position of the quote in the content of the hit: the sentence,
    and the previous sentence if a reader needs it. `shown` is the quote with its headings (see `Quote`). `score` is the
    probability (0..1) that this sentence is the answer, given that one of the sentences is. `cosine` (0..1) is the
    cosine with the question on the scale of `embedders.calibration`, or None if the sentence was not embedded."""

    hit: Hit
    shown: Quote
    score: float
    cosine: float | None = None
    features: Features | None = None

    @property
    def span(self) -> Span:
        """The position of the quote in the content of the hit."""
        return self.shown.span

    @property
    def row(self) -> TableRow | None:
        """The row of a table that is quoted, or None."""
        return self.shown.row

    @property
    def text(self) -> str:
        """The quote with its headings."""
        return self.shown.text(self.hit.entry.content)


def rank_sentences(
    query: QueryTerms,
    passages: Sequence[Passage],
    embedder: Embedder | None = None,
    vectors: RecentVectors | None = None,
    calibration: Calibration | None = None,
) -> list[RankedSentence]:
    """Return all sentences of the passages, best first. If there is no `embedder`, or if the embedder is unavailable,
    the score depends only on words and on the ranks of the passages. `vectors` is a cache for the embedder, and
    `calibration` has the scales of its cosines. Raises `EmbedderError` for another failure."""
    sentences = read_sentences(passages)
    if not sentences:
        return []
    calibration = calibration or Calibration()
    computed = SentenceFeatures(query, passages, sentences)
    features = computed.of_words()
    for n in _best(features, _TYPED):
        features[n] = computed.with_candidate(features[n], sentences[n])
    quotes = [whole_quote(sentence, computed.links) for sentence in sentences]
    cosines = dict[int, float]()
    if embedder:
        asking, kept = computed.question.asking, vectors or RecentVectors()
        foreign = is_foreign(query.language, passages)
        compared = _Compared(
            query.text, asking, sentences, computed.links, quotes, embedder, kept, calibration, foreign
        )
        features, cosines = compared.with_vectors(features)
    texts = [quote.row.text if quote.row else sentence.text for quote, sentence in zip(quotes, sentences, strict=True)]
    scores = _probabilities(features, texts)
    ranked = [
        RankedSentence(
            sentence.passage.hit,
            quote._replace(span=sentence.passage.in_entry(quote.span)),
            score,
            cosines.get(n),
            features[n],
        )
        for n, (sentence, quote, score) in enumerate(zip(sentences, quotes, scores, strict=True))
    ]
    return sorted(ranked, key=lambda sentence: -sentence.score)


def knows_language(hits: Iterable[Hit]) -> bool:
    """Return whether the embedder probably knows the language of the hits, so that vectors of their sentences can be
    compared: the search by vectors found at least one hit, and the weight of the vectors in the ranking was at least
    `_SAY`. A search lowers this weight if the embedder hardly knows the language."""
    found = [hit for hit in hits if hit.dense_rank]
    weights = [vote.weight for hit in found for vote in hit.votes if vote.name == "vectors"]
    return bool(found) and max(weights, default=1.0) >= _SAY


def choose_quotes(ranked: Iterable[RankedSentence], limit: int) -> list[RankedSentence]:
    """Return the sentences to quote, at most `limit`: the most probable one, and sentences that are not much less
    probable. If two quotes have the same text or overlap, only the first is returned. Two neighboring sentences of
    similar probability become one quote. If the question asks for several rows of a table, only these are quoted."""
    ranked = list(ranked)
    chosen: list[RankedSentence] = []
    rows = _selected_rows(ranked)
    for sentence in rows or ranked:
        if len(chosen) == limit or (chosen and not rows and sentence.score < _CLOSE * ranked[0].score):
            break
        if not any(_same_text(sentence, other) for other in chosen):
            least = _ALIKE * sentence.score
            alike = [each for each in ranked if each.score >= least]
            others = [each for each in alike if not any(_same_text(each, other) for other in chosen)]
            chosen.append(_with_neighbor(sentence, others))
    return chosen


def _selected_rows(ranked: Sequence[RankedSentence]) -> list[RankedSentence]:
    """Return the rows that the question asks for ("Which contracts end before 2026?") if the first sentence is one of
    several in a table, else []."""
    rows = [each for each in ranked if each.hit is ranked[0].hit and each.features and each.features.selected > 0]
    return rows if len(rows) > 1 and rows[0] is ranked[0] else []


def _with_neighbor(sentence: RankedSentence, alike: Iterable[RankedSentence]) -> RankedSentence:
    """Return a quote that consists of the sentence and its best neighboring sentence in `alike` that fits. `alike` are
    sentences of similar probability, best first. A question without an answer is never joined. If no sentence fits,
    return `sentence` unchanged."""
    content = sentence.hit.entry.content
    for other in alike:
        first, last = sorted((sentence, other), key=lambda each: each.span)
        between = content[first.span.end : last.span.start]
        if other is sentence or other.hit is not sentence.hit or first.row or last.row or last.shown.lead:
            continue
        if any(each.features and each.features.asks for each in (first, last)):
            continue
        if not _overlaps(sentence, other) and _repeats(sentence, other):
            continue
        if between.strip() or "\n\n" in between or last.span.end - first.span.start > MAX_QUOTE:
            continue
        span = Span(first.span.start, max(first.span.end, last.span.end))
        return replace(sentence, shown=Quote(span, first.shown.lead), score=sentence.score + other.score)
    return sentence


def _same_text(sentence: RankedSentence, other: RankedSentence) -> bool:
    return _overlaps(sentence, other) or _repeats(sentence, other)


def _overlaps(sentence: RankedSentence, other: RankedSentence) -> bool:
    in_one = sentence.hit.entry.id == other.hit.entry.id
    return in_one and sentence.span.start < other.span.end and other.span.start < sentence.span.end


def _repeats(sentence: RankedSentence, other: RankedSentence) -> bool:
    one, two = " ".join(sentence.text.split()), " ".join(other.text.split())
    return one in two or two in one


def _best(features: Sequence[Features], count: int) -> list[int]:
    scores = np.array(features) @ np.array(_WEIGHTS)
    return [int(n) for n in np.argsort(-scores, kind="stable")[:count]]


def _to_embed(features: Sequence[Features], passages: Sequence[Passage], count: int) -> list[int]:
    """Return the indexes of at most `count` sentences to embed: the best of each passage, and then the best of all."""
    order = _best(features, len(features))
    of_passage: dict[int, list[int]] = {}
    for n in order:
        of_passage.setdefault(id(passages[n]), []).append(n)
    first = [n for numbers in list(of_passage.values())[:_PASSAGES] for n in numbers[:_OF_PASSAGE]]
    return list(dict.fromkeys(first + order))[:count]


def _probabilities(features: Sequence[Features], texts: Sequence[str]) -> list[float]:
    """Return for each sentence the probability that it is the answer. The probabilities
    of different texts have the sum 1. Sentences with the same text do not compete with each other: only the most
    probable of them is counted in this sum."""
    scores = np.array(features) @ np.array(_WEIGHTS)
    odds = np.exp(scores - scores.max())
    best: dict[str, float] = {}
    for text, each in zip(texts, odds, strict=True):
        folded = " ".join(text.split())
        best[folded] = max(best.get(folded, 0.0), float(each))
    total = sum(best.values())
    return [float(each) / total for each in odds]


@dataclass(frozen=True)
class _Compared:
    """Compares the best sentences with the question by vectors."""

    question: str
    asking: frozenset[str]  # the words that make it a question, such as "how many"
    sentences: Sequence[Sentence]
    links: Mapping[Sentence, Link]
    quotes: Sequence[Quote]
    embedder: Embedder
    vectors: RecentVectors
    calibration: Calibration
    foreign: bool  # the question is in another language than the passages

    def with_vectors(self, features: list[Features]) -> tuple[list[Features], dict[int, float]]:
        """Return two values: the features with the fields from vectors, and a dictionary: index of a sentence -> its
        cosine. If the embedder is unavailable, or if its vectors cannot be used, the features are unchanged, and the
        dictionary is empty."""
        try:
            return self._by_tokens(features) or self._by_sentences(features) or (features, {})
        except EmbedderUnavailable:
            return features, {}

    def _by_tokens(self, features: list[Features]) -> tuple[list[Features], dict[int, float]] | None:
        """Compare the tokens of sentences with those of the question (late interaction: Khattab and Zaharia, SIGIR
        2020, "ColBERT"). Return the same two values as `with_vectors`. Return None if the embedder has no vectors of
        tokens, or hardly knows the words of the question."""
        scale = self.calibration.tokens
        if scale is None:
            return None
        read = self.vectors.tokens([self.question], self.embedder, query=True)
        frequent = FUNCTION_WORDS.get(self.sentences[0].passage.language, frozenset())
        asked = AskedTokens(self.question, read[0], self.asking, frequent) if read else None
        if asked is None or not asked.count or asked.letters < _LETTERS * asked.count:
            return None
        best = _to_embed(features, [s.passage for s in self.sentences], _COMPARED)
        windows = _windows(self.sentences, self.links, self.quotes, best)
        tokens = self.vectors.tokens([window.text for window in windows], self.embedder) or []
        nearest, cosines = {}, {}
        for window, each in zip(windows, tokens, strict=True):
            words = word_tokens(window.text, each)
            for n, part in window.parts.items():
                inside = {k: span for k, span in words.items() if part.start <= span.start and span.end <= part.end}
                if inside:
                    language = self._language(n)
                    tokens_near, asked_near = asked.nearest(window.text, each, inside)
                    nearest[n] = scale.map(tokens_near, language), asked_near and scale.of(asked_near, language)
                    cosines[n] = float(each.vector @ asked.vector)
        found = likeness(nearest, _UNRELATED)
        least = least_alike(found.values())
        read_features = [
            Features._make((*each[: -len(least)], *found.get(n, least))) for n, each in enumerate(features)
        ]
        return read_features, self._normalized(cosines)

    def _by_sentences(self, features: list[Features]) -> tuple[list[Features], dict[int, float]] | None:
        """Compare the vectors of sentences with the vector of the question. Return the same two values as
        `with_vectors`, or None if the cosines of this embedder are not usable."""
        if self.calibration.texts is None:
            return None
        best = _to_embed(features, [s.passage for s in self.sentences], _COMPARED)
        texts = [self.quotes[n].text(self.sentences[n].passage.content) for n in best]
        rows = self.vectors.of(texts, self.embedder) @ self.vectors.of_query(self.question, self.embedder)
        cosines = self._normalized(dict(zip(best, map(float, rows), strict=True)))
        least = min(cosines.values(), default=0.0)
        features = [each._replace(likeness=_OF_COSINE * cosines.get(n, least)) for n, each in enumerate(features)]
        return features, cosines

    def _normalized(self, cosines: Mapping[int, float]) -> dict[int, float]:
        scale = self.calibration.texts
        if scale is None:
            return {}
        return {n: max(0.0, scale.of(each, self._language(n))) for n, each in cosines.items()}

    def _language(self, n: int) -> str:
        return FOREIGN if self.foreign else self.sentences[n].passage.language


class _Window(NamedTuple):
    """A text to embed: several quotes of a passage that touch each other, so that each is embedded with its context.
    `parts` is a dictionary: index of a sentence -> position of its quote in the text."""

    text: str
    parts: dict[int, Span]


def _windows(
    sentences: Sequence[Sentence], links: Mapping[Sentence, Link], quotes: Sequence[Quote], best: Iterable[int]
) -> list[_Window]:
    """Return the texts to embed for the sentences with the indexes `best`. Quotes of one passage that touch each other
    become one text. A row of a table has its own text, and so has a quote with a lead, unless it refers back."""
    windows: list[_Window] = []
    spans: dict[int, list[Span]] = {}  # id of a passage -> the spans of its quotes that can be joined
    passages = {id(sentence.passage): sentence.passage for sentence in sentences}
    pairs = enumerate(zip(sentences, quotes, strict=True))
    joinable = {
        n: _embedded_span(sentence, links[sentence].leads, quote)
        for n, (sentence, quote) in pairs
        if not quote.row and (not quote.lead or links[sentence].refers)
    }
    for n in best:
        quote, passage = quotes[n], sentences[n].passage
        if n not in joinable:
            text = _titled(sentences[n].row, quote.text(passage.content))
            windows.append(_Window(text, {n: Span(0, len(text))}))
        else:
            spans.setdefault(id(passage), []).append(joinable[n])
    for key, each in spans.items():
        for window in _joined(sorted(each)):
            parts = {
                n: Span(span.start - window.start, span.end - window.start)
                for n, span in joinable.items()
                if id(sentences[n].passage) == key and window.start <= span.start and span.end <= window.end
            }
            windows.append(_Window(passages[key].content[window.start : window.end], parts))
    return windows


def _embedded_span(sentence: Sentence, leads: bool, quote: Quote) -> Span:
    """Return the part of a quote that is embedded: the sentence, and at most one sentence before it."""
    if not leads or sentence.before is None:
        return quote.span
    return Span(max(quote.span.start, sentence.before.span.start), quote.span.end)


def _titled(row: TableRow | None, text: str) -> str:
    """Return the text to embed for a quote. If the quote is a row of a table, the text begins with the words above the
    row, which name its subject."""
    above = row.above[-_TITLE:] if row else ""
    return text if not above or text.startswith("…") else f"{above}: {text}"[:MAX_QUOTE]


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Return the spans, joined up to `_WINDOW` code points if they overlap or only one character is between them."""
    joined: list[Span] = []
    for span in spans:
        last = joined[-1] if joined else None
        if last and span.start <= last.end + 1 and max(last.end, span.end) - last.start <= _WINDOW:
            joined[-1] = Span(last.start, max(last.end, span.end))
        else:
            joined.append(span)
    return joined
