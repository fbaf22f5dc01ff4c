"""Statements: among the messages that a search finds, the messages that state something are ranked before questions and
short reactions.

A message is indexed with the words of the messages around it. Therefore the question "How long have you danced?" and
the reaction "Wow!" are found as easily as the answer between them, and the question often has more words of the query.
This module changes the scores of messages:

- A question loses a part of its score, and a short message loses a part, because both state little.
- A message after a question gains a part of the score of the question. Every message gains a smaller part of the score
  of the message after it, because reactions repeat what was stated.
- If the query names one of the speakers, the messages of the other speakers lose a part.
- If the query asks for a time, a message with a time expression gains a part.
- If the query asks for several things ("What books has Maria read?"), a message loses a part for each better message of
  its session, because the things were mentioned in several sessions.

Entries that are not messages of a session keep their scores. The weights were chosen by leaving out one conversation at
a time (docs/BENCHMARKS.md).

The originals of a summary are the archived messages that it replaces. `name_originals` names the two originals that
answer the query best, so a caller that needs the exact words reads only these two.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from agentformer.index.entry_properties import MESSAGE_TEXT, Derived, Turn
from agentformer.index.words.fields import day_of
from agentformer.records.change_feed import adjacent
from agentformer.records.codec import from_micros
from agentformer.search.fusion import FusionOptions, RankedList
from agentformer.text.analysis import QueryTerms, analyze_query, text_terms
from agentformer.text.dates.expressions import find_date_ranges
from agentformer.text.languages import detect_language, stem
from agentformer.text.splitting import ends_with_question, stated
from agentformer.types import Hit, MemoryEntry, Original

NAME = "statements"  # name of the ranked list
_HEAD = 50  # number of hits that are read
_QUESTION_LOSS = 0.15  # share of its score that a question loses
_SHORT_LOSS = 0.45  # share of its score that a message loses if it states nothing
_SHORT_COST = 0.1  # subtracted from the score of a message that states nothing
_ANSWER_GAIN = 0.4  # share of the score of the question before it that a message gains
_REACTION_GAIN = 0.12  # share of the score of the message after it that a message gains
_SPEAKER_COST = 0.1  # subtracted from the score if the query names another speaker
_SESSION_LOSS = 0.15  # share lost for each better message of the session, if the query asks for several things
_SESSION_BETTER = 2  # number of better messages that count
_LEAST = 0.1  # share of its score that a message always keeps
_DATED_HEAD = 20  # number of messages that are searched for time expressions
BEST = 2  # number of originals that are named for a summary
_ORIGINAL_READ = 4_000  # code points of an original that are read
_ORIGINAL_QUESTION_LOSS = 0.3  # share of its score that an original loses if it is a question
_ORIGINAL_ANSWER_GAIN = 0.6  # share of the score of a question that the next original gains
_LENGTH_GAIN = 0.2  # added to the score of an original that states something

Get = Callable[[Sequence[str]], Sequence[MemoryEntry]]

_WORD = re.compile(r"[^\W_]+")
# Questions for a time, by language.
_WHEN: Mapping[str, re.Pattern[str]] = {
    "en": re.compile(r"\b(when|how long ago|(what|which) (time|date|day|week|month|year|season))\b", re.IGNORECASE),
    "fi": re.compile(r"\b(milloin|koska|mihin aikaan|minä (päivänä|vuonna)|missä kuussa)\b", re.IGNORECASE),
    "sv": re.compile(r"\b(när|vilk(en|et) (tid|dag|datum|vecka|månad|år))\b", re.IGNORECASE),
    "no": re.compile(r"\b(når|hvilke[nt]? (tid|dag|dato|uke|måned|år))\b", re.IGNORECASE),
    "da": re.compile(r"\b(hvornår|hvilke[nt]? (tid|dag|dato|uge|måned|år))\b", re.IGNORECASE),
    "de": re.compile(r"\b(wann|welche[nmrs]? (tag|datum|woche|monat|jahr))\b", re.IGNORECASE),
    "ja": re.compile(r"いつ|何(時|日|曜日|月|年)"),
}
# Questions for several things, by language: a plural after "which" or "what", a question for a number, or for something
# in common.
_SEVERAL: Mapping[str, re.Pattern[str]] = {
    "en": re.compile(
        r"(?i:\b(?:how many|both|in common)\b)|(?i:\b(?:what|which)(?: (?:kinds?|types?|sorts?) of)?)"
        r"(?: (?!(?:does|did|do|is|are|was|were|has|had|have)\b)[\w+-]+){0,2}?"
        r" (?!(?:does|was|has|this)\b)[a-z]{2,}[a-hj-rtv-z]s\b"
    ),
    "fi": re.compile(
        r"\b(mitkä|ketkä|keitä|montako|kuinka mon\w+|mitä \w+(ja|jä|ia|iä)|molem\w+|yhteistä)\b", re.IGNORECASE
    ),
    "sv": re.compile(r"\b(vilka|hur många|båda|gemensamt)\b", re.IGNORECASE),
    "no": re.compile(r"\b(hvilke|hvor mange|begge|felles)\b", re.IGNORECASE),
    "da": re.compile(r"\b(hvilke|hvor mange|begge|fælles)\b", re.IGNORECASE),
    "de": re.compile(r"\b(wie viele|welche \w+(en|er)|beide\w*|gemeinsam\w*)\b", re.IGNORECASE),
    "ja": re.compile(r"何(人|個|冊|匹|つ|回)|いくつ|両方|二人とも|共通"),
}
_MESSAGES = """
    SELECT num, id, coalesce(occurred_at, created_at), occurred_at, speaker,
        namespace, session_id, user_id, agent_id, project, substr(content, 1, ?)
    FROM entries WHERE num IN (SELECT value FROM json_each(?)) AND kind = 'message' AND session_id IS NOT NULL
