"""Marks that a model copied with the words of a passage: they are the passage's own, and cite nothing of ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from agentformer.rag.answer.prompts import CITING
from agentformer.text.prompt_quoting import strip_hidden
from agentformer.types import Hit

_MARK = re.compile(CITING, re.IGNORECASE)
_SAME = 8  # letters and digits beside a mark that a copy has in common with what was copied
_MORE = 24  # of those, that the passage which is pointed to must hold to be meant
_REACH = 200  # characters in which they are looked for
_WIDEST = 20  # passages of one range


class Borrowed:
    """Which marks of a text stand in a passage too, at the same words, and point to another one that lacks them."""

    def __init__(self, text: str, hits: Sequence[Hit]) -> None:
        self._text = text
        self._hits = hits
        self._found: set[int] = set()

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of the marks that were found."""
        return tuple(sorted(self._found))

    def has(self, number: int, start: int, end: int) -> bool:
        """Is the mark in `[start, end)` such a one?"""
        if not self._sides:
            return False
        before, after = _beside(self._text, start, end)
        for side in (("before", before), ("after", after)):
            if len(side[1]) >= _SAME and self._is_copy(number, *side):
                self._found.add(number)
                return True
        return False

    def _is_copy(self, number: int, side: str, letters: str) -> bool:
        holders = self._sides.get((number, side, _nearest(side, letters)), set())
        return bool(holders - {number}) and letters not in self._plain[number - 1]

    @cached_property
    def _plain(self) -> list[str]:
        return [_letters(hit.entry.content) for hit in self._hits]

    @cached_property
    def _sides(self) -> dict[tuple[int, str, str], set[int]]:
        """What stands beside each mark of the passages -> the passages that have it."""
        found: dict[tuple[int, str, str], set[int]] = {}
        for holder, hit in enumerate(self._hits, 1):
            content = strip_hidden(hit.entry.content)
            for mark in _MARK.finditer(content):
                before, after = _beside(content, mark.start(), mark.end())
                for number in numbers_of(mark["numbers"]):
                    for side in (("before", before), ("after", after)):
                        found.setdefault((number, side[0], _nearest(*side)), set()).add(holder)
        return found


def _beside(text: str, start: int, end: int) -> tuple[str, str]:
    """What stands before and after a mark, without spaces, signs and other marks."""
    before, after = _letters(text[max(0, start - _REACH) : start]), _letters(text[end : end + _REACH])
    return before[-_MORE:], after[:_MORE]


def _nearest(side: str, letters: str) -> str:
    return letters[-_SAME:] if side == "before" else letters[:_SAME]


def numbers_of(mark: str) -> list[int]:
    """The numbers of one mark in order; a range counts as all of it."""
    numbers: list[int] = []
    for part in re.split(r"[,;、，]", mark):
        first, _, last = part.replace("^", "").replace("–", "-").partition("-")
        low, high = int(first), int(last or first)
        numbers += range(low, high + 1) if low <= high < low + _WIDEST else (low, high)
    return list(dict.fromkeys(numbers))


def _letters(text: str) -> str:
    """Letters and digits alone, without marks: as little as a copy may change."""
    return "".join(ch for ch in _MARK.sub("", text).casefold() if ch.isalnum())
