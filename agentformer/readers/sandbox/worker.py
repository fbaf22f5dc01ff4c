"""The child process. It reads one file from standard input, writes drafts of the document to standard output, and ends.
A draft is a document with the text that was found so far.

On Linux, the system restricts the child before a parser is imported (`sandbox.linux`). On all systems, an audit hook of
Python restricts the child before the file is read. The hook cannot be removed, but it sees only Python code and not C
code. A restricted child may read the files of programs and libraries (`programs`), but no files of users.
"""

from __future__ import annotations

import ctypes  # opens a library when it is imported, which is refused later
import json
import math
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from agentformer.errors import CorruptDocument, DocumentError, DocumentTooLarge
from agentformer.readers.code.languages import GRAMMARS
from agentformer.readers.formats import FILE_BYTES, OPEN_FILES, ReadOptions, adapter_for
from agentformer.readers.sandbox.protocol import (
    DONE,
    NOT_ALLOWED,
    NOT_STARTED,
    READY,
    draft_frame,
    error_frame,
    image_frame,
    options_from_json,
)

# Modules of the parsers. Each may be in another folder or be a link.
_PARSERS = (
    *("chardet", "lxml", "pypdfium2", "pypdfium2_raw", "pypdfium2_cfg", "pypdf"),
    *("typing_extensions", "pytesseract", "packaging", "PIL", "numpy", "striprtf"),
    *("tree_sitter", *sorted({grammar.module for grammar in GRAMMARS.values()})),
)
_SITES = frozenset({"site-packages", "dist-packages"})
_LIBRARIES = ("DLLs", "Lib", "Library") if sys.platform == "win32" else ("lib", "lib64")
_WHEEL_FILES = ("*.libs", "*__mypyc*")  # files of wheels next to their package
# Files that C libraries read at their start: libraries, random numbers, number of processors.
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/bin", "/nix/store", "/gnu/store", "/home/linuxbrew/.linuxbrew/Cellar"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/dev/null", "/dev/urandom"),
    *("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
)


@cache
def programs() -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return two tuples of paths: the files and folders that a reader may read (this package, Python's modules, the
    parsers, system libraries and tesseract), and the folders whose file names Python must be able to list when it
    imports a module. Other folders of `sys.path` must stay unreadable, because one of them is the working folder or the
    folder of the user's script, which may contain files of users. The result is cached, because a restricted process
    cannot read all of these folders again."""
    readable = [Path(__file__).parents[2], Path(os.__file__).resolve().parent, *_of_python(), *_of_tesseract()]
    readable += [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if _is_narrow(p)]
    places = [place for module in _PARSERS for place in _places(module)]
    around = _real([place.parent for place in places])
    readable += [*places, *(file for folder in around for pattern in _WHEEL_FILES for file in folder.glob(pattern))]
    return _real([*readable, *map(Path, _SYSTEM)]), around


def _of_python() -> Iterator[Path]:
    for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix):
        yield from (Path(prefix, name) for name in _LIBRARIES)
    for entry in sys.path:
        if Path(entry).name in _SITES or os.path.isfile(entry):  # noqa: PTH113 (never raises); such as python311.zip
            yield Path(entry)


def _places(module: str) -> Iterator[Path]:
    """Yield the folders of a package. If the package is a link, also yield the folder to which the link points. For a
    module that is a single file, yield the file."""
    spec: ModuleSpec | None = None
    with suppress(ImportError, ValueError, OSError):
        spec = find_spec(module)
    if spec is None:
        return
    origin = (Path(spec.origin), Path(spec.origin).resolve()) if spec.has_location and spec.origin else ()
    if spec.submodule_search_locations is None:
        yield from origin
    else:
        yield from map(Path, spec.submodule_search_locations)
        yield from (file.parent for file in origin)


def _of_tesseract() -> Iterator[Path]:
    """Yield the program, its libraries, and the files of its languages."""
    if path := shutil.which("tesseract"):
        program = Path(path).resolve()
        prefix = program.parent.parent
        yield program
        yield from (prefix / "share" / name for name in ("tessdata", "tesseract-ocr"))
        if _is_narrow(str(prefix)):
            yield prefix / "lib"
    if _is_narrow(languages := os.environ.get("TESSDATA_PREFIX", "")):
        yield Path(languages)


def _is_narrow(folder: str) -> bool:
    """Return whether a reader may access `folder`, which comes from an environment variable. The path must be absolute,
    and the folder must not contain the user's home folder."""
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 (there may be none)
    return os.path.isabs(folder) and not Path(home).is_relative_to(os.path.realpath(folder))  # noqa: PTH117


