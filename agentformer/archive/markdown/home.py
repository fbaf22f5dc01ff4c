"""Memory homes. A memory home is a folder with a Markdown file for each entry, which people read and edit. A sync
stores edited files as new versions of their entries, and writes changed entries into their files (docs/MARKDOWN.md)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from agentformer.archive.markdown.entries import scope_of
from agentformer.archive.markdown.file_matching import HomeReport
from agentformer.archive.markdown.folder import HomeFolder
from agentformer.archive.markdown.sync import HomeSync
from agentformer.errors import AgentFormerError, InvalidInput
from agentformer.memory.background import PeriodicThread
from agentformer.memory.memory_manager import MemoryManager
from agentformer.rag.folder_files import checked_folder, is_home
from agentformer.records import fields
from agentformer.records.codec import now
from agentformer.records.integrity.files import kind_of
from agentformer.types import DEFAULT_NAMESPACE, Condition, MemoryBackend

log = logging.getLogger("agentformer")

Place = str | os.PathLike[str]

_FULL_SECONDS = 300.0  # seconds until a sync without a known change: clocks of other machines may be wrong
# Seconds from a sync to the next, which runs once without a known change. An entry gets the time of its change before
# the change is committed, so a sync that ran in between saw neither the change nor, afterwards, a later time.
_COMMIT_SECONDS = 5.0
_REST = 20  # a check or a sync is followed by a pause that is this many times as long


@dataclass(frozen=True, slots=True)
class MarkdownHomes:
    """Exports and syncs the memory homes of one memory. The categories in `categories` exist even if no entry has
    them."""

    memory: MemoryManager
    backend: MemoryBackend
    categories: Iterable[str]

    def export(self, folder: Place, *, namespace: str = DEFAULT_NAMESPACE) -> HomeReport:
        """Write the decisions, facts, summaries and core blocks of a namespace as Markdown files into a folder, which
        becomes a home; docs/MARKDOWN.md describes the files. In an existing home, only files whose entry has changed
        are written; files that a person has edited are `pending` in the report. Raises `InvalidInput` if the folder is
        not empty and not a home, or is the home of another namespace, and `StoreFull` if the folder cannot be
        written."""
        path, namespace = checked_folder(folder), fields.name("namespace", namespace)
        home = HomeFolder(path) if is_home(path) else HomeFolder.create(path, namespace)
        _check_namespace(home, namespace)
        return self._sync(home, store_edits=False).run()

    def sync(
        self, folder: Place, *, namespace: str | None = None, delete: bool = False, adopt: bool = False
    ) -> HomeReport:
        """Sync a home with the memory: edited files become new versions of their entries, new files become new entries,
        and the entries of deleted files are archived. Changes of the memory are written into the files. If a field was
        changed in the file and in the memory, the value in the file is used, the other value stays in the history, and
        the report names the field. The report also contains the problems of single files.

        With `adopt`, the folder may be the home of another memory, or a folder with such files that is no home yet. The
        files are stored with the ids that they contain. Without `adopt`, raises `InvalidInput` if the folder is not a
        home. Raises `InvalidInput` if the folder is the home of another namespace than `namespace` and, without
        `delete`, if more than half of the files, or of the entries that have a file, are gone."""
        path, namespace = checked_folder(folder), fields.optional_name("namespace", namespace)
        if kind_of(path, "folder") != "folder":
            raise InvalidInput("folder", f"{path} is not a folder; check the path, or whether the disk is mounted")
        if adopt and not is_home(path):
            home = HomeFolder.create(path, namespace or DEFAULT_NAMESPACE, allow_files=True)
        else:
            home = HomeFolder(path)
        if namespace is not None:
            _check_namespace(home, namespace)
        return self._sync(home, store_edits=True, adopt=adopt).run(delete=delete)

    def follow(self, folder: Place) -> HomeFollower:
        """Return an object whose method `step` syncs the memory home in `folder` if the home or the memory has
        changed. If `folder` is missing or empty, it becomes the home of the default namespace."""
        return HomeFollower(self, checked_folder(folder))

    def keep(self, folder: Place, seconds: float) -> HomeKeeper:
        """Start a thread and return it. Every `seconds` seconds, the thread syncs the home in `folder` if the home or
        the memory has changed."""
        keeper = HomeKeeper(self.follow(folder), seconds)
        keeper.start()
        return keeper

    def state(self, folder: Path, since: datetime) -> HomeState:
        """Return the present state of the memory and the folder. Two states differ if something was changed between
        them. `since` is the time of the last sync. The field `changed` of the state is the number of entries that were
        updated after this time."""
        home = HomeFolder(folder)
        recent = Condition("gte", "$updated_at", since)
        live, changed = scope_of(home.namespace), scope_of(home.namespace, archived=True, where=recent)
        files = hash(tuple((file.name, file.key) for file in home.files()))
        return HomeState(self.backend.count(live), self.backend.count(changed), files)

    def _sync(self, home: HomeFolder, *, store_edits: bool, adopt: bool = False) -> HomeSync:
        categories = (*self.categories, *home.categories)
        return HomeSync(self.memory, self.backend, home, categories, store_edits=store_edits, adopt=adopt)


class HomeState(NamedTuple):
    """A state of a memory and its home, to find out whether a sync is needed: the number of live entries (those that
    are not archived or superseded), the number of entries changed since a time, and a hash of the list of files."""

    live: int
    changed: int
    files: int


class HomeFollower:
    """Syncs a home when the home or its memory has changed. The folder is created if it is missing or empty."""

    def __init__(self, homes: MarkdownHomes, folder: Path) -> None:
        self._homes = homes
        self.folder = folder
        self._since = now()
        self._state: HomeState | None = None
        self._synced = 0.0
        self._pause = _COMMIT_SECONDS
        self._known = False  # whether the home was synced before

    def step(self) -> HomeReport | None:
        """Sync if something has changed since the last step, and return the report. Return None if nothing has changed.
        Raises `InvalidInput` if the folder of a synced home is gone."""
        if not is_home(self.folder):
            if self._known:
                raise InvalidInput("folder", f"{self.folder} is gone; check whether the disk is mounted")
            self._homes.export(self.folder)
        elif self._is_unchanged():
            return None
        again = self._state is not None and time.monotonic() > self._synced + self._pause
        since = now()
        state = self._homes.state(self.folder, since)
        report = self._homes.sync(self.folder)
        self._since, self._synced = since, time.monotonic()
        # After a sync that changed something, the next step syncs again, because something may have changed during this
        # sync.
        self._state = None if report.changes_anything else state
        self._pause = _FULL_SECONDS if again and self._state else _COMMIT_SECONDS
        self._known = True
        return report

    def _is_unchanged(self) -> bool:
        if self._state is None or time.monotonic() > self._synced + self._pause:
            return False
        state = self._homes.state(self.folder, self._since)
        return state.changed == 0 and (state.live, state.files) == (self._state.live, self._state.files)


class HomeKeeper(PeriodicThread):
    """A thread that syncs a home while a server or a worker runs. Problems are logged, each once."""

    name = "agentformer-markdown"

    def __init__(self, follower: HomeFollower, seconds: float) -> None:
        super().__init__(seconds)
        self._follower = follower
        self._logged: set[str] = set()
        self._rest_until = 0.0

    def tick(self) -> bool:
        """Sync if something has changed. Return True after an error, so that the next wait is longer."""
        started = time.monotonic()
        if started < self._rest_until:
            return False
        try:
            if report := self._follower.step():
                for name, reason in (*report.conflicts, *report.failed):
                    self._warn(f"{report.folder}/{name}: {reason}")
        except AgentFormerError as error:
            self._warn(f"the memory home {self._follower.folder} was not synced: {error}")
            return True
        except Exception:
            log.exception("the memory home %s could not be synced", self._follower.folder)
            return True
        finally:
            ended = time.monotonic()
            self._rest_until = ended + _REST * (ended - started)
        return False

    def _warn(self, message: str) -> None:
        if message not in self._logged:
            self._logged.add(message)
            log.warning("%s", message)


def _check_namespace(home: HomeFolder, namespace: str) -> None:
    if namespace != home.namespace:
        raise InvalidInput("namespace", f"{home.root} is the home of namespace {home.namespace}, not of {namespace}")
