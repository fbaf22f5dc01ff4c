"""Sudachi: Japanese text cut into words, in their normalised forms (extra `ja`).

Pairs of characters stay in the index beside its words: they find what the dictionary does not know.
"""

from __future__ import annotations

import threading
from importlib.util import find_spec
from typing import Any

from agentformer.errors import MissingExtra
from agentformer.text.analyzers import Splitter

_DICTIONARIES = ("core", "small", "full")  # that are taken, the first that is installed
_SLICE = 4_000  # code points at a time: the tokenizer takes at most 49,149 bytes
# Parts of speech that say how words belong together, and nothing of what a text is about.
_SILENT = frozenset({"助詞", "助動詞", "補助記号", "空白", "記号"})


class Sudachi(Splitter):
    name = "sudachi"
    extra = "ja"
    lacking = "Japanese is found by pairs of characters alone"

    def _load(self) -> None:
        from sudachipy import Dictionary, SplitMode

        installed = next((name for name in _DICTIONARIES if find_spec(f"sudachidict_{name}")), None)
        if installed is None:
            raise MissingExtra(self.extra, "a dictionary of sudachi")
        self._dictionary: Any = Dictionary(dict=installed)
        self._mode: Any = SplitMode.A  # the shortest words: a compound is found by its parts
        self._local = threading.local()  # a tokenizer is for one thread

    def _words(self, written: str) -> tuple[str, ...]:
        tokenizer = self._local.__dict__.get("tokenizer")
        if tokenizer is None:
            tokenizer = self._local.tokenizer = self._dictionary.tokenizer(mode=self._mode)
        found: list[str] = []
        for start in range(0, len(written), _SLICE):
            for word in tokenizer.tokenize(written[start : start + _SLICE]):
                if word.part_of_speech()[0] not in _SILENT:
                    found += word.normalized_form().casefold().split()
        return tuple(found)