def _real(paths: list[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(Path(os.path.realpath(path)) for path in paths))


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED = re.compile(r"socket\.|ctypes\.dlopen|os\.(?:system|fork|exec|spawn|startfile)|pty\.|winreg\.")
_STARTING = frozenset({"subprocess.Popen", "os.posix_spawn"})
_CHANGES = ("remove", "mkdir", "rmdir", "chmod", "chown", "truncate", "utime", "setxattr", "removexattr")
# The arguments that name the changed files. For a symbolic link, only the link is changed, not its target.
_CHANGING = {"os.rename": slice(2), "os.link": slice(2), "os.symlink": slice(1, 2)}
_CHANGING |= {f"os.{name}": slice(1) for name in _CHANGES}


def refuse_events(readable: Iterable[Path], folder: str) -> None:
    """Refuse the following until the process ends: sockets, loading of C libraries, reading outside `readable` and
    `folder`, writing outside `folder`, and starting programs. Only tesseract may be started, if `folder` is not ""."""
    writable = (os.path.realpath(folder),) if folder else ()
    allowed_to_read = (*map(str, readable), *writable)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        """Raise `PermissionError` for an audit event of Python that is not allowed."""
        if event == "open":
            path, _, flags = arguments
            allowed = writable if isinstance(flags, int) and flags & _WRITING else allowed_to_read
            if not isinstance(path, int) and not _within(path, allowed):
                raise PermissionError(f"a reader may not open {os.fsdecode(path)[:80]!r}")
        elif event in _CHANGING:
            if not all(_within(path, writable) for path in arguments[_CHANGING[event]]):
                raise PermissionError(f"the parser of a file has no permission for {event} outside its folder")
        elif event in _STARTING:
            if not folder or Path(str(arguments[0])).name != "tesseract":
                raise PermissionError("a reader may not start programs")
        elif _REFUSED.match(event):
            raise PermissionError(f"the parser of a file has no permission for {event}")

    sys.addaudithook(refuse)


def _within(path: Any, places: Iterable[str]) -> bool:
    if path == os.devnull:
        return True
    try:
        real = os.path.realpath(os.fsdecode(path))
    except (TypeError, ValueError, OSError):
        return False
    return any(real == place or real.startswith(place + os.sep) for place in places)


if sys.platform != "win32":  # on Windows, the time limit of the parent is the only limit
    import resource
if sys.platform == "linux":
    from agentformer.readers.sandbox.linux import confine_files, refuse_calls

_OWN_SHARE = 0.9  # share of the wall time, so that the worker stops before it is killed
_PR_SET_PDEATHSIG = 1
_UNNEEDED = ("pandas",)  # pytesseract imports it if installed, for functions that are not used


def main() -> None:
    """Run the worker: read the options and the file from standard input, and write frames to standard output."""
    stdin, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the pipe is for frames only: output of C libraries is sent to stderr
    options = options_from_json(json.loads(stdin.readline()))
    restrict(options)
    run(stdin, options, out)


def run(stdin: IO[bytes], options: ReadOptions, out: IO[bytes]) -> None:
    """Read the file, and write each complete draft. Half of the allowed output is kept for the last draft."""
    written, pending, end = 0, b"", DONE
    try:
        parse = parser_of(options)
        refuse_events(programs()[0], options.folder)
        out.write(READY)
        out.flush()
        options = replace(options, deadline=time.monotonic() + _OWN_SHARE * options.limits.wall_seconds)
        for pending in parse(stdin.read(), options):
            if written + len(pending) <= options.limits.output_bytes // 2:
                out.write(pending)
                out.flush()
                written, pending = written + len(pending), b""
    except DocumentError as error:
        end = error_frame(error)
    except MemoryError:
        end = error_frame(DocumentTooLarge("reading the file needs more memory than the limit; split the file"))
    except (PermissionError, ImportError) as error:
        end = error_frame(DocumentError(f"{NOT_ALLOWED} ({type(error).__name__}: {error})"))
    except RecursionError:
        end = error_frame(CorruptDocument("the file has too many nested elements; save it again"))
    out.write(pending)
    out.write(end)
    out.flush()


def parser_of(options: ReadOptions) -> Callable[[bytes, ReadOptions], Iterator[bytes]]:
    """Import the parser of a file. Return the function that yields the frames of the file: a frame with the image of a
    page if `options` requests one, otherwise frames with drafts of the document. The parser is imported before the file
    is read, so that a failed import is not reported as an error of the file."""
    for name in _UNNEEDED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: no such module
    try:
        if options.page:
            renderer = import_module("agentformer.readers.pdf.page_image")
            return lambda data, options: iter([image_frame(renderer.page_image(data, options))])
        adapter = adapter_for(options.media_type)
        for media_type in options.attached:
            with suppress(DocumentError):  # the file is read without these parts, and its reason names them
                adapter_for(media_type)
        return lambda data, options: map(draft_frame, adapter.parse(data, options))
    except (ImportError, OSError, SyntaxError, AttributeError) as error:
        raise DocumentError(f"{NOT_STARTED}: {type(error).__name__} while importing the parser") from error


def restrict(options: ReadOptions) -> None:
    """Restrict the rights of this process. The child calls this itself, because the parent cannot safely run code
    between fork and exec if the parent has several threads."""
    if sys.platform == "win32":
        return
    _limit_resources(options)
    if sys.platform == "linux":
        end_with_parent()
        folder = (Path(options.folder),) if options.folder else ()
        readable, listed = programs()
        confine_files(readable, (Path(os.devnull), *folder), listed)
        refuse_calls(starts_programs=bool(options.folder))


def end_with_parent() -> None:
    """Let the system kill this process when the thread of the parent ends that started it (on Linux). This thread waits
    for the child, or is the fork server. If it has ended before, nothing is sent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _limit_resources(options: ReadOptions) -> None:
    seconds = math.ceil(options.limits.wall_seconds) + 1
    for kind, most in (
        (resource.RLIMIT_AS, options.limits.memory_bytes),
        (resource.RLIMIT_CPU, seconds + 1),
        (resource.RLIMIT_FSIZE, FILE_BYTES if options.folder else 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        # The soft limit of CPU time sends a signal that gives the reason, before the hard limit ends the process.
        soft = seconds if kind == resource.RLIMIT_CPU else most
        with suppress(ValueError, OSError):  # macOS refuses some of these limits
            _, hard = resource.getrlimit(kind)
            bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (min(soft, bound), bound))


if __name__ == "__main__":
    main()
