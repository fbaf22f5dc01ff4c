"""What a snapshot of the vector index says of itself, read without loading anything of the index."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentformer.errors import StoreDamaged, StoreFull
from agentformer.records.files import file_bytes

INDEX_FILE = "rag_faiss_index.bin"
META_FILE = "rag_faiss_meta.json"
WORDS_FOLDER = "words"


def described(folder: Path) -> dict[str, Any]:
    """The state of the index when its snapshot was written, unchecked, as JSON values; empty where there is none."""
    try:
        return {**json.loads(file_bytes(folder / META_FILE))["about"], "in_memory": False}
    except (OSError, ValueError, LookupError, TypeError):
        return {"in_memory": False}


def check_records(records: Path) -> None:
    """Raises `StoreDamaged` where the records are gone though what was made from them is here: a memory that is begun
    anew beside it would look as if nothing had ever been kept."""
    try:
        if records.stat().st_size:
            return
        what = "is empty"
    except FileNotFoundError:
        what = "is missing"
    except OSError:
        return  # which opening it tells
    made = [name for name in (INDEX_FILE, META_FILE, WORDS_FOLDER) if (records.parent / name).exists()]
    if made:
        raise StoreDamaged(
            f"{records} {what}, though what was made from it is there ({', '.join(made)}); put it back from a backup, "
            "or remove these too to begin anew"
        )


class ScratchFolder:
    """A temporary folder with what the indexes in `source` have written, as links. What is newer in the records, locks
    and all else are written here alone, and are gone with it. Raises `StoreFull`."""

    def __init__(self, source: Path) -> None:
        try:
            self._made = tempfile.TemporaryDirectory(prefix="agentformer-", ignore_cleanup_errors=True)
            self.folder = Path(self._made.name)
            for name in (INDEX_FILE, META_FILE):
                _link(source / name, self.folder / name)
            (self.folder / WORDS_FOLDER).mkdir()
            with suppress(FileNotFoundError):
                for path in (source / WORDS_FOLDER).iterdir():
                    _link(path, self.folder / WORDS_FOLDER / path.name)
        except OSError as error:
            raise StoreFull(
                f"{source} cannot be written, and there is no room for its indexes elsewhere "
                f"({error.strerror or error}); free space in the folder for temporary files"
            ) from error

    def close(self) -> None:
        self._made.cleanup()


@contextmanager
def indexes_of(folder: Path, *, writable: bool) -> Iterator[Path]:
    """Where the indexes of a folder can be opened: there, or in a `ScratchFolder` of it. Raises `StoreFull`."""
    if writable:
        yield folder
        return
    scratch = ScratchFolder(folder)
    try:
        yield scratch.folder
    finally:
        scratch.close()


def _link(source: Path, target: Path) -> None:
    """A lock is not linked: it would be taken where nothing can be written."""
    if not source.is_file() or source.suffix == ".lock":
        return
    try:
        target.symlink_to(source.absolute())
    except (OSError, NotImplementedError):  # some systems let administrators alone make links
        shutil.copyfile(source, target)
