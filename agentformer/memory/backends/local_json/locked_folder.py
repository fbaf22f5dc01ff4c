"""A folder with one JSON file for each namespace. A lock protects the folder, so that only one thread of one process
uses it at a time. Each call takes the lock and reads every file that has changed. A change of one namespace replaces
one file. A change of several namespaces first writes the new files under temporary names, then writes a journal with
these names, and then renames the files. If the process is killed after the journal was written, the next call renames
the files that remain."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from filelock import Timeout

from agentformer.errors import StoreBusy, StoreDamaged, StoreError, is_passing, store_failure
from agentformer.memory.backends.local_json.file_format import (
    SHOWN,
    UNREADABLE,
    Contents,
    NamespaceFile,
    Record,
    Version,
    absent_after,
    absent_with,
    changed_files,
    file_name,
    file_text,
    parse_file,
)
from agentformer.records.integrity.files import open_regular_file, read_file, sync_folder, write_atomically
from agentformer.settings.access import file_lock, make_folder
from agentformer.types import AbsentDocument

LOCK_FILE = "memory.lock"
JOURNAL_FILE = "memory.journal"
_NEW = ".new"  # suffix of a new file that is not yet listed in a journal
_LOCK_SECONDS = 60.0
_POLL_SECONDS = 0.002
_READ_ATTEMPTS = 500  # attempts to read a folder without the lock, until no file changes during the read


class Folder:
    """The files of a store. Several threads and processes can use the same folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_folder(path)
        except OSError as error:
            raise store_failure(f"the folder {path} cannot be created", error, "choose another folder") from error
        self._identity = _identity(path)
        self._thread_lock = threading.Lock()
        self._file_lock = file_lock(path / LOCK_FILE)
        self._closed = False
        self._files: dict[str, NamespaceFile] = {}  # by file name
        self._contents = Contents()
        self.read()

    def close(self) -> None:
        """Close the folder. Every later call raises `StoreError`."""
        with self._thread_lock:
            self._closed = True

    @property
    def read_only(self) -> bool:
        """True if the folder exists and this process cannot write to the folder."""
        return self.path.is_dir() and not os.access(self.path, os.W_OK)

    def read(self) -> Contents:
        """Return the contents. A read-only folder is read without the lock, because locking writes to the folder."""
        if self.read_only:
            with self._thread_lock:
                self._check_open()
                return self._read_without_lock()
        with self.locked():
            return self._refresh()

    @contextlib.contextmanager
    def writing(self) -> Iterator[tuple[Contents, dict[str, Record]]]:
        """Run a transaction. Yield the contents, and a copy of all records by id, which the caller may change. If the
        `with` block ends without an error, the changed records are written. After an error, nothing is changed."""
        with self.locked():
            contents = self._refresh()
            records = dict(contents.records)
            yield contents, records
            self._commit(contents, records, absent_after(contents, records))

    def change_absent(self, added: Mapping[str, Sequence[AbsentDocument]], removed: Collection[AbsentDocument]) -> None:
        """Add `AbsentDocument`s to the lists of namespaces, and remove others from all lists, in one transaction. The
        keys of `added` are namespaces."""
        with self.locked():
            contents = self._refresh()
            self._commit(contents, contents.records, absent_with(contents, added, removed))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder during the `with` block. Raises `StoreBusy` if this takes too long."""
        with self._thread_lock:
            self._check_open()
            try:
                self._file_lock.acquire(timeout=_LOCK_SECONDS, poll_interval=_POLL_SECONDS)
            except Timeout:
                lock = self.path / LOCK_FILE
                raise StoreBusy(
                    f"another process has held {lock} for too long; try again, or end that process"
                ) from None
            except OSError as error:
                raise write_error(self.path, error) from error
            try:
                yield
            finally:
                self._file_lock.release()

    def drop_copies(self, namespace: str) -> None:
        """Delete the copies that were made of the file of this namespace when the file was damaged."""
        with self.locked():
            for copy in self.path.glob(f"{glob.escape(file_name(namespace))}.damaged-*"):
                copy.unlink(missing_ok=True)

    def _refresh(self) -> Contents:
        try:
            self._finish_journal()
        except OSError as error:
            raise self._unusable(error) from error
        return self._load_changed(self._versions())

    def _read_without_lock(self) -> Contents:
        """Read the files again until none of them changes during the read. Raises `StoreError` after many attempts."""
        for _ in range(_READ_ATTEMPTS):
            versions = self._versions()
            if (self.path / JOURNAL_FILE).exists():  # another process is writing
                time.sleep(_POLL_SECONDS)
                continue
            contents = self._load_changed(versions)
            if self._versions() == versions:
                return contents
        raise StoreError(
            f"{self.path} has an unfinished change, and this process cannot write to the "
            "folder; copy the folder to another place where you can write"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("this memory is closed; open it again with agentformer.connect()")
        if _identity(self.path) != self._identity:
            raise StoreError(
                f"{self.path} was removed, replaced or moved while it was open; move it back, or open the memory again"
            )

    def _unusable(self, error: OSError) -> StoreError:
        return store_failure(f"{self.path} cannot be used", error, "check the permissions")

    def _versions(self) -> dict[str, Version]:
        try:
            with os.scandir(self.path) as listing:
                return {entry.name: _version(entry) for entry in listing if _is_namespace_file(entry.name)}
        except OSError as error:
            raise self._unusable(error) from error

    def _load_changed(self, versions: Mapping[str, Version]) -> Contents:
        if versions != {name: file.version for name, file in self._files.items()}:
            self._adopt({name: self._load(name, version) for name, version in versions.items()})
        return self._contents

    def _load(self, name: str, version: Version) -> NamespaceFile:
        former = self._files.get(name)
        if former and former.version == version:
            return former
        path = self.path / name
        try:
            with open_regular_file(path) as file:
                version = _version_of(os.fstat(file.fileno()))
                data = file.read()
        except OSError as error:
            if is_passing(error):
                raise self._unusable(error) from error
            # A change of permissions does not change the version, so each call tries to read this file again.
            return NamespaceFile(UNREADABLE, damage=f"{path} cannot be read: {error.strerror or error}")
        try:
            namespace, records, absent = parse_file(data)
            if file_name(namespace) != name:
                place = file_name(namespace) if len(namespace) <= SHOWN else "of another name"
                raise StoreDamaged(
                    f"the file contains the namespace {namespace!r:.{SHOWN}}, which belongs in the file {place}"
                )
        except StoreDamaged as error:
            return NamespaceFile(version, damage=f"{path} is damaged: {error}; {_keep_copy(path, data)}")
        for entry_id, record in (former.records if former else {}).items():
            if entry_id in records:  # keeps the computed terms if the text is unchanged
                records[entry_id] = record.replaced(records[entry_id].entry, records[entry_id].former)
        return NamespaceFile(version, namespace, records, absent=absent)

    def _adopt(self, files: dict[str, NamespaceFile]) -> None:
        """Use `files` (by file name) as the current contents of the folder. If two files contain an entry with the same
        id, the file that is second in the order of the names counts as damaged."""
        damaged = {name: file.damage for name, file in files.items() if file.damage}
        sound: dict[str, NamespaceFile] = {}
        records: dict[str, Record] = {}
        for name, file in sorted(files.items()):
            if file.damage:
                continue
            if twice := sorted(records.keys() & file.records.keys()):
                other = file_name(records[twice[0]].entry.namespace)
                damaged[name] = (
                    f"{self.path / name} is damaged: the entry {twice[0]} is also in {other}; "
                    "remove one of the two entries in an editor, or give one of them another id"
                )
                continue
            sound[file.namespace] = file
            records.update(file.records)
        self._files = files
        self._contents = Contents(dict(sorted(sound.items())), records, damaged)

    def _commit(
        self, contents: Contents, records: Mapping[str, Record], absent: Mapping[str, tuple[AbsentDocument, ...]]
    ) -> None:
        """Write the files of all namespaces whose records or absent documents differ from `contents`. Either all of
        these files are written or none. Raises `StoreFull` if they cannot be written."""
        new = changed_files(contents, records, absent)
        if not new:
            return
        texts = {
            file_name(name): file_text(name, file.records.values(), file.absent) if file.records or file.absent else ""
            for name, file in new.items()
        }
        try:
            self._write(texts)
        except OSError as error:
            raise write_error(self.path, error) from error
        files = {name: file for name, file in self._files.items() if name not in texts}
        for namespace, file in new.items():
            if texts[name := file_name(namespace)]:
                files[name] = dataclasses.replace(file, version=_version_of((self.path / name).stat()))
        self._adopt(files)

    def _write(self, texts: Mapping[str, str]) -> None:
        """Write files. `texts` contains the text of each file by file name. A file with an empty text is deleted."""
        self._remove_unfinished()
        if len(texts) == 1:
            ((name, text),) = texts.items()
            if not text:
                (self.path / name).unlink(missing_ok=True)
                sync_folder(self.path)
            else:
                write_atomically(self.path / name, text.encode("utf-8"))
                _set_unique_time(self.path / name)
            return
        journal = self.path / JOURNAL_FILE
        try:
            for name, text in texts.items():
                if text:
                    write_atomically(self.path / (name + _NEW), text.encode("utf-8"))
            write_atomically(journal, json.dumps({name: bool(text) for name, text in texts.items()}).encode())
        except BaseException:
            if not journal.exists():
                self._remove_unfinished()
            raise
        self._finish_journal()

    def _finish_journal(self) -> None:
        journal = self.path / JOURNAL_FILE
        try:
            data = read_file(journal)
        except FileNotFoundError:
            return
        try:
            names = json.loads(data)
            if not isinstance(names, dict) or not all(_is_namespace_file(name) for name in names):
                raise ValueError("a journal must contain names of memory files")
        except ValueError as error:
            raise StoreDamaged(
                f"{journal} is damaged ({error}); the files *{_NEW} in the same folder contain the new data: "
                f"remove the ending {_NEW} from their names, or delete them, and then delete the journal"
            ) from None
        for name, has_text in names.items():
            path, new = self.path / name, self.path / (name + _NEW)
            if not has_text:
                path.unlink(missing_ok=True)
            elif new.exists():
                os.replace(new, path)
                _set_unique_time(path)
        sync_folder(self.path)
        journal.unlink()
        sync_folder(self.path)

    def _remove_unfinished(self) -> None:
        """Delete the temporary files of killed processes. The caller holds the lock, so no process writes them."""
        for pattern in (".memory[-.]*", f"memory-*{_NEW}"):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)


def _version_of(status: os.stat_result) -> Version:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _version(entry: os.DirEntry[str]) -> Version:
    try:
        return _version_of(entry.stat())
    except OSError:  # the entry is a broken or circular link
        return UNREADABLE


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _set_unique_time(path: Path) -> None:
    """Set the modification time of a new file to the time of the clock, so that other processes notice the new version.
    The times that some file systems set are less exact, and two versions could have the same time."""
    moment = time.time_ns()
    with contextlib.suppress(OSError):
        os.utime(path, ns=(moment, moment))


def _is_namespace_file(name: str) -> bool:
    return name.startswith("memory-") and name.endswith(".json") and Path(name).name == name


def _keep_copy(path: Path, data: bytes) -> str:
    """Copy a damaged file into the same folder, unless such a copy exists. Return advice for the user."""
    copy = path.with_name(f"{path.name}.damaged-{hashlib.sha256(data).hexdigest()[:12]}")
    try:
        if not copy.exists():
            write_atomically(copy, data)
    except OSError:
        return "correct the file in an editor, or move it to another folder to start with an empty namespace"
    advice = "correct the file in an editor, or remove it to start with an empty namespace"
    return f"{advice}; a copy of the damaged file is {copy.name}"


def write_error(path: Path, error: OSError) -> StoreError:
    """Return an error that says that `path` cannot be written, with the reason and advice."""
    return store_failure(f"{path} cannot be written", error, "free some disk space or check the permissions")
