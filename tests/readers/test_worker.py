"""The rules of a reader process and of its parent, without a process: events, limits, drafts and outcomes."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentformer.errors import CorruptDocument, DocumentError, DocumentTooLarge
from agentformer.readers.formats import FILE_BYTES, PDF, PLAIN, ReadLimits, ReadOptions
from agentformer.readers.sandbox import process, worker
from agentformer.readers.sandbox.protocol import Frames, draft_frame, error_frame
from agentformer.types import DocumentText, Page

OUTSIDE = "/elsewhere/file"


def test_the_limits_of_a_file() -> None:
    mib = 2**20
    assert ReadLimits() == ReadLimits(256 * mib, 10_000, 50_000_000, 120.0, 2048 * mib, 384 * mib)
    assert mib * 128 == FILE_BYTES


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Callable[..., bool]]:
    """Return a function that takes the folder of a reader, and returns a function that says whether an event is
    allowed."""
    hooks: list[Any] = []
    monkeypatch.setattr(worker.sys, "addaudithook", hooks.append)

    def made(folder: str) -> Callable[..., bool]:
        worker.refuse_events([tmp_path / "lib"], folder)
        refuse = hooks.pop()

        def allowed(event: str, *arguments: Any) -> bool:
            try:
                refuse(event, arguments)
            except PermissionError:
                return False
            return True

        return allowed

    yield made
    monkeypatch.undo()


def test_a_reader_may_open_libraries_and_its_own_folder(rules: Any, tmp_path: Path) -> None:
    own, library = str(tmp_path / "own"), str(tmp_path / "lib" / "a.py")
    for folder in (own, ""):
        allowed = rules(folder)
        for path, reads, writes in (
            (library, True, False),
            (str(tmp_path / "lib"), True, False),
            (str(tmp_path / "library"), False, False),
            (own, bool(folder), bool(folder)),
            (f"{own}/x", bool(folder), bool(folder)),
            (os.fsencode(f"{own}/x"), bool(folder), bool(folder)),
            (f"{own}/../x", False, False),
            (OUTSIDE, False, False),
            (os.devnull, True, True),
            (3, True, True),  # an open file
        ):
            assert allowed("open", path, "r", os.O_RDONLY) is reads, path
            assert allowed("open", path, None, None) is reads, path
            for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND):
                assert allowed("open", path, "w", flag) is writes, path


def test_a_reader_may_change_files_of_its_own_folder_only(rules: Any, tmp_path: Path) -> None:
    own = str(tmp_path / "own")
    allowed = rules(own)
    inside = f"{own}/x"
    for event, arguments, right in (
        ("os.rename", (inside, inside, -1, -1), True),
        ("os.rename", (OUTSIDE, inside, -1, -1), False),
        ("os.rename", (inside, OUTSIDE, -1, -1), False),
        ("os.link", (inside, OUTSIDE, -1, -1), False),
        ("os.link", (OUTSIDE, inside, -1, -1), False),
        ("os.symlink", (OUTSIDE, inside, -1), True),
        ("os.symlink", (inside, OUTSIDE, -1), False),
        *((f"os.{name}", (inside, OUTSIDE), True) for name in worker._CHANGES),
        *((f"os.{name}", (OUTSIDE, inside), False) for name in worker._CHANGES),
    ):
        assert allowed(event, *arguments) is right, (event, arguments)


def test_a_reader_starts_tesseract_only_and_uses_no_socket(rules: Any, tmp_path: Path) -> None:
    for folder in ("", str(tmp_path)):
        allowed = rules(folder)
        for event in ("subprocess.Popen", "os.posix_spawn"):
            assert allowed(event, "/usr/bin/tesseract", [], None, None) is bool(folder)
            assert not allowed(event, "/usr/bin/sh", [], None, None)
        for event in ("socket.connect", "ctypes.dlopen", "os.system", "os.fork", "os.exec", "os.spawn", "pty.spawn"):
            assert not allowed(event, "x")
        assert allowed("import", "json", None) and allowed("os.listdir", OUTSIDE)


def test_a_folder_around_the_home_folder_is_not_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folders = ("", "relative", str(tmp_path), str(tmp_path / "home"), str(tmp_path / "home" / "x"), str(tmp_path / "y"))
    assert [worker._is_narrow(folder) for folder in folders] == [False, False, False, False, True, True]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
def test_the_resources_of_a_reader_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = worker.resource
    limits: dict[int, tuple[int, int]] = {}
    hard = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_NOFILE: 50, resource.RLIMIT_CPU: 5000}
    monkeypatch.setattr(worker.resource, "getrlimit", lambda kind: (7, hard.get(kind, resource.RLIM_INFINITY)))
    monkeypatch.setattr(worker.resource, "setrlimit", limits.__setitem__)
    for folder, file_bytes in (("", 0), ("/own", FILE_BYTES)):
        worker._limit_resources(ReadOptions("a", PDF, limits=ReadLimits(wall_seconds=7.5), folder=folder))
        assert limits == {
            resource.RLIMIT_AS: (2048 * 2**20,) * 2,
            resource.RLIMIT_CPU: (9, 10),
            resource.RLIMIT_FSIZE: (file_bytes,) * 2,
            resource.RLIMIT_NOFILE: (50, 50),  # a limit is never raised
            resource.RLIMIT_CORE: (0, 0),
        }
    hard.clear()
    worker._limit_resources(ReadOptions("a", PDF))
    assert limits[resource.RLIMIT_NOFILE] == (64, 64)


def document(number: int) -> DocumentText:
    return DocumentText(PLAIN, (Page(1, f"{number} " + "x" * 100),))


def test_half_of_the_output_is_kept_for_the_last_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(draft_frame(document(1)))
    monkeypatch.setattr(worker, "refuse_events", lambda readable, folder: None)
    for output_bytes, drafts in ((4 * size, [1, 2, 5]), (4 * size - 2, [1, 5]), (size, [5])):
        out, seen = io.BytesIO(), []

        def parse(data: bytes, options: ReadOptions, seen: list[Any] = seen) -> Iterator[DocumentText]:
            seen.append((data, options.deadline))
            yield from map(document, range(1, 6))

        monkeypatch.setattr(worker, "adapter_for", lambda media_type, parse=parse: SimpleNamespace(parse=parse))
        options = ReadOptions("a", PLAIN, limits=ReadLimits(output_bytes=output_bytes, wall_seconds=100.0))
        start = worker.time.monotonic()
        worker.run(io.BytesIO(b"data"), options, out)
        assert [number for number in range(1, 6) if draft_frame(document(number)) in out.getvalue()] == drafts
        frames = Frames(1 << 20)
        frames.feed(out.getvalue())
        assert frames.ready and frames.done and frames.draft in draft_frame(document(5))
        assert seen[0][0] == b"data" and start + 89 < seen[0][1] < start + 100


@pytest.mark.parametrize(
    ("error", "kind"),
    [(MemoryError(), DocumentTooLarge), (RecursionError(), CorruptDocument), (DocumentTooLarge("x"),) * 2],
)
def test_an_error_of_a_parser_is_sent(monkeypatch: pytest.MonkeyPatch, error: Exception, kind: Any) -> None:
    def parse(data: bytes, options: ReadOptions) -> Iterator[DocumentText]:
        raise error
        yield

    monkeypatch.setattr(worker, "refuse_events", lambda readable, folder: None)
    monkeypatch.setattr(worker, "adapter_for", lambda media_type: SimpleNamespace(parse=parse))
    out, frames = io.BytesIO(), Frames(1 << 20)
    worker.run(io.BytesIO(), ReadOptions("a", PLAIN), out)
    frames.feed(out.getvalue())
    expected = kind if isinstance(kind, type) else type(kind)
    assert frames.done and expected.__name__.encode() in frames.error


def outcome(
    *,
    ready: bool = True,
    draft: bytes = b"",
    error: bytes = b"",
    timed_out: bool = False,
    code: int = 0,
    fault: Any = None,
) -> process._Outcome:
    frames = Frames(0)
    frames.ready, frames.draft, frames.error = ready, draft, error
    return process._Outcome(frames, timed_out, code, fault)


def test_a_reader_without_output_has_crashed() -> None:
    for fields, crashed in (
        ({}, True),
        ({"code": -11}, True),
        ({"code": 1}, False),
        ({"ready": False}, False),
        ({"draft": b"x"}, False),
        ({"error": b"x"}, False),
        ({"timed_out": True}, False),
        ({"fault": DocumentError("x")}, False),
    ):
        assert bool(outcome(**fields).crashed) is crashed, fields  # type: ignore[arg-type]


def test_the_outcome_of_a_reader_decides_its_error() -> None:
    limits = ReadLimits(wall_seconds=2.5)
    sent = error_frame(CorruptDocument("broken"))[9:]
    for fields, kind, message in (
        ({"error": sent, "timed_out": True}, CorruptDocument, "broken"),
        ({"fault": DocumentTooLarge("output"), "timed_out": True}, DocumentTooLarge, "output"),
        ({"timed_out": True}, DocumentTooLarge, "longer than 2.5 s"),
        ({"code": -signal.SIGKILL}, DocumentTooLarge, "memory was low"),
        ({"code": -11}, CorruptDocument, "crashed"),
        ({"code": -11, "ready": False}, DocumentError, "cannot be started"),
    ):
        error = process._error(outcome(**fields), limits)  # type: ignore[arg-type]
        assert type(error) is kind and message in str(error), fields


def test_only_a_crash_of_the_first_engine_starts_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[tuple[str, ...]] = []
    crashed, fine = outcome(code=-11), outcome(draft=draft_frame(document(1))[9:])

    def run(data: bytes, options: ReadOptions) -> process._Outcome:
        engines.append(options.engines)
        assert 1.0 <= options.limits.wall_seconds <= 120.0
        return outcomes.pop(0)

    monkeypatch.setattr(process, "_run", run)
    for media_type, given, results, started in (
        (PDF, ("a", "b"), [crashed, fine], [("a", "b"), ("b",)]),
        (PDF, ("a", "b"), [fine], [("a", "b")]),
        (PDF, ("a",), [crashed], [("a",)]),
        (PLAIN, ("a", "b"), [crashed], [("a", "b")]),
    ):
        outcomes = [*results]
        try:
            text = process.read_isolated(b"", ReadOptions("a", media_type, engines=given)).pages[0].text
            assert text.startswith("1 ") and results[-1] is fine
        except CorruptDocument:
            assert results[-1] is crashed
        assert engines == started and not outcomes
        engines.clear()


def test_a_reader_gets_few_variables_and_absolute_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process.os, "environ", {"PATH": "/bin", "SECRET": "x", "TMPDIR": "/tmp/x"})
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")} | {"OMP_THREAD_LIMIT": "1"}
    assert process._environment("") == {"PATH": "/bin", **threads}
    assert process._environment("/own") == {"PATH": "/bin", **threads, "TMPDIR": "/own", "TEMP": "/own", "TMP": "/own"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(process.sys, "path", ["", "lib", "missing", str(tmp_path)])
    assert process._module_path() == [str(tmp_path / "lib"), "missing", str(tmp_path)]
    monkeypatch.setattr(process.sys, "path", [""])
    assert process._module_path() == [""]
