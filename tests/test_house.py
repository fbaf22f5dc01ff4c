"""The rules of the source tree: import law, public names, length of functions and files."""

from __future__ import annotations

import ast
import functools
import gc
import importlib.metadata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentformer
from agentformer import registry

pytestmark = pytest.mark.slow

ROOT = Path(agentformer.__file__).parent
# Lowest first. A folder imports lower layers only; inside a folder files may import each other, without a cycle.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("types", "actor", "errors", "lazy", "_version"),
    ("ahead", "http"),
    ("records", "text", "embedders", "settings", "registry"),
    ("index", "llms", "rerankers", "readers", "access", "jobs"),
    ("search",),
    ("memory", "rag"),
    ("tools", "archive", "evaluation", "events"),
    ("builders",),
    ("factory",),
    ("agent", "testing", "console", "hooks", "servers"),
    ("api", "mcp_server", "aio"),
    ("cli", "integrations"),
    ("__main__",),
)
LAYER_OF = {folder: layer for layer, folders in enumerate(LAYERS) for folder in folders}
# Every folder of the same layer may import these two.
COMMON = {"settings", "registry"}
# These, and the package itself (""), may import a lower folder inside a function, so that a command imports only
# what it uses.
MAY_IMPORT_IN_FUNCTIONS = {"", "factory", "builders", "cli"}
# The embedded backend opens its indexes at the first search or change. A command that only reads records does not
# import them.
OPENS_LATER = "agentformer.memory.backends.faiss.backend"
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


def parsed(path: Path) -> ast.Module:
    return _trees()[path]


@functools.cache
def _trees() -> dict[Path, ast.Module]:
    gc.disable()  # it would look at all trees again and again: three times the work of the parser
    try:
        return {path: ast.parse(path.read_text(encoding="utf-8")) for path in modules()}
    finally:
        gc.freeze()
        gc.enable()


@functools.cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Internal modules that a file imports, inside functions too, and whether the import is inside one."""
    return list(_imports(path))


def statements(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Each statement, and whether it is inside a function."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            yield child, in_function
            yield from statements(child, in_function or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    for node, in_function in statements(parsed(path)):
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
                yield name, in_function


def folder_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_a_module_imports_lower_layers_only() -> None:
    wrong = []
    for path in modules():
        module = name_of(path)
        folder = folder_of(module)
        for imported, in_function in imports(path):
            target = folder_of(imported)
            if in_function and folder not in MAY_IMPORT_IN_FUNCTIONS and module != OPENS_LATER:
                wrong.append(f"{module} imports {imported} inside a function")
            if target not in LAYER_OF:
                wrong.append(f"{module} imports {imported}: the package root, or a folder without a layer")
            elif module != "agentformer" and target not in {folder, *COMMON} and LAYER_OF[target] >= LAYER_OF[folder]:
                wrong.append(f"{module} may not import {imported}")
    assert not wrong, "\n".join(wrong)


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
    return [target for parts in registry.PARTS.values() for target in parts.values()]


def test_parts_named_in_the_registry_exist() -> None:
    for target in named_parts():
        module, _, attribute = target.partition(":")
        path = ROOT.parent / module.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = parsed(path)
        imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        assert attribute.partition(".")[0] in defined | imported, target


def test_a_folder_has_at_most_fifteen_modules() -> None:
    sizes = Counter(path.parent for path in modules() if path.name != "__init__.py")
    assert not [f"{folder}: {count} modules" for folder, count in sizes.items() if count > 15]


def test_files_classes_and_functions_are_short() -> None:
    for path in modules():
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 600, f"{path}: over 600 lines"
        for node, _ in statements(parsed(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                most = 400 if isinstance(node, ast.ClassDef) else 60
                assert (node.end_lineno or 0) - node.lineno < most, f"{path}: {node.name} has over {most} lines"
