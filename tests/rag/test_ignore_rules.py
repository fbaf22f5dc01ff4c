"""Ignore files are read as git reads them, and no pattern makes the comparison slow."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from agentformer.rag.ignore_rules import MAX_BYTES, IgnoreRules

PIECES = (
    *("a", "b", "c", "ab", "*", "**", "?", "/", "**/", "/**", "[ab]", "[!a]", "[^a]", "[a-c]", "[]a]", "[a-]", "[b-a]"),
    *("[[:alpha:]]", "[![:digit:]]", "[[:x]", "[[:x:]]", "[\\]a]", "[--b]", "[", "]", "\\*", "\\", "-", "!", "#", " "),
    *("ä", "\\ ", "\r", "1"),
)
LETTERS = ("a", "b", "c", "/", "ab", "-", "*", "[", "]", "ä", "\\", " ", "#", "!", "?", "1", "x")


def ignored(rules: IgnoreRules, path: bytes) -> bool:
    """As `git check-ignore -v` reports: a rule is about the path, or ignores a folder above it."""
    parts = path.split(b"/")
    for count in range(1, len(parts) + 1):
        decision = rules.decision(b"/".join(parts[:count]), is_folder=count < len(parts))
        if decision or (decision is not None and count == len(parts)):
            return True
    return False


def made(chance: random.Random) -> tuple[bytes, list[bytes]]:
    """An ignore file of one or more random patterns, and paths that resemble them."""
    lines = ("".join(chance.choices(PIECES, k=chance.randint(1, 7))) for _ in range(chance.choice((1, 1, 1, 4))))
    texts = ("".join(chance.choices(LETTERS, k=chance.randint(1, 7))) for _ in range(30))
    names = {"/".join(filter(None, text.split("/"))).encode() for text in texts}
    return "\n".join(lines).encode() + b"\n", sorted(names - {b""})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_random_patterns_ignore_what_git_ignores(tmp_path: Path) -> None:
    chance = random.Random(40)
    cases = [made(chance) for _ in range(800)]
    quiet = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q", tmp_path], check=True, env=quiet)
    for number, (patterns, _) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / ".gitignore").write_bytes(patterns)
    paths = [b"%d/%s" % (number, name) for number, (_, names) in enumerate(cases) for name in names]
    command = ["git", "-C", tmp_path, "check-ignore", "--no-index", "-v", "-n", "-z", "--stdin"]
    answer = subprocess.run(command, input=b"\0".join(paths), capture_output=True, env=quiet)
    fields = answer.stdout.split(b"\0")
    by_git = {path: bool(source) for source, path in zip(fields[0::4], fields[3::4], strict=False)}
    ours = {
        b"%d/%s" % (number, name): ignored(rules, name)
        for number, (rules, names) in enumerate((IgnoreRules(patterns), names) for patterns, names in cases)
        for name in names
    }
    assert len(by_git) == len(paths) > 15_000
    assert sum(by_git.values()) > 1_000
    wrong = {path: cases[int(path.partition(b"/")[0])][0] for path in paths if ours[path] != by_git[path]}
    assert wrong == {}


@pytest.mark.parametrize(
    ("patterns", "path", "folder", "decision"),
    [
        ("*.log\n!keep.log", "keep.log", False, False),
        ("*.log\n!keep.log", "other.log", False, True),
        ("build/", "build", False, None),
        ("build/", "build", True, True),
        ("/a", "b/a", False, None),
        ("docs/**/x", "docs/x", False, True),
        ("docs/**/x", "docs/a/b/x", False, True),
        ("a ", "a", False, True),
        ("a\\ ", "a ", False, True),
        ("\ufeffa", "a", False, True),
        ("a\r", "a", False, True),
        ("[", "[", False, None),
        ("a\u2028b", "b", False, None),
        ("", "a", False, None),
    ],
)
def test_a_rule_decides(patterns: str, path: str, folder: bool, decision: bool | None) -> None:
    assert IgnoreRules(patterns.encode()).decision(path.encode(), is_folder=folder) is decision


def test_a_file_over_the_limit_is_read_up_to_its_last_whole_line() -> None:
    rules = IgnoreRules(b"first\n" + b"#" * (MAX_BYTES - 11) + b"\nlongname\n")
    assert rules.decision(b"first", is_folder=False)
    assert rules.decision(b"long", is_folder=False) is None


@pytest.mark.parametrize(
    "pattern", [b"*a*a*a*a*a*b", b"*a" * 300 + b"b", b"?*" * 300 + b"!", b"**/a/" * 300 + b"b", b"[!b]*" * 300 + b"b"]
)
def test_each_byte_of_a_path_takes_one_step(pattern: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(bytes):
        read = 0

        def __iter__(self):
            for byte in super().__iter__():
                Counted.read += 1
                yield byte

        def rpartition(self, separator):
            return b"", b"", self

    path = Counted(b"a/" * 1_000 if b"/" in pattern else b"a" * 2_000)
    rules = IgnoreRules(pattern)
    assert rules.decision(path, is_folder=False) is None
    assert Counted.read <= 2 * len(path)  # once for names, and once for paths
