"""Of facts that contradict each other the latest comes first: "Anna lives in Turku" of last year stands behind "Anna
lives in Oslo" of this one.

Only what was found is compared, word by word: the same subject with the same verb, or the same name of a value, and
another value. Words decide and no meaning, so the verbs are few: those of which there is one value at a time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise, takewhile
from typing import NamedTuple

from agentformer.memory.audit_words import NEGATIONS
from agentformer.memory.latest_words import ARTICLES, COPULAS, ENDINGS, NOW, VERBS
from agentformer.text.languages import FUNCTION_WORDS, detect_language
from agentformer.text.sentences import sentence_spans
from agentformer.types import DOCUMENT_KINDS, Hit, MemoryEntry

COMPARED = 40  # hits at most, the best
_LONGEST = 300  # code points of an entry: longer ones tell more than one fact
_SENTENCES = 3
_SUBJECT = 6  # words in front of the verb at most: more are a clause of its own
_VALUE = 3  # words of a value that are compared
_LABEL = 4  # words in front of a colon
_BETWEEN = 2  # small words between the verb and the value
_NAMED = 2  # words that name what "is" something, if nothing else tells that it has one such value at a time
_ALIKE = ("sv", "no", "da")  # short sentences in one of them are taken for another
_WORD = re.compile(r"[^\W_]+(?:[-.,:/@'’+][^\W_]+)*")
_LABELLED = re.compile(r"\s*([^\n:]{2,60}):\s+(\S[^\n]{0,80})")
_EARLY = datetime(1, 1, 1, tzinfo=UTC)


class _Said(NamedTuple):
    """`about` what a statement is, in words, and which value it gives."""

    about: tuple[str, ...]
    value: tuple[str, ...]


def latest_first(hits: Sequence[Hit]) -> list[Hit]:
    """The hits, where those of one owner and speaker that contradict each other change places among themselves, newest
    first by when it happened, or else was stored. A score belongs to its place."""
    ordered = [*hits]
    for places in _contradicting(hits[:COMPARED]):
        newest = sorted(places, key=lambda place: (-_when(hits[place].entry).timestamp(), place))
        for place, other in zip(places, newest, strict=True):
            if place != other:
                ordered[place] = replace(hits[other], score=hits[place].score)
    return ordered


def _contradicting(hits: Sequence[Hit]) -> list[list[int]]:
    """Places of entries that give different values of the same, each list ascending; a place is in one list at most."""
    said: defaultdict[tuple[object, ...], dict[int, tuple[str, ...]]] = defaultdict(dict)
    for place, hit in enumerate(hits):
        for about, value in _statements(hit.entry):
            said[*_owner(hit.entry), about].setdefault(place, value)
    groups: list[list[int]] = []
    taken: set[int] = set()
    for values in said.values():
        places = [place for place in values if place not in taken]
        if any(_differ(values[one], values[other]) for one, other in pairwise(places)):
            groups.append(places)
            taken.update(places)
    return groups


def _differ(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Do the values exclude each other? "Oslo, Norway" only says more than "Oslo"."""
    return any(ours != theirs for ours, theirs in zip(one, other, strict=False))


def _owner(entry: MemoryEntry) -> tuple[object, ...]:
    """Whose a statement is: "I live in Turku" says another thing of each speaker."""
    return (
        *(entry.namespace, entry.agent_id, entry.user_id, entry.project),
        *(entry.kind == "message", entry.role, entry.speaker),
    )


def _when(entry: MemoryEntry) -> datetime:
    return entry.occurred_at or entry.created_at or _EARLY


def _statements(entry: MemoryEntry) -> Iterator[_Said]:
    content = entry.content
    if entry.kind in DOCUMENT_KINDS or entry.kind == "summary" or len(content) > _LONGEST:
        return
    languages = _read_as(detect_language(content))
    for start, end in sentence_spans(content)[:_SENTENCES]:
        sentence = content[start:end].strip()
        if sentence.endswith(("?", "？")):
            continue
        labelled = _LABELLED.fullmatch(sentence) if entry.kind != "message" else None
        words = _WORD.findall(sentence.casefold())
        found = (
            _labelled(labelled) if labelled else next(filter(None, (_stated(words, each) for each in languages)), None)
        )
        if found:
            yield found


def _read_as(language: str) -> Iterable[str]:
    """The languages in which a text may be, whose own it is first."""
    return _ALIKE if language in _ALIKE else (language,) if language in VERBS else VERBS


def _labelled(match: re.Match[str]) -> _Said | None:
    """A value behind its name: "Phone: 040 123"."""
    label, value = (tuple(_WORD.findall(part.casefold())) for part in match.groups())
    if 0 < len(label) <= _LABEL and 0 < len(value) <= _VALUE:
        return _Said((*label, ":"), value)
    return None


def _stated(words: Sequence[str], language: str) -> _Said | None:
    """What a sentence says, if it is "subject verb value" in this language."""
    words = [word for word in words if word not in NOW[language]]
    if any(word in NEGATIONS[language] or word.endswith(("n't", "n’t")) for word in words):
        return None
    for at in range(min(_SUBJECT + 1, len(words))):
        for size in (3, 2, 1):
            verb = tuple(words[at : at + size])
            if verb in VERBS[language] or verb in COPULAS[language]:
                return _valued(words[:at], verb, words[at + size :], language)
    return None


def _valued(subject: Sequence[str], verb: tuple[str, ...], rest: Sequence[str], language: str) -> _Said | None:
    empty = FUNCTION_WORDS[language]
    first = next((n for n, word in enumerate(rest) if word not in empty), len(rest))
    value = tuple(takewhile(lambda word: word not in empty, rest[first : first + _VALUE]))
    if not value or first > _BETWEEN:
        return None
    between = [word for word in rest[:first] if word not in ARTICLES]
    ending = next((ending[:2] for ending in ENDINGS if value[0].endswith(ending)), "") if language == "fi" else ""
    if verb in COPULAS[language]:
        named = sum(word not in empty for word in subject)
        placed = between or ending or (named and value[0][0].isdecimal())
        if not subject or (named < _NAMED and not placed):
            return None  # "Anna is tall" and "Anna is a nurse" both hold
        return _Said((*subject, *verb, *between, ending), value)
    return _Said((*subject, *verb, *between), value)
