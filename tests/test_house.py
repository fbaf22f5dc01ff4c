"""The house itself: who may import whom, what is public, and what no file may contain."""

from __future__ import annotations

import ast
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentformer
from agentformer import registry

ROOT = Path(agentformer.__file__).parent
# From the bottom up; a room may import lower floors only, and inside itself without a cycle.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("later",),
    ("types", "errors", "_version"),
    ("http",),
    ("records", "text", "embedders", "settings", "registry"),
    ("index", "llms", "rerankers", "readers", "access", "jobs"),
    ("search",),
    ("memory", "rag"),
    ("tools", "archive", "evaluation"),
    ("building",),
    ("factory",),
    ("agent", "testing"),
    ("api", "mcp_server"),
    ("cli",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# Settings and errors are what everybody on their floor speaks of; they import nothing but the floor below.
COMMON = {"settings", "registry"}
PUBLIC = [
    "AgentFormer",
    "AgentFormerError",
    "Answer",
    "Citation",
    "Hit",
    "MemoryEntry",
    "Scope",
    "Settings",
    "Vote",
    "__version__",
    "connect",
    "merge",
]


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Internal modules that a file imports, inside functions too, and whether the import is inside one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            found = [node.module or ""]
            if (ROOT.parent / (node.module or "").replace(".", "/")).is_dir():
                found = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in found:
            if name.split(".")[0] == "agentformer":
                yield name, id(node) in inner


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_module_imports_lower_floors_only(path: Path) -> None:
    module = name_of(path)
    if module == "agentformer":
        return
    room = room_of(module)
    for imported, lazily in imports(path):
        target = room_of(imported)
        assert not lazily, f"{module} imports {imported} inside a function"
        assert target in FLOOR_OF, f"{module} imports {imported}: the package root, or a room without a floor"
        if target != room and target not in COMMON:
            assert FLOOR_OF[target] < FLOOR_OF[room], f"{module} may not import {imported}"


def test_there_is_no_import_cycle() -> None:
    graph = {name_of(path): {module for module, _ in imports(path)} for path in modules()}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, f"cycle: {' -> '.join((*above, module))}"
        if module in done or module not in graph:
            return
        for imported in graph[module]:
            visit(imported if imported in graph else imported.rpartition(".")[0], (*above, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_public_names_are_these() -> None:
    assert sorted(agentformer.__all__) == sorted(PUBLIC)
    assert all(hasattr(agentformer, name) for name in PUBLIC)


def test_the_version_is_the_installed_one() -> None:
    assert importlib.metadata.version("agentformer") == agentformer.__version__


def named_parts() -> list[str]:
    """Every "module:attribute" by which a part of ours is found when it is needed."""
    own = [target for parts in registry.PARTS.values() for target in parts.values()]
    return [*own, *registry.LATE.values()]


@pytest.mark.parametrize("target", named_parts())
def test_a_part_that_is_named_is_there(target: str) -> None:
    module, _, attribute = target.partition(":")
    path = ROOT.parent / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    first = attribute.partition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    made = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert first in made | imported


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_what_is_had_late_is_named_in_the_registry_and_known_to_the_type_checker(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checked = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
        if isinstance(inner, (ast.Import, ast.ImportFrom))
        for alias in inner.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "late":
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            assert name in registry.LATE and name in checked, f"{name_of(path)} has {name} late"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_functions_are_short_and_files_have_room(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 400, f"{path.name} holds more than one idea"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno < 80, f"{path.name}: {node.name} is too long"
