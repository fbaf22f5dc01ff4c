"""What this package may not do anywhere, by its own source, and what it depends on: declared, locked with hashes, and
looked up by `make audit`.

Each rule finds what it is about in an example that is planted, so that none of them is one that cannot fail.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest

import agentformer
from tests.test_house import parsed

PACKAGE = Path(agentformer.__file__).parent
ROOT = PACKAGE.parent
LOCK = ROOT / "requirements.lock"
LOADS_CODE = {
    "pickle",
    "cPickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "joblib",
    "cloudpickle",
    "jsonpickle",
    "yaml",
}
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
RUNS_SHELL = re.compile(r"os\.(system|popen|exec\w*|spawn\w*|posix_spawnp?)|subprocess\.get(status)?output|pty\.spawn")
# Who may start a program: the reader's child process, and looking whether tesseract is there.
STARTERS = {"readers/sandbox/process.py", "cli/hook.py"}
PROCESSES = {"subprocess", "multiprocessing", "pty"}
# Defaults that are documented, names of things that look like addresses, and examples in messages.
ADDRESSES = {
    "127.0.0.1",
    "api.openai.com",  # only where a model of OpenAI, or its key, is set
    "schemas.openxmlformats.org",
    "purl.org",
    "www.idpf.org",
    "www.daisy.org",
    "www.w3.org",
    "ns.adobe.com",
    "app.example.org",
    "example.org",
}
_ADDRESS = re.compile(r"\b(?:https?|ftp|wss?)://[\w.\[-][^\s\"'<>;,)]*")
FRAMEWORKS = {"langchain-core", "langchain", "langgraph", "anthropic", "openai-agents"}
FRAMEWORKS |= {"llama-index-core", "pydantic-ai-slim", "google-adk", "google-genai", "haystack-ai"}
SWITCHES = {
    "shell": True,
    "allow_pickle": True,
    "trust_remote_code": True,
    "verify": False,
    "check_hostname": False,
    "weights_only": False,
}
# Import names whose distribution is called otherwise, and libraries that come with one that is declared.
CALLED = {
    "jwt": "pyjwt",
    "agents": "openai-agents",
    "opentelemetry": "opentelemetry-api",
    "google": "google-adk",
    "haystack": "haystack-ai",
    "llama_index": "llama-index-core",
    "pydantic_ai": "pydantic-ai-slim",
    "azure": "azure-cosmos",
    "dotenv": "python-dotenv",
    "ruamel": "ruamel.yaml",  # its nodes only: no document constructs an object
    "faiss": "faiss-cpu",
    "fasttext": "fasttext-predict",
    "PIL": "pillow",
    "Stemmer": "pystemmer",
}
BROUGHT = {
    "botocore": "boto3",
    "anyio": "mcp",
    "h11": "uvicorn",
    "huggingface_hub": "sentence-transformers",
    "jinja2": "flask",
    "jsonschema_specifications": "jsonschema",
    "markupsafe": "flask",
    "mcp_types": "mcp",
    "pydantic_core": "pydantic",
    "referencing": "jsonschema",
    "torch": "sentence-transformers",
    "transformers": "sentence-transformers",
    "werkzeug": "flask",
}
Rule = Callable[[ast.Module, str], Iterator[str]]
N = TypeVar("N", bound=ast.AST)


@functools.cache
def _by_kind(tree: ast.Module) -> dict[type, list[Any]]:
    found: dict[type, list[Any]] = {
        kind: [] for kind in (ast.Import, ast.ImportFrom, ast.Call, ast.Attribute, ast.Expr, ast.Constant)
    }
    for node in ast.walk(tree):
        if type(node) in found:
            found[type(node)].append(node)
    return found


def nodes(tree: ast.Module, kind: type[N]) -> list[N]:
    return _by_kind(tree)[kind]


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules that are imported anywhere, also late and by name."""
    yield from (alias.name for node in nodes(tree, ast.Import) for alias in node.names)
    yield from (node.module or "" for node in nodes(tree, ast.ImportFrom))
    for call in nodes(tree, ast.Call):
        if spelled(call.func).rpartition(".")[2] == "import_module":
            yield from (each.value for each in call.args[:1] if isinstance(each, ast.Constant))


