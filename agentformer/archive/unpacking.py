"""Unpack an export that is a ZIP archive, such as the answer of `GET /api/memory/export`."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentformer.archive.format import ENTRIES, MANIFEST, ORIGINAL, VECTORS
from agentformer.errors import InvalidInput, store_failure
from agentformer.settings.access import make_folder, opener

_SMALL = 200 << 20  # bytes that any archive may have when unpacked
_MAX_RATIO = 100  # of the unpacked size of a larger archive to its own size; texts have about 10
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, FileExistsError)


def is_zipped(path: Path) -> bool:
    """Return whether a file is a ZIP archive with the manifest of an export."""
    try:
        with zipfile.ZipFile(path) as archive:
            return MANIFEST in archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return False


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield the folder of an export. If `path` is a ZIP archive, this is a temporary folder with its files. Only names
    that a file of an export can have are unpacked, so none leaves the folder. Raises `InvalidInput` if the archive is
    damaged or much larger when unpacked, and `StoreFull` if the folder cannot be written."""
    if not is_zipped(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="agentformer-import-") as name:
        try:
            _unpack(path, Path(name))
        except _DAMAGE as error:
            raise InvalidInput("folder", f"{path} is a damaged ZIP archive: {str(error)[:120]}") from None
        except OSError as error:
            advice = "free some disk space, or set TMPDIR to a folder on another disk"
            raise store_failure(f"{path} cannot be unpacked", error, advice) from error
        yield Path(name)


def _unpack(path: Path, folder: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if _is_part(member.filename)]
        # A member that has more bytes than the archive says is read up to this number, and is then damaged.
        size, most = sum(member.file_size for member in members), max(_SMALL, _MAX_RATIO * path.stat().st_size)
        if size > most:
            raise InvalidInput("folder", f"{path} has {size} bytes when unpacked, more than {most}; unpack it yourself")
        for member in members:
            target = folder / member.filename
            make_folder(target.parent)
            with archive.open(member) as source, open(target, "xb", opener=opener) as file:
                shutil.copyfileobj(source, file)


def _is_part(name: str) -> bool:
    return name == MANIFEST or any(pattern.fullmatch(name) for pattern in (ENTRIES, ORIGINAL, VECTORS))
