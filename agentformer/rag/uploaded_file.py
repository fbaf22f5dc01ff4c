"""Reads the file of an upload, and finds out the name and the origin of the document."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agentformer.errors import InvalidInput
from agentformer.rag.identity import Origin

_MAX_NAME = 255  # code points of a name; the limit of common file systems


def read_file(file: Any, limit: int) -> tuple[bytes, str]:
    """Return the bytes and the name of a file to upload. If `file` is bytes, the name is "". Raises `InvalidInput` if
    the file cannot be read, or if the file has more than `limit` bytes."""
    data: bytes | None
    if isinstance(file, (bytes, bytearray, memoryview)):
        data, name = bytes(file), ""
    elif isinstance(file, (str, os.PathLike)):
        data, name = _read_path(Path(file), limit), Path(file).name
    else:
        try:
            data = file.read(limit + 1)
        except (AttributeError, UnicodeDecodeError):
            data = None
        label = getattr(file, "name", "")
        name = Path(label).name if isinstance(label, str) else ""
    if not isinstance(data, bytes):
        raise InvalidInput("file", "must be a path, bytes, or a file opened in binary mode ('rb')")
    _check_size(len(data), limit)
    return data, name


def origin_of(file: Any, name: str) -> Origin:
    """Return the origin of a file to upload. Bytes, and an open file that the caller has given a name, have no path."""
    if isinstance(file, (str, os.PathLike)):
        return Origin.of_file(file)
    path = getattr(file, "name", None)
    try:
        if name or not isinstance(path, str) or not os.path.samestat(Path(path).stat(), os.fstat(file.fileno())):
            return Origin()
    except (AttributeError, OSError, ValueError):  # not a file of the file system
        return Origin()
    return Origin.of_file(path)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise InvalidInput("file", f"has more than {limit} bytes; split the file, or raise the setting max_file_bytes")


def _read_path(path: Path, limit: int) -> bytes:
    try:
        if path.is_dir():
            raise InvalidInput("file", f"{path} is a folder; give a file (`agentformer ingest` accepts folders)")
        if path.exists() and not path.is_file():
            raise InvalidInput("file", f"{path} is a device or a pipe; give a regular file")
        with path.open("rb") as file:
            _check_size(os.fstat(file.fileno()).st_size, limit)  # before the file is read
            return file.read(limit + 1)
    except FileNotFoundError:
        raise InvalidInput("file", f"{path} does not exist; check the path") from None
    except PermissionError:
        raise InvalidInput("file", f"{path} cannot be read: permission denied; allow this process to read it") from None
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput("file", f"{str(path)[:200]!r} cannot be read: {error}") from None


def safe_name(name: Any) -> str:
    """Return the name without unprintable characters and without parts such as `..`. The name is never used as a path.
    Raises `InvalidInput` if no name is left."""
    if not isinstance(name, str):
        raise InvalidInput("name", f"must be a string, got {type(name).__name__}")
    printable = "".join(ch for ch in name.replace("\\", "/") if ch.isprintable()).encode("utf-8", "ignore").decode()
    parts = [part.strip() for part in printable.split("/") if part.strip() not in ("", ".", "..")]
    if not parts:
        raise InvalidInput("name", "is missing; give the document a name, such as report.pdf")
    return "/".join(parts)[-_MAX_NAME:]
