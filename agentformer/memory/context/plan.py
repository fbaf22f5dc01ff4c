"""What goes into a context: shares of a token budget, filled in order, counted as a whole, and told.

Items are costed one by one while the shares are filled. Tokens of joined texts need not add up, so what is sent is
counted again at the end, and the least is dropped until it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentformer.errors import InvalidInput
from agentformer.memory.context.conversation import Said
from agentformer.memory.prompt_markers import core_block, recalled_block
from agentformer.records.codec import happened_at
from agentformer.text.prompt_quoting import strip_template_tokens
from agentformer.types import ChatMessage, MemoryEntry

_MISSES = 20  # messages in a row that do not fit, after which no older one is tried
_NO_ROOM = "no room is left"
_COVERED = "what it summarises is here itself"


class Shares(NamedTuple):
    """Of the budget that core and task leave, together at most 1."""

    conversation: float = 0.6  # at least; it takes whatever the others do not
    episodic: float = 0.2
    semantic: float = 0.2


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is not in the context: an entry's id, `task`, or `conversation[n]` for a message that is no entry."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ContextReport:
    """What was sent. `tokens` counts each share for itself; `total` is all messages with their wrapping, as sent."""

    budget: int
    total: int
    tokens: Mapping[str, int]  # by share, and `task`
    included: Mapping[str, tuple[str, ...]]  # ids of entries by share
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...] = ()  # what a search could not do


@dataclass(frozen=True, slots=True)
class Context:
    """Messages for a language model: one with core and recalled memory, where there is any (`has_memory`), then the
    conversation. None of them is of the system but those that the caller gave as such: memory holds what documents,
    tools and other people said, and core blocks what a model wrote, so all of it is data, in the user's role."""

    messages: tuple[ChatMessage, ...]
    report: ContextReport
    has_memory: bool = False


@dataclass(slots=True)
class _Recalled:
    """A share of recalled entries: offered, best first, and taken. `last` is offered once nothing else wants room."""

    offered: list[MemoryEntry] = field(default_factory=list)
    last: list[MemoryEntry] = field(default_factory=list)
    taken: list[MemoryEntry] = field(default_factory=list)


