"""The thoughts of models that think aloud, taken out of what they say.

Known are `<think>`, `<thinking>` and `<reasoning>`, `[THINK]` (Mistral) and the channels of gpt-oss. Servers mostly
part them from the text; those that do not, and templates that forget, are why this is here.
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
    """The text without thoughts, trimmed. Empty when there is nothing else."""
    listener = ReasoningFilter()
    return (listener.feed(text) + listener.rest()).strip()


class ReasoningFilter:
    """Takes thoughts out of a text that comes in pieces, wherever it is cut.

    A thought that is never closed goes on to the end, if it begins a line; else its opening was only spoken of, and
    all is text. What stands before a closing without an opening was a thought too: templates that open it themselves
    leave the opening out. Of that, what earlier pieces let through cannot be taken back.
    """

    def __init__(self) -> None:
        self._held = ""  # of which it is not known yet what it is
        self._open = ""  # how the thought that `_held` begins with was opened
        self._searched = 0  # characters of an open thought that hold no end
        self._begun = False  # has any text been let through?
        self._at_line_start = True

    def feed(self, piece: str) -> str:
        """What may be shown now; "" while nothing may."""
        self._held += piece
        shown: list[str] = []
        while self._held:
            if self._open:
                if not self._closed():
                    break
                continue
            mark = _MARK.search(self._held)
            if mark is None:
                safe = len(self._held) - _unfinished(self._held)
                shown.append(self._let(self._held[:safe]))
                self._held = self._held[safe:]
                break
            shown.append(self._let(self._held[: mark.start()]))
            if mark.group() in _ENDS:
                self._held = self._held[mark.start() :]
                self._open, self._searched = mark.group(), mark.end() - mark.start()
                continue
            if mark.group() in _CLOSERS:
                shown.clear()
            self._held = self._held[mark.end() :]
        return self._trimmed("".join(shown))

    def rest(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        if self._open and (self._at_line_start or self._open.startswith("<|")):
            return ""
        return self._trimmed(held)

    def _closed(self) -> bool:
        """Take the open thought away, if its end has come."""
        end = _ENDS[self._open]
        found = self._held.find(end, max(len(self._open), self._searched - len(end)))
        if found < 0:
            self._searched = len(self._held)
            return False
        self._held, self._open = self._held[found + len(end) :], ""
        return True

    def _let(self, text: str) -> str:
        line = text.rpartition("\n")
        self._at_line_start = (bool(line[1]) or self._at_line_start) and not line[2].strip()
        return text

    def _trimmed(self, text: str) -> str:
        """Without the space that a thought leaves before the first word."""
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return text


def _unfinished(text: str) -> int:
    """How many characters at the end may be the beginning of a mark."""
    return next(
        (n for n in range(min(_LONGEST - 1, len(text)), 0, -1) if any(mark.startswith(text[-n:]) for mark in _MARKS)), 0
    )