"""


class Message(NamedTuple):
    """A message among the hits. `session` identifies its session. `following` is the number of the next message of its
    session, or 0 if the next message is not among the hits. `question` is True if the message is a question. `stated`
    grows from 0 to 1 with the length of the sentences that are no questions. The function `names_time` takes the
    language of the query, and returns whether the message names a time."""

    session: tuple[object, ...]
    speaker: str
    following: int
    question: bool
    stated: float
    names_time: Callable[[str], bool]


def favor_statements(
    connection: sqlite3.Connection,
    hits: Sequence[tuple[int, float]],
    query: QueryTerms,
    options: FusionOptions,
    known: Mapping[int, Derived],
) -> tuple[list[tuple[int, float]], RankedList]:
    """Return the hits with new scores, best first, and a ranked list of the messages whose scores have grown. The
    module docstring describes the changes, and `options` sets their strength. `hits` contains entry numbers with scores
    in 0..1, best first. Scores stay in 0..1, and hits with equal scores keep their order. `known` contains the derived
    rows of some of the entries (see `index.entry_properties`)."""
    head = [num for num, _ in hits[:_HEAD]] if options.statements or options.dated else []
    messages = _messages(connection, head, known) if head else {}
    if not messages and (not hits or hits[0][1] <= 1):
        return list(hits), RankedList(NAME, [], options.statements or options.dated)
    scores = dict(hits)
    changed = _stated(scores, messages, query, options.statements) if options.statements else {}
    if options.dated and _asks(query, _WHEN):
        for num in sorted(messages, key=lambda num: -changed.get(num, scores[num]))[:_DATED_HEAD]:
            if messages[num].names_time(query.language):
                changed[num] = changed.get(num, scores[num]) * (1 + options.dated)
    if options.statements and _asks(query, _SEVERAL):
        changed = _spread(changed, messages, options.statements)
    gains = {num: score - scores[num] for num, score in changed.items()}
    scores |= changed
    most = max(1.0, *scores.values()) if scores else 1.0
    if most > 1:
        scores = {num: score / most for num, score in scores.items()}
    ranked = sorted(scores.items(), key=itemgetter(1), reverse=True)  # keeps the order of equal scores
    gained = sorted((num for num, gain in gains.items() if gain > 0), key=lambda num: -gains[num])
    return ranked, RankedList(NAME, gained, options.statements or options.dated)


def _messages(connection: sqlite3.Connection, nums: Sequence[int], known: Mapping[int, Derived]) -> dict[int, Message]:
    """Return those of the entries `nums` that are messages of a session, in ascending order of their numbers."""
    turns = {num: turn for num in nums if (row := known.get(num)) is not None and (turn := row.turn) is not None}
    texts: dict[int, tuple[str, int | None]] = {}
    if others := [num for num in nums if num not in known]:
        for num, key, moment, at, speaker, *session, text in connection.execute(
            _MESSAGES, [MESSAGE_TEXT, json.dumps(others)]
        ).fetchall():
            turns[num], texts[num] = Turn(key, moment, speaker, tuple(session)), (text, at)
    following = _following(connection, turns) if len(turns) > 1 else {}
    messages = {}
    for num, turn in sorted(turns.items()):
        if num in known:
            own = known[num].message
            properties = own.question, own.stated, own.names_time
        else:
            text, at = texts[num]
            properties = ends_with_question(text), stated(text), partial(_names_time, text, at)
        messages[num] = Message(turn.session, turn.speaker, following.get(num, 0), *properties)
    return messages


def _following(connection: sqlite3.Connection, turns: Mapping[int, Turn]) -> dict[int, int]:
    """Return for each message the number of the next message of its session, if that message is also in `turns`."""
    sessions: defaultdict[tuple[str | None, ...], list[tuple[int, str, int]]] = defaultdict(list)
    for num, turn in turns.items():
        sessions[turn.session].append((turn.moment, turn.id, num))
    ordered = [(a[-1], b[-1]) for session in sessions.values() for a, b in pairwise(sorted(session))]
    return dict(adjacent(connection, ordered)) if ordered else {}


def _stated(
    scores: Mapping[int, float], messages: Mapping[int, Message], query: QueryTerms, strength: float
) -> dict[int, float]:
    """Return the new score of each message, depending on what it and its neighbors state. `strength` multiplies all
    gains and losses."""
    asked = {message.following: num for num, message in messages.items() if message.question}
    named = _named_speakers(query, {message.speaker for message in messages.values()})
    changed = {}
    for num, message in messages.items():
        score, missing = scores[num], 1 - message.stated
        share = (1 - strength * _QUESTION_LOSS * message.question) * (1 - strength * _SHORT_LOSS * missing)
        gain = _ANSWER_GAIN * scores[asked[num]] if num in asked else 0.0
        gain += _REACTION_GAIN * scores.get(message.following, 0.0)
        cost = _SHORT_COST * missing + _SPEAKER_COST * bool(named and message.speaker not in named)
        changed[num] = max(_LEAST * score, score * share + strength * (gain - cost))
    return changed


def _spread(scores: Mapping[int, float], messages: Mapping[int, Message], strength: float) -> dict[int, float]:
    """Return the new score of each message. It is lowered for each better message of the same session. `strength`
    multiplies the loss."""
    better: Counter[tuple[object, ...]] = Counter()
    spread = {}
    for num in sorted(scores, key=lambda num: -scores[num]):
        session = messages[num].session
        spread[num] = scores[num] * (1 - strength * _SESSION_LOSS) ** min(better[session], _SESSION_BETTER)
        better[session] += 1
    return spread


def _named_speakers(query: QueryTerms, speakers: Iterable[str]) -> set[str]:
    """Return the speakers that the query names. The result is empty if the query names all or none of them."""
    speakers = {*speakers}
    if len(speakers) < 2:
        return set()
    words = _stems(query.text, query.language)
    named = {speaker for speaker in speakers if words & _stems(speaker, query.language)}
    return named if len(named) < len(speakers) else set()


def _stems(text: str, language: str) -> set[str]:
    words = _WORD.findall(text.casefold())
    return {form for word in words if len(word) > 1 for form in (word, stem(word, language))}


def _asks(query: QueryTerms, questions: Mapping[str, re.Pattern[str]]) -> bool:
    """Return whether a query is a question of one kind, such as "when". `questions` contains a pattern of this kind for
    each language. The pattern of the query's language is used, or all patterns if this language has none."""
    patterns = [questions[query.language]] if query.language in questions else questions.values()
    return any(pattern.search(query.text) for pattern in patterns)


