"""`Evidence`: the sentences of the hits that may answer a question, and the confidence that they do."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import cache, cached_property
from itertools import takewhile

from agentformer.embedders.calibration import CALIBRATIONS, Calibration, Scale
from agentformer.embedders.recent import RecentVectors
from agentformer.errors import EmbedderError
from agentformer.index.embedding.active import current_embedder
from agentformer.rag.answer import support
from agentformer.rag.answer.confidence import QuoteFeatures, about_question
from agentformer.rag.answer.passages import Passage, dates_of, read_passages
from agentformer.rag.answer.quotes import RankedSentence, choose_quotes, knows_language, rank_sentences
from agentformer.rag.answer.sources import Found
from agentformer.text.analysis import QueryTerms, analyze_query
from agentformer.text.dates.expressions import find_date_ranges
from agentformer.text.facts.other_subjects import is_about_another
from agentformer.text.facts.quantities import names_another, numbered_things
from agentformer.text.question_types import classify
from agentformer.text.row_values import asked_value
from agentformer.types import Embedder, Hit, Hits

_MAX_QUOTES = 3
_REPEATED = 0.8  # share of the question's words in a quote that only repeats the question
_OFF_TOPIC = 0.2  # factor of the score of a sentence that is probably about something else
_PARTS = frozenset({"chunk", "message"})  # kinds of entries that other entries explain
_MENTIONED = "mentions"  # list of hits whose title is mentioned
_WITHOUT_MEANING = "hashing"  # an embedder that compares spelling and not meaning


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The passages of the hits of a question, their sentences in the order of their probability, the quotes of an
    extractive answer, and its confidence. Each value is computed at its first use and then kept. `vectors` is a cache
    for the embedder."""

    found: Found
    embedder: Embedder | None
    vectors: RecentVectors

    @property
    def question(self) -> str:
        """The text of the question."""
        return self.found.question

    @property
    def hits(self) -> Sequence[Hit]:
        """The best hits of the search."""
        return self.found.hits

    @cached_property
    def terms(self) -> QueryTerms:
        """The terms of the question."""
        return analyze_query(self.question)

    @cached_property
    def quotable(self) -> Sequence[Passage]:
        """The passages whose sentences may be quoted: those of the hits, and those of further hits from the same
        documents."""
        documents = {hit.entry.source.document_id for hit in self.hits if hit.entry.source}
        further = (hit for hit in self.found.more if hit.entry.source and hit.entry.source.document_id in documents)
        analyzed = self.hits.analyzed if isinstance(self.hits, Hits) else {}
        return read_passages([*self.hits, *further], self.terms.language, dates_of(self.terms), analyzed)

    @property
    def passages(self) -> Sequence[Passage]:
        """The passages of the hits."""
        return self.quotable[: len(self.hits)]

    @property
    def given(self) -> Sequence[Hit]:
        """The hits that a language model receives."""
        return self.found.given or self.hits

    @cached_property
    def given_passages(self) -> Sequence[Passage]:
        """The passages that a language model receives."""
        if not self.found.given:
            return self.passages
        return read_passages(self.found.given, self.terms.language, dates_of(self.terms))

    @property
    def shown(self) -> tuple[Hit, ...]:
        """The hits of an extractive answer: the hits of the search, and the further hits that are quoted."""
        quoted = {id(sentence.hit) for sentence in self.quotes}
        further = (passage.hit for passage in self.quotable[len(self.hits) :])
        return *self.hits, *(hit for hit in further if id(hit) in quoted)

    @cached_property
    def scale(self) -> Scale | None:
        """The scale of the cosines of the hits. None if the embedder found none of the hits, compares only spelling,
        does not separate related texts from unrelated ones, or is unavailable."""
        if self.embedder is None or not any(hit.dense_rank for hit in self.hits):
            return None
        embedder = current_embedder(self.embedder)
        try:
            return None if embedder.space.provider == _WITHOUT_MEANING else CALIBRATIONS.of(embedder).texts
        except EmbedderError:
            return None

    @cached_property
    def ranked(self) -> list[RankedSentence]:
        """The sentences of the hits, best first; of two versions of a statement, the newer one is first. Vectors of
        sentences are compared only if the embedder knows the language of the hits. Vectors of tokens are compared if
        the embedder knows this language, or if a hit has the language of the question."""
        ranked = self._with_off_topic_last(self._ranked())
        return newer_first(self.question, ranked, [passage.hit for passage in self.quotable])

    def _ranked(self) -> list[RankedSentence]:
        if self.embedder:
            embedder = current_embedder(self.embedder)
            with suppress(EmbedderError):  # a server may count tokens in another way and refuse a long sentence
                return rank_sentences(self.terms, self.quotable, embedder, self.vectors, self._calibration(embedder))
        return rank_sentences(self.terms, self.quotable)

    def _with_off_topic_last(self, ranked: list[RankedSentence]) -> list[RankedSentence]:
        """Return the ranked sentences. If the first sentence is from an off-topic hit, all sentences of off-topic hits
        get lower scores."""
        if not ranked or not self._is_off_topic(ranked[0].hit):
            return ranked
        scores = [sentence.score * (_OFF_TOPIC if self._is_off_topic(sentence.hit) else 1.0) for sentence in ranked]
        scale = sum(sentence.score for sentence in ranked) / sum(scores)
        changed = [
            dataclasses.replace(sentence, score=score * scale) for sentence, score in zip(ranked, scores, strict=True)
        ]
        return sorted(changed, key=lambda sentence: -sentence.score)

    def _is_off_topic(self, hit: Hit) -> bool:
        """Return whether a hit is off topic: the hit and the other hits of its document or session contain none of the
        numbers, dates and names of the question. A hit whose title another hit mentions is never off topic."""
        if any(vote.name == _MENTIONED for vote in hit.votes):
            return False
        return self._contains_nothing_named(_group(hit))

    @cached_property
    def _contains_nothing_named(self) -> Callable[[str], bool]:
        """A function that returns whether a group of hits contains none of the numbers, dates and names of the
        question. The result for each group is kept."""
        return cache(lambda group: support.all_unknown_in_question(self.question, self._of_group(group)))

    def _of_group(self, group: str) -> list[Passage]:
        """Return the passages of a document or of a session."""
        return [passage for passage in self.quotable if _group(passage.hit) == group]

    def _calibration(self, embedder: Embedder) -> Calibration:
        known = self.scale is not None and knows_language(self.hits)
        same = known or self.terms.language in {passage.language for passage in self.passages}
        return Calibration(self.scale if known else None, CALIBRATIONS.of(embedder).tokens if same else None)

    @cached_property
    def quotes(self) -> list[RankedSentence]:
        """The sentences that an extractive answer quotes."""
        return choose_quotes(self.ranked, _MAX_QUOTES)

    @cached_property
    def _passage(self) -> Passage:
        """The passage of the first quote."""
        return next(each for each in self.quotable if each.hit is self.quotes[0].hit)

    @cached_property
    def grounds(self) -> QuoteFeatures | None:
        """The values from which the confidence is computed. None if there are no hits."""
        if not self.hits:
            return None
        about = about_question(self.terms, self.passages, self.scale)
        if not self.quotes:
            return QuoteFeatures(0.0, about)
        return QuoteFeatures(self.quotes[0].score, about, not self._is_within_limit and self._is_about_something_else())

    def _is_about_something_else(self) -> bool:
        """Return whether the first quote certainly answers nothing: it only asks the question again, and its passage
        has no answer; its hit is off topic; the question has a number or a name that no hit contains; or the quote
        names another thing than the question: one of the same kind with another number ("berth 12" for "berth 30"), or
        one with another name."""
        first, passage = self.quotes[0], self._passage
        text = f"{passage.hit.entry.context}\n{first.text}"
        repeats = bool(first.features and first.features.asks and first.features.words > _REPEATED)
        return (
            repeats
            or self._is_off_topic(first.hit)
            or names_another(numbered_things(self.question, self.terms.language), text, passage.language)
            or self._has_another_name(text)
            or bool(support.unknown_in_question(self.question, self.quotable))
        )

    @property
    def _is_within_limit(self) -> bool:
        """True if the first quote is a row with a value within the limit that the question names, such as "before
        2026". Then the row need not contain the words of the limit."""
        features = self.quotes[0].features
        asked = asked_value(classify(self.question, self._language), self.question.casefold(), self._language)
        return bool(asked.limit and features and features.selected > 0)

    @cached_property
    def _language(self) -> str:
        """The language of the first quote. If it is unknown, the language of the question."""
        return self._passage.language or classify(self.question).language

    def _has_another_name(self, text: str) -> bool:
        """Return whether the quote with its headings, `text`, is about another name, code or ordinal number than the
        question. Also return True if the quote is from a memory such as a fact, and a name of the question is missing
        in this memory and in the other hits of its session."""
        passage = self._passage
        names, missing = support.names_of_question(self.question, self._of_group(_group(passage.hit)))
        if missing and passage.hit.entry.kind not in _PARTS:
            return True
        # "The stadium" in a text about another club of the city: the whole passage lacks the name.
        return is_about_another(names, self.question, text, self._language) or is_about_another(
            names, "", passage.content, self._language
        )

    @property
    def confidence(self) -> float | None:
        """The probability (0..1) that the first quote answers the question. None if there are no hits."""
        return self.grounds.confidence if self.grounds else None

    def given_texts(self, count: int) -> list[str]:
        """Return the texts that the model received, without the escapes of the prompt: the question, and the document
        name and the content of the first `count` given hits. A web address in the answer of the model is kept only if
        one of these texts contains the address."""
        entries = [hit.entry for hit in self.given[:count]]
        return [self.question, *(f"{e.source.name if e.source else ''}\n{e.content}" for e in entries)]

    def shares_terms(self) -> bool:
        """Return whether the hits may be about the question: at least one hit contains a term of the question, or the
        question has no terms, such as "Who is it?"."""
        for passage in self.passages:
            terms = self.terms.terms([passage.language]).stems
            if not terms or not passage.stems.isdisjoint(terms):
                return True
        return False


