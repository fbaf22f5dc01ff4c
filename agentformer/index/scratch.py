"""Where the indexes of a store that cannot be written do their work: a folder of links to their files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentformer.errors import StoreFull
from agentformer.index.vectors.snapshot_meta import INDEX_FILE, META_FILE, WORDS_FOLDER


class Scratch:
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
    """Where the indexes of a folder can be opened: there, or in a `Scratch` of it. Raises `StoreFull`."""
    if writable:
        yield folder
        return
    scratch = Scratch(folder)
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
