"""Files of the indexes in a memory folder, used without loading an index."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentformer.errors import StoreDamaged, StoreFull
from agentformer.records.files import read_file

INDEX_FILE = "rag_faiss_index.bin"
META_FILE = "rag_faiss_meta.json"
WORDS_FOLDER = "words"


def read_index_status(folder: Path) -> dict[str, Any]:
    """Return the vector index's state when its snapshot was written, as JSON values, unchecked; empty if there is
    none."""
    try:
        return {**json.loads(read_file(folder / META_FILE))["about"], "in_memory": False}
    except (OSError, ValueError, LookupError, TypeError):
        return {"in_memory": False}


def check_records(records: Path) -> None:
    """Raise `StoreDamaged` if index files are present without the records they were made from.

    A new memory beside them would look as if nothing had ever been stored.
    """
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
    """A temporary folder with links to the index files of a store that cannot be written.

    Newer changes, locks and everything else are written only here, and deleted with it. Raises `StoreFull`.
    """

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
                f"{source} cannot be written, and the temporary folder has no room for its indexes "
                f"({error.strerror or error}); free space in the folder for temporary files"
            ) from error

    def close(self) -> None:
        """Delete the folder."""
        self._temporary.cleanup()


@contextmanager
def usable_index_folder(folder: Path, *, writable: bool) -> Iterator[Path]:
    """Yield a folder in which the indexes can be opened: the folder itself, or a `ScratchFolder` of it.

    Raises `StoreFull`.
    """
    if writable:
        yield folder
        return
    scratch = ScratchFolder(folder)
    try:
        yield scratch.folder
    finally:
        scratch.close()


def _link(source: Path, target: Path) -> None:
    """Link or copy a file. Locks are not linked: acquiring one would write to the source."""
    if not source.is_file() or source.suffix == ".lock":
        return
    try:
        target.symlink_to(source.absolute())
    except (OSError, NotImplementedError):  # some systems let only administrators make links
        shutil.copyfile(source, target)