def _names_time(text: str, occurred_at: int | None, prior: str) -> bool:
    """Return whether a text names a day or a period, such as "last week". `occurred_at` is the time of the text, in
    microseconds, and `prior` is the language of the query."""
    return bool(find_date_ranges(text, day_of(from_micros(occurred_at)), detect_language(text, prior)))


def name_originals(hits: Sequence[Hit], query: str, get: Get) -> list[Hit]:
    """Return the hits in the same order. Each hit that is a summary gets at most two of its originals: those that
    answer the query best (see `best_originals`). The function `get` returns entries by id. Originals with another
    namespace, user or project than their summary are left out."""
    ids = {hit.entry.id: [link.id for link in hit.entry.derived_from] for hit in hits if hit.entry.kind == "summary"}
    wanted = list(dict.fromkeys(original for group in ids.values() for original in group))
    if not wanted:
        return list(hits)
    entries = {entry.id: entry for entry in get(wanted)}
    terms = analyze_query(query)

    def named(hit: Hit) -> Hit:
        originals = [entries[name] for name in ids.get(hit.entry.id, ()) if name in entries]
        best = best_originals([each for each in originals if _owner(each) == _owner(hit.entry)], terms)
        return replace(hit, originals=tuple(map(_original, best))) if best else hit

    return [named(hit) for hit in hits]


