"""Removes the reasoning of models from their text.

Known marks are `<think>`, `<thinking>` and `<reasoning>`, `[THINK]` (Mistral) and the channels of gpt-oss. Most servers
separate the reasoning from the reply, but some servers and templates do not.
"""

from __future__ import annotations

import re

_ENDS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<reasoning>": "</reasoning>",
    "[THINK]": "[/THINK]",
    "<|channel|>analysis": "<|end|>",
    "<|channel|>commentary": "<|end|>",
}
_CLOSERS = frozenset(_ENDS.values()) - {"<|end|>"}
_FRAMES = ("<|channel|>final<|message|>", "<|start|>assistant", "<|end|>", "<|return|>")
_MARKS = (*_ENDS, *sorted(_CLOSERS), *_FRAMES)
_MARK = re.compile("|".join(re.escape(mark) for mark in sorted(_MARKS, key=len, reverse=True)))
_LONGEST = max(map(len, _MARKS))


def strip_reasoning(text: str) -> str:
    """Return the text without reasoning and without spaces at both ends."""
    reasoning = ReasoningFilter()
    return (reasoning.feed(text) + reasoning.rest()).strip()


class ReasoningFilter:
    """Removes reasoning from a text that arrives in pieces. A piece may end anywhere, also inside a mark.

    If reasoning is never closed, it extends to the end of the text if its mark begins a line; otherwise the mark is
    only mentioned, and everything is text. The text before a closing mark without an opening mark is reasoning too,
    because some templates leave out the opening mark. Text that `feed` has already returned cannot be removed.
    """

    def __init__(self) -> None:
        self._pending = ""  # text that is not classified yet
        self._opened_by = ""  # the opening mark at the start of `_pending`
        self._searched = 0  # characters of open reasoning that contain no closing mark
        self._started = False  # True after text was returned
        self._at_line_start = True

    def feed(self, piece: str) -> str:
        """Add a piece and return the text that is known not to be reasoning. Return "" if there is no such text yet."""
        self._pending += piece
        texts: list[str] = []
        while self._pending:
            if self._opened_by:
                if not self._close():
                    break
                continue
            mark = _MARK.search(self._pending)
            if mark is None:
                safe = len(self._pending) - _partial_mark(self._pending)
                texts.append(self._pass(self._pending[:safe]))
                self._pending = self._pending[safe:]
                break
            texts.append(self._pass(self._pending[: mark.start()]))
            if mark.group() in _ENDS:
                self._pending = self._pending[mark.start() :]
                self._opened_by, self._searched = mark.group(), mark.end() - mark.start()
                continue
            if mark.group() in _CLOSERS:
                texts.clear()
            self._pending = self._pending[mark.end() :]
        return self._trim("".join(texts))

    def rest(self) -> str:
        """Return the remaining text after the last piece."""
        pending, self._pending = self._pending, ""
        if self._opened_by and (self._at_line_start or self._opened_by.startswith("<|")):
            return ""
        return self._trim(pending)

    def _close(self) -> bool:
        """Remove the open reasoning if its closing mark has arrived."""
        end = _ENDS[self._opened_by]
        at = self._pending.find(end, max(len(self._opened_by), self._searched - len(end)))
        if at < 0:
            self._searched = len(self._pending)
            return False
        self._pending, self._opened_by = self._pending[at + len(end) :], ""
        return True

    def _pass(self, text: str) -> str:
        line = text.rpartition("\n")
        self._at_line_start = (bool(line[1]) or self._at_line_start) and not line[2].strip()
        return text

    def _trim(self, text: str) -> str:
        """Remove the spaces between the reasoning and the first word."""
        if not self._started:
            text = text.lstrip()
            self._started = bool(text)
        return text


def _partial_mark(text: str) -> int:
    """Return the number of characters at the end of the text that may begin a mark."""
    return next(
        (n for n in range(min(_LONGEST - 1, len(text)), 0, -1) if any(mark.startswith(text[-n:]) for mark in _MARKS)), 0
    )
