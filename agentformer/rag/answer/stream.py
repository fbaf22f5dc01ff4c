"""The output of a model while it arrives: the part that may be shown now, and the complete text at the end."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable

from agentformer.llms.reasoning import ReasoningFilter, strip_reasoning
from agentformer.rag.answer.prompts import NO_ANSWER
from agentformer.types import Reply

_MARKUP = r"[\s*_`\"'“”\[\](){}#>.:!,–—-]*"
_TOKEN = NO_ANSWER.replace("_", r"(?:\\?_| (?=\w+[^\w]*\Z))")  # with a plain space only if nothing else follows
_REFUSAL = re.compile(rf"\A{_MARKUP}{_TOKEN}(?!\w){_MARKUP}")
_SPELLINGS = tuple(NO_ANSWER.replace("_", between) for between in ("_", " ", r"\_"))
_MAX_MARKUP = 16  # characters of markup before the token, at most


class AnswerStream:
    """The output of a model until now. Reasoning is not shown. The beginning of an answer is not shown while it may
    become a refusal."""

    def __init__(self) -> None:
        self.shown = False  # whether anything was shown
        self.reply: Reply | None = None  # set when the model has finished; some models return none
        self._pieces: list[str] = []
        self._filter = ReasoningFilter()
        self._half = ""  # of a character that arrived in two pieces
        self._opening: str | None = ""  # the beginning while it may become a refusal, then None

    @property
    def text(self) -> str:
        """The whole output without reasoning."""
        return visible_text("".join(self._pieces) or (self.reply.text if self.reply else ""))

    def read(self, pieces: Iterable[str]) -> Generator[str, None, None]:
        """Yield the output that may be shown. Closing the generator closes the model's stream."""
        stream = iter(pieces)
        try:
            while True:
                try:
                    piece = next(stream)
                except StopIteration as end:
                    self.reply = end.value
                    break
                if shown := self._add(piece):
                    self.shown = True
                    yield shown
        finally:
            if close := getattr(stream, "close", None):  # a plain iterator has none
                close()

    def rest(self) -> str:
        """Return the remaining output that may be shown at the end."""
        last = self._unless_refusal(self._filter.rest())
        if self._opening and not refuses(self._opening):
            last, self._opening = self._opening, None
        self.shown = self.shown or bool(last)
        return last

    def _add(self, piece: str) -> str:
        self._pieces.append(piece)
        piece, self._half = self._half + piece, ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        return self._unless_refusal(self._filter.feed(_encodable(piece)))

    def _unless_refusal(self, text: str) -> str:
        """Return the text. Return "" if the beginning of the answer is a refusal or may become a refusal."""
        if self._opening is None:
            return text
        self._opening += text
        if refuses(self._opening) or _may_refuse(self._opening):
            return ""
        text, self._opening = self._opening, None
        return text


def visible_text(text: str) -> str:
    """Return a model's text without reasoning and without halves of characters."""
    return strip_reasoning(_encodable(text))


def refuses(text: str) -> bool:
    """Return whether the text begins with `NO_ANSWER`."""
    return _REFUSAL.match(text) is not None


def without_refusal(text: str) -> str:
    """Return the text without `NO_ANSWER` at its beginning."""
    return _REFUSAL.sub("", text)


def _may_refuse(text: str) -> bool:
    core = text.lstrip(" \t\r\n*_`\"'“[({#>")
    return len(text) - len(core) <= _MAX_MARKUP and any(spelling.startswith(core) for spelling in _SPELLINGS)


def _encodable(text: str) -> str:
    """Return the text with surrogate pairs joined and single surrogates removed, because no store can write them."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
