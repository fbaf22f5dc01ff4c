"""What the model has been told in a turn, within a bound: results of tools are cut, and older ones make room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from agentformer.agent.briefing import alternating
from agentformer.agent.prompts import tool_result
from agentformer.types import ChatMessage, ToolCall

_BEGINNING = 200  # characters of a result that stay when it makes room
_CUT = " [cut here: {more} more characters did not fit. Ask for less, or for the rest]"


class Conversation:
    """Our rules, and the messages of a turn. Together, results of tools have at most `most` tokens by `count`, give or
    take the note on what was cut; one has at most half of that."""

    def __init__(self, rules: str, messages: Sequence[ChatMessage], count: Callable[[str], int], most: int) -> None:
        self.messages = [ChatMessage("system", rules), *messages]
        self._count = count
        self._most = most
        self._briefed = len(self.messages)

    def ask(self, text: str) -> None:
        """Tell the model something of ours, in the user's role."""
        own = ChatMessage("user", text)
        last = self.messages[-1]
        if last.role == "user":
            self.messages[-1:] = alternating([last, own])
        else:
            self.messages.append(own)

    def add(self, said: str, calls: Sequence[ToolCall], results: Sequence[tuple[str, bool]]) -> None:
        """A reply that calls tools, and for each call what it gave and whether it failed."""
        self.messages.append(ChatMessage("assistant", said, tuple(calls)))
        most = self._share([self._count(text) for text, _ in results])
        for call, (text, failed) in zip(calls, results, strict=True):
            framed = tool_result(call.name, self._cut(text, most), failed=failed)
            self.messages.append(ChatMessage("tool", framed, tool_call_id=call.id))
        self._make_room(self._most, len(self.messages) - len(calls))

    def shrink(self, messages: Sequence[ChatMessage]) -> None:
        """Begin with `messages` after the rules, and keep of the results what half a result may have."""
        self.messages[1 : self._briefed] = messages
        self._briefed = 1 + len(messages)
        self._most //= 4
        self._make_room(self._most, len(self.messages))

    def _make_room(self, most: int, until: int) -> None:
        """Cut results, the oldest first, but none from the message number `until` on."""
        left = sum(self._count(message.content) for message in self._results()) - most
        for at, message in enumerate(self.messages[:until]):
            if left <= 0:
                return
            if message.role == "tool":
                shorter = replace(message, content=_beginning(message.content))
                left -= self._count(message.content) - self._count(shorter.content)
                self.messages[at] = shorter

    def _share(self, sizes: Sequence[int]) -> int:
        """What one result of a reply may have, so that all have room: what short ones leave is for the long ones."""
        even = self._most // len(sizes)
        long = sum(size > even for size in sizes)
        left = self._most - sum(size for size in sizes if size <= even)
        return min(self._most // 2, left // long) if long else self._most // 2

    def _results(self) -> list[ChatMessage]:
        return [message for message in self.messages if message.role == "tool"]

    def _cut(self, text: str, most: int) -> str:
        """The text, or as much of it as has about `most` tokens."""
        tokens = self._count(text)
        if tokens <= most:
            return text
        kept = text[: len(text) * most // tokens]
        while kept and self._count(kept) > most:
            kept = kept[: len(kept) * 9 // 10]
        return kept + _CUT.format(more=len(text) - len(kept))


def _beginning(framed: str) -> str:
    """A framed result, cut to its beginning within its frame."""
    opening, _, rest = framed.partition("\n")
    inside, _, closing = rest.rpartition("\n")
    if len(inside) <= _BEGINNING + len(_CUT):
        return framed
    return f"{opening}\n{inside[:_BEGINNING]}{_CUT.format(more=len(inside) - _BEGINNING)}\n{closing}"