def _group(hit: Hit) -> str:
    source = hit.entry.source
    return (source.document_id if source else hit.entry.session_id) or hit.entry.id


_COMPARED = 5  # best sentences that are compared with the first
_SAME = 0.75  # least share of equal words in two versions of a statement
_WORD = re.compile(r"[^\W\d_]+")
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")


def newer_first(question: str, ranked: list[RankedSentence], hits: Sequence[Hit]) -> list[RankedSentence]:
    """Return the ranked sentences, the newer of two versions of a statement first, as in a policy of 2023 and its
    version of 2025: a question that names no time asks for what holds now. If a better hit replaces the hit of the
    first sentence, the best sentence of that hit becomes the first. If the first has other versions in other documents,
    the newest of them becomes the first. The date of a document is the latest in its name, or else the latest that its
    `hits` name. If the question names a date, the order of documents is unchanged."""
    if len(ranked) < 2:
        return ranked
    first = ranked[0]
    if first.hit.newer:
        better = [hit.entry.id for hit in takewhile(lambda hit: hit is not first.hit, hits)]
        at = next((n for n, each in enumerate(ranked) if each.hit.entry.id == first.hit.newer), 0)
        return _with_first(ranked, at) if first.hit.newer in better else ranked
    versions = [n for n, other in enumerate(ranked[:_COMPARED]) if n == 0 or _is_version(first, other)]
    if len(versions) < 2 or _latest(question):
        return ranked
    dates = {n: _date_of(ranked[n].hit, hits) for n in versions}
    newest = max(versions, key=lambda n: (dates[n] or date.min, -n))
    return ranked if dates[0] is None else _with_first(ranked, newest)


