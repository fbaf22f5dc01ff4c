"""Files of the indexes in a memory folder, and their secure deletion. These functions do not load an index."""

from __future__ import annotations

import json
import logging
import math
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from agentformer.errors import AgentFormerError, StoreDamaged, StoreFull
from agentformer.records import meta
from agentformer.records.database import Database
from agentformer.records.files import read_file

INDEX_FILE = "rag_faiss_index.bin"
META_FILE = "rag_faiss_meta.json"
WORDS_FOLDER = "words"

log = logging.getLogger("agentformer")

_RETRY_SECONDS = 60.0


def read_index_status(folder: Path) -> dict[str, Any]:
    """Return the state of the vector index when its snapshot was written, as JSON values. The values are not checked.
    Without a snapshot the result is empty."""
    try:
        return {**json.loads(read_file(folder / META_FILE))["about"], "in_memory": False}
    except (OSError, ValueError, LookupError, TypeError):
        return {"in_memory": False}


def check_records(records: Path) -> None:
    """Raise `StoreDamaged` if index files are present, but the records from which they were made are missing. Otherwise
    a new empty memory would hide the loss of the records."""
    try:
        if records.stat().st_size:
            return
        problem = "is empty"
    except FileNotFoundError:
        problem = "is missing"
    except OSError:
        return  # opening the database reports it
    present = [name for name in (INDEX_FILE, META_FILE, WORDS_FOLDER) if (records.parent / name).exists()]
    if present:
        raise StoreDamaged(
            f"{records} {problem}, but index files made from it are present ({', '.join(present)}); restore it from a "
            "backup, or delete these files too to start with an empty memory"
        )


class ScratchFolder:
    """A temporary folder with links to the index files of a store that cannot be written. New changes, locks and all
    other new files are written only to this folder and deleted with it. Raises `StoreFull`."""

    def __init__(self, source: Path) -> None:
        try:
            self._temporary = tempfile.TemporaryDirectory(prefix="agentformer-", ignore_cleanup_errors=True)
            self.folder = Path(self._temporary.name)
            for name in (INDEX_FILE, META_FILE):
                _link(source / name, self.folder / name)
            (self.folder / WORDS_FOLDER).mkdir()
            with suppress(FileNotFoundError):
                for path in (source / WORDS_FOLDER).iterdir():
                    _link(path, self.folder / WORDS_FOLDER / path.name)
        except OSError as error:
            raise StoreFull(
                f"{source} is read-only, so indexes are written to the folder for temporary files, which is full "
                f"({error.strerror or error}); free space there"
            ) from error

    def close(self) -> None:
        """Delete the folder."""
        self._temporary.cleanup()


@contextmanager
def usable_index_folder(folder: Path, *, writable: bool) -> Iterator[Path]:
    """Yield a folder in which the indexes can be opened: the given folder, or a `ScratchFolder` with links to it.
    Raises `StoreFull`."""
    with nullcontext() if writable else closing(ScratchFolder(folder)) as scratch:
        yield scratch.folder if scratch else folder


def _link(source: Path, target: Path) -> None:
    """Link or copy a file. Lock files are not linked, because taking a lock would write to the original file."""
    if not source.is_file() or source.suffix == ".lock":
        return
    try:
        target.symlink_to(source.absolute())
    except (OSError, NotImplementedError):  # some systems let only administrators make links
        shutil.copyfile(source, target)


class SecureDelete:
    """Deletes index files after removals. Thread-safe. Repeating a deletion does no harm."""

    def __init__(self, database: Database, discard: Callable[[], None]) -> None:
        """`discard` is a function that deletes the index files. It raises `OSError` or `AgentFormerError` if it cannot
        delete them."""
        self._database = database
        self._discard = discard
        self._retry_at = math.inf  # by the monotonic clock; infinite while no deletion has failed

    def note(self, connection: sqlite3.Connection) -> None:
        """Record a request to delete the index files, in the transaction of a removal."""
        meta.request_secure_delete(connection)

    def run(self) -> None:
        """Delete the index files if a removal requested it. Failures are logged, and the deletion is tried again
        later."""
        try:
            with self._database.reading() as connection:
                token = meta.secure_delete_request(connection)
            if token:
                self._discard()
                with self._database.writing() as connection:
                    meta.finish_secure_delete(connection, token)
            self._retry_at = math.inf
        except (OSError, ValueError, AgentFormerError) as error:
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            log.warning(
                "Removed entries are deleted from the records but not yet from all index files; trying again later: %s",
                error,
            )

    def retry(self) -> None:
        """Try a failed deletion again if enough time has passed."""
        if time.monotonic() >= self._retry_at:
            self.run()

    def close(self) -> None:
        """Try a failed deletion one last time."""
        if self._retry_at < math.inf:
            self.run()

    def truncate_wal(self) -> None:
        """Empty the write-ahead log. After a failure, a later removal or the last process that closes the store empties
        the log."""
        try:
            self._database.clear_log()
        except AgentFormerError as error:
            log.warning("Removed entries stay readable in the write-ahead log until it is emptied: %s", error)
