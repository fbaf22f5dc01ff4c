"""What a model says, piece by piece, as it may be shown, and as it is judged in the end."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable

from agentformer.llms.reasoning import ReasoningFilter, strip_reasoning
from agentformer.rag.answer.prompts import NO_ANSWER
from agentformer.types import Reply

_AROUND = r"[\s*_`\"'“”\[\](){}#>.:!,–—-]*"
_WORDS = NO_ANSWER.replace("_", r"(?:\\?_| (?=\w+[^\w]*\Z))")  # with a plain space only if nothing else is said
_REFUSAL = re.compile(rf"\A{_AROUND}{_WORDS}(?!\w){_AROUND}")
_SPELLINGS = tuple(NO_ANSWER.replace("_", between) for between in ("_", " ", r"\_"))
_FRAME = 16  # characters of markup before the mark, at most


class AnswerStream:
    """A model's words so far. Nothing is shown of thoughts, nor of an answer that may be our mark for none."""

    def __init__(self) -> None:
        self.shown = False  # has anything been?
        self.reply: Reply | None = None  # once the model has finished; None also of models that return none
        self._said: list[str] = []
        self._filter = ReasoningFilter()
        self._half = ""  # of a character that came in two pieces
        self._held: str | None = ""  # the beginning, until it is known to be no refusal; then None

    @property
    def text(self) -> str:
        """All that was said but thoughts."""
        said = "".join(self._said) or (self.reply.text if self.reply else "")
        return visible_text(said)

    def listen(self, pieces: Iterable[str]) -> Generator[str, None, None]:
        """What may be shown, as it comes. Closing it closes the model's stream."""
        stream = iter(pieces)
        try:
            while True:
                try:
                    piece = next(stream)
                except StopIteration as end:
                    self.reply = end.value
                    break
                if shown := self._hear(piece):
                    self.shown = True
                    yield shown
        finally:
            if close := getattr(stream, "close", None):  # a plain iterator has none
                close()

    def rest(self) -> str:
        """What was held back and may be shown now that nothing follows."""
        last = self._opening(self._filter.rest())
        if self._held and not refuses(self._held):
            last, self._held = self._held, None
        self.shown = self.shown or bool(last)
        return last

    def _hear(self, piece: str) -> str:
        self._said.append(piece)
        piece, self._half = self._half + piece, ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        return self._opening(self._filter.feed(_encodable(piece)))

    def _opening(self, text: str) -> str:
        """The text, unless the answer's beginning is or may become a refusal."""
        if self._held is None:
            return text
        self._held += text
        if refuses(self._held) or _undecided(self._held):
            return ""
        text, self._held = self._held, None
        return text


def visible_text(text: str) -> str:
    """A model's text without thoughts, and without halves of characters."""
    return strip_reasoning(_encodable(text))


def refuses(text: str) -> bool:
    """Does the text begin with the mark for no answer?"""
    return _REFUSAL.match(text) is not None


def without_refusal(text: str) -> str:
    """What a model says beside the mark for no answer."""
    return _REFUSAL.sub("", text)


def _undecided(text: str) -> bool:
    core = text.lstrip(" \t\r\n*_`\"'“[({#>")
    return len(text) - len(core) <= _FRAME and any(spelling.startswith(core) for spelling in _SPELLINGS)


def _encodable(text: str) -> str:
    """The text with split characters joined, and without those that stay halves: no store can write them."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
