from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentformer.errors import CorruptDocument, DocumentError, DocumentTooLarge
from agentformer.readers import ReadLimits, read
from agentformer.readers.formats import ReadOptions
from agentformer.readers.sandbox import process as sandbox
from agentformer.readers.sandbox.protocol import READY, options_from_json, options_to_json

from .takeover import PDF, POSIX, taken_over, told, with_tesseract

pytestmark = pytest.mark.process


def test_a_reader_that_sleeps_is_ended_and_the_next_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "_BOOT", "import time; time.sleep(60)")
        patch.setattr(sandbox, "_STARTUP_SECONDS", 0.2)
        start = time.perf_counter()
        with pytest.raises(DocumentTooLarge, match=r"longer than 0\.3 s"):
            read(PDF, "a.pdf", limits=ReadLimits(wall_seconds=0.3))
        assert time.perf_counter() - start < 10
    assert read(PDF, "a.pdf").status == "ready"


CRASHES = ["os.abort()", "sys.exit(3)", "print('no protocol')"]


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_is_this_files_error(monkeypatch: pytest.MonkeyPatch, crash: str) -> None:
    monkeypatch.setattr(sandbox, "_BOOT", f"import os, sys\nos.write(1, {READY!r})\n{crash}")

    with pytest.raises(CorruptDocument, match="crash"):
        read(PDF, "a.pdf")


@pytest.mark.parametrize("crash", [*CRASHES, "import agentformer_away"])
def test_a_reader_that_does_not_start_is_no_fault_of_the_file(monkeypatch: pytest.MonkeyPatch, crash: str) -> None:
    monkeypatch.setattr(sandbox, "_BOOT", f"import os, sys\n{crash}")

    with pytest.raises(DocumentError, match="cannot be started") as caught:
        read(PDF, "a.pdf")
    assert type(caught.value) is DocumentError


def test_a_parser_that_cannot_be_imported_is_no_fault_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable = "def closed(_): raise PermissionError\n"
    taken_over(monkeypatch, "yield", unreadable)
    monkeypatch.setattr(sandbox, "_BOOT", sandbox._BOOT.replace("main()\n", "worker.adapter_for = closed\nmain()\n"))

    with pytest.raises(DocumentError, match=r"cannot be started.*PermissionError") as caught:
        read(PDF, "a.pdf")
    assert type(caught.value) is DocumentError


