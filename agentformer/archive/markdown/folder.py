"""The folder of a memory home: its marker, the record of the last sync, and safe access to its files.

    .agentformer/home.json     the marker: format and namespace
    .agentformer/state.json    for each entry: the path of its file, and the version and SHA-256 of the last sync
    .agentformer/lock, tmp/    a lock for one sync at a time, and files that are being written
    .agentformerignore         `*`, so that a sync of documents leaves the folder out
    CATEGORY/NAME.md           one file for each entry

Symbolic links are never followed below the folder. Every path that comes from an id, a category or the record is
checked before it is used."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from unicodedata import normalize

from filelock import Timeout

from agentformer.archive.markdown.pages import MAX_BYTES
from agentformer.errors import InvalidInput, StoreBusy, StoreError, store_failure
from agentformer.rag.folder_files import FORMAT, MARKER, PRIVATE, Problem, stamp_of
from agentformer.records import fields
from agentformer.records.integrity.files import (
    delete,
    kind_of,
    open_regular_file,
    real_path,
    sync_folder,
    write_atomically,
)
from agentformer.settings.access import PLAIN, file_lock, make_folder, opener, replace_file, sync_file

_STATE, _LOCK, _TEMPORARY = "state.json", "lock", "tmp"
_IGNORE_FILE = ".agentformerignore"
_SUFFIX = ".md"
_LOCK_SECONDS = 30.0
_SYNCING = 8  # threads that put files on the disk: the file system then writes many of them at once
_MAX_DEPTH = 8  # folders below a category
_LONGEST_PRIVATE = 1 << 28  # bytes of the marker or the record


@dataclass(slots=True)
class Record:
    """The state of one file after its last sync. `version` is the version of its entry, or 0 for a new file whose entry
    is being stored. `stamp` has the size, the modification time and the inode number of the file. A file with the same
    stamp has not changed. `stamp` is "" if the file was changed so recently that another change could give the same
    stamp (see `rag.folder_files.stamp_of`)."""

    path: str
    version: int
    sha256: str
    stamp: str = ""

    @property
    def synced(self) -> bool:
        """Whether a sync of the file has ended. It is False for a new file whose entry is being stored."""
        return self.version > 0


@dataclass(frozen=True, slots=True)
class HomeFile:
    """A Markdown file of a home. `name` is its path in the folder, with `/`."""

    name: str
    stamp: str
    key: tuple[int, int, int]  # time of the last change, size and number of the file

    @property
    def category_folder(self) -> str:
        """The name of the first folder of the path, in the Unicode form NFC."""
        return normalize("NFC", self.name.partition("/")[0])


class HomeFolder:
    """An existing memory home. `records` maps the id of each entry to the state of its file after the last sync. Use
    `records` and change files only inside `with folder.locked():`, because `locked` reads `records` from the disk."""

    def __init__(self, root: Path) -> None:
        self.root = real_path(root, "folder")
        self._private = self.root / PRIVATE
        if self._private.is_symlink():
            raise InvalidInput("folder", f"{self._private} is a symbolic link; replace it with a folder")
        marker = _read_json(self._private / MARKER)
        if not isinstance(marker, dict) or marker.get("format") != FORMAT:
            raise InvalidInput("folder", f"the marker {PRIVATE}/{MARKER} is not of the format {FORMAT}; export again")
        self.namespace = fields.name("namespace", marker.get("namespace"))
        # Categories that a person has added to the marker.
        self.categories = fields.names("categories", marker.get("categories", ()))
        self.records: dict[str, Record] = {}
        self.failed: list[Problem] = []  # files that cannot be listed
        self.skipped: list[Problem] = []  # files outside of the folders of categories
        self._saved = ""  # the text of the record on the disk
        self._written: set[Path] = set()  # files to flush, and folders of renamed or deleted files

    @classmethod
    def create(cls, root: Path, namespace: str, *, allow_files: bool = False) -> HomeFolder:
        """Make a folder a memory home. If `allow_files` is true, the folder may contain files, which stay. Otherwise,
        raises `InvalidInput` if the folder is not empty. Raises `StoreFull` if the folder cannot be written."""
        kind = kind_of(root, "folder")
        private = real_path(root, "folder") / PRIVATE
        marker = json.dumps({"format": FORMAT, "namespace": namespace}, ensure_ascii=False, indent=1)
        try:
            if kind and (kind != "folder" or (not allow_files and any(root.iterdir()))):
                raise InvalidInput(
                    "folder", f"{root} is not empty and not a memory home; give a new or an empty folder"
                )
            make_folder(private)
            if not (root / _IGNORE_FILE).exists():
                write_atomically(root / _IGNORE_FILE, b"# The files are memories, not documents.\n*\n")
            write_atomically(private / MARKER, f"{marker}\n".encode())
        except OSError as error:
            raise store_failure(f"{root} cannot be written", error, "choose another folder") from None
        return cls(root)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Read the record, and let no other process sync the folder until the end of the context. Raises `StoreBusy` if
        another process does not end its sync, and `StoreFull` if the folder cannot be written."""
        lock = file_lock(self._private / _LOCK)
        try:
            lock.acquire(timeout=_LOCK_SECONDS)
            delete(self._private / _TEMPORARY)  # of a sync that was killed
        except Timeout:
            raise StoreBusy(f"another process syncs {self.root}; try again when it has ended") from None
        except OSError as error:
            lock.release()
            raise self._unwritable(error) from None
        try:
            self.records = self._read_records()
            self._saved = self._state()
            yield
        finally:
            lock.release()

    def files(self) -> Iterator[HomeFile]:
        """Yield the Markdown files in the folders of the categories, by name. Hidden and other files are left out."""
        yield from self._walk(self.root, "", _MAX_DEPTH + 1, time.time())

    def _walk(self, folder: Path, prefix: str, levels_left: int, now: float) -> Iterator[HomeFile]:
        try:
            with os.scandir(folder) as found:
                items = sorted(found, key=lambda item: item.name)
        except OSError as error:
            self.failed.append(Problem(prefix or ".", f"the folder cannot be listed: {error.strerror}"))
            return
        for item in items:
            name = prefix + item.name
            if item.name.startswith("."):
                continue
            if item.is_symlink():
                if item.name.lower().endswith(_SUFFIX) or _may_be_folder(item.path):
                    self.failed.append(Problem(name, "is a link, which is not followed; put the file itself here"))
            elif item.is_dir(follow_symlinks=False):
                if levels_left:
                    yield from self._walk(Path(item.path), f"{name}/", levels_left - 1, now)
                else:
                    self.failed.append(Problem(name, f"is more than {_MAX_DEPTH} folders deep; move it up"))
            elif item.name.lower().endswith(_SUFFIX) and (file := self._file(item, name, now)):
                yield file

    def _file(self, item: os.DirEntry[str], name: str, now: float) -> HomeFile | None:
        """Return the file of an item of a folder, or None after a problem was added to `failed` or `skipped`."""
        try:
            name.encode()
            state = item.stat(follow_symlinks=False)
        except UnicodeEncodeError:
            shown = name.encode("utf-8", "backslashreplace").decode()
            self.failed.append(Problem(shown, "has a name that is not UTF-8; rename the file"))
            return None
        except OSError as error:
            self.failed.append(Problem(name, f"cannot be read: {error.strerror}"))
            return None
        if "/" not in name:
            self.skipped.append(Problem(name, "is in no folder of a category; move it into one, such as facts"))
            return None
        return HomeFile(name, stamp_of(state, now), _key(state))

    def read(self, file: HomeFile) -> bytes:
        """Return the bytes of a file. Raises `InvalidInput` if it cannot be read, or has more than `MAX_BYTES`."""
        try:
            with open_regular_file(self.root / file.name) as opened:
                data = opened.read(MAX_BYTES + 1)
        except OSError as error:
            raise InvalidInput("file", f"cannot be read: {error.strerror or error}") from None
        if len(data) > MAX_BYTES:
            raise InvalidInput("file", f"has more than {MAX_BYTES:,} bytes; ingest a long text as a document")
        return data

    def has(self, name: str) -> bool:
        """Return whether the path `name` exists in the folder. A symbolic link counts, too."""
        return os.path.lexists(self.root / name)

    def is_one_folder(self, one: str, other: str) -> bool:
        """Return whether two names, in the Unicode form NFC, name the same folder. `foo` and `Foo` name the same folder
        on a file system that ignores case."""
        if one == other or one.casefold() != other.casefold():
            return one == other
        try:
            return (self.root / one).samefile(self.root / other)
        except OSError:
            return False

    def write(self, name: str, data: bytes, former: HomeFile | None) -> bool:
        """Write the file `name` in one step, in place of the file `former`. Return False and write nothing if `former`
        has changed since it was listed, or if another file has the name `name`. Raises `OSError` if the file cannot be
        written, and `InvalidInput` if a folder of the path is a link."""
        path = self.root / self._checked(name)
        self._make_folders(path.parent)
        temporary = self._private / _TEMPORARY / hashlib.sha256(name.encode()).hexdigest()[:16]
        make_folder(temporary.parent)
        with open(temporary, "wb", opener=opener) as file:
            file.write(data)
        if not self._is_same(former) or (self.has(name) and (former is None or former.name != name)):
            return False
        if former is not None and former.name != name:
            (self.root / former.name).rename(path)  # so that two files never have the same id
            self._written.add((self.root / former.name).parent)
        replace_file(temporary, path)
        self._written.add(path)
        return True

    def remove(self, file: HomeFile) -> bool:
        """Delete a file. Return False if it has changed since it was listed. Raises `OSError` if this fails."""
        if not self._is_same(file):
            return False
        (self.root / file.name).unlink(missing_ok=True)
        self._written.add((self.root / file.name).parent)
        return True

    def stamp(self, name: str) -> str:
        """Return the stamp of a file that this sync has written. `Record` describes stamps."""
        return stamp_of((self.root / name).lstat(), time.time())

    def save(self) -> None:
        """Flush the written files to the disk (fsync), and then write the record, so that after a crash the record
        never names a lost file. If the record has not changed, nothing is written. Raises `StoreFull` if the disk is
        full."""
        if (text := self._state()) == self._saved:
            return
        try:
            with ThreadPoolExecutor(_SYNCING) as pool:
                folders = {*pool.map(_sync_file, self._written)}
            for folder in folders:
                sync_folder(folder)
            write_atomically(self._private / _STATE, text.encode())
        except OSError as error:
            raise self._unwritable(error) from None
        self._written.clear()
        self._saved = text

    def _unwritable(self, error: OSError) -> StoreError:
        advice = "free some disk space or change its permissions"
        return store_failure(f"{self._private} cannot be written", error, advice)

    def _state(self) -> str:
        records = {entry_id: asdict(record) for entry_id, record in sorted(self.records.items())}
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in records.items())
        return f'{{"format": "{FORMAT}", "entries": {{\n{lines}\n}}}}\n'

    def _read_records(self) -> dict[str, Record]:
        """Return the records of the last sync. If their file is missing or damaged, return an empty dictionary: the
        sync then uses the versions that the files contain."""
        try:
            values = _read_json(self._private / _STATE)["entries"]
            return {entry_id: _record(each) for entry_id, each in values.items()}
        except (InvalidInput, KeyError, TypeError, AttributeError, ValueError):
            return {}

    def _checked(self, name: str) -> str:
        """Return `name`. Raises `InvalidInput` if it is not a path in the folder of a category, or is hidden."""
        parts = PurePosixPath(name).parts
        if len(parts) < 2 or name.startswith("/") or any(part.startswith(".") or "\0" in part for part in parts):
            raise InvalidInput("file", f"{name[:200]!r} is not a path in the folder of a category")
        return name

    def _make_folders(self, folder: Path) -> None:
        below_root = []
        while folder != self.root:
            below_root.append(folder)
            folder = folder.parent
        for each in reversed(below_root):
            with suppress(FileExistsError):
                make_folder(each, new=True)
            if not stat.S_ISDIR(each.lstat().st_mode):
                raise InvalidInput("file", f"{each} is a link or a file; a folder is needed there")

    def _is_same(self, file: HomeFile | None) -> bool:
        if file is None:
            return True
        try:
            state = (self.root / file.name).lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(state.st_mode) and _key(state) == file.key


