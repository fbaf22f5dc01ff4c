"""What a parser that a file has taken over can still do: next to nothing. The hostile parsers here are real code in the
real child process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentformer.errors import CorruptDocument, DocumentTooLarge
from agentformer.readers import ReadLimits, read
from agentformer.readers.sandbox import process as sandbox
from agentformer.readers.sandbox.protocol import READY

from .takeover import LINUX, PDF, POSIX, asked, confines_files, has_filter, taken_over, told, with_tesseract

pytestmark = pytest.mark.process


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        yield server


def was_called(server: socket.socket) -> bool:
    with suppress(TimeoutError):
        server.accept()[0].close()
        return True
    return False


CONNECT = "socket.create_connection(('127.0.0.1', {port})) and 'connected'"
NATIVE = """
    address = b"\\x02\\x00" + ({port}).to_bytes(2, "big") + bytes([127, 0, 0, 1]) + bytes(8)
    there = LIBC.socket(2, 1, 0)
    yield attempt(lambda: there, lambda: LIBC.connect(there, address, 16), lambda: LIBC.socket(10, 1, 0),
                  lambda: LIBC.socket(1, 1, 0), lambda: LIBC.socket(16, 3, 0), lambda: LIBC.syscall(425, 1, 0))
"""


@LINUX
def test_no_call_of_native_code_reaches_the_network(monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    if not has_filter():
        pytest.skip("this system takes no filter of calls")
    taken_over(monkeypatch, NATIVE.format(port=port))

    assert told() == "-1 -1 -1 -1 -1 -1"
    assert not was_called(listener)


def test_python_reaches_no_network_even_where_the_system_does_not_refuse_it(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    without = "worker.refuse_calls = worker.confine_files = lambda *a, **o: False"
    taken_over(monkeypatch, f"yield attempt(lambda: {CONNECT.format(port=listener.getsockname()[1])})", without)

    assert told() == "PermissionError"
    assert not was_called(listener)


FILES = """
    yield attempt(lambda: open({secret!r}).read(), lambda: open({there!r}, "w").write("x"),
                  lambda: os.remove({secret!r}), lambda: os.rename({secret!r}, {there!r}),
                  lambda: os.mkdir({there!r}), lambda: open(f"/proc/{{os.getppid()}}/environ").read())
"""


@pytest.mark.parametrize("layer", ["system", "python"])
def test_no_other_file_is_read_written_or_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layer: str) -> None:
    if layer == "system" and not confines_files():
        pytest.skip("this system does not confine files")
    secret, there = tmp_path / "records", tmp_path / "new"
    secret.write_text("secret")
    without = {
        "system": "worker.refuse_events = lambda *a: None",
        "python": "worker.refuse_calls = worker.confine_files = lambda *a, **o: False",
    }
    taken_over(monkeypatch, FILES.format(secret=str(secret), there=str(there)), without[layer])

    assert told() == " ".join(["PermissionError"] * 6)
    assert secret.read_text() == "secret" and not there.exists()


@LINUX
def test_native_code_touches_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_filter():
        pytest.skip("this system takes no filter of calls")
    monkeypatch.setenv("PATH", "")  # no tesseract
    parent = os.getpid()
    body = f"""
        yield attempt(lambda: LIBC.kill({parent}, 0), lambda: LIBC.ptrace(16, {parent}, 0, 0), lambda: LIBC.setsid(),
                      lambda: LIBC.unshare(0x10000000), lambda: LIBC.syscall({_number("execve")}, b"/bin/true", 0, 0),
                      lambda: LIBC.mount(b"none", b"/mnt", b"tmpfs", 0, 0), lambda: LIBC.chmod(b"/tmp", 0o777))
    """
    taken_over(monkeypatch, body)

    assert told() == " ".join(["-1"] * 7)


CALLS = """
    path, parent = {path!r}, {parent}
    yield attempt(lambda: LIBC.truncate(path, ctypes.c_long(0)), lambda: LIBC.utimensat(-100, path, None, 0),
                  lambda: LIBC.removexattr(path, b"user.a"), lambda: LIBC.setpriority(0, parent, 5),
                  lambda: LIBC.shmget(0x1234, 4096, 0o1600), lambda: LIBC.semctl(0, 0, 0), lambda: LIBC.prctl(1, 0),
                  lambda: LIBC.kill(parent, 0), lambda: LIBC.kill(0, 0), lambda: LIBC.kill(-1, 0))
