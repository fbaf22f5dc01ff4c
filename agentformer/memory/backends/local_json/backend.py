"""The backend `local_json`, which stores each namespace in one JSON file. People can read and edit the files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from agentformer.errors import InvalidInput, StoreDamaged, store_failure
from agentformer.memory.backends.in_memory.store import InMemoryStore, Record
from agentformer.memory.backends.local_json.file_format import SHOWN, file_name, file_text, parse_file, record_text
from agentformer.memory.backends.local_json.folder import UNREADABLE, Folder, Version
from agentformer.memory.backends.sidecar import SidecarStore
from agentformer.records.codec import from_micros
from agentformer.records.integrity import verify
from agentformer.records.integrity.files import write_atomically
from agentformer.records.integrity.findings import Findings
from agentformer.records.integrity.repair import superseded as repair_superseded
from agentformer.records.sqlite.connection import SqliteConnection
from agentformer.records.sqlite.database import RecordsSnapshot
from agentformer.settings import Settings
from agentformer.types import AbsentDocument, Check, Embedder, MemoryBackend, MemoryEntry, Scope

SIDECAR_FILE = "sidecar-local_json.json"


class _File(NamedTuple):
    """A file as it was read, with its records by id, or the reason why it cannot be used."""

    version: Version
    records: Mapping[str, Record] = MappingProxyType({})
    damage: str = ""


class LocalJsonMemoryBackend(SidecarStore):
    """A `MemoryBackend` with one JSON file for each namespace, so that people can read and edit the entries. It is made
    for up to a few thousand entries, because each write replaces the complete files of the changed namespaces, and each
    search reads all entries of a namespace. The search compares words and uses no vectors.

    A person may edit a file while no process writes, and the next call reads the new content. If a file is damaged, a
    copy of the file is stored in the same folder, and the file itself is not changed. Every call that needs this file
    raises `StoreDamaged` with the position and the reason. Calls for other namespaces still work. `namespaces` and
    `status` include only the files that can be read.
    """

    def __init__(self, folder: Path, *, rrf_k: int = 60) -> None:
        super().__init__(cast(MemoryBackend, JsonFileStore(folder, rrf_k=rrf_k)), folder / SIDECAR_FILE)

    @classmethod
    def from_settings(cls, settings: Settings, embedder: Embedder) -> LocalJsonMemoryBackend:
        """Open the backend in the folder `Settings.index_dir`. `embedder` is not used: no vectors are stored."""
        return cls(settings.index_dir, rrf_k=settings.rrf_k)


class JsonFileStore(InMemoryStore):
    """The entries of a `LocalJsonMemoryBackend`. `former_absent` is explained in `SidecarStore`."""

    name = "local_json"

    def __init__(self, folder: Path, *, rrf_k: int = 60) -> None:
        super().__init__(rrf_k=rrf_k)
        self.former_absent: list[AbsentDocument] = []
        self._folder = Folder(folder)
        self._files: dict[str, _File] = {}  # by file name
        self._texts: dict[str, tuple[Record, str]] = {}  # id -> a record, and its text in a file
        self.namespaces()  # reads the files

    @property
    def read_only(self) -> bool:
        return self._folder.read_only

    def exclusive(self, *, writing: bool) -> AbstractContextManager[object]:
        return contextlib.nullcontext() if self.read_only and not writing else self._folder.locked()

    def load(self) -> Iterable[Record] | None:
        """Return the records of the folder, or None if its files have not changed."""
        if not self.read_only:
            return self._load(self._folder.versions())
        loaded: list[Record] | None = None
        for versions in self._folder.unlocked_reads():
            loaded = self._load(versions) or loaded
        return loaded

    def save(self, changed: Mapping[str, Record | None]) -> None:
        """Write the files of the changed namespaces: all of them or none."""
        content: dict[str, dict[str, Record]] = {}  # namespace -> its records

        def records_of(record: Record) -> dict[str, Record]:
            namespace = record.entry.namespace
            if namespace not in content:
                self.check_readable(Scope(namespace))  # a damaged file is not replaced
                file = self._files.get(file_name(namespace))
                content[namespace] = {**file.records} if file else {}
            return content[namespace]

        for entry_id, record in changed.items():
            if former := self.records.get(entry_id):
                records_of(former).pop(entry_id, None)
            if record:
                records_of(record)[entry_id] = record
        self._folder.write({file_name(name): self._text(name, some) for name, some in content.items()})
        for name, some in content.items():
            self._files.pop(file_name(name), None)
            if some:
                self._files[file_name(name)] = _File(self._folder.version(file_name(name)), some)
        self._files = dict(sorted(self._files.items()))

    def check_readable(self, needed: Scope | Sequence[str]) -> None:
        _check(self._damaged(), self.records, needed)

    def snapshot_of(self, copy: SqliteConnection) -> RecordsSnapshot:
        return _Snapshot(copy, self._damaged())

    def remove(self, what: Scope | Sequence[str], expected_version: int | None = None) -> int:
        """Delete entries with their parts and summaries, and return their number; see `MemoryBackend.remove`."""
        removed = super().remove(what, expected_version)
        if isinstance(what, Scope):  # the copy of a damaged file may contain the removed entries
            with self._lock, self.exclusive(writing=True):
                self._folder.drop_copies(file_name(what.namespace))
        return removed

    def verify(self, *, repair: bool = False) -> Sequence[Check]:
        """Check the files, the links of summaries, and the superseded entries. If `repair` is True, entries without a
        valid successor are made current. Nothing else is repaired, because a person must edit the files. If the journal
        of the folder is damaged, only this is reported, because no entry can be read."""
        files = Findings("files", "each file can be read", "")
        try:
            with self.reading() as connection:
                files.looked_at = len(self._files)
                for name, reason in self._damaged().items():
                    files.add(reason, name)
                links, superseded = verify.links(connection), verify.superseded(connection)
        except StoreDamaged as error:
            files.add(str(error))
            return [files.to_check()]
        links.advice = "correct the file in an editor"
        if repair and superseded.found:
            with superseded.repairing():
                repair_superseded(self, superseded, None)  # type: ignore[arg-type]  # it calls only `writing`
        return [findings.to_check() for findings in (files, links, superseded)]

    def backup(self, folder: Path) -> None:
        """Write a copy of all files into the empty folder `folder`. Raises `StoreFull` if the folder cannot be written,
        and `StoreDamaged` if a file of this store cannot be read."""
        with self.reading():
            for reason in self._damaged().values():
                raise StoreDamaged(reason)
            names = {record.entry.namespace for record in self.records.values()}
            texts = {file_name(name): self._text(name, self._files[file_name(name)].records) for name in names}
        try:
            for name, text in sorted(texts.items()):
                write_atomically(folder / name, text.encode("utf-8"))
        except OSError as error:
            advice = "free some disk space or choose another folder"
            raise store_failure(f"{folder} cannot be written", error, advice) from error

    def status(self) -> dict[str, Any]:
        """Return the status of `InMemoryStore`, and the reason for each file that cannot be read."""
        return {**super().status(), "damaged": [*self._damaged().values()]}

    def _damaged(self) -> dict[str, str]:
        """Return file name -> reason for each file that cannot be used."""
        return {name: file.damage for name, file in self._files.items() if file.damage}

    def _load(self, versions: Mapping[str, Version]) -> list[Record] | None:
        """Read the files that have another version, and return the records of all files, or None if none has."""
        known, files = self._files, dict[str, _File]()
        if versions == {name: file.version for name, file in known.items()}:
            return None
        owners: dict[str, str] = {}  # id -> the first file with this entry
        for name, version in versions.items():
            same = name in known and known[name].version == version
            file = known[name] if same else self._read_file(name)
            for entry_id in file.records:
                if entry_id in owners:
                    damage = (
                        f"{self._folder.path / name} is damaged: the entry {entry_id} is also in {owners[entry_id]}; "
                        "remove one of the two entries in an editor, or give one of them another id"
                    )
                    file = _File(UNREADABLE, damage=damage)
                    break
            owners.update(dict.fromkeys(file.records, name))
            files[name] = file
        self._files = files
        return [record for file in files.values() for record in file.records.values()]

    def _read_file(self, name: str) -> _File:
        """Return a file with its records, or with the reason why it cannot be used. Keep a copy of a damaged file."""
        version, data, problem = self._folder.read(name)
        if problem:
            return _File(version, damage=problem)
        try:
            namespace, parsed, absent = parse_file(data)
            if file_name(namespace) != name:
                place = file_name(namespace) if len(namespace) <= SHOWN else "of another name"
                raise StoreDamaged(
                    f"the file contains the namespace {namespace!r:.{SHOWN}}, which belongs in the file {place}"
                )
        except (StoreDamaged, InvalidInput) as error:
            advice = self._folder.keep_copy(name, data)
            return _File(version, damage=f"{self._folder.path / name} is damaged: {error}; {advice}")
        self.former_absent += absent
        return _File(version, {entry_id: _with_times(record, version[1]) for entry_id, record in parsed.items()})

    def _text(self, namespace: str, content: Mapping[str, Record]) -> str:
        """Return the text of the file of a namespace, or "" if it is empty."""
        texts = []
        for entry_id, record in sorted(content.items()):
            if self._texts.get(entry_id, (None, ""))[0] is not record:
                self._texts[entry_id] = record, record_text(record)
            texts.append(self._texts[entry_id][1])
        return file_text(namespace, texts) if texts else ""


class _Snapshot(RecordsSnapshot):
    """A copy of the records. Methods raise `StoreDamaged` if they need a file that could not be used."""

    def __init__(self, connection: SqliteConnection, damaged: Mapping[str, str]) -> None:
        super().__init__(connection)
        self._damaged = damaged

    def namespaces(self) -> Sequence[str]:
        """Return the namespaces. Raises `StoreDamaged` if a file is damaged."""
        for reason in self._damaged.values():
            raise StoreDamaged(reason)
        return super().namespaces()

    def list(self, scope: Scope, *, after: str = "", limit: int = 100) -> Sequence[MemoryEntry]:
        _check(self._damaged, (), scope)
        return super().list(scope, after=after, limit=limit)


def _check(damaged: Mapping[str, str], readable: Iterable[str], needed: Scope | Sequence[str]) -> None:
    """Raise `StoreDamaged` if a damaged file may contain what is needed: a scope, or ids that are not `readable`."""
    if isinstance(needed, Scope) and (reason := damaged.get(file_name(needed.namespace))):
        raise StoreDamaged(reason)
    if not isinstance(needed, Scope) and damaged and {*needed} - {*readable}:
        raise StoreDamaged(next(iter(damaged.values())))


def _with_times(record: Record, nanoseconds: int) -> Record:
    """Return the record with the time of the file, if a person has written the entry without a time."""
    entry = record.entry
    if entry.created_at and entry.updated_at:
        return record
    created = entry.created_at or from_micros(nanoseconds // 1_000)
    return replace(record, entry=replace(entry, created_at=created, updated_at=entry.updated_at or created))
