"""What starting costs, told by what is imported, and Ctrl-C at any moment of it. Nothing here measures time."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentformer.cli.commands import main
from agentformer.cli.group import HELP, first_sentence
from agentformer.errors import install_command
from agentformer.factory import connect
from agentformer.registry import built_in_names
from tests.faults.long_form import LONG

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]
MODELS = {"torch", "sentence_transformers", "transformers", "openvino", "onnxruntime", "openai", "huggingface_hub"}
READERS = {"lxml", "pypdf", "pypdfium2", "chardet"}
SERVERS = {"flask", "mcp", "starlette", "uvicorn", "gunicorn", "waitress"}
HEAVY = {"numpy", "faiss", "tantivy", "pydantic", "filelock", "Stemmer", *MODELS, *READERS, *SERVERS}
RUN = "from agentformer.cli.start import run\nrun()\n"


def python(code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


def imported(code: str, *arguments: str) -> set[str]:
    """The modules that are there after this code, which succeeds."""
    told = "import sys\ntry:\n    {}\nfinally:\n    print('\\n', *sys.modules)"
    done = python(told.format(code.strip().replace("\n", "\n    ")), *arguments)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.fixture(scope="module", autouse=True)
def _backend_of_files() -> Iterator[None]:
    """The tests list the modules of the backend `faiss`, and break and interrupt their import."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("AGENTFORMER_BACKEND"):
            patch.setenv("AGENTFORMER_BACKEND", "faiss")
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Where a memory of some documents is."""
    folder = tmp_path_factory.mktemp("store")
    with connect(index_dir=folder / "i", upload_dir=folder / "u", embedder="hashing") as af:
        for number in range(3):
            af.rag.upload(f"The caretaker keeps the keys of house {number}.".encode(), name=f"{number}.txt")
    return ("--index-dir", f"{folder}/i", "--upload-dir", f"{folder}/u")


def test_importing_the_package_imports_none_of_its_parts() -> None:
    there = imported("import agentformer")
    assert not HEAVY & there
    assert not {"agentformer.factory", "agentformer.types", "click", "sqlite3"} & there


def test_before_ctrl_c_is_guarded_nothing_but_signals_is_imported() -> None:
    """In an interpreter without `site`, which imports some of it for us where the package is installed for editing."""
    told = f"import sys; sys.path.append({str(ROOT)!r}); there = set(sys.modules); import agentformer.cli.start; "
    code = (
        told + "print(*(name for name in sys.modules if name.partition('.')[0] == 'agentformer' or name == 'typing'))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert sorted(done.stdout.split()) == [
        "agentformer",
        "agentformer._version",
        "agentformer.cli",
        "agentformer.cli.start",
    ]


def test_public_names_are_imported_when_they_are_used() -> None:
    there = imported("import agentformer\nassert agentformer.Scope().namespace == 'default'")
    assert "agentformer.types" in there
    assert "agentformer.factory" not in there


def test_help_needs_no_library_but_clicks() -> None:
    for arguments in [["--version"], ["list", "--help"], ["core", "--help"]]:
        assert not HEAVY & imported(RUN, *arguments)


def test_the_list_of_commands_imports_none_of_them() -> None:
    there = imported(RUN, "--help")
    assert not {"agentformer.factory", "agentformer.cli.commands.documents", "sqlite3", *HEAVY} & there


@pytest.mark.parametrize("command", ["list", "status", "memories", "spaces"])
def test_looking_at_records_imports_no_index_model_or_reader(store: tuple[str, ...], command: str) -> None:
    there = imported(RUN, command, *store)
    assert "sqlite3" in there
    assert not HEAVY & there
    assert not {"agentformer.search.pipeline", "agentformer.tools.toolbox", "agentformer.readers"} & there
    assert command != "status" or "agentformer.text.prompt_quoting" not in there
    assert "importlib.metadata" not in there  # no file of every package is read for plugins


EMBEDDERS = [("list", "minilm:int8"), ("status", "openai:some")]
if LONG:
    EMBEDDERS += [("status", "minilm"), ("status", "sbert:some-model"), ("list", "ollama:some")]


@pytest.mark.parametrize(("command", "embedder"), EMBEDDERS)
def test_looking_at_records_imports_nothing_for_the_embedder_that_is_set(
    empty_memory: None, tmp_path: Path, command: str, embedder: str
) -> None:
    there = imported(
        RUN, command, "--index-dir", f"{tmp_path}/i", "--upload-dir", f"{tmp_path}/u", "--embedder", embedder
    )
    assert not HEAVY & there
    assert not {f"agentformer.embedders.{provider}" for provider in built_in_names("embedders")} & there


def test_looking_at_records_makes_no_language_model(store: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFORMER_LLM_MODEL", "openai:some-model")
    assert not {"openai", "agentformer.llms.openai"} & imported(RUN, "status", *store)


def test_the_end_of_the_program_is_not_spent_on_looking_for_cycles() -> None:
    told = "import atexit, gc\natexit.register(lambda: print('kept', gc.get_freeze_count() > 0))\n"
    assert "kept True" in python(told + RUN, "--version").stdout


def test_a_search_by_words_imports_no_vector_index_and_no_model(store: tuple[str, ...]) -> None:
    code = (
        f"from agentformer import connect\nwith connect(index_dir={store[1]!r}, upload_dir={store[3]!r}) as af:\n"
        "    assert af.memory.search('keys', mode='lexical')"
    )
    there = imported(code)
    assert "tantivy" in there
    assert not {"faiss", "pydantic", *MODELS, *READERS, *SERVERS} & there


def test_every_line_of_the_table_is_what_the_command_says_of_itself() -> None:
    for name, told in HELP.items():
        assert told == first_sentence(main.commands[name]), name
        assert main.commands[name].name == name


INTERRUPTED = """
import atexit, os, signal, sys
from agentformer.cli.start import run

