"""`ContextPlan`: chooses core blocks, recalled entries, messages and the task for a context with a limited number of
tokens. At first, the tokens of each item are counted separately. A joined text can have more tokens than the sum of its
items. Therefore the tokens of the result are counted again, and the least important items are dropped until the result
fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from agentformer.errors import InvalidInput
from agentformer.memory.backends import by_time
from agentformer.memory.context.blocks import Context, ContextReport, LeftOut, Turn, memory_text, recalled_block
from agentformer.text.prompt_quoting import strip_template_tokens
from agentformer.types import ChatMessage, MemoryEntry

# Fractions of the tokens that remain after core blocks and the task. The conversation gets at least the rest.
_EPISODIC_SHARE, _SEMANTIC_SHARE, _INSTRUCTIONS_SHARE = 0.2, 0.2, 0.1
_CHARS_PER_TOKEN = 16  # more than the mean number in any text that is written for people
_COUNTED_BUDGETS = 4  # tokens of recalled entries are counted until the texts fill the budget this many times
_MAX_MISSES = 20  # older messages are not tried after this many consecutive messages that do not fit
_PARTS = ("instructions", "episodic", "semantic")
NO_ROOM = "does not fit into the tokens that are left"
_COVERED = "is a summary whose originals are included"


class ContextPlan:
    """Builds one context step by step. `core` are the core blocks, `budget` is the allowed number of tokens, and
    `count` counts tokens. Raises `InvalidInput` if the core blocks alone have more tokens than `budget`."""

    def __init__(
        self, task: str, turns: Sequence[Turn], core: Sequence[MemoryEntry], budget: int, count: Callable[[str], int]
    ) -> None:
        self._budget = budget
        self._counter = count
        self._counted: dict[str, int] = {}  # text -> its tokens
        self._sized: set[str] = set()  # ids of the entries whose tokens were counted
        self._core = list(core)
        self._reasons: dict[str, str] = {}  # label of an item -> the first reason why it is left out
        self._warnings: dict[str, None] = {}
        size = self._size(_memory(self._core, ()))
        if (excess := size - budget) > 0:
            counts = f"is {budget}, but core memory alone has {size} tokens, which is {excess} too many"
            raise InvalidInput("max_tokens", f"{counts}; increase max_tokens, or shorten core blocks")
        self._turns, self._task = _split_task(task, turns)
        self._taken_turns: list[Turn] = []
        self._offered: dict[str, list[MemoryEntry]] = {part: [] for part in _PARTS}
        self._taken: dict[str, list[MemoryEntry]] = {part: [] for part in _PARTS}
        self._spare: list[MemoryEntry] = []  # recent entries that are added last if tokens remain
        self._task_fits = False
        self._countable = _COUNTED_BUDGETS * budget * _CHARS_PER_TOKEN  # code points whose tokens may still be counted

    def may_fit(self, text: str) -> bool:
        """Return False if the text certainly has more tokens than the budget, and True if it may fit. This estimate is
        much faster than counting the tokens."""
        return _may_have(text, self._budget)

    def query(self) -> str:
        """Return the text with which memory is searched: the task, or the user's last message if there is no task.
        Return "" if both are missing."""
        if self._task:
            return self._task.message.content
        return next((turn.text for turn in reversed(self._turns) if turn.is_from_user), "")

    def offer(self, part: str, entries: Iterable[MemoryEntry]) -> None:
        """Set the entries that can be added to a part of the context, best first. `part` is "instructions", "episodic"
        or "semantic". Entries that are already in the conversation or in another part are skipped."""
        self._offered[part] = self._new(entries)

    def offer_spare(self, episodes: Iterable[MemoryEntry]) -> None:
        """Set recent episodic entries that no search has selected. They are added only if tokens remain."""
        self._spare = self._new(episodes)

    def leave_out(self, ids: Iterable[str], reason: str) -> None:
        """Record the reason why these entries are not included. The reason is shown in the report."""
        for entry_id in ids:
            self._reasons.setdefault(entry_id, reason)

    def warn(self, warnings: Iterable[str]) -> None:
        """Record warnings of a search. The warnings are shown in the report."""
        self._warnings.update(dict.fromkeys(warnings))

    def fill(self) -> None:
        """Choose the items of the context: recalled entries up to a share of the tokens, the conversation, and with the
        tokens that it leaves, more recalled entries and then recent ones (`_spare`). `_drop_covered` removes summaries
        whose originals were added. `_shrink` drops the least important items until the joined text fits."""
        self._task_fits = self._task is not None and self._fits([*_memory(self._core, ()), self._task.message])
        quota = max(0, self._left())
        self._take_entries("instructions", int(quota * _INSTRUCTIONS_SHARE))
        self._take_entries("episodic", int(quota * _EPISODIC_SHARE))
        self._take_entries("semantic", int(quota * _SEMANTIC_SHARE))
        self._take_turns()
        self._drop_covered()
        self._take_entries("episodic", self._left() // 2)  # the other half is for semantic entries
        self._take_entries("semantic", self._left())
        self._take_entries("episodic", self._left())  # the tokens that semantic entries do not use
        self._drop_covered()
        self._shrink("semantic", "episodic", "instructions")
        self._offered["episodic"] += self._spare
        self._take_entries("episodic", self._left())
        self._shrink("episodic", "semantic", "instructions")  # first the recent entries, which were added last
        self._drop_covered()  # a recent entry may be an original; then, the joined text is counted again
        self._shrink("semantic", "episodic", "instructions")

    def context(self) -> Context:
        """Return the context: its messages and the report."""
        messages = self._messages()
        task = self._task if self._task_fits else None
        conversation = (*self._taken_turns, task) if task else self._taken_turns
        shown = {"core": tuple(self._core), **{name: tuple(entries) for name, entries in self._taken.items()}}
        report = ContextReport(
            budget=self._budget,
            total=self._size(messages),
            tokens={
                "core": self._size(_memory(self._core, ())),
                "conversation": sum(self._count(turn.message.content) for turn in self._taken_turns),
                **{name: self._entries_cost(entries) for name, entries in self._taken.items()},
                "task": self._count(task.message.content) if task else 0,
            },
            included={
                "conversation": tuple(turn.entry_id for turn in conversation if turn.entry_id),
                **{name: tuple(entry.id for entry in entries) for name, entries in shown.items()},
            },
            left_out=self._left_out(),
            warnings=tuple(self._warnings),
        )
        return Context(tuple(messages), report, has_memory=any(shown.values()), entries=shown)

    def _new(self, entries: Iterable[MemoryEntry]) -> list[MemoryEntry]:
        turns = [turn for turn in (*self._turns, self._task) if turn]
        offered = (entry.id for entries in self._offered.values() for entry in entries)
        ids = {*(turn.entry_id for turn in turns), *offered}
        texts = {_comparable(turn.text) for turn in turns}
        return [entry for entry in entries if entry.id not in ids and _comparable(entry.content) not in texts]

    def _take_turns(self) -> None:
        """Add messages of the conversation, newest first. A message that does not fit completely is skipped."""
        left, misses = self._left(), 0
        for turn in reversed(self._turns):
            countable = misses < _MAX_MISSES and left > 0 and self.may_fit(turn.message.content)
            cost = self._cost(turn.message.content) if countable else left + 1
            if cost <= left:
                self._taken_turns.insert(0, turn)
                left -= cost
                misses = 0
            else:
                misses += 1

    def _take_entries(self, name: str, room: int) -> None:
        """Add offered entries of the part `name`, best first, with at most `room` tokens in total."""
        taken = {entry.id for entry in self._taken[name]}
        frame = 0 if any(self._taken.values()) else self._cost(recalled_block(()))
        for entry in self._offered[name]:
            if entry.id in taken or not _may_have(entry.content, room) or self._is_covered(entry):
                continue
            if entry.id not in self._sized:
                if len(entry.content) > self._countable:
                    continue
                self._sized.add(entry.id)
                self._countable -= len(entry.content)
            cost = self._entries_cost([entry]) + frame
            if cost <= room:
                self._taken[name].append(entry)
                room -= cost
                frame = 0

    def _is_covered(self, entry: MemoryEntry) -> bool:
        """Return whether the entry is a summary that is not needed, because all its originals are in the context."""
        originals = {link.id for link in entry.derived_from if link.type == "derived_from"}
        included = {turn.entry_id for turn in self._taken_turns}
        included |= {episode.id for episode in self._taken["episodic"]}
        return bool(originals) and originals <= included

    def _drop_covered(self) -> None:
        """Remove the summaries whose originals are all in the context."""
        for name, entries in self._taken.items():
            self._taken[name] = [entry for entry in entries if not self._is_covered(entry)]

    def _shrink(self, *parts: str) -> None:
        """Drop items until the messages fit into the budget: first the entries of `parts`, one part after another, next
        the oldest messages, and finally the task."""
        while not self._fits(self._messages()):
            if entries := next((self._taken[name] for name in parts if self._taken[name]), None):
                entries.pop()
            elif self._taken_turns:
                self._taken_turns.pop(0)
            else:
                self._task_fits = False

    def _messages(self) -> list[ChatMessage]:
        episodes = sorted(self._taken["episodic"], key=by_time)
        messages = _memory(self._core, (*self._taken["semantic"], *episodes), self._taken["instructions"])
        messages += [turn.message for turn in self._taken_turns]
        return messages + ([self._task.message] if self._task and self._task_fits else [])

    def _left_out(self) -> tuple[LeftOut, ...]:
        """Record the reason for each offered item that is not in the context, and return all items left out."""
        if self._task and not self._task_fits:
            self.leave_out([self._task.label], self._too_long(self._task.message.content))
        taken = {turn.label for turn in self._taken_turns}
        for turn in self._turns:
            if turn.label not in taken:
                self.leave_out([turn.label], self._too_long(turn.message.content))
        taken |= {entry.id for entries in self._taken.values() for entry in entries}
        for entries in self._offered.values():
            for entry in entries:
                if entry.id not in taken:
                    self.leave_out([entry.id], _COVERED if self._is_covered(entry) else NO_ROOM)
        return tuple(LeftOut(label, reason) for label, reason in self._reasons.items() if label not in taken)

    def _too_long(self, content: str) -> str:
        if not self.may_fit(content):
            return f"does not fit: it has more than {self._budget} tokens"
        tokens = self._counted.get(content)
        return NO_ROOM if tokens is None else f"does not fit: it has {tokens} tokens"

    def _left(self) -> int:
        return self._budget - self._size(self._messages())

    def _fits(self, messages: Sequence[ChatMessage]) -> bool:
        return self._size(messages) <= self._budget

    def _size(self, messages: Sequence[ChatMessage]) -> int:
        """Return an upper estimate of the tokens of the messages. The tokens are counted for each message separately,
        and for all messages as one joined text. The greater number is returned."""
        if not messages:
            return 0
        contents = [message.content for message in messages]
        return max(sum(map(self._count, contents)), self._count("\n".join(contents)))

    def _entries_cost(self, entries: Sequence[MemoryEntry]) -> int:
        empty = recalled_block(())
        return sum(self._cost(recalled_block([entry])) - self._count(empty) for entry in entries)

    def _cost(self, content: str) -> int:
        """Return an upper estimate of the tokens that a text adds to a message. A line break before the text can change
        the count, so the text is counted with and without it."""
        return max(self._count(content), self._count("\n" + content))

    def _count(self, text: str) -> int:
        if text not in self._counted:
            self._counted[text] = self._counter(text)
        return self._counted[text]


def _may_have(text: str, tokens: int) -> bool:
    """Return whether the text may have at most `tokens` tokens. The estimate assumes that no token contains more than
    one word, and that tokens have at most `_CHARS_PER_TOKEN` code points on average."""
    limit = tokens * _CHARS_PER_TOKEN
    return len(text) <= tokens or (len(text) <= limit and len(text.split(None, tokens)) <= tokens)


def _comparable(text: str) -> str:
    return " ".join(strip_template_tokens(text).split())


def _memory(
    core: Sequence[MemoryEntry], recalled: Sequence[MemoryEntry], instructions: Sequence[MemoryEntry] = ()
) -> list[ChatMessage]:
    text = memory_text(core, instructions, recalled)
    return [ChatMessage("user", text)] if text else []


def _split_task(task: str, turns: Sequence[Turn]) -> tuple[list[Turn], Turn | None]:
    """Return the conversation without the task, and the task as a `Turn`, or None if there is no task. If the last
    message of the conversation is a message of the user and equals the task, this message becomes the task."""
    turns = [turn for turn in turns if turn.message.content.strip()]
    if not task.strip():
        return turns, None
    if turns and turns[-1].is_from_user and _comparable(turns[-1].text) == _comparable(task):
        return turns[:-1], turns[-1]
    return turns, Turn(ChatMessage("user", strip_template_tokens(task)), "task")
