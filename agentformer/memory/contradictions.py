"""Contradictions between stored texts: `block_contradictions` compares the sentences of core blocks, and
`FactContradictions` compares facts.

Facts are compared only if they have the same owner, title, source and metadata. `search.replacement_classifier` decides
whether a newer fact replaces an older one. A contradiction is a `value`, `number` or `date` that differs, or a
`negation`.

Each fact is compared only with a few older facts, so the time is proportional to the number of facts.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from operator import itemgetter

import numpy as np

from agentformer.index.entry_properties import EVENTS
from agentformer.search.newest_facts import FactComparison, moment, owner
from agentformer.search.replacement_classifier import NEAR_COSINE
from agentformer.text.analysis import query_terms
from agentformer.text.facts.numbers_and_dates import Facts, conflict, facts_of
from agentformer.text.facts.statement_words import MAX_FACT_LENGTH, is_long
from agentformer.text.languages.detection import NEGATIONS, detect_language
from agentformer.text.splitting import sentence_spans
from agentformer.types import RESERVED_KINDS, HitVectors, MemoryEntry, Vector

_MIN_SIMILARITY = 0.6  # minimum Jaccard index of the terms of two sentences about the same subject
_MIN_SIMILARITY_NEGATED = 0.5  # lower, because in Finnish a negation also changes the verb: "pitää", "ei pidä"
_MAX_SENTENCES = 2_000
_MAX_REPORTED = 100
_MAX_SHARED = 200  # sentences that are compared because of one term; a more frequent term does not show the subject
_SAMPLED_BLOCKS = 20  # blocks from whose text the common language is detected
_MAX_SENTENCE_LENGTH = 1_000  # code points of a sentence that are compared; the rest is ignored
_RECENT = 20  # a fact is compared with at most this number of older facts for each of its words, and by its vector
_LAST = 1_000  # number of older facts with whose vectors that of a fact is compared


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two sentences of core blocks, or of facts, that contradict each other. `about` says in what they differ:
    `number`, `date`, `negation` or `value`. `ids`, `titles` and `sentences` are pairs in which the older entry comes
    first."""

    about: str
    ids: tuple[str, str]
    titles: tuple[str, str]
    sentences: tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Sentence:
    block: MemoryEntry
    text: str
    facts: Facts
    terms: frozenset[str]


def block_contradictions(blocks: Sequence[MemoryEntry]) -> tuple[tuple[Contradiction, ...], tuple[str, ...]]:
    """Return contradictions between sentences of core blocks, and notes. Only sentences whose blocks can be in the same
    context are compared. A note reports that a limit was reached, so that contradictions may be missing."""
    notes: list[str] = []
    sentences = list(islice(_sentences(blocks), _MAX_SENTENCES + 1))
    if len(sentences) > _MAX_SENTENCES:
        notes.append(f"only the first {_MAX_SENTENCES} sentences of the core blocks were searched for contradictions")
    contradictions = list(islice(_contradictions(sentences[:_MAX_SENTENCES]), _MAX_REPORTED + 1))
    if len(contradictions) > _MAX_REPORTED:
        notes.append(f"there are more than {_MAX_REPORTED} contradictions; only the first {_MAX_REPORTED} are listed")
    return tuple(contradictions[:_MAX_REPORTED]), tuple(notes)


def _contradictions(sentences: Sequence[_Sentence]) -> Iterator[Contradiction]:
    for one, other in _candidates(sentences):
        about = conflict(one.facts, other.facts)
        if about and _same_subject(one, other, about):
            ids, titles = (one.block.id, other.block.id), (one.block.title, other.block.title)
            yield Contradiction(about, ids, titles, (one.text, other.text))


def _sentences(blocks: Sequence[MemoryEntry]) -> Iterator[_Sentence]:
    """Yield the sentences with other words than numbers and negations. `terms` are the stems of these words."""
    common = detect_language(" ".join(block.content[:_MAX_SENTENCE_LENGTH] for block in blocks[:_SAMPLED_BLOCKS]))
    for block in blocks:
        fallbacks = (detect_language(block.content), common)
        for start, end in sentence_spans(block.content):
            text = block.content[start : min(end, start + _MAX_SENTENCE_LENGTH)]
            detected = detect_language(text)
            # The first language whose words of negation are known, if there is one.
            language = next((name for name in (detected, *fallbacks) if name in NEGATIONS), detected)
            facts = facts_of(text, language)
            stems = query_terms(facts.rest, [language]).stems if facts.rest else ()
            if terms := frozenset(stem.rpartition("~")[2] for stem in stems):
                yield _Sentence(block, text, facts, terms)


def _candidates(sentences: Sequence[_Sentence]) -> Iterator[tuple[_Sentence, _Sentence]]:
    """Yield the pairs of sentences that have a term in common and whose blocks can be in the same context. The number
    of pairs for a term is limited, because a frequent term does not show that two sentences have the same subject."""
    by_term: defaultdict[str, list[int]] = defaultdict(list)
    for n, sentence in enumerate(sentences):
        shared = {other for term in sentence.terms for other in by_term[term][:_MAX_SHARED]}
        for other in sorted(shared):
            if _share_context(sentences[other].block, sentence.block):
                yield sentences[other], sentence
        for term in sentence.terms:
            by_term[term].append(n)


