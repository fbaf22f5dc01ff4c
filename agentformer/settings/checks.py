"""Checks of single settings, and the words for what a setting cannot have."""

from __future__ import annotations

import os
import re
from pathlib import Path

from agentformer.errors import InvalidInput

GOT = ", got "  # what stands behind it in a message is the value
_TOLD = 20  # characters of a value that a message repeats; keys, which end up in wrong places, are longer
_LANGUAGES = re.compile(r"\*|[a-z]{2,3}( [a-z]{2,3})*")


def unusable(name: str, wanted: str, value: object) -> InvalidInput:
    shown_value = repr(value)
    return InvalidInput(name, f"{wanted}{GOT}{shown_value}" if len(shown_value) <= _TOLD + 2 else wanted)


def checked_folder(name: str, folder: str | Path) -> Path:
    if "\0" in str(folder):
        raise InvalidInput(name, "must be a path, and no path holds a NUL character")
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        raise InvalidInput(name, "begins with ~ and a user who has no home here; write the whole path") from None


def checked_cache(folder: str | Path) -> Path:
    """As `checked_folder`; where a user without a home has not said which, a place that keeps nothing."""
    try:
        return checked_folder("cache_dir", folder)
    except InvalidInput:
        if str(folder).startswith("~/"):
            return Path(os.devnull)
        raise


def checked_languages(text: str) -> str:
    languages = " ".join(text.replace(",", " ").lower().split())
    if languages and not _LANGUAGES.fullmatch(languages):
        raise unusable("embed_languages", "must be codes of languages such as en fi, or * for many", text)
    return languages


def checked_key(name: str, key: str) -> str:
    """The key without the line break it was copied with. What no HTTP header can carry is refused here, because the
    libraries below would quote it in their error."""
    key = key.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InvalidInput(name, "holds a space, a line break or a letter outside ASCII, as no key does; copy it again")
    return key