"""
OLD_LANDLOCK = """
from agentformer.readers.sandbox import linux
call = linux._call
linux._call = lambda number, *given: min(2, call(number, *given)) if given[-1] == 1 else call(number, *given)
"""


@LINUX
@pytest.mark.parametrize("starts_programs", [False, True])
@pytest.mark.parametrize("system", ["", OLD_LANDLOCK], ids=["this", "kernel_5_19"])
def test_native_code_damages_nothing_outside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, starts_programs: bool
) -> None:
    if not has_filter():
        pytest.skip("this system takes no filter of calls")
    if starts_programs:
        with_tesseract(monkeypatch, tmp_path)
    kept = tmp_path / "kept"
    kept.write_text("precious")
    os.utime(kept, (1, 1))
    taken_over(monkeypatch, CALLS.format(path=os.fsencode(kept), parent=os.getpid()), system)

    assert told() == " ".join(["-1"] * 10)
    assert kept.read_text() == "precious" and kept.stat().st_mtime == 1


@LINUX
def test_native_code_starts_threads_and_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_filter():
        pytest.skip("this system takes no filter of calls")
    monkeypatch.setenv("PATH", "")  # no tesseract
    body = """
        import threading
        thread = threading.Thread(target=lambda: None)
        yield attempt(lambda: LIBC.fork(), lambda: LIBC.vfork(), lambda: LIBC.syscall(CLONE, 17, 0, 0, 0, 0),
                      lambda: thread.start() or thread.join())
    """
    taken_over(monkeypatch, body.replace("CLONE", "56" if os.uname().machine == "x86_64" else "220"))

    assert told() == "-1 -1 -1 None"


@LINUX
def test_a_program_of_32_bits_gets_no_filter_of_64() -> None:
    if not has_filter():
        pytest.skip("this system takes no filter of calls")
    code = "sys.maxsize = 2**31 - 1\nfrom agentformer.readers.sandbox.linux import refuse_calls\n"
    assert not asked(code + "print(refuse_calls(starts_programs=False))")


@POSIX
def test_python_moves_nothing_out_of_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_tesseract(monkeypatch, tmp_path)
    kept, there = tmp_path / "kept", tmp_path / "new"
    kept.write_text("precious")
    os.utime(kept, (1, 1))
    body = f"""
        own = os.path.join(options.folder, "own")
        open(own, "w").close()
        yield attempt(lambda: os.rename(own, {str(kept)!r}), lambda: os.link(own, {str(there)!r}),
                      lambda: os.symlink(own, {str(there)!r}), lambda: os.utime({str(kept)!r}),
                      lambda: os.link(own, own + "2"), lambda: os.rename(own, own + "3"))
    """
    taken_over(monkeypatch, body, "worker.refuse_calls = worker.confine_files = lambda *a, **o: False")

    assert told() == "PermissionError PermissionError PermissionError PermissionError None None"
    assert kept.read_text() == "precious" and kept.stat().st_mtime == 1 and not there.exists()


def test_python_starts_no_program_and_loads_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no tesseract
    body = """
        yield attempt(lambda: subprocess.run(["tesseract", "--version"]), lambda: os.system("true"),
                      lambda: ctypes.CDLL("libm.so.6"), lambda: os.fork())
    """
    taken_over(monkeypatch, body, "worker.refuse_calls = worker.confine_files = lambda *a, **o: False")

    assert told() == " ".join(["PermissionError"] * 4)


def test_a_reader_knows_no_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-secret")
    taken_over(monkeypatch, "yield attempt(lambda: 'PATH' in os.environ, lambda: 'sk-secret' in str(os.environ))")

    assert told() == "True False"


@POSIX
def test_open_files_and_their_size_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
        def many():
            kept = []
            try:
                while len(kept) < 1000:
                    kept.append(open(os.devnull))
            except OSError:
                return len(kept) < 64
        import resource
        yield attempt(many, lambda: resource.getrlimit(resource.RLIMIT_FSIZE), lambda: LIBC.abs(-1))
    """
    monkeypatch.setenv("PATH", "")  # no tesseract, so nothing is written at all
    taken_over(monkeypatch, body)

    assert told() == "True (0, 0) 1"


@POSIX
def test_resource_limits_of_a_reader_are_those_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The soft limit of processor time is one second below the hard limit."""
    limit = "lambda: resource.getrlimit(resource.RLIMIT_"
    body = f"import resource\nyield attempt({limit}CORE), {limit}CPU))"
    monkeypatch.setenv("PATH", "")
    taken_over(monkeypatch, body)

    assert told(wall_seconds=7.5) == "(0, 0) (9, 10)"


def test_the_time_of_a_file_begins_when_its_parser_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_STARTUP_SECONDS", 60.0)
    taken_over(monkeypatch, "time.sleep(5)\nyield attempt(lambda: 'late')")
    with pytest.raises(DocumentTooLarge, match=r"longer than 0\.5 s"):
        told(wall_seconds=0.5)


FLOOD = "import os, struct\nos.read(0, 10)\nwhile True:\n    os.write(1, {piece})\n"


def test_a_reader_that_never_stops_talking_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_BOOT", FLOOD.format(piece="struct.pack('>cQ', b'D', 70000) + bytes(70000)"))
    with pytest.raises(CorruptDocument, match="invalid output"):  # its last draft counts, and is none
        told(output_bytes=1 << 20)


def test_a_draft_without_end_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_BOOT", FLOOD.format(piece="struct.pack('>cQ', b'D', 1 << 40) + bytes(70000)"))
    with pytest.raises(DocumentTooLarge, match="takes more than 1 MiB"):
        told(output_bytes=1 << 20)


def test_drafts_leave_room_for_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
        for n in range(40):
            yield DocumentText("application/pdf", (Page(1, f"{n} " + "x" * 10_000),))
    """
    taken_over(monkeypatch, body)

    assert told(output_bytes=100_000).startswith("39 ")


