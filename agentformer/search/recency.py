"""Of facts that contradict each other the latest comes first: "Anna lives in Turku" of last year stands behind "Anna
lives in Oslo" of this one.

Only what was found is compared, word by word: the same subject with the same verb, or the same label, and another
name or number. Words decide and no meaning, so precision comes first: verbs and labels are those of which there is one
value at a time, and what stands behind a number must be the same.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise, takewhile
from typing import NamedTuple

from agentformer.search.recency_words import (
    ARTICLES,
    COPULAS,
    ENDINGS,
    LABELS,
    NOUNS,
    NOW,
    OTHERS,
    PLACES,
    VERBS,
)
from agentformer.text.dates.calendar import months, weekdays
from agentformer.text.languages import FUNCTION_WORDS, detect_language
from agentformer.text.negations import NEGATIONS
from agentformer.text.sentences import sentence_spans
from agentformer.types import DOCUMENT_KINDS, Hit, MemoryEntry

COMPARED = 40  # hits at most, the best
NEAR = 0.7  # of the score of a place is the least with which another hit takes it
_LONGEST = 300  # code points of an entry: longer ones tell more than one fact
_SENTENCES = 3
_SUBJECT = 6  # words in front of the verb at most: more are a clause of its own
_VALUE = 3  # words of a value that are compared
_LABEL = 4  # words in front of a colon
_BETWEEN = 2  # small words between the verb and the value
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
    first by when it happened, or else was stored. A score belongs to its place, which no hit takes whose own is much
    lower (`NEAR`)."""
    ordered = [*hits]
    for places in _contradicting(hits[:COMPARED]):
        newest = sorted(places, key=lambda place: (-_when(hits[place].entry).timestamp(), place))
        for place in places:
            # One that may stand here is always left: as many are as there are places from here on.
            other = next(each for each in newest if each <= place or hits[each].score >= NEAR * hits[place].score)
            newest.remove(other)
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
    """Whose a statement is, and of what: "I live in Turku" says another thing of each speaker, and "Price: 5" of each
    title."""
    return (
        *(entry.namespace, entry.agent_id, entry.user_id, entry.project),
        *(entry.kind == "message", entry.role, entry.speaker),
        *(entry.title, entry.source_type, entry.source_id, json.dumps(entry.metadata, sort_keys=True, default=str)),
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
        words = _WORD.findall(sentence)
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
    if len(label) <= _LABEL and 0 < len(value) <= _VALUE and (label[-1:] in LABELS or label[-2:] in LABELS):
        return _Said((*label, ":", "#" * value[0][0].isdecimal()), value)
    return None


def _stated(written: Sequence[str], language: str) -> _Said | None:
    """What a sentence says, if it is "subject verb value" in this language."""
    written = [word for word in written if word.casefold() not in NOW[language]]
    words = [word.casefold() for word in written]
    if any(word in NEGATIONS[language] or word.endswith(("n't", "n’t")) for word in words):
        return None
    for at in range(min(_SUBJECT + 1, len(words))):
        for size in (3, 2, 1):
            verb = tuple(words[at : at + size])
            if verb in VERBS[language] or verb in COPULAS[language]:
                return _valued(words[:at], verb, written[at + size :], language)
    return None


def _valued(subject: Sequence[str], verb: tuple[str, ...], rest: Sequence[str], language: str) -> _Said | None:
    """The name or the number behind the verb."""
    empty = FUNCTION_WORDS[language]
    first = next((n for n, word in enumerate(rest) if word.casefold() not in empty), len(rest))
    if first > _BETWEEN or first == len(rest):
        return None
    between, value = [word.casefold() for word in rest[:first]], [word.casefold() for word in rest[first:]]
    copula = verb in COPULAS[language]
    if OTHERS.intersection(subject[-1:]) or (copula and all(word in empty for word in subject)):
        return None  # "she lives in Turku", "here is 5 euros"
    if value[0][0].isdecimal():
        return _Said((*subject, *verb, *between, "#", *value[1:]), (value[0],))
    if not ARTICLES.isdisjoint(between):
        return None  # "in a big house" may be in Turku, too
    ending = next((ending[:2] for ending in ENDINGS if value[0].endswith(ending)), "") if language == "fi" else ""
    if copula and not ending and (language in NOUNS or not PLACES.intersection(between)):
        return None  # "Anna is tall" and "Anna is a nurse" both hold
    named = tuple(word.casefold() for word in takewhile(_is_name, rest[first : first + _VALUE]))
    return _Said((*subject, *verb, *between, ending), named) if named else None


def _is_name(word: str) -> bool:
    """Is it written as a name, and none of a time? "In Turku" and "in May" both hold."""
    return word[0].isupper() and not months(word) and not weekdays(word)
