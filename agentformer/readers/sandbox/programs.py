"""Find the files of programs and libraries, which a confined reader may read. User files are never among them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# Modules of the parsers. Each may be in another folder or be a link.
_PARSERS = (
    *("charset_normalizer", "lxml", "pypdfium2", "pypdfium2_raw", "pypdfium2_cfg", "pypdf", "cryptography", "cffi"),
    *("_cffi_backend", "Crypto", "typing_extensions", "pytesseract", "packaging", "PIL", "numpy"),
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


class Programs(NamedTuple):
    """`readable`: files, and folders with everything in them. `listed`: folders whose names are needed for imports."""

    readable: tuple[Path, ...]
    listed: tuple[Path, ...]


@cache
def programs() -> Programs:
    """Return this package, Python's modules, the parsers, system libraries, and tesseract with its languages.

    Other entries of `sys.path` are excluded: the first is the folder of the user's script or the working folder.
    Cached, because a confined process cannot look everything up again.
    """
    readable = [Path(__file__).parents[2], Path(os.__file__).resolve().parent, *_of_python(), *_of_tesseract()]
    readable += [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if _is_narrow(p)]
    places = [place for spec in filter(None, map(_spec, _PARSERS)) for place in _places(spec)]
    around = _real([place.parent for place in places])
    readable += [*places, *(file for folder in around for pattern in _WHEEL_FILES for file in folder.glob(pattern))]
    return Programs(_real([*readable, *map(Path, _SYSTEM)]), around)


def _of_python() -> Iterator[Path]:
    for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix):
        yield from (Path(prefix, name) for name in _LIBRARIES)
    for entry in sys.path:
        if Path(entry).name in _SITES or os.path.isfile(entry):  # noqa: PTH113 (never raises); such as python311.zip
            yield Path(entry)


def _spec(name: str) -> ModuleSpec | None:
    with suppress(ImportError, ValueError, OSError):
        return find_spec(name)
    return None


def _places(spec: ModuleSpec) -> Iterator[Path]:
    """Yield the folder of a package and the target folder of links in it; for a single module, its file."""
    origin = (Path(spec.origin), Path(spec.origin).resolve()) if spec.has_location and spec.origin else ()
    if spec.submodule_search_locations is None:
        yield from origin
    else:
        yield from map(Path, spec.submodule_search_locations)
        yield from (file.parent for file in origin)


def _of_tesseract() -> Iterator[Path]:
    """Yield tesseract's program, languages, and its libraries unless its folder contains a home."""
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
    """Return whether a folder is absolute and contains no home, unlike "/home"."""
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 (there may be none)
    return os.path.isabs(folder) and not Path(home).is_relative_to(os.path.realpath(folder))  # noqa: PTH117


def _real(paths: list[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(Path(os.path.realpath(path)) for path in paths))
