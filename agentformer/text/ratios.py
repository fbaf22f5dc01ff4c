"""Ratios that a question names, such as "gross margin", and the items of financial statements from which they are
computed. `ratios.txt` has the ratios of each language and can be extended."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from agentformer.text.normalize import normalized

_FILE = Path(__file__).with_name("ratios.txt")


def ratio_items(text: str, language: str) -> tuple[str, ...]:
    """Return the items from which the ratios that a text names are computed, in the order of `ratios.txt`. `language`
    is the ISO 639-1 code of the text. Return () if the text names no ratio of this language."""
    folded = normalized("NFKC", text).casefold()
    found = (items for name, items in _ratios().get(language, ()) if name.search(folded))
    return tuple(dict.fromkeys(item for items in found for item in items))


@cache
def _ratios() -> dict[str, list[tuple[re.Pattern[str], tuple[str, ...]]]]:
    """Return for each language the patterns of the names of ratios, with the items of each ratio."""
    ratios: dict[str, list[tuple[re.Pattern[str], tuple[str, ...]]]] = {}
    for line in _FILE.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            names, _, items = line.partition(" : ")
            language, *written = names.split()
            pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(_pattern, written))})(?!\w)")
            ratios.setdefault(language, []).append((pattern, tuple(map(_spaced, items.split()))))
    return ratios


def _pattern(name: str) -> str:
    ending = r"\w*" if name.endswith("*") else ""
    return re.escape(name.rstrip("*")).replace("_", r"[\s-]+") + ending


def _spaced(item: str) -> str:
    return item.replace("_", " ")
