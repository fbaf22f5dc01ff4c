"""Functions for the index files in the folder of a memory, and the deletion of these files after a removal of entries.
This module does not open the indexes."""

from __future__ import annotations

import json
import logging
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from agentformer.errors import AgentFormerError, StoreDamaged, store_failure
from agentformer.records import meta
from agentformer.records.integrity.files import read_file
from agentformer.records.sqlite.database import Database
from agentformer.settings.access import create_empty, make_folder
from agentformer.types import Connection

INDEX_FILE = "rag_faiss_index.bin"
META_FILE = "rag_faiss_meta.json"
WORDS_FOLDER = "words"

log = logging.getLogger("agentformer")

_RETRY_SECONDS = 60.0


def read_index_status(folder: Path) -> dict[str, Any]:
    """Return the state of the vector index at the time of its last snapshot, as JSON values. The values are not
    validated. Without a snapshot, return `{"in_memory": False}`."""
    try:
        return {**json.loads(read_file(folder / META_FILE))["about"], "in_memory": False}
    except (OSError, ValueError, LookupError, TypeError):
        return {"in_memory": False}


def check_records(records: Path) -> None:
    """Check whether the records file was lost. If the records file is missing or empty, but index files are present,
    raise `StoreDamaged`. Without this check, a new empty memory would hide the loss."""
    try:
        if records.stat().st_size:
            return
        problem = "is empty"
    except FileNotFoundError:
        problem = "is missing"
    except OSError:
        return  # opening the database reports this error
    present = [name for name in (INDEX_FILE, META_FILE, WORDS_FOLDER) if (records.parent / name).exists()]
    if present:
        raise StoreDamaged(
            f"{records} {problem}, but index files made from it are present ({', '.join(present)}); restore the "
            "records from a backup, or delete the index files to start with an empty memory"
        )


class ScratchFolder:
    """A temporary folder for the indexes of a read-only store. The folder contains links to the index files of the
    store. All new files, such as locks and updates of the indexes, are written to this folder and are deleted with it.
    Raises `StoreFull` if the folder cannot be created."""

    def __init__(self, source: Path) -> None:
        try:
            self._temporary = tempfile.TemporaryDirectory(prefix="agentformer-", ignore_cleanup_errors=True)
            self.folder = Path(self._temporary.name)
            for name in (INDEX_FILE, META_FILE):
                _link(source / name, self.folder / name)
            make_folder(self.folder / WORDS_FOLDER)
            with suppress(FileNotFoundError):
                for path in (source / WORDS_FOLDER).iterdir():
                    _link(path, self.folder / WORDS_FOLDER / path.name)
        except OSError as error:
            problem = (
                f"the indexes of the read-only memory {source} cannot be written to the folder for temporary files"
            )
            raise store_failure(problem, error, "free some disk space") from error

    def close(self) -> None:
        """Delete the folder."""
        self._temporary.cleanup()


@contextmanager
def usable_index_folder(folder: Path, *, writable: bool) -> Iterator[Path]:
    """Yield a folder in which the indexes can be opened: `folder` if it is writable, otherwise a `ScratchFolder`.
    Raises `StoreFull` if the `ScratchFolder` cannot be created."""
    with nullcontext() if writable else closing(ScratchFolder(folder)) as scratch:
        yield scratch.folder if scratch else folder


def _link(source: Path, target: Path) -> None:
    """Put an index file of a read-only store into its `ScratchFolder`: a link, or a copy if the system does not allow
    links. Lock files are skipped, because a lock on a link would change the original file."""
    if not source.is_file() or source.suffix == ".lock":
        return
    try:
        target.symlink_to(source.absolute())
    except (OSError, NotImplementedError):  # on some systems, only administrators may create links
        create_empty(target)
        shutil.copyfile(source, target)


class SecureDelete:
    """Deletes the index files after a removal of entries, because they may still contain the text. Thread-safe."""

    def __init__(self, database: Database, discard: Callable[[], None]) -> None:
        """`discard` deletes the index files. It raises `OSError` or `AgentFormerError` if it cannot delete them."""
        self._database = database
        self._discard = discard
        self._retry_at = math.inf  # time of the monotonic clock; infinite if no deletion has failed

    def note(self, connection: Connection) -> None:
        """Request the deletion of the index files. The request is stored in the transaction that removes the entries,
        so that a crash does not lose it."""
        meta.request_secure_delete(connection)

    def run(self) -> None:
        """Delete the index files if a removal has requested it. A failure is logged; `retry` or `close` tries again."""
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
                "Some index files could not be deleted and may contain removed entries; a later attempt follows: %s",
                error,
            )

    def retry(self) -> None:
        """Try the deletion again if it has failed and the waiting time is over."""
        if time.monotonic() >= self._retry_at:
            self.run()

    def close(self) -> None:
        """Try the deletion a last time if it has failed."""
        if self._retry_at < math.inf:
            self.run()

    def truncate_wal(self) -> None:
        """Empty the write-ahead log of the database, because it may still contain removed text. A failure is logged. In
        that case the log is emptied after the next removal, or when the last process closes the store."""
        try:
            self._database.clear_log()
        except AgentFormerError as error:
            log.warning(
                "The write-ahead log could not be emptied and may contain removed entries; a later attempt follows: %s",
                error,
            )
