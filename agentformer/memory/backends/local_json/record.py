"""One entry with its former states, and what is worked out from them once: its JSON and its terms."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from agentformer.memory.backends.local_json import layout
from agentformer.text.analysis import text_terms
from agentformer.text.languages import detect_language, language_code
from agentformer.types import MemoryEntry


@dataclass(frozen=True, slots=True)
class Analysed:
    """An entry's terms by field of the word search, with their frequencies, and the language they are in."""

    language: str
    counts: dict[str, Counter[str]]
    lengths: dict[str, int]


class Record:
    """Never changed after it was made: a changed entry is another record."""

    def __init__(self, entry: MemoryEntry, former: tuple[MemoryEntry, ...] = ()) -> None:
        self.entry = entry
        self.former = former  # oldest first

    def replaced(self, entry: MemoryEntry, *, former: tuple[MemoryEntry, ...] | None = None) -> Record:
        """Another state of the same entry, by default with the same past. Terms of an unchanged text are kept."""
        record = Record(entry, self.former if former is None else former)
        record.take_terms(self)
        return record

    def take_terms(self, other: Record) -> None:
        """Take over what `other` has analysed already, if it is the same text."""
        if "analysed" in other.__dict__ and _searched(self.entry) == _searched(other.entry):
            self.__dict__["analysed"] = other.analysed

    @cached_property
    def text(self) -> str:
        """This record as it stands in its namespace's file."""
        return layout.record_text(self.entry, self.former)

    @cached_property
    def analysed(self) -> Analysed:
        """The same fields as the embedded backend's word index: title and context count once a term."""
        content, title, context, prior = _searched(self.entry)
        language = detect_language(content, prior)
        terms = text_terms(content, language)
        around = text_terms(f"{title} {context}", language)
        fields = {
            "stems": Counter((*terms.stems, *dict.fromkeys(around.stems))),
            "surface": Counter(terms.surface),
            "parts": Counter(terms.parts),
        }
        return Analysed(language, fields, {name: counts.total() for name, counts in fields.items()})

    def handed_out(self) -> MemoryEntry:
        """The entry for a caller, who may change its metadata without changing ours."""
        return handed_out(self.entry)


def handed_out(entry: MemoryEntry) -> MemoryEntry:
    return dataclasses.replace(entry, metadata=copy.deepcopy(entry.metadata)) if entry.metadata else entry


def _searched(entry: MemoryEntry) -> tuple[str, str, str, str]:
    """All that decides an entry's terms."""
    prior = entry.metadata.get("language")
    return entry.content, entry.title, entry.context, language_code(prior)
