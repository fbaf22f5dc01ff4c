"""Text gathered block by block under headings, for formats that have structure but no pages."""

from __future__ import annotations

from collections.abc import Iterator

from agentformer.readers.sections import page_of, parts_of
from agentformer.text.normalize import clean
from agentformer.types import Heading, Page

PATH_SEPARATOR = " > "
MIN_SECTION = 1_500  # small sections share a page, so that a heading with one line is no page of its own


class OutlineBuilder:
    """Takes text in reading order and gives pages, each beginning at a heading where that is possible."""

    def __init__(self) -> None:
        self._blocks: list[tuple[tuple[tuple[int, str], ...], list[str]]] = [((), [])]
        self._path: tuple[tuple[int, str], ...] = ()

    def heading(self, title: str, level: int) -> None:
        if not title:
            return
        self._path = (*(entry for entry in self._path if entry[0] < level), (level, title))
        self._blocks.append((self._path, [title, "\n\n"]))

    def text(self, text: str, *, verbatim: bool = False) -> None:
        parts = self._blocks[-1][1]
        at_line_start = not parts or parts[-1].endswith("\n")
        if not verbatim and (at_line_start or parts[-1].endswith(" ")):
            text = text.lstrip(" ")
        if text:
            parts.append(text)

    def line(self, *, paragraph: bool = False) -> None:
        """End the line; with `paragraph`, leave a blank line. Repeating it adds nothing."""
        parts = self._blocks[-1][1]
        if not parts:
            return
        end = "\n\n" if paragraph else "\n"
        tail = "".join(parts[-2:])[-2:]
        if tail.endswith(end):
            return
        parts.append("\n" if tail.endswith("\n") else end)

    def cell(self) -> None:
        parts = self._blocks[-1][1]
        if parts and not parts[-1].endswith("\n"):
            parts.append(" | ")

    def pages(self, method: str) -> Iterator[Page]:
        number = 0
        for text, headings, label in self._merged():
            for index, part in enumerate(parts_of(text)):
                number += 1
                within = tuple(h for h in headings if h.start < len(part)) if index == 0 else ()
                yield page_of(number, part, label, within, method)

    def _merged(self) -> Iterator[tuple[str, tuple[Heading, ...], str]]:
        text, label = "", ""
        headings: list[Heading] = []
        for path, parts in self._blocks:
            block = clean("".join(parts)).strip()
            if not block:
                continue
            outer = len(path) == 1 and path[0][0] == 1
            if text and (len(text) + len(block) > MIN_SECTION or outer):
                yield text, tuple(headings), label
                text, headings, label = "", [], ""
            label = label or PATH_SEPARATOR.join(title for _, title in path)
            start = len(text) + 2 if text else 0
            if path and len(parts) >= 2:
                headings.append(Heading(path[-1][1], path[-1][0], start))
            text = f"{text}\n\n{block}" if text else block
        if text:
            yield text, tuple(headings), label
