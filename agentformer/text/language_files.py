"""The files of the languages, such as `fi.toml`: all that is particular to a language. `en.toml` explains each list. To
add a language, or to correct one, edit its file; no Python is needed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

_FOLDER = Path(__file__).with_name("languages")
_FIRST = ("en", "fi", "sv", "no", "da", "de")  # if languages are equally probable for a text, the first one is chosen


@cache
def language_files() -> Mapping[str, Mapping[str, Any]]:
    """Return the content of each file by the code of its language (ISO 639-1)."""
    files = {file.stem: tomllib.loads(file.read_text("utf-8")) for file in _FOLDER.glob("*.toml")}
    codes = sorted(files, key=lambda code: (_FIRST.index(code) if code in _FIRST else len(_FIRST), code))
    return MappingProxyType({code: files[code] for code in codes})


def items_of(text: str) -> list[str]:
    """Return the items of a list that is written as a string with commas.

    >>> items_of("from now on, always,")
    ['from now on', 'always']
    """
    return [" ".join(item.split()) for item in text.split(",") if item.strip()]


@cache
def with_trait(trait: str) -> frozenset[str]:
    """Return the codes of the languages with a trait, such as "compounds"."""
    return frozenset(code for code, file in language_files().items() if trait in items_of(file.get("traits", "")))


@cache
def sections(name: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the section of this name for each language that has it."""
    return MappingProxyType({code: file[name] for code, file in language_files().items() if name in file})


def lists(section: str, kind: str) -> dict[str, list[str]]:
    """Return the list of a kind in a section, for each language in which it is not empty."""
    found = {code: items_of(kinds.get(kind, "")) for code, kinds in sections(section).items()}
    return {code: items for code, items in found.items() if items}