@LINUX
def test_a_reader_that_closes_its_output_and_goes_on_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sandbox, "_LAST_SECONDS", 0.2)
    number = tmp_path / "pid"
    monkeypatch.setattr(
        sandbox,
        "_BOOT",
        f"import os, time\nopen({str(number)!r}, 'w').write(str(os.getpid()))\nos.close(1)\ntime.sleep(600)",
    )
    with pytest.raises(DocumentTooLarge):
        read(PDF, "a.pdf")
    assert _ends(int(number.read_text()))


@LINUX
@pytest.mark.parametrize("escapes", [False, True])
def test_a_process_that_is_left_behind_with_the_pipe_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, escapes: bool, tmp_path: Path
) -> None:
    number = tmp_path / "pid"
    boot = (
        f"import os, sys, time\nos.write(1, {READY!r})\n"
        "if os.fork():\n"
        f"    while not os.path.exists({str(number)!r}):\n        time.sleep(0.01)\n"
        "    os._exit(3)\n"
        f"if {escapes}:\n    os.setsid()\n"
        f"open('{number}.new', 'w').write(str(os.getpid()))\n"
        f"os.rename('{number}.new', {str(number)!r})\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(sandbox, "_BOOT", boot)
    monkeypatch.setattr(sandbox, "_STARTUP_SECONDS", 60.0)
    with pytest.raises(CorruptDocument, match="crash"):
        read(PDF + bytes(1 << 20), "a.pdf", limits=ReadLimits(wall_seconds=60))
    pid = int(number.read_text())
    if escapes:  # as only a reader without limits can, such as this one
        os.kill(pid, signal.SIGKILL)
    assert _ends(pid)


@LINUX
def test_a_reader_ends_with_the_process_that_asked(tmp_path: Path) -> None:
    number = tmp_path / "pid"
    script = f"""
import types
from agentformer.readers import read
from agentformer.readers.sandbox import process as sandbox
sandbox._BOOT = sandbox._BOOT.replace("main()\\n", '''
from agentformer.readers.sandbox import worker
import os, time
open({str(number)!r}, "w").write(str(os.getpid()))
def parse(data, options):
    time.sleep(600)
    yield
worker.adapter_for = lambda media_type: types.SimpleNamespace(parse=parse)
main()
''')
read(b"%PDF-1.4 1 0 obj", "a.pdf")
"""
    asking = subprocess.Popen([sys.executable, "-c", script])
    try:
        while not (number.exists() and number.read_text()):
            assert asking.poll() is None
            time.sleep(0.02)
        server = int(number.read_text())
        while not (readers := Path(f"/proc/{server}/task/{server}/children").read_text().split()):
            time.sleep(0.02)
        while "S" not in Path(f"/proc/{readers[0]}/stat").read_text().rpartition(")")[2][:3]:
            time.sleep(0.02)
        time.sleep(0.5)  # it has read its input and sleeps; sooner, the broken pipe would end it
    finally:
        asking.kill()
        asking.wait()
    for pid in (int(readers[0]), server):
        if not _ends(pid):
            os.kill(pid, signal.SIGKILL)
            pytest.fail("the reader or its server outlived the process that asked")


@POSIX
def test_the_folder_of_a_reader_goes_with_it_also_when_it_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = with_tesseract(monkeypatch, tmp_path)
    body = """
        import tempfile
        held = tempfile.NamedTemporaryFile(delete=False)
        held.write(b"x")
        held.flush()
        yield attempt(lambda: held.name.startswith(options.folder), lambda: len(os.listdir(options.folder)))
        LIBC.kill(os.getpid(), 9)
        time.sleep(600)
    """
    taken_over(monkeypatch, body)

    assert told() == "True 1"
    assert [*folders.iterdir()] == []


def _ends(pid: int) -> bool:
    """Whether a process is gone, or soon will be."""
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X"):
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def _number(call: str) -> int:
    from agentformer.readers.sandbox.linux import _MACHINES, _STARTS

    return _STARTS[call][_MACHINES[os.uname().machine][0]]
