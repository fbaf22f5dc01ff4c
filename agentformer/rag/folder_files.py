"""The files of a folder that a sync considers, and the reasons why it leaves out others.

Ignored are hidden files, what `.gitignore` and `.agentformerignore` name (in every folder, the deeper file decides),
folders of installed packages and of build results, binary files, and minified text. Symbolic links are never followed,
so that there is no loop, and nothing outside of the folder is read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gitignore_parser import rule_from_pattern

from agentformer.errors import InvalidInput

IGNORE_FILES = (".gitignore", ".agentformerignore")  # the second can include again what the first excludes
_PACKAGES = frozenset({"node_modules", "bower_components", "__pycache__", "site-packages"})
_BUILT = frozenset({"build", "dist", "target", "out", "vendor", "third_party"})  # beside a file of `_PROJECT`
_PROJECT = frozenset(
    {"package.json", "pyproject.toml", "setup.py", "Cargo.toml", "go.mod", "pom.xml", "build.gradle", "CMakeLists.txt"}
)
_ENVIRONMENT = "pyvenv.cfg"  # a folder with this file is a virtual environment
_DOCUMENTS = frozenset(  # read although they are binary; images are not, because most of them are no text
    {".pdf", ".docx", ".docm", ".pptx", ".pptm", ".xlsx", ".xlsm", ".odt", ".ods", ".odp", ".epub"}
)
_BINARY = re.compile(
    r"\.(7z|a|avi|bin|bmp|bz2|class|db|dll|dylib|eot|exe|flac|gif|gz|ico|jar|jpe?g|lz4|mkv|mo|mov|mp[34]|np[yz]|o|obj|"
    r"ogg|onnx|otf|parquet|pkl|png|py[cd]|rar|safetensors|so|sqlite3?|svgz|tar|tgz|tiff?|ttf|wav|wasm|web[mp]|whl|"
    r"woff2?|xz|zip|zst)$",
    re.IGNORECASE,
)
_HEAD = 16_384  # bytes that are read to recognise binary files and minified text
_MINIFIED = frozenset({".js", ".css", ".mjs", ".map", ".json"})
_LINE = 2_000  # mean bytes of a line of minified text
_MAX_PATTERNS = 1_000_000  # bytes of an ignore file
_RACY = 2.0  # seconds: a file changed since then may change again without a new time stamp


class FolderFile(NamedTuple):
    """A file of the folder. `path` is absolute, and `name` is the path in the folder, with `/`. `stamp` changes when
    the file changes; "" if the file is so new that this is not sure."""

    path: Path
    name: str
    size: int
    stamp: str


class Problem(NamedTuple):
    """A file that is not read, and the reason."""

    name: str
    reason: str


class _Rule(NamedTuple):
    regex: re.Pattern[str]
    folders_only: bool
    includes: bool


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of one ignore file. `base` is its folder: a path in the root that ends with `/`; "": the root."""

    base: str
    rules: tuple[_Rule, ...]

    def decision(self, name: str, *, is_folder: bool) -> bool | None:
        """Return True if the rules ignore the path, False if they include it, and None if no rule matches."""
        path = name[len(self.base) :]
        for rule in reversed(self.rules):
            end = "/" if rule.folders_only and rule.includes else ""  # so the parser writes these patterns
            if (is_folder or not rule.folders_only) and rule.regex.search(path + end):
                return not rule.includes
        return None


