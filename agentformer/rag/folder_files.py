"""The files of a folder that a sync stores as documents (`folder_sync`), and the reasons why other files are left out.

A sync ignores hidden files, binary files, minified and generated text, long texts, and folders of installed packages
and build results. It also ignores the files that `.gitignore` or `.agentformerignore` names; an ignore file in a deeper
folder takes precedence. It never follows symbolic links, so it cannot loop and reads nothing outside of the folder.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentformer.errors import Forbidden, InvalidInput
from agentformer.rag.ignore_rules import MAX_BYTES, IgnoreRules
from agentformer.records.integrity.files import kind_of, open_regular_file, real_path
from agentformer.settings.access import PLAIN

IGNORE_FILES = (".gitignore", ".agentformerignore")  # the second can include files that the first excludes
_PACKAGES = frozenset({"node_modules", "bower_components", "__pycache__", "site-packages"})
_BUILT = frozenset({"build", "dist", "target", "out"})  # build results, if a file of `_PROJECT` is next to them
# Copies of other projects, if a folder above them contains a file of `_PROJECT`.
_VENDORED = frozenset({"vendor", "vendored", "_vendor", "third_party"})
_PROJECT = frozenset(
    {"package.json", "pyproject.toml", "setup.py", "Cargo.toml", "go.mod", "pom.xml", "build.gradle", "CMakeLists.txt"}
    | {"composer.json", "Gemfile"}
)
_ENVIRONMENT = "pyvenv.cfg"  # a folder with this file is a virtual environment
_DOCUMENTS = frozenset(  # binary files that are read; images are not, because most of them contain no text
    {".pdf", ".docx", ".docm", ".pptx", ".pptm", ".xlsx", ".xlsm", ".odt", ".ods", ".odp", ".epub"}
)
_BINARY = re.compile(
    r"\.(7z|a|avi|bin|bmp|bz2|class|db|dll|dylib|eot|exe|flac|gif|gz|ico|jar|jpe?g|lz4|mkv|mo|mov|mp[34]|np[yz]|o|obj|"
    r"ogg|onnx|otf|parquet|pkl|png|py[cd]|rar|safetensors|so|sqlite3?|svgz|tar|tgz|tiff?|ttf|wav|wasm|web[mp]|whl|"
    r"woff2?|xz|zip|zst)$",
    re.IGNORECASE,
)
_GENERATED_NAMES = frozenset(
    {"package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "poetry.lock", "uv.lock", "pdm.lock"}
    | {"Pipfile.lock", "Cargo.lock", "composer.lock", "Gemfile.lock", "go.sum", "flake.lock", "packages.lock.json"}
)
_GENERATED = re.compile(rb"^\W{0,6}(?:@generated\b|Code generated .{0,200}DO NOT EDIT)", re.MULTILINE)
_HEAD = 16_384  # bytes that are read to recognise binary files and minified text
_MINIFIED = frozenset({".js", ".css", ".mjs", ".map", ".json"})
_NOTICE = 2_048  # first bytes in which the notice of a generated file is searched
_LINE = 2_000  # a text with more bytes per line (mean) is minified
_MAX_RULES = 2_000_000  # bytes of the ignore files that apply to one folder; rules need up to 50 times their bytes
_RACY = 2.0  # seconds; a file that was changed this recently may change again with the same time stamp
FORMAT = "agentformer-markdown-1"
PRIVATE = ".agentformer"  # the folder of the private files
MARKER = "home.json"


class FolderFile(NamedTuple):
    """A file of the folder `root`. `name` is the path in the folder, with `/`. `stamp` changes when the file changes;
    it is "" if the file was changed so recently that the time cannot distinguish two changes."""

    root: str
    name: str
    size: int
    stamp: str

    @property
    def path(self) -> Path:
        """The absolute path of the file."""
        return Path(self.root, self.name)


class Problem(NamedTuple):
    """A file that is not read, and the reason."""

    name: str
    reason: str


def encodable(path: str | os.PathLike[str]) -> str:
    """Return a path as a text that can be stored. Folders are separated by `/`. A byte that is not UTF-8 becomes an
    escape: the byte E9 becomes the six characters `\\udce9`."""
    return Path(path).as_posix().encode("utf-8", "backslashreplace").decode()


def checked_folder(folder: Any) -> Path:
    """Return the path of a folder that a caller gave. Raises `InvalidInput` if it is not a path, or if it is empty,
    because an empty path would mean the current folder."""
    if not isinstance(folder, (str, os.PathLike)) or not isinstance(os.fspath(folder), str):
        raise InvalidInput("folder", f"must be a path, got {type(folder).__name__}")
    if not os.fspath(folder):
        raise InvalidInput("folder", "is empty; give the path of a folder ('.' is the current one)")
    if "\0" in os.fspath(folder):
        raise InvalidInput("folder", "is not a path, because it contains a NUL character")
    return Path(folder)


class OwnFolders:
    """The folders that contain files of the memory and therefore no documents. These are `folders`, and the folder
    `PRIVATE` in every folder that stores memories as Markdown files (see `is_home`). A folder is also recognised if its
    path leads through a link."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._numbers = {number for folder in folders if (number := _number_of(folder))}

    def __contains__(self, folder: str | os.PathLike[str]) -> bool:
        path = Path(folder)
        return _number_of(path) in self._numbers or (path.name == PRIVATE and is_home(path.parent))


