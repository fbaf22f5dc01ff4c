"""Decide whether a newer statement replaces an older one: "I live in Oslo" replaces "I live in Turku", and "The
deadline was moved to 24 March" replaces "The deadline is 3 March".

The comparison uses words and does not understand their meaning. A newer statement replaces an older one in three cases:

- Both are the same apart from one value, and the property has one value at a time: the values are two numbers, two
  times, two names, or two words after a verb such as "is". "I like tea" and "I like coffee" can both hold.
- The newer one says that something has changed ("moved to", "no longer", "instead of"), and is about the same thing.
- Both are the same apart from a negation.

Statements about other people, things, places, seasons or years replace nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from agentformer.text.facts import is_year
from agentformer.text.facts.statements import (
    BEGINNING,
    CLASSES,
    SURE,
    VALUES,
    Statement,
    has_phrase,
    is_article,
    is_kind,
    language_group,
    likeliest_group,
    statements,
)
from agentformer.text.questions import classify

Difference = Literal["value", "number", "date", "negation", ""]

_SHARE = 0.25  # least share of the words of a statement in a newer one that changes it
_CACHED = 16_384  # pairs of texts whose comparison a process keeps
_LONGEST_VALUE = 4  # number of words of a value


class Replacement(NamedTuple):
    """A newer sentence that replaces an older one. `about` says in what they differ."""

    about: Difference
    older: str
    newer: str


@lru_cache(maxsize=_CACHED)
def replacement(older: str, newer: str, languages: tuple[str, str], *, labels: bool) -> Replacement | None:
    """Return the first sentences of two texts of which the newer one replaces the older one, or None. `languages` are
    the languages of the texts (ISO 639-1), or "" if unknown. Lines with a label, such as "Phone: 040 123", are read if
    `labels` is True."""
    groups = language_group(older, languages[0]), language_group(newer, languages[1])
    if groups[0] != groups[1]:  # at least one language is not certain
        certain = [group for group, language in zip(groups, languages, strict=True) if language and group]
        groups = (certain[0] if certain else likeliest_group(older, newer),) * 2
    for one in statements(older, groups[0], labels=labels):
        for other in statements(newer, groups[1], labels=labels):
            if about := replaces(one, other):
                return Replacement(about, one.text, other.text)
    return None


@lru_cache(maxsize=512)
def asks_former(question: str, older: str, newer: str, language: str) -> bool:
    """Return whether a question asks for the past, or names a year, a name or a number that only the older text
    contains. A question for yes or no may name an older value: "Do I live in Turku?". `language` is that of the older
    text, or "" if unknown."""
    group = language_group(older, language)
    if has_phrase("former", question, group) or has_phrase("former", question, likeliest_group(question)):
        return True
    words = question.casefold().replace("?", " ").split()
    if any(is_year(word) and word not in newer for word in words):
        return True
    names = {
        word[:BEGINNING]
        for statement in statements(older, group, labels=False)
        for word, kind, before in zip(statement.words, statement.kinds, statement.before, strict=True)
        if kind in "n#t" and not (group == "de" and is_article(before, group))
    }
    names -= {word[:BEGINNING] for statement in statements(newer, group, labels=False) for word in statement.words}
    named = any(name in question for name in names) if group == "ja" else any(w[:BEGINNING] in names for w in words)
    return named and classify(question, language or group).type != "open"


def replaces(older: Statement, newer: Statement) -> Difference:
    """Return how the values differ if the newer statement replaces the older one, else ""."""
    shared = older.core & newer.core
    if not shared or (older.past and not older.changed):
        return ""
    if older.negated != newer.negated and (found := _negates(older, newer)):
        return found
    if (newer.changed == SURE or newer.renewed in shared) and (found := _changes(older, newer, shared)):
        return found
    return "" if older.negated or newer.negated else _other_value(older, newer)


def _negates(older: Statement, newer: Statement) -> Difference:
    """Compare two statements of which one is negated. In Finnish, a negation changes the verb ("pitää", "ei pidä")."""
    if older.past or newer.past:
        return ""
    one, other = older.rest, newer.rest
    if one == other:
        return "negation"
    different = [(a, b) for a, b in zip(one, other, strict=False) if a != b]
    alike = len(one) == len(other) and len(different) == 1 and different[0][0][:2] == different[0][1][:2]
    return "negation" if alike and older.group == "fi" else ""


def _changes(older: Statement, newer: Statement, shared: Set[str]) -> Difference:
    """Compare a statement with a newer one that says that something has changed. Both must be about the same thing: the
    first word of one of them is in the other, and no part of it names another thing."""
    if len(shared) < _SHARE * len(older.core):
        return ""
    one, other = _residual(older, shared), _residual(newer, shared)
    if max(len(one), len(other)) > _LONGEST_VALUE:
        return ""  # two long sentences about something else
    if not (other or newer.negated or newer.times - older.times):
        return ""  # it has no new value
    if not _same_topic(older, newer, shared, one):
        return ""
    if {word for word in one if word[0] == "~"} and {word for word in other if word[0] == "~"}:
        return ""
    kinds = ({one[word] for word in one} - {"c", "w", "i"}, {other[word] for word in other} - {"c", "w", "i"})
    if {"n", "#"} <= kinds[0] and {"n", "#"} <= kinds[1]:
        return ""  # another thing with another number
    alike = bool(kinds[0] & kinds[1]) or bool(older.times - newer.times and newer.times - older.times)
    alike |= any(f"~{name}" in shared for name in VALUES)
    alike |= older.definite and older.copula and set(older.words[: older.verb]) <= shared
    alike |= "~work" in one and len(one) == 2 and len(other) == 1  # "Bob works in sales", "Bob moved to marketing"
    if len(shared) < 2 and (older.many or older.event or not alike):
        return ""
    return "number" if "#" in kinds[0] & kinds[1] else "value" if one or other else "date"


def _same_topic(older: Statement, newer: Statement, shared: Set[str], only_older: Collection[str]) -> bool:
    """Return whether two statements are about the same thing: the first word of one of them is in the other, and no
    other first word names another thing."""
    if older.group == "ja":
        topics = {words[0] for words in (older.words, newer.words)} & {older.topic, newer.topic}
        return topics <= shared
    firsts = [(word, kind) for word, kind in older.timeless.items() if kind != "c" or word in shared]
    word, kind = firsts[0] if firsts else ("", "")
    other = next((word for word, kind in newer.timeless.items() if kind != "c" or word in shared), "")
    if word in shared and other in shared:
        return True
    if word not in shared and other not in shared:
        return bool(older.subject) and older.subject == newer.subject and "~use" in newer.words
    if older.subject == newer.subject in ("i", "we"):
        return True
    if other in shared:
        return kind == "w" and not older.kin and (newer.subject != "i" or older.subject == "i" or older.own)
    return not only_older or set(only_older) <= {f"~{name}" for name in CLASSES} or older.core <= newer.core


def _residual(statement: Statement, shared: Set[str]) -> dict[str, str]:
    """Return the words of a statement that are not shared, without times and changed properties, and their kinds."""
    return {word: kind for word, kind in statement.timeless.items() if word not in shared and kind != "c"}


def _other_value(older: Statement, newer: Statement) -> Difference:
    """Compare two statements that are equal apart from one value."""
    one, other = older.words, newer.words
    if older.first != newer.first and older.group != "ja":
        return ""
    if one[-1] != other[-1] and one[1:2] != other[1:2] and one[0][0] != "~" and not (older.copula or older.subject):
        return ""  # only the first word is the same
    shorter = min(len(one), len(other))
    first = next((n for n in range(shorter) if one[n] != other[n]), shorter)
    last = next((n for n in range(shorter - first) if one[-1 - n] != other[-1 - n]), shorter - first)
    sizes = len(one) - last - first, len(other) - last - first
    if not (0 < sizes[0] <= _LONGEST_VALUE and 0 < sizes[1] <= _LONGEST_VALUE):
        return ""
    if not _is_same_property(older, newer, first, last):
        return ""
    values = _Value.of(older, first, first + sizes[0]), _Value.of(newer, first, first + sizes[1])
    return _compared(older, newer, *values, last)


def _is_same_property(older: Statement, newer: Statement, first: int, last: int) -> bool:
    """Return whether the words before and after a value name a property that has one value at a time."""
    if older.past or newer.past or older.event or newer.event:
        return False
    if older.subject != newer.subject and older.group != "fi" and not (older.own or newer.own):
        return False
    classed = any(word[0] == "~" for word in older.words[:first] + older.words[len(older.words) - last :])
    pronoun, copula = older.subject in ("i", "we", "you"), older.copula and newer.copula
    if first + last + pronoun + copula + classed < 2:
        return False
    if older.group == "ja":
        topic = any(before.endswith("は") for before in older.before[first + 1 : len(older.words) - last + 1])
        return not topic and (first > 0 or classed or pronoun)
    known = older.verb >= 0 and newer.verb >= 0
    if first < (max(older.verb, newer.verb) if known else 1 if pronoun else 2):
        return False  # the value belongs to the subject ("The office in Turku", "Bus 5")
    return pronoun or not is_kind("a", older.before[0], older.group)


@dataclass(slots=True)
class _Value:
    """The words of a value, their kind, and the function word before it."""

    words: list[str]
    kinds: list[str]
    before: str
    kind: str

    @classmethod
    def of(cls, statement: Statement, start: int, end: int) -> _Value:
        """Return the value in a range of words."""
        words, kinds, before = statement.words[start:end], statement.kinds[start:end], statement.before[start]
        indefinite = is_kind("a", before, statement.group)
        plain = [kind for kind in kinds if kind != "t"]
        kind = "t" if not plain else "#" if plain[0] == "#" else "n" if plain[0] in "ni" else "w"
        return cls(words, kinds, before, "w" if kind == "n" and indefinite and statement.group == "de" else kind)


def _compared(older: Statement, newer: Statement, one: _Value, other: _Value, last: int) -> Difference:
    """Compare two values of one property. `last` is the number of words after them."""
    if one.kind != other.kind:
        return ""
    if one.words == other.words[: len(one.words)] or other.words == one.words[: len(other.words)]:
        return ""  # "Oslo, Norway" does not contradict "Oslo"
    if any(is_kind("states", word, older.group) for word in (*one.words, *other.words)):
        return ""
    if any(f"~{name}" in older.words and f"~{name}" in newer.words for name in VALUES):
        return "value"
    moved = bool(older.changed or newer.changed)
    if one.kind == "#":
        return "number" if {*one.kinds, *other.kinds} <= {"#", "t"} else ""  # and no other unit
    if (older.many or newer.many) and not (moved and one.kind == "t"):
        return ""
    if one.kind == "t":
        return "date" if not last else ""
    if "t" in one.kinds and "t" in other.kinds and not older.changed:
        return ""  # soup on Monday, pasta on Tuesday
    return "value" if _is_same_kind(older, one, other, moved) else ""


def _is_same_kind(older: Statement, one: _Value, other: _Value, moved: bool) -> bool:
    """Return whether two names or words can be values of the same property. `moved` is True if a statement says that
    something is different now."""
    group, work = older.group, "~work" in older.words
    articles = all(is_kind("a", value.before, group) for value in (one, other))
    if one.before != other.before and not (moved or work or articles):
        return False
    if work and is_kind("with", one.before, group):
        return False  # "works with Eva", "works with Ben"
    if one.kind == "n":
        return True
    if older.kinds[0] == "i" and not (older.copula or older.subject) and group in ("en", "de"):
        return False  # "Believe in yourself"
    named = older.definite and older.copula and not older.kin and "n" in one.kinds  # "Mein Auto ist ein Golf"
    single = len(one.words) == len(other.words) == 1
    certain = not is_kind("a", one.before, group) or work or moved or named
    return single and certain and (older.definite or not older.copula)
