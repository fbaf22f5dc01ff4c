"""Finds the files that a command ingests, and chooses the names of their documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentformer.errors import InvalidInput
from agentformer.rag.folder_files import OwnFolders


def existing_files(paths: Sequence[str], own: OwnFolders) -> list[tuple[Path, Path | None]]:
    """Return the files to ingest at these paths. Each item is a pair: the file, and the folder that the user gave, or
    None if the user gave the file itself. The folders `own`, which contain the data of the memory, are skipped. Raises
    `InvalidInput` if a path is empty, or if there is no file."""
    if not all(paths):
        raise InvalidInput("PATH", "is empty; give the path of a file or a folder")
    if not any(Path(path).exists() for path in paths):
        raise InvalidInput(
            "PATH", f"{' and '.join(paths)} {'do' if len(paths) > 1 else 'does'} not exist; check the path"
        )
    files = [item for path in paths for item in _files(Path(path), own)]
    if not files:
        raise InvalidInput("PATH", "contains no files to ingest")
    return files


def _files(path: Path, own: OwnFolders, root: Path | None = None) -> Iterator[tuple[Path, Path | None]]:
    """Yield the files to ingest, sorted by name, each with the folder that the user gave (`root`), or None for a single
    file. Hidden files, the folders `own`, and links to folders (which may form a cycle) are skipped. A folder that
    cannot be read is yielded itself, so that the command reports the error when it ingests the folder."""
    if path in own:
        return
    is_link = root is not None and path.is_symlink()
    try:
        children = sorted(path.iterdir()) if path.is_dir() and not is_link else None
    except OSError:
        children = None
    if children is None and not (is_link and path.is_dir()):
        yield path, root
    for child in children or ():
        if not child.name.startswith("."):
            yield from _files(child, own, root or path)


def names_of(files: Sequence[tuple[Path, Path | None]]) -> list[str]:
    """Return the name for each file. For a file in a folder that the user gave, this is the path of the file in this
    folder. For a single file, it is the file name. If several files would have the same name, each name begins with the
    names of further folders that contain the file."""
    paths = [file.absolute().parts for file, _ in files]
    sizes = [len(file.relative_to(root).parts) if root is not None else 1 for file, root in files]
    while True:
        names = ["/".join(path[-size:]) for path, size in zip(paths, sizes, strict=True)]
        counts = Counter(name for name, _ in set(zip(names, paths, strict=True)))  # a file may be given twice
        longer = [
            size + 1 if counts[name] > 1 and size < len(path) - 1 else size
            for name, path, size in zip(names, paths, sizes, strict=True)
        ]
        if longer == sizes:
            return names
        sizes = longer
