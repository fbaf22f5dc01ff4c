"""Where the programs of a reader are: what it may read once it is confined, and nothing of the user's."""

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

# What parsers are made of. Each may lie elsewhere than its neighbours, and be a link to elsewhere again.
_PARSERS = (
    *("charset_normalizer", "lxml", "pypdfium2", "pypdfium2_raw", "pypdfium2_cfg", "pypdf", "cryptography", "cffi"),
    *("_cffi_backend", "Crypto", "typing_extensions", "pytesseract", "packaging", "PIL", "numpy"),
)
_SITES = frozenset({"site-packages", "dist-packages"})
_LIBRARIES = ("DLLs", "Lib", "Library") if sys.platform == "win32" else ("lib", "lib64")
_BESIDE = ("*.libs", "*__mypyc*")  # what wheels put beside their package
# What C libraries read when they start: their own places, random numbers, and how many processors there are.
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/bin", "/nix/store", "/gnu/store", "/home/linuxbrew/.linuxbrew/Cellar"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/dev/null", "/dev/urandom"),
    *("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
)


class Programs(NamedTuple):
    """`readable`: files, and folders with all in them. `listed`: folders of which the names are needed to import."""

    readable: tuple[Path, ...]
    listed: tuple[Path, ...]


@cache
def programs() -> Programs:
    """This package, Python's modules, the parsers, the system's libraries, and tesseract with its languages.

    No other entry of `sys.path`: the first is the folder of the user's script, or the working folder. Cached, since
    not all of it can be looked up again when it has come into force.
    """
    readable = [Path(__file__).parents[2], Path(os.__file__).resolve().parent, *_of_python(), *_of_tesseract()]
    readable += [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if _is_narrow(p)]
    found = [place for spec in filter(None, map(_spec, _PARSERS)) for place in _places(spec)]
    around = _real([place.parent for place in found])
    readable += [*found, *(beside for folder in around for pattern in _BESIDE for beside in folder.glob(pattern))]
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
    """A package's folder, and that of the files which stand there as links; of a single module its file alone."""
    origin = (Path(spec.origin), Path(spec.origin).resolve()) if spec.has_location and spec.origin else ()
    if spec.submodule_search_locations is None:
        yield from origin
    else:
        yield from map(Path, spec.submodule_search_locations)
        yield from (file.parent for file in origin)


def _of_tesseract() -> Iterator[Path]:
    """Its file, its languages and, where it has a place of its own, its libraries; of a home the languages alone."""
    if found := shutil.which("tesseract"):
        program = Path(found).resolve()
        prefix = program.parent.parent
        yield program
        yield from (prefix / "share" / name for name in ("tessdata", "tesseract-ocr"))
        if _is_narrow(str(prefix)):
            yield prefix / "lib"
    if _is_narrow(languages := os.environ.get("TESSDATA_PREFIX", "")):
        yield Path(languages)


def _is_narrow(folder: str) -> bool:
    """Whether it is named in full and does not hold a home, such as "/home" does."""
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 (there may be none)
    return os.path.isabs(folder) and not Path(home).is_relative_to(os.path.realpath(folder))  # noqa: PTH117


def _real(paths: list[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(Path(os.path.realpath(path)) for path in paths))
