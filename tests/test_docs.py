"""The documentation names only files, headings and imports that exist, and a page has a length that a person reads."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
CHANGES = ROOT / "CHANGELOG.md"  # names modules of earlier versions
REFERENCES = {"CLI.md", "CHANGELOG.md"}  # pages in which a reader looks something up
MAX_LINES = 300
# Paths in the text are relative to one of these folders.
FOLDERS = tuple(ROOT / folder for folder in (".", "agentformer", "tests", "tests/faults"))
_PATH = re.compile(r"`((?:[\w-]+/)*[\w-]+\.py|(?:[\w-]+/)+)(?:::\w+)?`")
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_AT_RUN_TIME = ("indexes/", "uploads/", "DIR/")  # folders of a memory


def missing_paths(text: str) -> list[str]:
    """Return the modules and folders that a text names and that do not exist."""
    paths = [path for path in _PATH.findall(text) if not path.startswith(_AT_RUN_TIME)]
    return [path for path in paths if not any((folder / path).exists() for folder in FOLDERS)]


def missing_links(page: Path, text: str) -> Iterator[str]:
    """Yield the relative links of a page that lead to no file, or to no heading of a page."""
    for path, heading in _LINK.findall(text):
        target = page.parent / path if path else page
        if not target.exists() or (heading and heading not in anchors(target.read_text(encoding="utf-8"))):
            yield f"{path}#{heading}"


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in _HEADING.findall(text)}


def missing_imports(text: str) -> Iterator[str]:
    """Yield the names that Python examples import from this package and that do not exist."""
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agentformer."):
                names = defined_names(ROOT / (node.module or "").replace(".", "/"))
                yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name not in names)


def defined_names(module: Path, default: Iterable[str] = ()) -> set[str]:
    """Return the names that a module or package defines, with `default`; nothing if it does not exist."""
    path = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    if not path.is_file():
        return set()
    names = {*default, *(child.stem for child in module.glob("*.py"))}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def test_named_files_and_imports_exist() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert list(missing_imports(text)) == []
        if page != CHANGES:
            assert missing_paths(text) == []


def test_links_lead_to_files_and_headings() -> None:
    for page in (*PAGES, *ROOT.glob("bench/log/*.md")):
        assert list(missing_links(page, page.read_text(encoding="utf-8"))) == []


def test_missing_files_links_and_imports_are_detected() -> None:
    assert missing_paths("`text/splitting.py`, `indexes/words/`, `net/`, `text/gone.py`") == ["net/", "text/gone.py"]
    links = "[a](#gone), [b](gone.md), [c](docs/MCP.md#gone), [d](docs/MCP.md), [e](https://example.org)"
    assert list(missing_links(ROOT / "README.md", links)) == ["#gone", "gone.md#", "docs/MCP.md#gone"]
    assert anchors("# A `b` (c)\ntext\n") == {"a-b-c"}
    block = "```python\nfrom agentformer.types import Hit, Gone\nfrom agentformer.gone import Hit\n```"
    assert list(missing_imports(block)) == ["agentformer.types.Gone", "agentformer.gone.Hit"]


def test_pages_are_short() -> None:
    lines = {page.name: page.read_text(encoding="utf-8").count("\n") for page in PAGES if page.name not in REFERENCES}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_each_page_is_in_the_navigation_of_the_site() -> None:
    named = re.findall(r": ([\w.]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted([*(page.name for page in ROOT.glob("docs/*.md")), CHANGES.name])


def test_the_site_loses_only_links_to_files_of_the_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = SimpleNamespace(File=None)
    monkeypatch.setitem(sys.modules, "mkdocs", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mkdocs.structure", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mkdocs.structure.files", files)
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    hooks = runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))
    config = SimpleNamespace(site_dir=tmp_path)
    for path in sorted((ROOT / "docs").glob("*.md")):
        page = SimpleNamespace(title="", file=SimpleNamespace(name="", src_uri=path.name))
        former = path.read_text("utf-8")
        text = hooks["on_page_markdown"](former, page, config, None)
        words = re.sub(r"\]\(\.\./[^)\s]+\)|[\[\]]|\(CHANGELOG\.md\)", "", former)
        assert re.sub(r"[\[\]]|\(CHANGELOG\.md\)", "", text) == words, path.name
        assert _CODE.findall(text) == _CODE.findall(former), path.name
