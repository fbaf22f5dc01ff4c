"""Sentences of core blocks that cannot both hold: about the same thing, but with another number, date or a denial.

Core blocks go into every prompt, so two that disagree mislead every answer. What is found is a suspicion for a
person: terms, numbers and negations are compared, not meaning.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from agentformer.memory.audit.facts import Facts, clash, facts
from agentformer.text.analysis import query_terms
from agentformer.text.languages import detect_language
from agentformer.text.negations import NEGATIONS
from agentformer.text.sentences import sentence_spans
from agentformer.types import MemoryEntry

_ALIKE = 0.6  # least Jaccard index of two sentences' terms, to be about the same thing
_ALIKE_DENIED = 0.5  # a negation changes the verb too in Finnish: "pitää", "ei pidä"
_SENTENCES = 2_000  # looked at: core blocks are small, and far more is not read by any model either
_MOST = 100  # contradictions listed; a person reads no more
_SHARING = 200  # sentences that a term may be in; a commoner one tells nothing
_BLOCKS = 20  # whose beginnings tell the language of all
_LONGEST = 1_000  # code points of a sentence that are compared


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


def contradictions(blocks: Sequence[MemoryEntry]) -> tuple[tuple[Contradiction, ...], tuple[str, ...]]:
    """What contradicts each other within a block or between blocks that one context may hold, and notes on what
    was not looked at."""
    notes: list[str] = []
    sentences = list(islice(_sentences(blocks), _SENTENCES + 1))
    if len(sentences) > _SENTENCES:
        notes.append(f"contradictions were sought in the first {_SENTENCES} sentences of the core blocks only")
    found = list(islice(_found(sentences[:_SENTENCES]), _MOST + 1))
    if len(found) > _MOST:
        notes.append(f"there are more than {_MOST} contradictions; the first ones are listed")
    return tuple(found[:_MOST]), tuple(notes)


def _found(sentences: Sequence[_Sentence]) -> Iterator[Contradiction]:
    for one, other in _candidates(sentences):
        about = clash(one.facts, other.facts)
        if about and _same_thing(one, other, about):
            ids, titles = (one.block.id, other.block.id), (one.block.title, other.block.title)
            yield Contradiction(about, ids, titles, (one.text, other.text))


def _sentences(blocks: Sequence[MemoryEntry]) -> Iterator[_Sentence]:
    spoken_here = detect_language(" ".join(block.content[:_LONGEST] for block in blocks[:_BLOCKS]))
    for block in blocks:
        around = (detect_language(block.content), spoken_here)
        for start, end in sentence_spans(block.content):
            text = block.content[start : min(end, start + _LONGEST)]
            spoken = _language(text, around)
            stated = facts(text, spoken)
            stems = query_terms(stated.rest, [spoken]).stems if stated.rest else ()
            terms = frozenset(stem.rpartition("~")[2] for stem in stems)
            if terms:
                yield _Sentence(block, text, stated, terms)


def _language(text: str, around: Sequence[str]) -> str:
    """The sentence's language, or that around it where the sentence is too short to tell one that can be read."""
    own = detect_language(text)
    return next((language for language in (own, *around) if language in NEGATIONS), own)


def _candidates(sentences: Sequence[_Sentence]) -> Iterator[tuple[_Sentence, _Sentence]]:
    """Pairs with a term in common, each once."""
    holding: defaultdict[str, list[int]] = defaultdict(list)
    for n, sentence in enumerate(sentences):
        shared = Counter(other for term in sentence.terms for other in holding[term][:_SHARING])
        for other in sorted(shared):
            if _together(sentences[other].block, sentence.block):
                yield sentences[other], sentence
        for term in sentence.terms:
            holding[term].append(n)


def _together(one: MemoryEntry, other: MemoryEntry) -> bool:
    """May both stand in one context? A block of one user says nothing about another user's."""
    owners = ((one.agent_id, other.agent_id), (one.user_id, other.user_id), (one.project, other.project))
    return all(ours is None or theirs is None or ours == theirs for ours, theirs in owners)


def _same_thing(one: _Sentence, other: _Sentence, about: str) -> bool:
    shared = len(one.terms & other.terms)
    alike = shared / len(one.terms | other.terms)
    if shared == 1:
        return alike == 1.0
    return alike >= (_ALIKE_DENIED if about == "negation" else _ALIKE)