def check_loss(description: str, lost: Sequence[str], total: int, advice: str) -> None:
    """Raise `InvalidInput` if several items, and more than half of the `total` items, are lost. `description` names the
    lost items in the message, and `advice` says what to do."""
    if len(lost) > 1 and len(lost) * 2 > total:
        raise InvalidInput("folder", f"{len(lost)} of {total} {description}, so nothing was changed; {advice}")


def _sync_file(path: Path) -> Path:
    """Flush a file to the disk (fsync), and return its folder, for the caller to flush. Return a folder as it is."""
    if path.is_dir():
        return path
    with suppress(FileNotFoundError), path.open("rb") as file:  # a person may have deleted it since
        sync_file(file.fileno())
    return path.parent


def _key(state: os.stat_result) -> tuple[int, int, int]:
    return state.st_mtime_ns, state.st_size, state.st_ino


def _record(values: Any) -> Record:
    record = Record(**values)
    texts = (record.path, record.sha256, record.stamp)
    if not all(isinstance(text, str) for text in texts) or not isinstance(record.version, int):
        raise ValueError("the record has values of wrong types")
    return record


def _may_be_folder(path: str) -> bool:
    try:
        return kind_of(path, "folder") == "folder"
    except InvalidInput:  # the target of a link may not be read
        return True


def _read_json(path: Path) -> Any:
    """Return the content of the marker or the record. Raises `InvalidInput` if it cannot be read or is not JSON."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | PLAIN)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            return json.loads(file.read(_LONGEST_PRIVATE).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput("folder", f"{path} cannot be read ({type(error).__name__}); export again") from None