class Plan:
    """One context in the making: entries are offered to it, then it is filled, then it tells what it holds.

    Raises `InvalidInput` when core alone is over the budget.
    """

    def __init__(
        self, task: str, said: Sequence[Said], core: Sequence[MemoryEntry], budget: int, count: Callable[[str], int]
    ) -> None:
        self._budget = budget
        self._counter = count
        self._counted: dict[str, int] = {}
        self._core = list(core)
        self._reasons: dict[str, str] = {}
        self._check_core()
        self._said, self._task = _with_task(task, said)
        self._offered_said = list(reversed(self._said))
        self._taken_said: list[Said] = []
        self._shares = {"episodic": _Recalled(), "semantic": _Recalled()}
        self._task_fits = False
        self._warnings: dict[str, None] = {}

    def query(self) -> str:
        """What memory is asked for: the task, or what the user said last."""
        if self._task:
            return self._task.message.content
        return next((one.text for one in self._offered_said if _is_users(one)), "")

    def offer(self, share: str, entries: Iterable[MemoryEntry]) -> None:
        """Entries for a share, best first; what is in the conversation or offered already is passed over."""
        self._shares[share].offered = self._new(entries)

    def offer_last(self, episodes: Iterable[MemoryEntry]) -> None:
        """Episodes that nobody judged: they get the room that is left when all else is in."""
        self._shares["episodic"].last = self._new(episodes)

    def _new(self, entries: Iterable[MemoryEntry]) -> list[MemoryEntry]:
        here = [one for one in (*self._said, self._task) if one]
        ids = {one.entry_id for one in here} | {entry.id for each in self._shares.values() for entry in each.offered}
        texts = {_plain(one.text) for one in here}
        return [entry for entry in entries if entry.id not in ids and _plain(entry.content) not in texts]

    def leave_out(self, ids: Iterable[str], reason: str) -> None:
        for each in ids:
            self._reasons.setdefault(each, reason)

    def warn(self, warnings: Iterable[str]) -> None:
        self._warnings.update(dict.fromkeys(warnings))

    def fill(self, shares: Shares) -> None:
        """Recalled memory up to its shares, the conversation with all that is left, then what still fits; what is
        merely recent comes last of all."""
        self._take_task()
        quota = max(0, self._left())
        self._take_entries("episodic", int(quota * shares.episodic))
        self._take_entries("semantic", int(quota * shares.semantic))
        self._take_messages()
        self._drop_covered()
        self._take_entries("episodic", self._left() // 2)
        self._take_entries("semantic", self._left())
        self._take_entries("episodic", self._left())
        self._drop_covered()
        self._shrink()
        self._take_last()

    def context(self) -> Context:
        messages = self._messages()
        taken = {name: share.taken for name, share in self._shares.items()}
        tokens = {name: self._entries_cost(entries) for name, entries in taken.items()}
        said = [one.entry_id for one in self._taken_said if one.entry_id]
        task = self._task if self._task_fits else None
        report = ContextReport(
            budget=self._budget,
            total=self._size(messages),
            tokens={
                "core": self._size(_memory(self._core, ())),
                "conversation": sum(self._count(one.message.content) for one in self._taken_said),
                **tokens,
                "task": self._count(task.message.content) if task else 0,
            },
            included={
                "core": tuple(block.id for block in self._core),
                "conversation": (*said, task.entry_id) if task and task.entry_id else tuple(said),
                **{name: tuple(entry.id for entry in entries) for name, entries in taken.items()},
            },
            left_out=self._left_out(),
            warnings=tuple(self._warnings),
        )
        return Context(tuple(messages), report, has_memory=bool(self._core or any(taken.values())))

    def _check_core(self) -> None:
        size = self._size(_memory(self._core, ()))
        if size > self._budget:
            raise InvalidInput(
                "max_tokens",
                f"is {self._budget}, and core memory alone has {size}: {size - self._budget} too many; "
                "raise it, or shorten core blocks",
            )

    def _take_task(self) -> None:
        self._task_fits = self._task is not None and self._fits([*_memory(self._core, ()), self._task.message])

    def _take_messages(self) -> None:
        """Newest first, each whole or not at all."""
        left, misses = self._left(), 0
        for one in self._offered_said:
            cost = self._cost(one.message.content) if misses < _MISSES and left > 0 else left + 1
            if cost <= left:
                self._taken_said.insert(0, one)
                left -= cost
                misses = 0
            else:
                misses += 1

    def _take_entries(self, name: str, room: int) -> None:
        """What fits into `room`, best first, beside what is taken already."""
        share = self._shares[name]
        taken = {entry.id for entry in share.taken}
        frame = 0 if any(each.taken for each in self._shares.values()) else self._cost(recalled_block(()))
        for entry in share.offered:
            if entry.id in taken or self._is_covered(entry):
                continue
            cost = self._entries_cost([entry]) + frame
            if cost <= room:
                share.taken.append(entry)
                room -= cost
                frame = 0

    def _take_last(self) -> None:
        episodic = self._shares["episodic"]
        episodic.offered = [*episodic.offered, *episodic.last]
        self._take_entries("episodic", self._left())
        self._shrink("episodic", "semantic")
        self._drop_covered()
        self._shrink()

    def _is_covered(self, entry: MemoryEntry) -> bool:
        """Is all that this summary stands for in the context itself?"""
        originals = {link.id for link in entry.derived_from if link.type == "derived_from"}
        here = {one.entry_id for one in self._taken_said} | {each.id for each in self._shares["episodic"].taken}
        return bool(originals) and originals <= here

    def _drop_covered(self) -> None:
        for share in self._shares.values():
            share.taken = [entry for entry in share.taken if not self._is_covered(entry)]

    def _shrink(self, *shares: str) -> None:
        """Drop the least until what is sent is within the budget; tokens of joined texts need not add up."""
        while not self._fits(self._messages()):
            for share in shares or ("semantic", "episodic"):
                if self._shares[share].taken:
                    self._shares[share].taken.pop()
                    break
            else:
                if self._taken_said:
                    self._taken_said.pop(0)
                else:
                    self._task_fits = False

    def _messages(self) -> list[ChatMessage]:
        episodes = sorted(self._shares["episodic"].taken, key=lambda entry: (happened_at(entry), entry.id))
        messages = _memory(self._core, (*self._shares["semantic"].taken, *episodes))
        messages += [one.message for one in self._taken_said]
        return messages + ([self._task.message] if self._task and self._task_fits else [])

    def _left_out(self) -> tuple[LeftOut, ...]:
        if self._task and not self._task_fits:
            self.leave_out([self._task.label], self._why(self._task.message.content))
        said = {one.label for one in self._taken_said}
        for one in self._said:
            if one.label not in said:
                self.leave_out([one.label], self._why(one.message.content))
        taken = {entry.id for share in self._shares.values() for entry in share.taken}
        for share in self._shares.values():
            for entry in share.offered:
                if entry.id not in taken:
                    self.leave_out([entry.id], _COVERED if self._is_covered(entry) else _NO_ROOM)
        here = taken | said
        return tuple(LeftOut(each, reason) for each, reason in self._reasons.items() if each not in here)

    def _why(self, content: str) -> str:
        known = self._counted.get(content)
        return _NO_ROOM if known is None else f"does not fit: it has {known} tokens"

    def _left(self) -> int:
        return self._budget - self._size(self._messages())

    def _fits(self, messages: Sequence[ChatMessage]) -> bool:
        return self._size(messages) <= self._budget

    def _size(self, messages: Sequence[ChatMessage]) -> int:
        """Tokens of the messages as they are sent: each for itself or all joined, whichever counts more."""
        if not messages:
            return 0
        return max(
            sum(self._count(message.content) for message in messages),
            self._count("\n".join(message.content for message in messages)),
        )

    def _entries_cost(self, entries: Sequence[MemoryEntry]) -> int:
        """What entries add to a recalled block."""
        empty = recalled_block(())
        return sum(self._cost(recalled_block([entry])) - self._count(empty) for entry in entries)

    def _cost(self, content: str) -> int:
        """What a text adds at most to what is there, by a usual tokenizer: itself and the line break before it."""
        return max(self._count(content), self._count("\n" + content))

    def _count(self, text: str) -> int:
        if text not in self._counted:
            self._counted[text] = self._counter(text)
        return self._counted[text]


def _plain(text: str) -> str:
    """For comparing what a caller says, or memory holds, with what a message shows of it."""
    return " ".join(strip_template_tokens(text).split())


def _is_users(one: Said) -> bool:
    return one.message.role == "user" and one.given is None


def _memory(core: Sequence[MemoryEntry], recalled: Sequence[MemoryEntry]) -> list[ChatMessage]:
    """The one message of memory, where there is any."""
    parts = ([core_block(core)] if core else []) + ([recalled_block(recalled)] if recalled else [])
    return [ChatMessage("user", "\n".join(parts))] if parts else []


def _with_task(task: str, said: Sequence[Said]) -> tuple[list[Said], Said | None]:
    """The conversation without the task, and the task: what the user said last may be the task already."""
    spoken = [one for one in said if one.message.content.strip()]
    if not task.strip():
        return spoken, None
    if spoken and _is_users(spoken[-1]) and _plain(spoken[-1].text) == _plain(task):
        return spoken[:-1], spoken[-1]
    return spoken, Said(ChatMessage("user", strip_template_tokens(task)), "task")
