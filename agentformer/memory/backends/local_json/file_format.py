"""The JSON files of the backend `local_json`, one for each namespace. This module parses the text of a file, and
builds this text from records. `Contents` has the records of all files of a folder. People can edit a file, so every
value is checked when the file is read.

    {
      "format": 1,
      "namespace": "default",
      "entries": [
        {
          "id": "0193...",
          "content": "The keys hang in the blue cupboard.",
          "created_at": "2026-11-20T09:30:00+00:00",
          "history": [{"content": "The keys hang in the hall.", ...}]
        }
      ]
    }

A field that has its default value is not written. `history` contains the former versions of the entry, oldest first.
`absent_documents`, which is written only if it is not empty, lists documents that are not stored although their
original files may exist, as lists [id, sha256, upload].
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

from agentformer.errors import InvalidInput, StoreDamaged
from agentformer.memory.backends.local_json.search import EntryTerms, analyze, indexed_text
from agentformer.records import fields, meta
from agentformer.records.entry_json import entry_to_short_json, parse_entry
from agentformer.records.integrity.files import safe_file_name
from agentformer.types import AbsentDocument, MemoryEntry

FORMAT = 1
SHOWN = 80  # at most this many characters of a wrong value are shown in a message
Version = tuple[int, int, int]  # inode, time of change in nanoseconds, size
UNREADABLE: Version = (0, 0, 0)


class Record:
    """An entry with its former versions, oldest first. Immutable: a change of the entry creates a new record."""

    def __init__(self, entry: MemoryEntry, former: tuple[MemoryEntry, ...] = ()) -> None:
        self.entry = entry
        self.former = former

    def replaced(self, entry: MemoryEntry, former: tuple[MemoryEntry, ...] | None = None) -> Record:
        """Return a new record that contains `entry`. The former versions are `former`, or those of this record if
        `former` is None. The search terms are computed again only if the text of the entry has changed."""
        record = Record(entry, self.former if former is None else former)
        if "terms" in self.__dict__ and indexed_text(self.entry) == indexed_text(entry):
            record.__dict__["terms"] = self.terms
        return record

    def with_fields(self, **changes: Any) -> Record:
        """Return a new record in which the fields in `changes` have new values. The former versions stay the same."""
        return self.replaced(dataclasses.replace(self.entry, **changes))

    @cached_property
    def terms(self) -> EntryTerms:
        """The search terms of the entry."""
        return analyze(self.entry)

    @cached_property
    def text(self) -> str:
        """The JSON text that represents the record in the file."""
        namespace = self.entry.namespace
        values = {"id": self.entry.id, **entry_to_short_json(self.entry, namespace=namespace)}
        if self.former:
            values["history"] = [entry_to_short_json(state, namespace=namespace) for state in self.former]
        # Line breaks inside strings are escaped, so each line break here is between two values.
        return json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False).replace("\n", "\n    ")


def checked(entry: MemoryEntry) -> MemoryEntry:
    """Return the entry in the form in which it will be read after it was written to a file. Raises `InvalidInput` if
    JSON cannot represent a value."""
    fields.encodable("namespace", entry.namespace)
    try:
        values = json.loads(json.dumps(entry_to_short_json(entry, namespace=entry.namespace), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("metadata", f"must contain only JSON values: {str(error)[:SHOWN]}") from None
    return parse_entry({"id": entry.id, **values}, namespace=entry.namespace)


def file_name(namespace: str) -> str:
    """Return the name of the file for a namespace."""
    return f"memory-{safe_file_name(namespace)}.json"


def file_text(namespace: str, records: Iterable[Record], absent: Sequence[AbsentDocument] = ()) -> str:
    """Return the complete text of the file for a namespace with these records and absent documents."""
    name = json.dumps(namespace, ensure_ascii=False)
    head = f'{{\n  "format": {FORMAT},\n  "namespace": {name},\n  "entries": [\n    '
    tail = f',\n  "absent_documents": {json.dumps(absent)}' if absent else ""
    return head + ",\n    ".join(record.text for record in records) + f"\n  ]{tail}\n}}\n"


@dataclasses.dataclass(frozen=True)
class NamespaceFile:
    """The file of a namespace. `records` maps ids to records, in order of id. If the file cannot be read, `damage` is
    the reason, and `records` is empty."""

    version: Version
    namespace: str = ""
    records: Mapping[str, Record] = dataclasses.field(default_factory=dict)
    damage: str = ""
    absent: tuple[AbsentDocument, ...] = ()


@dataclasses.dataclass(frozen=True)
class Contents:
    """The records of all files at one moment. This object never changes."""

    files: Mapping[str, NamespaceFile] = dataclasses.field(default_factory=dict)  # by namespace, sorted
    records: Mapping[str, Record] = dataclasses.field(default_factory=dict)  # by id
    damaged: Mapping[str, str] = dataclasses.field(default_factory=dict)  # file name to reason

    def of(self, namespace: str) -> Mapping[str, Record]:
        """Return the records of a namespace by id, in order of id. Raises `StoreDamaged` if its file is damaged."""
        if reason := self.damaged.get(file_name(namespace)):
            raise StoreDamaged(reason)
        file = self.files.get(namespace)
        return file.records if file else {}

    @property
    def absent(self) -> dict[str, tuple[AbsentDocument, ...]]:
        """The absent documents by namespace: documents that are not stored, although their original files may exist."""
        return {name: file.absent for name, file in self.files.items() if file.absent}

    def check_whole(self) -> None:
        """Raise `StoreDamaged` if a file cannot be read. For calls that need the entries of all namespaces."""
        for reason in self.damaged.values():
            raise StoreDamaged(reason)

    def check_ids(self, ids: Iterable[str]) -> None:
        """Raise `StoreDamaged` if one of these entries is missing and may be in a file that cannot be read."""
        if not self.records.keys() >= set(ids):
            self.check_whole()


def changed_files(
    contents: Contents, records: Mapping[str, Record], absent: Mapping[str, tuple[AbsentDocument, ...]]
) -> dict[str, NamespaceFile]:
    """Return the new file of each namespace whose records or absent documents differ from `contents`. Raises
    `StoreDamaged` if the existing file of such a namespace is damaged."""
    before, absent_before = contents.records, contents.absent
    changed = {
        record.entry.namespace
        for entry_id in before.keys() | records.keys()
        if before.get(entry_id) is not records.get(entry_id)
        for record in (before.get(entry_id), records.get(entry_id))
        if record
    }
    names = absent.keys() | absent_before.keys()
    changed |= {name for name in names if set(absent.get(name, ())) != set(absent_before.get(name, ()))}
    if not changed:
        return {}
    new: dict[str, dict[str, Record]] = {namespace: {} for namespace in changed}
    for namespace in changed:
        contents.of(namespace)  # a damaged file is not replaced
    for entry_id in sorted(records):
        if (namespace := records[entry_id].entry.namespace) in changed:
            new[namespace][entry_id] = records[entry_id]
    return {
        name: NamespaceFile(UNREADABLE, name, namespace_records, absent=tuple(sorted(absent.get(name, ()))))
        for name, namespace_records in new.items()
    }


def absent_with(
    contents: Contents, added: Mapping[str, Sequence[AbsentDocument]], removed: Collection[AbsentDocument]
) -> dict[str, tuple[AbsentDocument, ...]]:
    """Return the new lists of absent documents by namespace: the present lists of `contents`, with the documents of
    `added` and without those of `removed`. Absent documents are not stored, but their original files may exist. A
    document of `added` replaces a listed document with the same id."""
    ids = {document.id for documents in added.values() for document in documents}
    forgotten = set(removed)
    absent = {
        name: tuple(document for document in documents if document not in forgotten and document.id not in ids)
        for name, documents in contents.absent.items()
    }
    for name, documents in added.items():
        absent[name] = (*absent.get(name, ()), *documents)
    return absent


def absent_after(contents: Contents, records: Mapping[str, Record]) -> dict[str, tuple[AbsentDocument, ...]]:
    """Return the absent documents of each namespace after a transaction that stores `records`. A stored document is not
    absent, and a removed document is absent."""
    absent = {
        name: tuple(document for document in documents if document.id not in records)
        for name, documents in contents.absent.items()
    }
    for entry_id in contents.records.keys() - records.keys():
        entry = contents.records[entry_id].entry
        absent[entry.namespace] = (*absent.get(entry.namespace, ()), *meta.absent([entry]))
    return absent


def parse_file(data: bytes) -> tuple[str, dict[str, Record], tuple[AbsentDocument, ...]]:
    """Parse the content of a file. Return the namespace, the records by id, in the order of the ids, and the absent
    documents. Raises `StoreDamaged` with the position of the mistake."""
    content = _load_json(data)
    if not isinstance(content, dict) or not isinstance(content.get("entries"), list):
        raise StoreDamaged('the file must contain an object with a list "entries"')
    if content.get("format", FORMAT) != FORMAT:
        raise StoreDamaged(
            f'the "format" is {content["format"]!r:.{SHOWN}}, but this version of agentformer reads only {FORMAT}'
        )
    if unknown := sorted(content.keys() - {"format", "namespace", "entries", "absent_documents"}):
        raise StoreDamaged(f'{unknown[0]!r:.{SHOWN}} is an unknown key next to "entries"; remove this key')
    namespace = content.get("namespace")
    if not isinstance(namespace, str):
        raise StoreDamaged('"namespace" must be a string')
    records: dict[str, Record] = {}
    for number, values in enumerate(content["entries"], 1):
        where = f"entry {number}"
        try:
            record = _parse_record(values, namespace)
        except InvalidInput as error:
            where += f" (id {values['id']!r:.{SHOWN}})" if isinstance(values, dict) and "id" in values else ""
            raise StoreDamaged(f"{where}, {error}") from None
        if record.entry.id in records:
            advice = "give one of the entries another id"
            raise StoreDamaged(f"{where} has the id {record.entry.id} of an earlier entry; {advice}")
        records[record.entry.id] = record
    return namespace, dict(sorted(records.items())), _parse_absent(content.get("absent_documents", []))


def _parse_absent(values: Any) -> tuple[AbsentDocument, ...]:
    rows: list[Any] = values if isinstance(values, list) else [None]
    if not all(isinstance(row, list) and len(row) == 3 and all(isinstance(v, str) for v in row) for row in rows):
        raise StoreDamaged('"absent_documents" must be a list of lists of three strings; remove this key')
    return tuple(AbsentDocument(*row) for row in rows)


def _parse_record(values: Any, namespace: str) -> Record:
    states: Any = []
    if isinstance(values, dict):
        values = dict(values)
        states = values.pop("history", [])
    if not isinstance(states, list) or not all(isinstance(state, dict) for state in states):
        raise InvalidInput("history", "must be a list of former versions")
    entry = parse_entry(values, namespace=namespace)
    if entry.namespace != namespace:
        name = f"{entry.namespace!r:.{SHOWN}}"
        raise InvalidInput("namespace", f"is {name}, which belongs in another file; remove this field")
    return Record(entry, tuple(parse_entry({"id": entry.id, **state}, namespace=namespace) for state in states))


def _load_json(data: bytes) -> Any:
    try:
        text = data.decode("utf-8-sig")  # ignores a byte order mark, which some editors write
        return json.loads(text, object_pairs_hook=_object_without_duplicates, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise StoreDamaged(f"line {line} is not UTF-8; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise StoreDamaged(f"line {error.lineno} column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(f"the file is not JSON: {str(error)[:200]}") from None


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):  # a repeated key is refused, because the next write would lose one of its values
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the key {duplicate!r:.{SHOWN}} twice")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")
