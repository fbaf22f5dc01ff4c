"""The owner of uploaded files. Several memories may use one upload folder or one bucket, so each memory stores its
files under a name of its own, `memory-ID`, and deletes files only there.

The id is in a file of the index folder, the mark. A copy of the folder contains the mark, too, but the copy is another
memory. So a copied mark gets a new id when the copy is opened. A memory on a server has an id from this server."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from agentformer.records.integrity.files import atomic_writer, read_file
from agentformer.settings import Settings
from agentformer.settings.access import make_folder
from agentformer.types import MemoryBackend, new_id

PREFIX = "memory-"  # the name of a folder of an owner begins with this
_MARK = "owner-{}.json"  # each backend has a memory of its own in the index folder
_CLAIM = ".at-"  # the name of the folder that `claim` makes begins with this
_NAME = re.compile(r"(memory-)?[0-9a-z]{32}")


@dataclass(frozen=True, slots=True)
class Owner:
    """A memory that owns uploaded files. `folder` is the name of its folder in the upload folder, `memory-ID` unless it
    was copied together with the mark. `mark` is the path of the mark, or None for a memory on a server. `settled` is
    True if the memory owns a file for each of its documents, because it has taken copies of the files of other
    memories. `beside` are paths of the index folder, relative to the upload folder, such as `../indexes`."""

    id: str
    folder: str
    mark: Path | None = None
    settled: bool = False
    beside: tuple[str, ...] = ()


def owner_of(settings: Settings, backend: MemoryBackend) -> Owner:
    """Return the owner of the files of a memory, and write its mark if it has none, or if its mark is a copy."""
    if server := str(getattr(backend, "owner", "")):  # a text that no copy of this store has
        return _named(_short(server))
    path = settings.index_dir / _MARK.format(settings.backend)
    owner, genuine = read_mark(path)
    if owner and genuine:
        return (
            owner if _may_use(owner, settings.upload_dir) else replace(owner, folder=PREFIX + owner.id, settled=False)
        )
    try:
        make_folder(path.parent)
        write_mark(_new_owner(path, settings.upload_dir, owner), replace_file=owner is not None)
        owner, _ = read_mark(path)  # another process may have been faster
    except OSError:
        owner = None
    return owner or _named(_short(str(path.absolute())))  # a memory that cannot be written stores no file


def _new_owner(mark: Path, root: Path, former: Owner | None) -> Owner:
    """Return a new owner. `former` is the owner in the mark if this was a copy. If the folder of the former owner was
    copied, too, it belongs to the new owner. Only the copy with the same relative path may take it, because there may
    be further copies of the index folder. All processes that open a copy at the same time get the same id."""
    beside = os.path.relpath(mark.parent.resolve(), root.resolve())
    owner = _named(_short(f"{former.id}/{_inode(mark)}") if former else _new_id(), mark, (beside,))
    if former is None or beside not in former.beside:
        return owner
    folder, heir = root / former.folder, replace(owner, folder=former.folder)
    # The claim may be our own, if the process was killed before it wrote the mark.
    if not _claims(folder) or not _may_use(heir, root):
        return owner
    claim(folder, owner)
    return heir


def _may_use(owner: Owner, root: Path) -> bool:
    """Return whether no other memory uses the folder of the owner in `root`. This folder may be another one than that
    with which the mark was copied."""
    folder = root / owner.folder
    used_by = [name for name, inode in _claims(folder).items() if inode == _inode(folder)]
    return not used_by or _claim(folder, owner.id).name in used_by


def owner_of_copy(owner: Owner | None, index_dir: Path) -> Owner:
    """Return an owner for a backup in `index_dir`, which is a memory of its own. Its upload folder is beside
    `index_dir`, and a restored backup may be where the original memory `owner` was."""
    beside = (f"../{index_dir.name}", *(owner.beside if owner else ()))
    local = owner.mark.name if owner and owner.mark else _MARK.format("faiss")  # opens the backup of a server
    return _named(_new_id(), index_dir / local, beside)


def settle(owner: Owner) -> None:
    """Store that the memory is settled. If the mark cannot be written, the next opening settles the memory again."""
    with suppress(OSError):
        write_mark(replace(owner, settled=True))


def write_mark(owner: Owner, *, replace_file: bool = True) -> None:
    """Write the mark of an owner. It contains its own inode and path, which show whether a mark is a copy. If
    `replace_file` is false, a mark that another process has written stays."""
    if owner.mark is None:
        return
    with atomic_writer(owner.mark, replace_file=replace_file) as file:
        content = {name: getattr(owner, name) for name in ("id", "folder", "settled", "beside")}
        own = {"inode": os.fstat(file.fileno()).st_ino, "path": os.path.realpath(owner.mark)}
        file.write(json.dumps({**content, **own}).encode())


def read_mark(path: Path) -> tuple[Owner | None, bool]:
    """Return the owner in a mark, or None if there is no readable mark. Also return whether the mark is genuine, and
    not a copy: a copy has another inode or, in a clone of the file system, another path beside that of the original."""
    try:
        content = json.loads(read_file(path))
        names = _checked(content["id"]), _checked(content["folder"])
        owner = Owner(*names, path, bool(content["settled"]), tuple(map(str, content["beside"])))
        genuine = bool(content["inode"] == _inode(path))
        original = Path(content["path"])
        return owner, genuine and (not original.exists() or original.samefile(path))
    except (OSError, ValueError, TypeError, KeyError):
        return None, False


def claim(folder: Path, owner: Owner) -> None:
    """Record in a folder of uploads that `owner` uses it at this place: the name of an empty folder in it contains the
    inode of the folder and the id of the owner. A copy has another inode, so it belongs to nobody. Do nothing if the
    folder does not exist."""
    place = _claim(folder, owner.id)
    if folder.is_dir() and not place.exists():
        with suppress(OSError):
            make_folder(place)
            for other in _claims(folder).keys() - {place.name}:
                (folder / other).rmdir()


def _claim(folder: Path, owner_id: str) -> Path:
    return folder / f"{_CLAIM}{_inode(folder)}-{owner_id}"


def _claims(folder: Path) -> dict[str, int]:
    """Return the names of the claims in a folder, and the inode of the folder when each claim was made."""
    names = (path.name for path in folder.glob(f"{_CLAIM}*-*"))
    inodes = {name: name.removeprefix(_CLAIM).partition("-")[0] for name in names}
    return {name: int(inode) for name, inode in inodes.items() if inode.isdecimal()}


def _named(owner_id: str, mark: Path | None = None, beside: tuple[str, ...] = ()) -> Owner:
    return Owner(owner_id, PREFIX + owner_id, mark, beside=beside)


def _checked(name: str) -> str:
    """Return an id or the name of a folder. Raises `ValueError` if it is damaged, so that it names no other folder."""
    if not _NAME.fullmatch(name):
        raise ValueError("not a name")
    return name


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _new_id() -> str:
    return new_id().replace("-", "")


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