def _with_first(ranked: list[RankedSentence], at: int) -> list[RankedSentence]:
    """Return the sentences, of which the one at position `at` and the first have exchanged their scores."""
    if at == 0:
        return ranked
    moved = replace(ranked[at], score=ranked[0].score), replace(ranked[0], score=ranked[at].score)
    rest = [sentence for n, sentence in enumerate(ranked) if n not in (0, at)]
    return sorted([*moved, *rest], key=lambda sentence: -sentence.score)


def _is_version(one: RankedSentence, other: RankedSentence) -> bool:
    """Return whether two sentences have nearly the same words, but not the same text, in different documents with the
    same name, apart from numbers."""
    sources = one.hit.entry.source, other.hit.entry.source
    if not sources[0] or not sources[1] or sources[0].document_id == sources[1].document_id:
        return False
    if _name(one.hit) != _name(other.hit):
        return False  # documents about two things, such as the contracts of two people
    words = set(_WORD.findall(one.text.casefold())), set(_WORD.findall(other.text.casefold()))
    alike = len(words[0] & words[1]) >= _SAME * max(1, len(words[0] | words[1]))
    return alike and " ".join(one.text.split()) != " ".join(other.text.split())


def _name(hit: Hit) -> str:
    """Return the letters of the name of the document of a hit, in a form that can be compared."""
    return "".join(_WORD.findall(hit.entry.source.name.casefold())) if hit.entry.source else ""


def _date_of(hit: Hit, hits: Sequence[Hit]) -> date | None:
    source = hit.entry.source
    if source is None:
        return None
    own = [
        each.entry.content for each in hits if each.entry.source and each.entry.source.document_id == source.document_id
    ]
    return _latest(source.name) or max(filter(None, map(_latest, own)), default=None)


def _latest(text: str) -> date | None:
    """Return the last day that a text names. A year is its first day."""
    days = [days.last for days in find_date_ranges(text, None)]
    return max([*days, *(date(int(year), 1, 1) for year in _YEAR.findall(text))], default=None)
