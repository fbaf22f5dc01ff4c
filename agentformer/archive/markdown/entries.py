"""Builds entries from the files of a memory home, and decides their categories by their folders."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Any
from unicodedata import normalize

from agentformer.archive.format import checked_entry
from agentformer.archive.markdown.folder import HomeFile, HomeFolder
from agentformer.archive.markdown.pages import Page
from agentformer.errors import InvalidInput
from agentformer.memory.backends import is_live, with_times
from agentformer.memory.hierarchical import BLOCK_KIND
from agentformer.memory.validation import context_line, new_entry
from agentformer.records.filters import both
from agentformer.records.integrity.files import safe_file_name
from agentformer.types import DOCUMENT_KINDS, UNSEARCHED_KIND, Condition, Group, MemoryEntry, Scope

CORE, FACTS = "core", "facts"  # the folders of core blocks, and of entries without a category
DEFAULT_CATEGORIES = ("decisions", "summaries", "context")
_WRONG = re.compile(r'[\x00-\x1f\x7f"*/:<>?\\|%~#^\[\]]')  # characters that a file system or Obsidian refuses in a name
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)  # names of devices in Windows
_LONGEST_FOLDER = 200  # bytes
OTHER_KINDS = DOCUMENT_KINDS | {"message", UNSEARCHED_KIND}  # kinds that have no file in a home
_NEW = (
    *("content", "title", "kind", "tier", "salience", "speaker", "project", "metadata"),
    *("occurred_at", "valid_from", "valid_to", "expires_at"),
    *("session_id", "agent_id", "user_id"),
)
_LIVE = Group("and", (Condition("exists", "$archived_at", False), Condition("exists", "$superseded_by", False)))
CheckTier = Callable[[MemoryEntry], MemoryEntry]  # `HierarchicalMemory.check_tier`


def scope_of(namespace: str, *, archived: bool = False, where: Condition | None = None) -> Scope:
    """Return the scope of the entries whose kind has files in a memory home, also of those that do not hold now. If
    `archived` is true, archived and superseded entries are included. If `where` is given, entries must also match this
    condition."""
    live = both(where, None if archived else _LIVE)
    return Scope(namespace, except_kinds=tuple(sorted(OTHER_KINDS)), include_archived=True, where=live)


def belongs(entry: MemoryEntry, namespace: str) -> bool:
    """Return whether the namespace, kind, tier and source of an entry allow a file in a memory home of `namespace`. An
    archived or superseded entry has no file, but this function does not check that."""
    kinds = entry.kind not in OTHER_KINDS and entry.tier != "working" and entry.source is None
    return kinds and entry.namespace == namespace


def why_not_live(entry: MemoryEntry) -> str:
    """Return the reason why an entry is archived or superseded, or "" if it is not."""
    if is_live(entry):
        return ""
    if entry.archived_by or entry.superseded_by:
        how = f"summarized by {entry.archived_by}" if entry.archived_by else f"superseded by {entry.superseded_by}"
        return f"is {how}; restore it first: agentformer restore {entry.archived_by or entry.id}"
    return "is archived"


def folder_of(entry: MemoryEntry) -> str:
    """Return the name of the folder of an entry, which follows from its category."""
    return CORE if entry.tier == CORE else category_folder(entry.category)


def category_folder(category: str) -> str:
    """Return the name of the folder of a category. Different categories have different names."""
    if not category:
        return FACTS
    name = normalize("NFC", category)
    plain = name == category and not _WRONG.search(name) and not _RESERVED.fullmatch(name)
    if plain and name.strip(" .") == name and name not in (CORE, FACTS) and len(name.encode()) <= _LONGEST_FOLDER:
        return name
    encoded = safe_file_name(category)
    return f"%{encoded.encode()[0]:02x}{encoded[1:]}" if encoded in (CORE, FACTS) else encoded


class Categories:
    """The known categories of a home, by the names of their folders."""

    def __init__(self, names: Iterable[str], home: HomeFolder) -> None:
        self._home = home
        self._by_folder = {category_folder(name): name for name in ("", *DEFAULT_CATEGORIES, *names)}

    def add(self, name: str) -> None:
        """Add the category of a stored entry."""
        self._by_folder.setdefault(category_folder(name), name)

    def of_folder(self, folder: str) -> str:
        """Return the category of a folder. Raises `InvalidInput` if no category has this folder."""
        if folder not in self._by_folder:
            known = ", ".join(sorted([*self._by_folder, CORE]))
            raise InvalidInput("folder", f"{folder[:80]!r} is not a known category; the folders are {known}")
        return self._by_folder[folder]

    def moved(self, page: Page, file: HomeFile, base: MemoryEntry) -> Page:
        """Return `page` with its current category. A person may have moved the file to the folder of another category,
        or changed the category in the front matter. `page` is the parsed file of a stored entry, and `base` is the
        entry from which the file was written. Raises `InvalidInput` if folder and front matter name different
        categories, if the category is unknown, or if a file was moved into or out of the folder `core`."""
        folder, former = file.category_folder, folder_of(base)
        given = page.values.get("category", base.category)
        if self._home.is_one_folder(folder, former):
            if given != base.category:
                self.of_folder(category_folder(given))
            return page
        if CORE in (folder, former):
            raise InvalidInput(
                "folder",
                "a core block must stay in the folder 'core', and no other entry may move into it; move the file back",
            )
        return self._placed(page, folder, given, (base.category,))

    def placed(self, page: Page, file: HomeFile) -> Page:
        """Return `page`, the parsed file of a new entry, with the category of its folder. A page in the folder `core`
        gets the tier `core` instead. Raises `InvalidInput` if the front matter names another category, or the tier
        `core` in another folder."""
        folder, given = file.category_folder, page.values.get("category", "")
        if folder == CORE:
            return Page({**page.values, "tier": CORE, "category": given})
        if page.values.get("tier") == CORE:
            raise InvalidInput("tier", "must not be 'core' in a file outside of the folder 'core'")
        if page.id and category_folder(given) == folder:
            return page  # a file of another memory, which has this category
        return self._placed(page, folder, given, ("",))

    def _placed(self, page: Page, folder: str, given: str, replaced: tuple[str, ...]) -> Page:
        category = self.of_folder(folder)
        if given not in (*replaced, category):
            raise InvalidInput(
                "category",
                f"is {given[:80]!r}, but the folder is that of {category[:80]!r}; change one of the two",
            )
        return Page({**page.values, "category": category})


def created(page: Page, file: HomeFile, namespace: str, entry_id: str, check_tier: CheckTier) -> MemoryEntry:
    """Return the entry for a new file. If the front matter has no title, the name of the file is the title.
    `check_tier` checks the rules of the entry's tier, and returns the entry as it must be stored. The id of the entry
    is `entry_id`. Only a core block has another id, which `check_tier` computes from its name and owner. Raises
    `InvalidInput` if a value is not valid."""
    values = {name: page.values[name] for name in _NEW if name in page.values}
    category = page.values.get("category", "")
    values["title"] = values.get("title") or PurePosixPath(normalize("NFC", file.name)).stem
    default = BLOCK_KIND if values.get("tier") == CORE else "decision" if category == "decisions" else "fact"
    values["kind"] = values.get("kind") or default
    entry = check_tier(new_entry({**values, "category": category, "namespace": namespace, "verbatim": True}))
    return entry if entry.tier == CORE else dataclasses.replace(entry, id=entry_id)


def adopted(page: Page, namespace: str, check_tier: CheckTier) -> MemoryEntry:
    """Return the entry of a file of another memory, with its id, times and version. Raises `InvalidInput` if a value is
    not valid."""
    values: dict[str, Any] = {**page.values, "namespace": namespace}
    values["derived_from"] = values.pop("links", [])
    try:
        entry = checked_entry(values)
    except InvalidInput:
        raise
    except (ValueError, KeyError) as error:
        raise InvalidInput("front matter", str(error)[:200]) from None
    if not belongs(entry, namespace):
        raise InvalidInput(
            "kind", f"an entry of kind {entry.kind!r} and tier {entry.tier!r} has no file in a memory home"
        )
    context = entry.context or context_line(entry)
    return check_tier(dataclasses.replace(with_times(entry), context=context))