def spelled(node: ast.expr) -> str:
    """`a.b.c` as it is written; "" for anything else."""
    if isinstance(node, ast.Attribute):
        return f"{spelled(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def loads_no_code_from_data(tree: ast.Module, where: str) -> Iterator[str]:
    yield from (name for name in imported(tree) if name.partition(".")[0] in LOADS_CODE)
    for call in nodes(tree, ast.Call):
        given = {word.arg for word in call.keywords}
        if spelled(call.func).rpartition(".")[0].endswith("torch") and spelled(call.func).endswith(".load"):
            yield from [] if "weights_only" in given else ["torch.load without weights_only"]


def runs_no_text(tree: ast.Module, where: str) -> Iterator[str]:
    for call in nodes(tree, ast.Call):
        name = spelled(call.func)
        if name in RUNS_TEXT or name.removeprefix("builtins.") in RUNS_TEXT:
            yield name


def starts_no_shell(tree: ast.Module, where: str) -> Iterator[str]:
    yield from (spelled(call.func) for call in nodes(tree, ast.Call) if RUNS_SHELL.fullmatch(spelled(call.func)))
    for node in nodes(tree, ast.ImportFrom):
        if node.module in ("os", "subprocess", "pty"):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if RUNS_SHELL.fullmatch(name))


def turns_no_safety_off(tree: ast.Module, where: str) -> Iterator[str]:
    for call in nodes(tree, ast.Call):
        for word in call.keywords:
            if word.arg in SWITCHES and isinstance(word.value, ast.Constant) and word.value.value is SWITCHES[word.arg]:
                yield f"{word.arg}={word.value.value}"
    for node in nodes(tree, ast.Attribute):
        if node.attr in ("CERT_NONE", "_create_unverified_context", "mktemp"):
            yield node.attr
    for node in nodes(tree, ast.ImportFrom):
        if node.module == "tempfile":
            yield from (alias.name for alias in node.names if alias.name == "mktemp")


def starts_programs_only_where_it_is_known(tree: ast.Module, where: str) -> Iterator[str]:
    if where not in STARTERS:
        yield from (name for name in imported(tree) if name.partition(".")[0] in PROCESSES)


def names_no_address_that_is_not_documented(tree: ast.Module, where: str) -> Iterator[str]:
    told = {id(node.value) for node in nodes(tree, ast.Expr)}  # docstrings
    for node in nodes(tree, ast.Constant):
        if isinstance(node.value, str) and id(node) not in told:
            for address in _ADDRESS.findall(node.value):
                if urlsplit(address).hostname not in ADDRESSES:
                    yield address


def imports_only_what_is_declared(tree: ast.Module, where: str) -> Iterator[str]:
    for name in imported(tree):
        first = name.partition(".")[0]
        known = first in sys.stdlib_module_names or first in ("agentformer", "")
        if not known and normal(BROUGHT.get(first, CALLED.get(first, first))) not in declared():
            yield first


PLANTED: dict[Rule, tuple[str, ...]] = {
    loads_no_code_from_data: (
        "import pickle",
        "from marshal import loads",
        "def f():\n    import dill.source",
        "yaml = import_module('yaml')",
        "importlib.import_module('joblib')",
        "torch.load(path)",
    ),
    runs_no_text: ("eval(text)", "exec(text, {})", "compile(text, '', 'exec')", "builtins.exec(text)"),
    starts_no_shell: ("os.system('ls')", "os.popen(line)", "os.execvp(a, b)", "from os import system"),
    turns_no_safety_off: (
        "run(line, shell=True)",
        "np.load(path, allow_pickle=True)",
        "Model(name, trust_remote_code=True)",
        "get(url, verify=False)",
        "torch.load(path, weights_only=False)",
        "context.verify_mode = ssl.CERT_NONE",
        "tempfile.mktemp()",
        "from tempfile import mktemp",
    ),
    starts_programs_only_where_it_is_known: ("import subprocess", "from multiprocessing import Process"),
    names_no_address_that_is_not_documented: ("URL = 'https://telemetry.test/v1'", "send(f'http://10.0.0.1/{x}')"),
    imports_only_what_is_declared: (
        "import requests",
        "def f():\n    from paramiko import SSHClient",
        "import_module('pandas')",
    ),
}
ALLOWED = """
import re, json, subprocess_free
re.compile("x"); model.eval(); np.load(path); torch.load(path, weights_only=True); manifest.read(folder, verify=True)
run([a, b], shell=False); "see http://127.0.0.1:8808"; self.exec(); yamlish()
"""


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Of the package, by their paths in it."""
    return {path.relative_to(PACKAGE).as_posix(): parsed(path) for path in sorted(PACKAGE.rglob("*.py"))}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def declared() -> set[str]:
    """Distributions that pyproject.toml names, in whatever extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return {normal(re.split(r"[\[<>=!~; ]", line)[0]) for group in groups for line in group}


