"""Anthropic: a memory tool for Claude that keeps its files in a memory. Each file is an entry with a history, and a
search of the memory finds the file.

The tool differs from `BetaLocalFilesystemMemoryTool` in these points: a directory exists while a file is in it, the
size of a directory is the sum of its files, and a file has at most a million characters."""

from __future__ import annotations

import asyncio
import json
import posixpath
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentformer.errors import AgentFormerError, Conflict
from agentformer.factory import AgentFormer
from agentformer.integrations import missing, owned
from agentformer.memory.backends import all_entries
from agentformer.records.offers import leases_of
from agentformer.types import DEFAULT_NAMESPACE, MemoryEntry, Scope, new_id

try:
    from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
except ImportError as error:
    raise missing("anthropic", error) from error

_TYPE = "anthropic_memory"
_ROOT = "/memories"
_WIDTH = 6  # characters of a line number
_DEPTH = 2  # levels of a listed directory
_LEASE = 60.0  # seconds for which the files of an owner stay locked if a process dies during a command
_WAIT = 0.005  # seconds between attempts to get the lease
_LOCKS = tuple(threading.Lock() for _ in range(64))  # of the threads of this process, by the owner of the files
_BLANK = "(a file without visible text)"  # the content of such a file, because an entry needs a text


class AgentFormerMemoryTool(BetaAbstractMemoryTool):
    """The memory tool of Claude, which stores its files in a memory of AgentFormer. `user_id` and `project` are the
    owner of the files. Without them, the tool uses only files that belong to nobody. Commands that change the files of
    one owner run one after the other, even if several processes run them."""

    def __init__(
        self,
        af: AgentFormer,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        user_id: str | None = None,
        project: str | None = None,
    ) -> None:
        super().__init__()
        self._af = af
        self._leases = leases_of(af.backend)
        self._place: dict[str, Any] = {"namespace": namespace, "user_id": user_id, "project": project}
        # the name of the lease in `_locked`: the same in each process, and of the same length for every owner
        self._lease = f"{_TYPE}-{uuid.uuid5(uuid.NAMESPACE_OID, json.dumps([namespace, user_id, project]))}"

    def execute(self, command: Any) -> Any:
        """Run a command. An error of the memory becomes a `ToolError`, whose message the model gets."""
        try:
            if getattr(command, "command", None) == "view":
                return super().execute(command)
            with self._locked():
                return super().execute(command)
        except AgentFormerError as error:
            raise ToolError(str(error)) from error

    def view(self, command: Any) -> str:
        """Return the lines of a file with their numbers, or the names and sizes in a directory."""
        files, path = self._files(), _path(command.path)
        if path in files:
            return _numbered(command, _text(files[path]))
        inside = {name: entry for name, entry in files.items() if name.startswith(f"{path}/")}
        if not inside and path != _ROOT:
            raise ToolError(f"The path {command.path} does not exist. Please provide a valid path.")
        return _listing(command.path, path, {name: len(_text(entry).encode()) for name, entry in inside.items()})

    def create(self, command: Any) -> str:
        """Create a file. Raises `ToolError` if the path exists already, or if a parent directory is a file."""
        files, path = self._files(), _path(command.path)
        if path in files or path == _ROOT or any(name.startswith(f"{path}/") for name in files):
            raise ToolError(f"File {command.path} already exists")
        if any(path.startswith(f"{name}/") for name in files):
            raise ToolError(f"The path {command.path} is inside a file")
        values = {"title": path, "source_type": _TYPE, "source_id": new_id(), "verbatim": True, **self._place}
        self._af.memory.upsert(**_stored(command.file_text), **values)
        return f"File created successfully at: {command.path}"

    def str_replace(self, command: Any) -> str:
        """Replace a text in a file. Raises `ToolError` unless the text occurs exactly once."""
        entry = self._file(command.path)
        text, old = _text(entry), command.old_str
        count = text.count(old)
        if count == 0:
            problem = f"No replacement was performed, old_str `{old}` did not appear verbatim in {command.path}."
            raise ToolError(problem)
        if count > 1:
            numbers = ", ".join(str(text[:at].count("\n") + 1) for at in _positions(text, old))
            problem = f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: {numbers}."
            raise ToolError(f"{problem} Please ensure it is unique")
        changed = text[: text.find(old)].count("\n")
        new = text.replace(old, command.new_str)
        self._af.memory.update(entry.id, expected_version=entry.version, **_stored(new))
        lines = new.split("\n")
        shown = range(max(0, changed - 2), min(len(lines), changed + 3))
        snippet = "\n".join(f"{str(n + 1).rjust(_WIDTH)}\t{lines[n]}" for n in shown)
        return (
            f"The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{snippet}"
        )

    def insert(self, command: Any) -> str:
        """Insert a text after line `insert_line` of a file, or at the beginning if `insert_line` is 0. Raises
        `ToolError` if there is no such line."""
        entry = self._file(command.path)
        lines = _text(entry).split("\n")
        if lines[-1] == "":
            lines.pop()
        if not 0 <= command.insert_line <= len(lines):
            problem = f"Invalid `insert_line` parameter: {command.insert_line}."
            raise ToolError(f"{problem} It should be within the range [0, {len(lines)}].")
        lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
        text = "\n".join(lines)
        text = text if text.endswith("\n") else f"{text}\n"
        self._af.memory.update(entry.id, expected_version=entry.version, **_stored(text))
        return f"The file {command.path} has been edited."

    def delete(self, command: Any) -> str:
        """Delete a file, or a directory with its files. Raises `ToolError` for `/memories` and for a missing path."""
        path = _path(command.path)
        if path == _ROOT:
            raise ToolError("Cannot delete the /memories directory itself")
        ids = [entry.id for entry in self._entries() if f"{entry.title}/".startswith(f"{path}/")]
        if not ids:
            raise ToolError(f"The path {command.path} does not exist")
        self._af.memory.remove_many(ids)
        return f"Successfully deleted {command.path}"

    def rename(self, command: Any) -> str:
        """Rename a file or a directory. A file keeps its history. Raises `ToolError` if the old path is missing or is
        `/memories`, if the new path exists, or if a parent directory of the new path is a file."""
        files, old, new = self._files(), _path(command.old_path), _path(command.new_path)
        if old == _ROOT:
            raise ToolError("Cannot rename the /memories directory itself")
        if new == _ROOT or any(name == new or name.startswith(f"{new}/") for name in files):
            raise ToolError(f"The destination {command.new_path} already exists")
        moved = {name: entry for name, entry in files.items() if name == old or name.startswith(f"{old}/")}
        if not moved:
            raise ToolError(f"The path {command.old_path} does not exist")
        if any(new.startswith(f"{name}/") for name in files):
            raise ToolError(f"The path {command.new_path} is inside a file")
        for name, entry in moved.items():
            self._af.memory.update(entry.id, title=new + name[len(old) :])
        return f"Successfully renamed {command.old_path} to {command.new_path}"

    def clear_all_memory(self) -> str:
        """Delete all files."""
        with self._locked():
            self._af.memory.remove_many([entry.id for entry in self._entries()])
        return "All memory cleared"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the files of this owner against changes by other threads and processes, because a command reads and then
        writes. Raises `Conflict` if the lock cannot be acquired in time."""
        holder, end = new_id(), time.monotonic() + 2 * _LEASE
        with _LOCKS[hash(self._lease) % len(_LOCKS)]:
            while not self._leases.lease(self._lease, holder, _LEASE):
                if time.monotonic() > end:
                    raise Conflict("other programs change these files all the time; try again")
                time.sleep(_WAIT)
            try:
                yield
            finally:
                self._leases.release(self._lease, holder)

    def _entries(self) -> Iterator[MemoryEntry]:
        """Yield the entries that are files of the tool. The title of such an entry is a path in `/memories`."""
        owner = owned(user_id=self._place["user_id"], project=self._place["project"])
        entries = all_entries(self._af.backend, Scope(self._place["namespace"], source_type=_TYPE, **owner))
        return (entry for entry in entries if entry.title.startswith(f"{_ROOT}/"))

    def _files(self) -> dict[str, MemoryEntry]:
        return {entry.title: entry for entry in self._entries()}

    def _file(self, path: str) -> MemoryEntry:
        files, name = self._files(), _path(path)
        if name in files:
            return files[name]
        if name == _ROOT or any(other.startswith(f"{name}/") for other in files):
            raise ToolError(f"The path {path} is not a file.")
        raise ToolError(f"The path {path} does not exist. Please provide a valid path.")


class AsyncAgentFormerMemoryTool(BetaAsyncAbstractMemoryTool):
    """The memory tool for an asynchronous client. Each command runs in a thread; see `AgentFormerMemoryTool`."""

    def __init__(self, af: AgentFormer, **place: Any) -> None:
        super().__init__()
        self._tool = AgentFormerMemoryTool(af, **place)

    async def execute(self, command: Any) -> Any:
        """Run a command in a thread."""
        return await asyncio.to_thread(self._tool.execute, command)

    view = create = str_replace = insert = delete = rename = execute  # a command object contains the name of its method

    async def clear_all_memory(self) -> Any:
        """Delete all files."""
        return await asyncio.to_thread(self._tool.clear_all_memory)


def _path(path: str) -> str:
    """Return the path without `.` and `..`. Raises `ToolError` for a path outside of /memories."""
    if not path.startswith(_ROOT):
        raise ToolError(f"Path must start with /memories, got: {path}")
    whole = posixpath.normpath(posixpath.join(_ROOT, path[len(_ROOT) :].lstrip("/")))
    if whole != _ROOT and not whole.startswith(f"{_ROOT}/"):
        raise ToolError(f"Path {path} would escape /memories directory")
    return whole


def _stored(text: str) -> dict[str, Any]:
    """Return the content and the metadata of the entry for a file with this text. A text that is empty or white space
    is stored in the metadata, because the content of an entry needs visible text."""
    return {"content": text, "metadata": {}} if text.strip() else {"content": _BLANK, "metadata": {"blank": text}}


def _text(entry: MemoryEntry) -> str:
    return str(entry.metadata.get("blank", entry.content))


def _positions(text: str, part: str) -> list[int]:
    positions, at = [], text.find(part)
    while at != -1:
        positions.append(at)
        at = text.find(part, at + 1)
    return positions


def _numbered(command: Any, text: str) -> str:
    lines, first = text.split("\n"), 0
    if command.view_range and len(command.view_range) == 2:
        first = max(1, command.view_range[0]) - 1
        lines = lines[first : len(lines) if command.view_range[1] == -1 else command.view_range[1]]
    numbered = "\n".join(f"{str(n).rjust(_WIDTH)}\t{line}" for n, line in enumerate(lines, first + 1))
    return f"Here's the content of {command.path} with line numbers:\n{numbered}"


def _listing(shown: str, path: str, sizes: dict[str, int]) -> str:
    """Return the listing of the folder `path`, named `shown`, in the words that Claude expects. `sizes` are those of
    all files below it. A folder has the size of its files; hidden files are left out."""
    totals: dict[tuple[str, ...], int] = {}
    folders: set[tuple[str, ...]] = set()
    for name, size in sizes.items():
        parts = tuple(name[len(path) + 1 :].split("/"))
        if any(part.startswith(".") for part in parts[:_DEPTH]):
            continue
        for depth in range(1, min(len(parts), _DEPTH) + 1):
            totals[parts[:depth]] = totals.get(parts[:depth], 0) + size
            if depth < len(parts):
                folders.add(parts[:depth])
    head = f"Here're the files and directories up to 2 levels deep in {shown}, excluding hidden items:"
    lines = [f"{_size(sum(sizes.values()))}\t{shown}"]
    lines += [f"{_size(totals[p])}\t{shown}/{'/'.join(p)}{'/' if p in folders else ''}" for p in sorted(totals)]
    return "\n".join((head, *lines))


def _size(count: int) -> str:
    """Return a number of bytes as a text, such as 1.5K."""
    if count == 0:
        return "0B"
    unit = min((count.bit_length() - 1) // 10, 3)
    size = count / 1024**unit
    return f"{int(size)}{'BKMG'[unit]}" if size == int(size) else f"{size:.1f}{'BKMG'[unit]}"
