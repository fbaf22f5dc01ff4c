"""Profiles: what holds now about a person, in groups, each statement with its source and its time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Annotated

from agentformer.index.entry_properties import entry_language
from agentformer.memory.contradictions import FactContradictions
from agentformer.memory.instructions import INSTRUCTION
from agentformer.records.duplicates import comparable
from agentformer.search.newest_facts import moment, owner
from agentformer.text.facts.sentence_forms import language_group, statements
from agentformer.types import RESERVED_KINDS, MemoryBackend, MemoryEntry, Scope, Shown

# The properties that a statement may be about, in the order of the groups, each with the name of its group.
_GROUPS = {"home": "home", "work": "work", "use": "tools", "marital": "marital status", "diet": "diet"}
_CORE, _INSTRUCTIONS, _PEOPLE, _OTHER = "core", "instructions", "people", "other"
GROUPS = (_CORE, _INSTRUCTIONS, *_GROUPS.values(), _PEOPLE, _OTHER)
_MOST = 2_000  # newest statements that are read; they are compared with each other
_PREFERENCES = (INSTRUCTION, "preference")


@dataclass(frozen=True, slots=True)
class ProfileItem:
    """A statement of a profile. `source` is None if a caller has stored it."""

    id: str
    text: str
    kind: str
    speaker: str
    at: Annotated[datetime | None, Shown("The time from which the statement holds, as far as known.")]
    source: Annotated[str | None, Shown("The id of the entry from which it was learnt, such as a message.")]

    @property
    def line(self) -> str:
        """The text, after the name of the speaker if a message has one: in it, "I" is the speaker."""
        return f"{self.speaker}: {self.text}" if self.speaker else self.text


@dataclass(frozen=True, slots=True)
class ProfileGroup:
    """The statements of a profile about one topic, newest first. `name` is one of `GROUPS`."""

    name: Annotated[str, Shown(f"{', '.join(f'`{name}`' for name in GROUPS[:-1])} or `{GROUPS[-1]}`.")]
    items: tuple[ProfileItem, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """What holds now about a user. Statements that a newer one replaces are not counted."""

    user_id: str
    namespace: str
    groups: tuple[ProfileGroup, ...]
    tokens: Annotated[int, Shown("The number of tokens of all texts.")]
    left_out: Annotated[int, Shown("The number of statements for which the limit of tokens had no room.")]

    @property
    def text(self) -> str:
        """The profile as lines of text, for people and for the prompt of a model."""
        lines = ([f"{group.name}:", *(f"- {item.line}" for item in group.items)] for group in self.groups)
        return "\n".join(chain.from_iterable(lines))


def build_profile(
    backend: MemoryBackend,
    count_tokens: Callable[[str], int],
    blocks: Sequence[MemoryEntry],
    *,
    scope: Scope,
    max_tokens: int,
) -> Profile:
    """Return the profile of the user of `scope` in at most `max_tokens` tokens. The newest 2,000 statements are read.
    `blocks` are core blocks that the user may have. Core blocks are taken first, then instructions and preferences,
    then facts, the newest first. The result depends only on the stored entries."""
    user = scope.user_id or ""
    stated = backend.latest(scope, limit=_MOST)
    former = _former(stated)
    current = [entry for entry in stated if entry.kind not in RESERVED_KINDS and entry.id not in former]
    newest = sorted(current, key=moment, reverse=True)
    instructions = [entry for entry in newest if entry.kind in _PREFERENCES]
    facts = [entry for entry in newest if entry.kind not in _PREFERENCES]
    grouped: defaultdict[str, list[MemoryEntry]] = defaultdict(list)
    tokens, left_out = 0, 0
    own = (block for block in blocks if block.user_id == user)
    for entry in _distinct([*own, *instructions, *facts]):
        size = count_tokens(_item(entry).line)
        if tokens + size > max_tokens:
            left_out += 1
            continue
        tokens += size
        grouped[_group_of(entry)].append(entry)
    groups = tuple(ProfileGroup(name, tuple(map(_item, grouped[name]))) for name in GROUPS if name in grouped)
    return Profile(user, scope.namespace, groups, tokens, left_out)


def _former(entries: Iterable[MemoryEntry]) -> set[str]:
    """Return the ids of the facts that a newer one replaces, and of older facts with the same text and owner."""
    facts, texts = FactContradictions(), defaultdict[tuple[object, str], list[MemoryEntry]](list)
    known = {entry.id: entry for entry in entries}
    for entry in known.values():
        facts.add(entry)
        texts[owner(entry), entry.content].append(entry)
    former = set[str]()
    for entry in map(known.__getitem__, facts.replaced()):
        equal = texts[owner(entry), entry.content]
        former |= {other.id for other in equal if moment(other) <= moment(entry)}
    return former


def _distinct(entries: Iterable[MemoryEntry]) -> Iterator[MemoryEntry]:
    """Yield the first entry of each speaker with each text."""
    first: dict[tuple[str, str], MemoryEntry] = {}
    for entry in entries:
        first.setdefault((entry.speaker, comparable(entry.content)), entry)
    yield from first.values()


def _group_of(entry: MemoryEntry) -> str:
    if entry.tier == "core":
        return _CORE
    if entry.kind in _PREFERENCES:
        return _INSTRUCTIONS
    language = language_group(entry.content, entry_language(entry))
    for statement in statements(entry.content, language, labels=True):
        properties = [name for name in _GROUPS if f"~{name}" in statement.words]
        if properties or statement.kin:
            return _GROUPS[properties[0]] if properties else _PEOPLE
    return _OTHER


def _item(entry: MemoryEntry) -> ProfileItem:
    since = entry.valid_from or entry.occurred_at or entry.created_at
    return ProfileItem(entry.id, entry.content, entry.kind, entry.speaker, since, entry.parent_id)