@pytest.fixture
def deaf() -> Iterator[None]:
    """A host that ignores the end of its children, as some that fork do."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


@POSIX
@pytest.mark.usefixtures("deaf")
def test_a_host_that_ignores_the_end_of_children_gets_texts_and_typed_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(PDF, "a.pdf").pages[0].text == "A page of text about ships."
    taken_over(monkeypatch, "os.abort()\nyield")
    with pytest.raises(CorruptDocument, match="crash"):
        told()


@POSIX
@pytest.mark.usefixtures("deaf")
def test_such_a_host_gets_what_the_second_engine_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_over(
        monkeypatch, "if options.engines[0] == 'pdfium':\n    os.abort()\nyield attempt(lambda: options.engines)"
    )

    assert told() == "('pypdf',)"


def test_modules_of_a_relative_folder_are_found_by_a_reader_that_works_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_tesseract(monkeypatch, tmp_path)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "only_here.py").write_text("WORD = 'found'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, "modules"])
    taken_over(monkeypatch, "yield attempt(lambda: only_here.WORD)", "import only_here")

    assert told() == "found"


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux only")
def test_memory_is_bounded_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    hungry = sandbox._BOOT.replace(
        "main()\n",
        "from agentformer.readers.sandbox import worker\n"
        "def eat(*_): yield [bytes(50 << 20) for _ in range(1000)]\n"
        "worker.adapter_for = lambda media_type: types.SimpleNamespace(parse=eat)\n"
        "main()\n",
    )
    monkeypatch.setattr(sandbox, "_BOOT", hungry)

    with pytest.raises(DocumentTooLarge, match="memory"):
        read(PDF, "a.pdf", limits=ReadLimits(memory_bytes=1 << 30))


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit on Windows")
def test_processor_time_is_bounded_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = sandbox._BOOT.replace(
        "main()\n",
        "from agentformer.readers.sandbox import worker\n"
        "def spin(*_):\n    while True: pass\n    yield\n"
        "worker.adapter_for = lambda media_type: types.SimpleNamespace(parse=spin)\n"
        "main()\n",
    )
    monkeypatch.setattr(sandbox, "_BOOT", busy)

    with pytest.raises(DocumentTooLarge, match="longer than"):
        read(PDF, "a.pdf", limits=ReadLimits(wall_seconds=0.5))


def test_what_was_read_before_a_crash_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    crashing = sandbox._BOOT.replace(
        "main()\n",
        "from agentformer.readers.sandbox import worker\n"
        "from agentformer.types import DocumentText, Page\n"
        "def crash(*_):\n"
        "    yield DocumentText('application/pdf', (Page(1, 'so far'),))\n"
        "    import os; os.abort()\n"
        "worker.adapter_for = lambda media_type: types.SimpleNamespace(parse=crash)\n"
        "main()\n",
    )
    monkeypatch.setattr(sandbox, "_BOOT", crashing)

    assert read(PDF, "a.pdf").pages[0].text == "so far"


def test_threads_may_read_at_the_same_time() -> None:
    with ThreadPoolExecutor(4) as pool:
        documents = list(pool.map(lambda _: read(PDF, "a.pdf"), range(8)))

    assert {document.pages[0].text for document in documents} == {"A page of text about ships."}


def test_the_child_imports_neither_the_application_nor_anything_heavy() -> None:
    check = sandbox._BOOT.replace("main()\n", "") + (
        "import importlib; importlib.import_module('agentformer.readers.pdf.reader')\n"
        "print([m for m in ('torch', 'faiss', 'flask', 'agentformer.settings') if m in sys.modules])"
    )
    argument = f'[{[p for p in sys.path if p]!r}, "{sandbox._PACKAGE}"]'.replace("'", '"')
    result = subprocess.run([sys.executable, "-I", "-c", check, argument], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"


def test_importing_the_readers_imports_no_parser() -> None:
    code = "import sys, agentformer.readers; print([m for m in ('pypdf', 'pypdfium2', 'lxml') if m in sys.modules])"
    boot = sandbox._BOOT.split("from agentformer")[0] + code
    argument = f'[{[p for p in sys.path if p]!r}, "{sandbox._PACKAGE}"]'.replace("'", '"')
    result = subprocess.run([sys.executable, "-I", "-c", boot, argument], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"


def test_options_survive_the_protocol() -> None:
    options = ReadOptions("a", "b", "ö", False, ReadLimits(max_pages=3))
    assert options_from_json(options_to_json(options)) == options


def test_no_message_tells_a_path_of_this_machine() -> None:
    with pytest.raises(CorruptDocument) as caught:
        read(b"%PDF-1.4\n1 0 obj garbage", "/home/someone/a.pdf")

    assert "someone" not in str(caught.value)


def test_a_child_imports_no_library_that_hardly_any_file_needs() -> None:
    unneeded = "{'numpy', 'pypdf', 'pytesseract'}"
    asked = f"import agentformer.readers.pdf.reader; print(sorted({unneeded} & set(sys.modules)))"
    boot = sandbox._BOOT.partition("from agentformer.readers.sandbox.worker")[0]
    paths = json.dumps([[p for p in sys.path if p], str(sandbox._PACKAGE)])
    child = subprocess.run(
        [sys.executable, "-I", "-c", boot + asked, paths], capture_output=True, text=True, timeout=60, check=True
    )
    assert child.stdout.strip() == "[]"