def best_originals(originals: Sequence[MemoryEntry], query: QueryTerms) -> list[MemoryEntry]:
    """Return at most two of the originals: those that answer the query best, best first. `originals` is sorted by time.
    A word of the query counts more if few originals contain it, and a message after a question gains a part of the
    score of the question."""
    texts = [entry.content[:_ORIGINAL_READ] for entry in originals]
    stems = [_shared_stems(entry, text, query) for entry, text in zip(originals, texts, strict=True)]
    frequency = Counter(term for terms in stems for term in terms)
    rarity = {term: math.log(1 + len(texts) / count) for term, count in frequency.items()}
    shared = [sum(rarity[term] for term in terms) / (sum(rarity.values()) or 1.0) for terms in stems]
    scores = []
    for place, text in enumerate(texts):
        score = shared[place] * (1 - _ORIGINAL_QUESTION_LOSS * ends_with_question(text)) + _LENGTH_GAIN * stated(text)
        if place and ends_with_question(texts[place - 1]):
            score += _ORIGINAL_ANSWER_GAIN * shared[place - 1]
        scores.append(score)
    order = sorted(range(len(originals)), key=lambda place: -scores[place])
    return [originals[place] for place in order[:BEST]]


def _shared_stems(entry: MemoryEntry, text: str, query: QueryTerms) -> set[str]:
    """Return the stems of the query that occur in an original, in its speaker or in its title. `text` is the content of
    the original."""
    language = detect_language(text, query.language)
    own = text_terms(f"{entry.speaker}\n{entry.title}\n{text}", language).stems
    return {*query.terms((language,)).stems} & {*own}


def _owner(entry: MemoryEntry) -> tuple[object, ...]:
    return entry.namespace, entry.user_id, entry.project


def _original(entry: MemoryEntry) -> Original:
    moment = entry.occurred_at or entry.created_at
    return Original(entry.id, entry.session_id, entry.speaker or entry.role or "", moment)