def _share_context(one: MemoryEntry, other: MemoryEntry) -> bool:
    """Return whether both blocks can be in the same context. This is true if their agent, user and project are equal.
    An agent, user or project that is not set is equal to all others."""
    owners = ((one.agent_id, other.agent_id), (one.user_id, other.user_id), (one.project, other.project))
    return all(first is None or second is None or first == second for first, second in owners)


def _same_subject(one: _Sentence, other: _Sentence, about: str) -> bool:
    shared = len(one.terms & other.terms)
    least = _MIN_SIMILARITY_NEGATED if about == "negation" else _MIN_SIMILARITY
    return shared / len(one.terms | other.terms) >= (1.0 if shared == 1 else least)


class FactContradictions:
    """Collects facts, and finds those that a newer fact replaces, as a search does (`search.newest_facts`). `examined`
    is the number of facts that are compared, and `long` is the number of facts that are not compared because their
    texts are long."""

    def __init__(self) -> None:
        self._owned: defaultdict[tuple[object, ...], list[MemoryEntry]] = defaultdict(list)
        self.examined = self.long = 0

    def add(self, entry: MemoryEntry) -> None:
        """Add an entry. Entries that are not facts, such as messages and events, are ignored."""
        if entry.kind in RESERVED_KINDS | EVENTS or entry.tier in ("core", "working"):
            return
        if is_long(entry.content):
            self.long += 1
            return
        self.examined += 1
        self._owned[owner(entry)].append(entry)

    @property
    def ids(self) -> frozenset[str]:
        """The ids of the facts that are compared."""
        return frozenset(entry.id for entries in self._owned.values() for entry in entries)

    def find(self, vectors: HitVectors | None = None) -> tuple[tuple[Contradiction, ...], tuple[str, ...]]:
        """Return the contradictions, newest first, and notes about limits that were reached and facts that were not
        compared. `vectors` are the vectors of the facts, as far as they are known."""
        facts = FactComparison(vectors=vectors)
        found = chain.from_iterable(_replaced(entries, facts) for entries in self._owned.values())
        newest = sorted(found, reverse=True, key=itemgetter(0))
        notes = []
        if len(newest) > _MAX_REPORTED:
            notes.append(f"{len(newest)} contradictions among facts; only the newest {_MAX_REPORTED} are listed")
        if self.long:
            notes.append(
                f"facts with more than {MAX_FACT_LENGTH} characters were not searched for contradictions: {self.long}"
            )
        return tuple(found for _, found in newest[:_MAX_REPORTED]), tuple(notes)

    def replaced(self, vectors: HitVectors | None = None) -> set[str]:
        """Return the ids of the facts that a newer fact replaces. Of older facts with equal texts, only the newest is
        named."""
        facts = FactComparison(vectors=vectors)
        found = chain.from_iterable(_replaced(entries, facts) for entries in self._owned.values())
        return {contradiction.ids[0] for _, contradiction in found}


def _replaced(
    entries: Sequence[MemoryEntry], facts: FactComparison
) -> Iterator[tuple[tuple[datetime, str], Contradiction]]:
    """Yield the contradictions between facts of one owner, with the time of the newer fact. A fact is compared with the
    last facts before it that have a key in common, and with those before it whose vectors are nearest. It is reported
    only for the first newer fact that replaces it."""
    recent: defaultdict[str, deque[MemoryEntry]] = defaultdict(lambda: deque(maxlen=_RECENT))
    last: deque[tuple[MemoryEntry, Vector]] = deque(maxlen=_LAST)
    reported: set[str] = set()
    for entry in sorted(entries, key=moment):
        keys, vector, texts = facts.keys(entry), facts.vector(entry), set[str]()
        compared = {older.id: older for key in keys for older in recent[key]}
        if keys and vector is not None:
            compared |= {older.id: older for older in _nearest(vector, last)}
        before = sorted((older for older in compared.values() if older.id not in reported), key=moment, reverse=True)
        replaced = facts.replaced([(older, entry) for older in before]) if before else []
        for older, found in zip(before, replaced, strict=True):
            if found and older.content not in texts:
                texts.add(older.content)
                reported.add(older.id)
                pairs = (older.id, entry.id), (older.title, entry.title), (older.content, entry.content)
                yield moment(entry), Contradiction(facts.difference(older, entry), *pairs)
        for key in keys:
            recent[key].append(entry)
        if keys and vector is not None:
            last.append((entry, vector))


def _nearest(vector: Vector, last: Sequence[tuple[MemoryEntry, Vector]]) -> Iterator[MemoryEntry]:
    """Yield those of the last facts whose vectors are nearest to that of another fact."""
    cosines = np.array([row for _, row in last]) @ vector if last else np.zeros(0)
    for place in np.argsort(-cosines)[:_RECENT]:
        if cosines[place] >= NEAR_COSINE:
            yield last[place][0]