def locked() -> dict[str, str]:
    """Distribution -> its lines in the lock."""
    blocks = re.split(r"\n(?=[a-z0-9])", LOCK.read_text())
    return {normal(re.split(r"[\[=<>!~; ]", block)[0]): block for block in blocks}


needs_sources = pytest.mark.skipif(not LOCK.exists(), reason="the sources of this package are not here")


@pytest.mark.slow
@needs_sources
@pytest.mark.parametrize("rule", PLANTED, ids=lambda rule: rule.__name__)
def test_no_module_breaks_the_rule(rule: Rule) -> None:
    found = {where: [*rule(tree, where)] for where, tree in modules().items()}
    assert {where: broken for where, broken in found.items() if broken} == {}


@needs_sources
@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in PLANTED.items() for text in texts])
def test_the_rule_finds_what_is_planted(rule: Rule, text: str) -> None:
    assert [*rule(ast.parse(text), "planted.py")]


def test_the_rule_leaves_alone_what_is_harmless() -> None:
    for rule in [r for r in PLANTED if r is not imports_only_what_is_declared]:
        assert [*rule(ast.parse(ALLOWED), "harmless.py")] == []


def test_who_may_start_programs_is_there() -> None:
    assert {where for where in STARTERS if not (PACKAGE / where).is_file()} == set()


@needs_sources
def test_what_is_locked_has_an_exact_version_and_hashes() -> None:
    for name, block in locked().items():
        lines = block.strip().splitlines()
        assert re.match(rf"{re.escape(lines[0].partition('==')[0])}==[\w.+!-]+( ;.*)? \\$", lines[0]), name
        assert len(lines) > 1, f"{name} has no hash"
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in lines[1:]), name


@needs_sources
def test_a_lock_without_a_hash_would_be_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, _, rest = LOCK.read_text().partition(" \\\n")
    (planted := tmp_path / "requirements.lock").write_text(first + re.sub(r"\A(    --hash.*\n)+", "\n", rest))
    monkeypatch.setitem(globals(), "LOCK", planted)
    with pytest.raises(AssertionError):
        test_what_is_locked_has_an_exact_version_and_hashes()


@needs_sources
def test_everything_that_is_declared_is_locked_but_torch_which_make_pins_by_itself() -> None:
    # libvoikko only calls a library that the system has to bring, and no setup of ours installs it. Agent frameworks
    # have an environment of their own, which takes the newest versions: `make test-integrations`.
    unlocked = {"agentformer", "libvoikko", *FRAMEWORKS}
    assert {name for name in declared() - unlocked if name not in locked()} == set()
    makefile = (ROOT / "Makefile").read_text()
    assert "torch" not in locked() and re.search(r"^TORCH = torch==[\d.]+$", makefile, re.MULTILINE)
    assert "--no-deps --require-hashes -r requirements.lock" in makefile


def test_what_comes_with_another_library_is_one_of_its_requirements() -> None:
    for name, parent in BROUGHT.items():
        try:
            needed = {normal(re.split(r"[\[<>=!~;( ]", each)[0]) for each in importlib.metadata.requires(parent) or ()}
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra that is not installed
        assert normal(name) in needed, f"{parent} brings no {name}"


def recorded(**vulns: list[dict[str, object]] | None) -> list[dict[str, object]]:
    """Packages as `pip-audit --format json` reports them; None: skipped."""
    skip = "Dependency not found on PyPI and could not be audited"
    return [
        {"name": name, "skip_reason": skip} if found is None else {"name": name, "version": "1.0", "vulns": found}
        for name, found in vulns.items()
    ]


@needs_sources
def test_the_audit_takes_only_packages_that_were_looked_up_for_sound() -> None:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec and spec.loader
    audit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(audit)
    fault: list[dict[str, object]] = [{"id": "PYSEC-2019-179", "fix_versions": ["1.1"], "aliases": []}]
    assert audit.verdict(recorded(flask=[], click=[]))[0] == 0
    assert audit.verdict(recorded(flask=[], click=None))[0] == 2
    assert audit.verdict([])[0] == 2
    code, told = audit.verdict(recorded(flask=fault, click=None))
    assert code == 1 and "PYSEC-2019-179" in told[0]


@needs_sources
def test_the_audit_looks_up_what_is_installed() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\naudit:")[2].partition("\n\n")[0]
    assert "requirements.lock $(TORCH)" in recipe