class FolderFiles:
    """Lists the files of the folder `root`, which is an absolute path. Files of more than `max_bytes` bytes are left
    out. After `files` has ended, `skipped` contains the files that were left out for a reason that a user should know,
    `failed` the files and folders that could not be read, and `complete` tells whether all folders were listed."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._now = time.time()
        self.skipped: list[Problem] = []
        self.failed: list[Problem] = []

    @property
    def complete(self) -> bool:
        """True if every folder was listed, so that a file that was not found does not exist."""
        return not self.failed

    def files(self) -> Iterator[FolderFile]:
        """Yield the files in the order of their names. Raises `InvalidInput` if the root is not a folder."""
        if not self._root.is_dir():
            raise InvalidInput(
                "folder", f"{self._root} is not a folder; check the path, or whether the disk is mounted"
            )
        yield from self._walk(self._root, "", ())

    def _walk(self, folder: Path, prefix: str, above: Sequence[_Rules]) -> Iterator[FolderFile]:
        try:
            with os.scandir(folder) as found:
                items = sorted(found, key=lambda item: item.name)
        except OSError as error:
            self.failed.append(Problem(prefix or ".", f"the folder cannot be listed: {error.strerror}"))
            return
        names = {item.name for item in items}
        rules = [*above, *self._rules(folder, prefix, names)]
        for item in items:
            name = prefix + item.name
            if item.name.startswith("."):
                continue
            is_folder = item.is_dir(follow_symlinks=False)
            if _is_ignored(rules, name, is_folder=is_folder):
                continue
            if item.is_symlink():
                self._refuse_link(item, name)
            elif is_folder:
                if not _is_generated(item, names):
                    yield from self._walk(Path(item.path), f"{name}/", rules)
            elif file := self._file(item, name):
                yield file

    def _rules(self, folder: Path, prefix: str, names: set[str]) -> Iterator[_Rules]:
        for ignore_file in IGNORE_FILES:
            if ignore_file in names:
                try:
                    with (folder / ignore_file).open("rb") as patterns:
                        text = patterns.read(_MAX_PATTERNS).decode("utf-8", "replace")
                except OSError as error:
                    self.failed.append(Problem(prefix + ignore_file, f"cannot be read: {error.strerror}"))
                    continue
                parsed = (_parsed(line) for line in text.splitlines())
                yield _Rules(prefix, tuple(rule for rule in parsed if rule))

    def _refuse_link(self, item: os.DirEntry[str], name: str) -> None:
        target = Path(os.path.realpath(item.path))
        if not target.is_relative_to(self._root):
            self.skipped.append(Problem(name, "is a link to a place outside of the folder"))

    def _file(self, item: os.DirEntry[str], name: str) -> FolderFile | None:
        try:
            state = item.stat(follow_symlinks=False)
            if not item.is_file(follow_symlinks=False) or not state.st_size or _is_binary_name(item.name):
                return None
            if state.st_size > self._max_bytes:
                self.skipped.append(Problem(name, f"has more than {self._max_bytes} bytes (setting max_file_bytes)"))
                return None
        except OSError as error:
            self.failed.append(Problem(name, f"cannot be read: {error.strerror}"))
            return None
        return FolderFile(Path(item.path), name, state.st_size, stamp_of(state, self._now))


def stamp_of(state: os.stat_result, now: float) -> str:
    """Return the size, the time of the last change and the number of a file as a text, or "" if the file was changed
    less than two seconds before `now`: file systems do not distinguish the times of two such changes."""
    racy = state.st_mtime > now - _RACY
    return "" if racy else f"{state.st_size}:{state.st_mtime_ns}:{state.st_ino}"


def why_unread(head: bytes, name: str, is_text: Callable[[bytes], bool]) -> str:
    """Return why a file is left out, or "" if it is read. `head` is the beginning of the file: binary files have no
    text, and minified text has no reader. `is_text` tells whether bytes are text."""
    suffix = Path(name).suffix.lower()
    if suffix in _DOCUMENTS:
        return ""
    if not is_text(head):
        return "binary"
    minified = suffix in _MINIFIED and len(head) == _HEAD and head.count(b"\n") * _LINE < len(head)
    return "minified" if minified else ""


def read_file(file: FolderFile, max_bytes: int, is_text: Callable[[bytes], bool]) -> tuple[bytes, str]:
    """Return the bytes of a file and its stamp. The bytes are empty if `why_unread` gives a reason. Raises
    `InvalidInput` if the file cannot be read, or if it changes while it is read."""
    try:
        for _ in range(2):
            with open(file.path, "rb", opener=_open_regular) as opened:
                before = os.fstat(opened.fileno())
                head = opened.read(_HEAD)
                if why_unread(head, file.name, is_text):
                    return b"", file.stamp
                data = head + opened.read(max_bytes + 1 - len(head))
                after = os.fstat(opened.fileno())
            if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns) and len(
                data
            ) == after.st_size:
                return data, stamp_of(after, time.time())
    except OSError as error:
        raise InvalidInput("file", f"cannot be read: {error.strerror}") from None
    raise InvalidInput("file", "was changed while it was read; sync again")


def _open_regular(path: str, flags: int) -> int:
    """Open a file that is no link: the folder may have changed since it was listed."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _parsed(line: str) -> _Rule | None:
    try:
        rule = rule_from_pattern(line)
        return _Rule(re.compile(rule.regex), rule.directory_only, rule.negation) if rule else None
    except (re.error, IndexError):  # git ignores patterns that it cannot parse
        return None


def _is_ignored(rules: Sequence[_Rules], name: str, *, is_folder: bool) -> bool:
    for each in reversed(rules):
        if (decision := each.decision(name, is_folder=is_folder)) is not None:
            return decision
    return False


def _is_generated(folder: os.DirEntry[str], beside: set[str]) -> bool:
    if folder.name in _PACKAGES or (folder.name in _BUILT and not _PROJECT.isdisjoint(beside)):
        return True
    return Path(folder.path, _ENVIRONMENT).exists()


def _is_binary_name(name: str) -> bool:
    return _BINARY.search(name) is not None