moment = sys.argv.pop(1)

def interrupt():
    print("reached", flush=True)
    os.kill(os.getpid(), signal.SIGINT)

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            interrupt()

if moment == "the end":
    atexit.register(interrupt)
sys.meta_path.insert(0, Interrupting())
run()
"""


MOMENTS = ["agentformer.cli.group", "click", "agentformer.factory", "tantivy", "the end"]
if LONG:
    MOMENTS += [
        "agentformer.search.pipeline",
        "agentformer.cli.commands.search",
        "sqlite3",
        "agentformer.memory.backends.faiss.backend",
        "numpy",
    ]


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_while_it_starts_or_ends_shows_no_trace(store: tuple[str, ...], moment: str) -> None:
    done = python(INTERRUPTED, moment, "search", "keys", "--embedder", "hashing", *store)
    assert "reached" in done.stdout, done.stderr
    assert (done.returncode, done.stderr) == (130, "\ninterrupted\n")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no ignored signals to inherit")
def test_ctrl_c_stays_ignored_where_it_was(store: tuple[str, ...]) -> None:
    done = python(
        INTERRUPTED,
        "click",
        "list",
        *store,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "0.txt" in done.stdout


def test_the_program_is_the_guarded_one() -> None:
    (program,) = importlib.metadata.entry_points(group="console_scripts", name="agentformer")
    assert program.value == "agentformer.cli.start:run"


def with_broken(folder: Path, library: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program where this library is there and cannot be imported."""
    (folder / f"{library}.py").write_text(f'raise ImportError("{library} is\\n for another machine")\n')
    code = f"import sys\nsys.path.insert(0, {str(folder)!r})\n{RUN}"
    where = ("--index-dir", f"{folder}/i", "--upload-dir", f"{folder}/u", "--embedder", "hashing")
    return python(code, *arguments, *where, env={**os.environ, "AGENTFORMER_LLM_MODEL": "ollama:some"})


@pytest.mark.parametrize(
    ("library", "command"),
    [
        ("click", "list"),
        ("faiss", "remember x"),
        *([("numpy", "remember x"), ("tantivy", "remember x")] if LONG else []),
    ],
)
def test_a_package_that_is_always_needed_and_broken_is_named_in_one_line(
    tmp_path: Path, library: str, command: str
) -> None:
    done = with_broken(tmp_path, library, *command.split())
    said = f"error: {library} cannot be imported ({library} is for another machine); reinstall agentformer\n"
    assert (done.returncode, done.stderr, done.stdout) == (3, said, "")


OPTIONAL = [
    ("flask", "serve --port 0", "server"),
    ("mcp", "mcp", "mcp"),
    ("openai", "clean", "llm"),
]
if LONG:
    OPTIONAL += [
        ("gunicorn", "serve --port 0 --server gunicorn", "server"),
        ("waitress", "serve --port 0 --server waitress", "server"),
        ("starlette", "mcp --http --port 0", "mcp"),
        ("uvicorn", "mcp --http --port 0", "mcp"),
    ]


@pytest.mark.parametrize(("library", "command", "extra"), OPTIONAL)
def test_an_optional_package_that_is_broken_is_told_with_the_reason(
    empty_memory: None, tmp_path: Path, library: str, command: str, extra: str
) -> None:
    done = with_broken(tmp_path, library, *command.split())
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1
    assert f"({library} is for another machine)" in done.stderr
    assert done.stderr.endswith(f"{install_command(extra, '--force-reinstall')}\n")
