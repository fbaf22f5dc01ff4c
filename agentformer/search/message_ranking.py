"""Statements: among the messages that a search finds, those that state something are ranked before questions.

A message is indexed with the words of the messages around it. Therefore the question "How long have you danced?" and
the reaction "Wow!" are found as easily as the answer between them, and the question often has more words of the query.
This module changes the scores of the messages of sessions:

- In a conversation of people, a message after a question gains a part of the score of the question, and a message
  loses a part of its score if it states little.
- In a chat of a person with an assistant, the messages of the assistant lose a part, because a memory is asked for what
  the person has stated, also inside a request. An assistant's long answer would win by its many words and windows.

Each rule gives at least .02 of recall or of the reciprocal rank on conversations of its kind (bench/log/search.md).

The originals of a summary are the archived messages that it replaces. `name_originals` names the two originals that
answer the query best, so a caller that needs the exact words reads only these two.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from agentformer.index.entry_properties import MESSAGE_TEXT, Derived, Turn
from agentformer.records.change_feed import adjacent
from agentformer.search.fusion import RankedList
from agentformer.text.analysis import QueryTerms, analyze_query, text_terms
from agentformer.text.languages.detection import detect_language
from agentformer.text.splitting import ends_with_question, stated
from agentformer.types import Connection, Hit, MemoryEntry, Original, Statement

NAME = "statements"  # name of the ranked list
_ASSISTANT = "assistant"  # a role; imported conversations may have it as the name of the speaker
_HEAD = 50  # number of hits that are read
_SHORT_LOSS = 0.45  # share of its score that a message loses if it states nothing
_ANSWER_GAIN = 0.4  # share of the score of the question before it that a message gains
_ASSISTANT_COST = 0.3  # subtracted from the score of a message of an assistant
_LEAST = 0.1  # share of its score that a message always keeps
BEST = 2  # number of originals that are named for a summary
_ORIGINAL_READ = 4_000  # code points of an original that are read
_ORIGINAL_QUESTION_LOSS = 0.3  # share of its score that an original loses if it is a question
_ORIGINAL_ANSWER_GAIN = 0.6  # share of the score of a question that the next original gains
_LENGTH_GAIN = 0.2  # added to the score of an original that states something

Get = Callable[[Sequence[str]], Sequence[MemoryEntry]]

_COLUMNS = (
    "num, id, coalesce(occurred_at, created_at), speaker, namespace, session_id, user_id, agent_id, project, role, "
    f"substr(content, 1, {MESSAGE_TEXT})"
)
_IS_MESSAGE = "kind = 'message' AND session_id IS NOT NULL"
_MESSAGES = Statement(
    sqlite=f"SELECT {_COLUMNS} FROM entries WHERE num IN (SELECT value FROM json_each(?)) AND {_IS_MESSAGE}",
    postgres=f"SELECT {_COLUMNS} FROM entries WHERE num = ANY(%s) AND {_IS_MESSAGE}",
)


class Message(NamedTuple):
    """A message among the hits. `following` is the number of the next message of its session, or 0 if the next message
    is not among the hits. `question` is True if the message is a question. `stated` grows from 0 to 1 with the length
    of the sentences that are no questions. `assistant` is True for an assistant's message."""

    assistant: bool
    following: int
    question: bool
    stated: float


def favor_statements(
    connection: Connection, hits: Sequence[tuple[int, float]], known: Mapping[int, Derived]
) -> tuple[list[tuple[int, float]], RankedList]:
    """Return the hits with new scores, best first, and a ranked list of the messages whose scores have grown. The
    module docstring describes the changes. `hits` contains entry numbers with scores in 0..1, best first. Scores stay
    in 0..1, and hits with equal scores keep their order. `known` contains the derived rows of some of the entries (see
    `index.entry_properties`)."""
    messages = _messages(connection, [num for num, _ in hits[:_HEAD]], known)
    if not messages:
        return list(hits), RankedList(NAME, [], 1.0)
    scores = dict(hits)
    changed = _stated(scores, messages)
    gains = {num: score - scores[num] for num, score in changed.items()}
    scores |= changed
    most = max(1.0, *scores.values())
    if most > 1:
        scores = {num: score / most for num, score in scores.items()}
    ranked = sorted(scores.items(), key=itemgetter(1), reverse=True)  # keeps the order of equal scores
    gained = sorted((num for num, gain in gains.items() if gain > 0), key=lambda num: -gains[num])
    return ranked, RankedList(NAME, gained, 1.0)


def _messages(connection: Connection, nums: Sequence[int], known: Mapping[int, Derived]) -> dict[int, Message]:
    """Return those of the entries `nums` that are messages of a session, in ascending order of their numbers."""
    turns = {num: turn for num in nums if (row := known.get(num)) is not None and (turn := row.turn) is not None}
    texts: dict[int, str] = {}
    if others := [num for num in nums if num not in known]:
        for num, key, moment, speaker, *session, role, text in connection.run(_MESSAGES, [others]).fetchall():
            turns[num], texts[num] = Turn(key, moment, speaker, tuple(session), role), text
    following = _following(connection, turns) if len(turns) > 1 else {}
    messages = {}
    for num, turn in sorted(turns.items()):
        if num in known:
            own = known[num].message
            properties = own.question, own.stated
        else:
            properties = ends_with_question(texts[num]), stated(texts[num])
        assistant = _ASSISTANT in (turn.role, turn.speaker.casefold())
        messages[num] = Message(assistant, following.get(num, 0), *properties)
    return messages


def _following(connection: Connection, turns: Mapping[int, Turn]) -> dict[int, int]:
    """Return for each message the number of the next message of its session, if that message is also in `turns`."""
    sessions: defaultdict[tuple[str | None, ...], list[tuple[int, str, int]]] = defaultdict(list)
    for num, turn in turns.items():
        sessions[turn.session].append((turn.moment, turn.id, num))
    ordered = [(a[-1], b[-1]) for session in sessions.values() for a, b in pairwise(sorted(session))]
    return dict(adjacent(connection, ordered)) if ordered else {}


def _stated(scores: Mapping[int, float], messages: Mapping[int, Message]) -> dict[int, float]:
    """Return the new score of each message."""
    if any(message.assistant for message in messages.values()):
        changed = {num: scores[num] - _ASSISTANT_COST * message.assistant for num, message in messages.items()}
    else:
        asked = {message.following: num for num, message in messages.items() if message.question}
        changed = {
            num: scores[num] * (1 - _SHORT_LOSS * (1 - message.stated))
            + _ANSWER_GAIN * scores.get(asked.get(num, 0), 0)
            for num, message in messages.items()
        }
    return {num: max(_LEAST * scores[num], score) for num, score in changed.items()}


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
    whole = math.fsum(rarity.values()) or 1.0  # `fsum` gives one sum in any order of a set
    shared = [math.fsum(rarity[term] for term in terms) / whole for terms in stems]
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
