"""Contradictions between sentences of core blocks: the same subject with another number, date or a negation.

Core blocks are part of every prompt, so two that disagree mislead every answer. Terms, numbers and negations are
compared, not meaning; a person decides whether a reported pair is a contradiction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from agentformer.memory.facts import Facts, conflict, facts_of
from agentformer.text.analysis import query_terms
from agentformer.text.languages import NEGATIONS, detect_language
from agentformer.text.sentences import sentence_spans
from agentformer.types import MemoryEntry

_MIN_SIMILARITY = 0.6  # Jaccard index of two sentences' terms, to have the same subject
_MIN_SIMILARITY_NEGATED = 0.5  # lower, because a negation changes the verb too in Finnish: "pitää", "ei pidä"
_MAX_SENTENCES = 2_000
_MAX_REPORTED = 100
_MAX_SHARED = 200  # sentences looked up per term; a more frequent term does not discriminate
_SAMPLED_BLOCKS = 20  # from which the common language is detected
_MAX_LENGTH = 1_000  # code points of a sentence that are compared


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two sentences of core blocks, the older block's first. `about` is `number`, `date` or `negation`."""

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


def find_contradictions(blocks: Sequence[MemoryEntry]) -> tuple[tuple[Contradiction, ...], tuple[str, ...]]:
    """Return contradictions within a block or between blocks that one context may hold, and notes on limits reached."""
    notes: list[str] = []
    sentences = list(islice(_sentences(blocks), _MAX_SENTENCES + 1))
    if len(sentences) > _MAX_SENTENCES:
        notes.append(f"only the first {_MAX_SENTENCES} sentences of the core blocks were searched for contradictions")
    contradictions = list(islice(_contradictions(sentences[:_MAX_SENTENCES]), _MAX_REPORTED + 1))
    if len(contradictions) > _MAX_REPORTED:
        notes.append(f"there are more than {_MAX_REPORTED} contradictions; the first ones are listed")
    return tuple(contradictions[:_MAX_REPORTED]), tuple(notes)


def _contradictions(sentences: Sequence[_Sentence]) -> Iterator[Contradiction]:
    for one, other in _candidates(sentences):
        about = conflict(one.facts, other.facts)
        if about and _same_subject(one, other, about):
            ids, titles = (one.block.id, other.block.id), (one.block.title, other.block.title)
            yield Contradiction(about, ids, titles, (one.text, other.text))


def _sentences(blocks: Sequence[MemoryEntry]) -> Iterator[_Sentence]:
    common = detect_language(" ".join(block.content[:_MAX_LENGTH] for block in blocks[:_SAMPLED_BLOCKS]))
    for block in blocks:
        fallbacks = (detect_language(block.content), common)
        for start, end in sentence_spans(block.content):
            text = block.content[start : min(end, start + _MAX_LENGTH)]
            language = _language(text, fallbacks)
            facts = facts_of(text, language)
            stems = query_terms(facts.rest, [language]).stems if facts.rest else ()
            if terms := frozenset(stem.rpartition("~")[2] for stem in stems):
                yield _Sentence(block, text, facts, terms)


def _language(text: str, fallbacks: Sequence[str]) -> str:
    """Return the sentence's language, or the first fallback whose negations are known if it has none."""
    own = detect_language(text)
    return next((language for language in (own, *fallbacks) if language in NEGATIONS), own)


def _candidates(sentences: Sequence[_Sentence]) -> Iterator[tuple[_Sentence, _Sentence]]:
    """Yield each pair of sentences that share a term and may be in one context."""
    by_term: defaultdict[str, list[int]] = defaultdict(list)
    for n, sentence in enumerate(sentences):
        shared = {other for term in sentence.terms for other in by_term[term][:_MAX_SHARED]}
        for other in sorted(shared):
            if _share_context(sentences[other].block, sentence.block):
                yield sentences[other], sentence
        for term in sentence.terms:
            by_term[term].append(n)


def _share_context(one: MemoryEntry, other: MemoryEntry) -> bool:
    """True if one context may hold both blocks: no agent, user or project differs."""
    owners = ((one.agent_id, other.agent_id), (one.user_id, other.user_id), (one.project, other.project))
    return all(first is None or second is None or first == second for first, second in owners)


def _same_subject(one: _Sentence, other: _Sentence, about: str) -> bool:
    shared = len(one.terms & other.terms)
    similarity = shared / len(one.terms | other.terms)
    if shared == 1:
        return similarity == 1.0
    return similarity >= (_MIN_SIMILARITY_NEGATED if about == "negation" else _MIN_SIMILARITY)