def _number_of(folder: Path) -> tuple[int, int] | None:
    try:
        state = folder.stat()
    except (OSError, ValueError):
        return None
    return state.st_dev, state.st_ino


class _Rules(NamedTuple):
    """The rules of one ignore file. `base` is its folder: a path in the root that ends with `/`, or "" for the root."""

    base: str
    rules: IgnoreRules
    size: int  # bytes of the file

    def decision(self, name: str, *, is_folder: bool) -> bool | None:
        """Return True if the rules ignore the file or folder, False if they include it, and None if no rule matches."""
        return self.rules.decision(os.fsencode(name[len(self.base) :]), is_folder=is_folder)


def _is_ignored(name: str, rules: Sequence[_Rules], *, is_folder: bool) -> bool:
    """Return whether the last of the rules that match a file or folder ignores it."""
    decisions = (each.decision(name, is_folder=is_folder) for each in reversed(rules))
    return next((ignored for ignored in decisions if ignored is not None), False)


class FolderFiles:
    """Lists the files of the folder `root`, which is an absolute path. Files of more than `max_bytes` bytes and the
    folders `own` are left out. The following attributes are complete when `files` has ended. `skipped` contains the
    files that were left out for a reason that a user should know. `failed` contains the files and folders that could
    not be read. `complete` is True if all folders were listed."""

    def __init__(self, root: Path, max_bytes: int, own: Iterable[Path] = ()) -> None:
        self._root = root
        self._own = OwnFolders(own)
        self._max_bytes = max_bytes
        self._now = time.time()
        self.skipped: list[Problem] = []
        self.failed: list[Problem] = []
        self.complete = True

    def files(self) -> Iterator[FolderFile]:
        """Yield the files in the order of their names. Raises `InvalidInput` if the root is not a folder."""
        if kind_of(self._root, "folder") != "folder":
            raise InvalidInput(
                "folder", f"{encodable(self._root)} is not a folder; check the path, or whether the disk is mounted"
            )
        if self._root in self._own:
            raise InvalidInput(
                "folder", f"{encodable(self._root)} belongs to the memory itself; give the folder of the documents"
            )
        yield from self._walk(self._root, "", (), in_project=False)

    def _walk(self, folder: Path, prefix: str, above: Sequence[_Rules], *, in_project: bool) -> Iterator[FolderFile]:
        """Yield the files of a folder and of the folders inside it. Left out are virtual environments, hidden and
        ignored files, and what is not the project's own (`_is_foreign`). `prefix` is the folder's path below the first
        folder and ends with "/", and `above` are the rules of the folders that contain it."""
        items = self._items(folder, prefix)
        names = {item.name for item in items}
        if prefix and _ENVIRONMENT in names:
            return
        in_project = in_project or not _PROJECT.isdisjoint(names)
        if (rules := self._rules(folder, prefix, names, above)) is None:  # too many rules
            return
        for item in items:
            name = prefix + item.name
            if item.name.startswith("."):
                continue
            try:
                is_folder, is_link = item.is_dir(follow_symlinks=False), item.is_symlink()
            except OSError as error:
                self._fail(Problem(name, f"cannot be read: {error.strerror}"))
                continue
            if _is_ignored(name, rules, is_folder=is_folder):
                continue
            if is_link:
                self._skip_outside(item, name)
            elif is_folder:
                if item.path in self._own:
                    self.skipped.append(Problem(name, "belongs to the memory itself"))
                elif not _is_foreign(item, names, in_project=in_project):
                    yield from self._walk(Path(item.path), f"{name}/", rules, in_project=in_project)
            elif file := self._file(item, name):
                yield file

    def _items(self, folder: Path, prefix: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as found:
                return sorted(found, key=lambda item: item.name)
        except OSError as error:
            self._fail(Problem(prefix or ".", f"the folder cannot be listed: {error.strerror}"))
            return []

    def _skip_outside(self, link: os.DirEntry[str], name: str) -> None:
        try:
            if real_path(Path(link.path), "folder").is_relative_to(self._root):
                return
        except InvalidInput:  # the target may not be read
            pass
        self.skipped.append(Problem(name, "is a link to a place outside of the folder"))

    def _fail(self, problem: Problem) -> None:
        self.failed.append(problem)
        self.complete = False

    def _rules(self, folder: Path, prefix: str, names: set[str], above: Sequence[_Rules]) -> list[_Rules] | None:
        """Return the rules that apply to a folder: those of the folders `above` and its own. Return None if they are
        too large. The folder is then not read, because its files may be secret."""
        rules = [*above]
        for ignore_file in IGNORE_FILES:
            if ignore_file in names:
                try:
                    with open_regular_file(folder / ignore_file) as opened:
                        data = opened.read(MAX_BYTES + 1)
                except OSError as error:
                    self._fail(Problem(prefix + ignore_file, f"cannot be read: {error.strerror}"))
                    continue
                if sum(each.size for each in rules) + len(data) > _MAX_RULES:
                    reason = f"with the ignore files above it, it has more than {_MAX_RULES} bytes; make it shorter"
                    self._fail(Problem(prefix + ignore_file, f"the folder is not read: {reason}"))
                    return None
                rules.append(_Rules(prefix, IgnoreRules(data), len(data)))
        return rules

    def _file(self, item: os.DirEntry[str], name: str) -> FolderFile | None:
        try:
            state = item.stat(follow_symlinks=False)
            if not item.is_file(follow_symlinks=False) or not state.st_size or _BINARY.search(item.name):
                return None
            if state.st_size > self._max_bytes:
                self.skipped.append(Problem(name, f"has more than {self._max_bytes} bytes (setting max_file_bytes)"))
                return None
        except OSError as error:
            self._fail(Problem(name, f"cannot be read: {error.strerror}"))
            return None
        return FolderFile(self._root.as_posix(), name, state.st_size, stamp_of(state, self._now))


def stamp_of(state: os.stat_result, now: float) -> str:
    """Return the size, the time of the last change and the inode number of a file as a text, or "" if the file was
    changed less than two seconds before `now`: file systems do not distinguish the times of two such changes."""
    racy = state.st_mtime > now - _RACY
    return "" if racy else f"{state.st_size}:{state.st_mtime_ns}:{state.st_ino}"


class Folders(NamedTuple):
    """Folders for syncs. `allowed` are the folders that callers over HTTP and language models may sync. `own` are the
    folders of the memory itself, which no sync reads."""

    allowed: Sequence[Path] = ()
    own: Sequence[Path] = ()


class SizeLimits(NamedTuple):
    """The size limits of a sync, in bytes. `file` is the limit for every file. `text` is the limit for a text file; a
    longer text is usually a log or data, and not a document."""

    file: int
    text: int


class Unread(Exception):
    """Raised if a sync leaves out a file. The argument is the reason."""


def _refuse_unread(head: bytes, file: FolderFile, size: int, max_bytes: int, is_text: Callable[[bytes], bool]) -> None:
    """Raise `Unread` if a sync must leave out the file, because it is empty, binary, minified or generated, or a text
    of more than `max_bytes` bytes. `head` is the beginning of the file, and `size` is the size of the file in bytes.
    This function never leaves out a file with the suffix of a document format, such as ".pdf"."""
    path = Path(file.name)
    suffix = path.suffix.lower()
    if suffix in _DOCUMENTS:
        return
    if not head:
        raise Unread("is empty")
    if not is_text(head):
        raise Unread("binary")
    if suffix in _MINIFIED and len(head) == _HEAD and head.count(b"\n") * _LINE < len(head):
        raise Unread("minified")
    if path.name in _GENERATED_NAMES or _GENERATED.search(head[:_NOTICE]):
        raise Unread("generated")
    if size > max_bytes:
        raise Unread(f"a text of more than {max_bytes} bytes (setting sync_text_bytes)")


def read_file(file: FolderFile, limits: SizeLimits, is_text: Callable[[bytes], bool]) -> tuple[bytes, str]:
    """Return the bytes of a file and its stamp (see `stamp_of`). `is_text` returns whether a file that begins with the
    given bytes is text. Raises `Unread` if the file is left out, and `InvalidInput` if the file cannot be read, or if
    it changes while it is read."""
    try:
        for _ in range(2):
            with open(file.path, "rb", opener=_open_regular) as opened:
                _refuse_outside(opened.fileno(), file.root)
                before = os.fstat(opened.fileno())
                if not stat.S_ISREG(before.st_mode):
                    raise InvalidInput("file", "is not a regular file any more; sync again")
                head = opened.read(_HEAD)
                _refuse_unread(head, file, before.st_size, limits.text, is_text)
                data = head + opened.read(limits.file + 1 - len(head))
                after = os.fstat(opened.fileno())
            same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
            if same and len(data) == after.st_size:
                return data, stamp_of(after, time.time())
    except OSError as error:
        raise InvalidInput("file", f"cannot be read: {error.strerror}") from None
    raise InvalidInput("file", "was changed while it was read; sync again")


def _open_regular(path: str, flags: int) -> int:
    """Open a file for reading. Raises `OSError` for a link, because the file may have become a link since the folder
    was listed. Systems without `O_NOFOLLOW` do not check this."""
    return os.open(path, flags | PLAIN)


def _refuse_outside(descriptor: int, root: str) -> None:
    """Raise `InvalidInput` if an open file is outside of the folder `root`. This happens if a folder has become a link
    since it was listed. Systems without `/proc` do not check this."""
    try:
        real = Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return
    if not real.is_relative_to(root):
        raise InvalidInput("file", "is in a folder that has become a link; sync again")


def folder_in_roots(folder: str, roots: Sequence[Path]) -> Path:
    """Return the real path of a folder that the setting `sync_roots` allows: one of the roots, or a folder below a
    root. Raises `Forbidden` for a folder outside of the roots, for a link to such a folder, and for a relative path.
    Raises `InvalidInput` for a hidden folder. The messages do not reveal whether a folder outside of the roots
    exists."""
    if not roots:
        raise Forbidden(
            "no folder may be synced, because the setting sync_roots (AGENTFORMER_SYNC_ROOTS) names none; add the "
            "allowed folders to this setting"
        )
    try:
        real = Path(folder).resolve() if Path(folder).is_absolute() else None
    except (OSError, ValueError, RuntimeError):
        real = None
    for root in roots:
        if real is not None and real.is_relative_to(root.resolve()):
            if any(part.startswith(".") for part in real.relative_to(root.resolve()).parts):
                raise InvalidInput("folder", "is hidden; hidden folders are not read, because they may contain keys")
            return real
    raise Forbidden(
        "this folder is not below a folder of the setting sync_roots; give the absolute path of "
        "a folder that the setting allows"
    )


def _is_foreign(folder: os.DirEntry[str], siblings: set[str], *, in_project: bool) -> bool:
    """Return whether a folder contains installed packages, copies of other projects, or build results. `siblings` are
    the names of the files and folders next to it. `in_project` is true if the folder is inside a project (a folder with
    a file such as `pyproject.toml`); only there, a folder such as `vendor` contains copies of other projects."""
    if folder.name in _PACKAGES or (in_project and folder.name in _VENDORED):
        return True
    return folder.name in _BUILT and not _PROJECT.isdisjoint(siblings)


def is_home(folder: Path) -> bool:
    """Return whether the folder is a memory home, which stores memories as Markdown files. A memory home has a marker
    file in its private folder. Raises `InvalidInput` if the marker file cannot be accessed."""
    return kind_of(folder / PRIVATE / MARKER, "folder") == "file"
