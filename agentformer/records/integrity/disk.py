"""What the files of a memory take on the disk, and which of them still hold a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

# Beginnings of the names in the index folder.
_KINDS = {"memory.sqlite3.schema-": "copies", "memory.sqlite3": "database", "memory-": "database", "words": "words"}
_KINDS["rag_faiss"] = "vectors"
_READ = 1 << 20  # bytes that are read at a time


def sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of the files in the index folder by kind: the database, its write-ahead log, copies of former
    schemas, the indexes of words and vectors, and others, such as keys."""
    found = dict.fromkeys(("database", "log", "copies", "words", "vectors", "other"), 0)
    for path, size in _files(folder):
        name = path.relative_to(folder).parts[0]
        kind = next((kind for start, kind in _KINDS.items() if name.startswith(start)), "other")
        found["log" if name.endswith("-wal") else kind] += size
    return found


def holders(folders: Sequence[Path], text: str) -> list[Path]:
    """Return the files in the folders whose bytes contain the text in UTF-8 or UTF-16. The text in a compressed part of
    a file, such as an image of a page, is not found."""
    needles = [text.encode(code) for code in ("utf-8", "utf-16-le", "utf-16-be")]
    return [path for folder in folders for path, _ in _files(folder) if _contains(path, needles)]


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    for path in sorted(folder.rglob("*")):
        try:
            if path.is_file():
                yield path, path.stat().st_size
        except OSError:  # deleted meanwhile
            continue


def _contains(path: Path, needles: Sequence[bytes]) -> bool:
    longest = max(map(len, needles))
    rest = b""
    try:
        with path.open("rb") as file:
            while block := file.read(_READ):
                if any(needle in rest + block for needle in needles):
                    return True
                rest = (rest + block)[-longest + 1 :]
    except OSError:
        return False
    return False
