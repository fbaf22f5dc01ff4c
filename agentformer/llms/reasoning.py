"""Removes the reasoning of a language model from its reply. The reasoning is the text that a model writes while it
prepares an answer.

The reasoning is recognized by the marks around it: `<think>`, `<thinking>`, `<reasoning>`, `[THINK]` (Mistral) and the
channels of gpt-oss. Most servers already return the reasoning separately from the reply, but some servers and some chat
templates do not.
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
    """Return the text without the reasoning, and without spaces at its start and end."""
    reasoning = ReasoningFilter()
    return (reasoning.feed(text) + reasoning.rest()).strip()


class ReasoningFilter:
    """Removes the reasoning from a text that arrives in pieces. A piece may end at any character, also in the middle of
    a mark.

    If an opening mark has no closing mark, there are two cases. At the start of a line, the mark begins reasoning,
    which extends to the end of the text. At another position, the mark is only mentioned, so the mark and the text
    after it are kept. If a closing mark has no opening mark, the text before it is reasoning too, because some chat
    templates leave out the opening mark. A text that `feed` has already returned cannot be removed later.
    """

    def __init__(self) -> None:
        self._pending = ""  # text that is not classified yet
        self._opened_by = ""  # the opening mark at the start of `_pending`
        self._searched = 0  # characters of open reasoning that contain no closing mark
        self._started = False  # True after text was returned
        self._at_line_start = True

    def feed(self, piece: str) -> str:
        """Add the next piece. Return the text that is certainly not reasoning and that was not returned before, or ""
        if there is no such text yet."""
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
        """Return the text that is left after the last piece."""
        pending, self._pending = self._pending, ""
        if self._opened_by and (self._at_line_start or self._opened_by.startswith("<|")):
            return ""
        return self._trim(pending)

    def _close(self) -> bool:
        """Remove the reasoning and its marks if the closing mark has arrived. Return whether this mark has arrived."""
        end = _ENDS[self._opened_by]
        at = self._pending.find(end, max(len(self._opened_by), self._searched - len(end)))
        if at == -1:
            self._searched = len(self._pending)
            return False
        self._pending, self._opened_by = self._pending[at + len(end) :], ""
        return True

    def _pass(self, text: str) -> str:
        line = text.rpartition("\n")
        self._at_line_start = (bool(line[1]) or self._at_line_start) and not line[2].strip()
        return text

    def _trim(self, text: str) -> str:
        """Remove the spaces before the first word of the reply. After this word, spaces are kept."""
        if not self._started:
            text = text.lstrip()
            self._started = bool(text)
        return text


def _partial_mark(text: str) -> int:
    """Return the number of characters at the end of `text` that may begin a mark, or 0."""
    return next(
        (n for n in range(min(_LONGEST - 1, len(text)), 0, -1) if any(mark.startswith(text[-n:]) for mark in _MARKS)), 0
    )
