"""Finds out which file belongs to which entry, before anything is changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agentformer.archive.markdown.folder import HomeFile, HomeFolder
from agentformer.archive.markdown.pages import Page, id_in, parse
from agentformer.errors import InvalidInput
from agentformer.rag.folder_files import Problem


class Found(NamedTuple):
    """A file of a memory home, and the SHA-256 of its bytes. `page` is the parsed file, or None if the file has not
    changed since the last sync."""

    file: HomeFile
    sha256: str
    page: Page | None


@dataclass(slots=True)
class Scan:
    """The files of a home. `entries` contains the file of each entry by the id of the entry, in the order of the file
    names. `new` contains the files without an id. `unusable` contains the ids of entries whose files have errors.
    `complete` is False if a folder could not be listed, or if it is not known to which entry an unusable file belongs.
    An entry without a file may then still have one."""

    entries: dict[str, Found] = field(default_factory=dict)
    new: list[Found] = field(default_factory=list)
    unusable: set[str] = field(default_factory=set)
    complete: bool = True


def scan(folder: HomeFolder, versions: Mapping[str, int]) -> Scan:
    """Read the changed files of the folder of a memory. `versions` contains the version of each live entry. A file is
    not read if its stamp (size and modification time) and the version of its entry are the same as in the last sync.
    Problems are added to `folder.failed`."""
    result = Scan()
    recorded = {record.path: entry_id for entry_id, record in folder.records.items()}
    claims: dict[str, list[Found]] = {}
    for file in folder.files():
        known = recorded.get(file.name, "")
        try:
            entry_id, found = _look(folder, file, known, versions)
        except InvalidInput as error:
            folder.failed.append(Problem(file.name, str(error).removeprefix("file: ")))
            guess = known or _guess(folder, file)
            result.unusable.add(guess)
            result.complete &= bool(guess)
            continue
        if entry_id:
            claims.setdefault(entry_id, []).append(found)
        else:
            result.new.append(found)
    for entry_id, founds in claims.items():
        if chosen := _choose(folder, entry_id, founds):
            result.entries[entry_id] = chosen
        else:
            result.unusable.add(entry_id)
    result.complete &= not any(problem.reason.startswith("the folder cannot") for problem in folder.failed)
    return result


def _look(folder: HomeFolder, file: HomeFile, known: str, versions: Mapping[str, int]) -> tuple[str, Found]:
    """Return the id of the entry of a file ("" for a new file), and the file. `known` is the id that the last sync has
    recorded for the path of the file, or "". Raises `InvalidInput` if the file cannot be read or parsed."""
    record = folder.records.get(known)
    if record and record.version and record.stamp == file.stamp != "" and versions.get(known) == record.version:
        return known, Found(file, record.sha256, None)
    data = folder.read(file)
    digest = hashlib.sha256(data).hexdigest()
    if record and record.version and record.sha256 == digest:
        return known, Found(file, digest, None)
    page = parse(data)
    if record and not record.version and page.id != known and page.id not in versions:
        page = Page({name: value for name, value in page.values.items() if name != "id"})
        known = ""  # a file whose entry was being stored under a new id
    return page.id or known, Found(file, digest, page)


def _choose(folder: HomeFolder, entry_id: str, founds: list[Found]) -> Found | None:
    """Return the file of an entry: the only one, or the one at the recorded path. The other files are reported as
    problems."""
    record = folder.records.get(entry_id)
    if len(founds) == 1:
        return founds[0]
    chosen = next((found for found in founds if record and found.file.name == record.path), None)
    names = ", ".join(found.file.name for found in founds)
    for found in founds:
        if found is not chosen:
            reason = f"several files have the id {entry_id} ({names}); remove the line `id:` from a copy"
            folder.failed.append(Problem(found.file.name, reason[:500]))
    return chosen


def _guess(folder: HomeFolder, file: HomeFile) -> str:
    try:
        return id_in(folder.read(file))
    except InvalidInput:
        return ""
