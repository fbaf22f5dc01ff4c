"""The folder that keeps exported models: found by what they were made of, whole or not there at all.

CACHE_DIR/models/KEY/           one export, with `whole.json`: each file's size; and `of.json`: its model, its last load
CACHE_DIR/models/KEY.lock       held by the one process that makes it
CACHE_DIR/models/KEY.refused    why the model cannot be exported, and the versions of the packages that this is true of
CACHE_DIR/stamps/FOLDER.json    of a model's folder: sizes and times of its files, and their digest
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock

from agentformer.embedders.sbert.runtime import NotExportable, NotFast

_FORMAT = "1"  # of an export; another number makes all of them anew
_WHOLE = "whole.json"
_OF = "of.json"
_UNUSED_SECONDS = 7 * 24 * 3600.0
_EXPORTERS = ("agentformer", "openvino", "nncf", "tokenizers", "torch", "transformers", "sentence-transformers")
_MODEL_FILES = {".json", ".txt", ".model", ".safetensors", ".bin"}
_OTHER_EXPORTS = {"onnx", "openvino"}  # folders that a model's author adds; nothing here reads them
_BLOCK = 1 << 20


class ExportCache:
    """`make(target)` fills a new folder; whoever asks for it at the same time waits, in other processes too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def place(self, model: Path, precision: str, make: Callable[[Path], None], *, anew: bool = False) -> Path:
        """The folder of the export of the model in the folder `model`. `anew`: the one that is there is no good.
        Raises `NotFast` when it can be neither read nor made, and remembers a `NotExportable` of `make`: that is raised
        at once until the versions of the packages change."""
        of = [_FORMAT, self._digest(model), precision]
        place = self._folder / "models" / _key(of)
        try:
            if anew or not _is_whole(place):
                self._made(place, of, make, anew)
            _note_use(place, of)
        except (OSError, NotImplementedError) as error:  # the latter from file systems without locks
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise NotFast(f"the cache folder {self._folder} cannot be used ({reason})") from error
        return place

    def refuse(self, model: Path, precision: str, reason: str) -> None:
        """Remember that the model's export is no good, also when it is made anew."""
        _refuse(self._folder / "models" / _key([_FORMAT, self._digest(model), precision]), reason)

    def _made(self, place: Path, of: list[str], make: Callable[[Path], None], anew: bool) -> None:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        seen = _made_at(place)
        with FileLock(f"{place}.lock"):
            if _is_whole(place) and not (anew and _made_at(place) == seen):
                return
            _check_not_refused(place)
            try:
                _make(place, of, make)
            except NotExportable as error:
                _refuse(place, str(error))
                raise
            _refusal(place).unlink(missing_ok=True)

    def _digest(self, model: Path) -> str:
        """Of all files that make the model. A file is read again only when its size, times or number changed."""
        try:
            files = sorted(_files(model))
            stamps = [[str(file.relative_to(model)), *_stamp(file)] for file in files]
        except OSError as error:
            raise NotFast(f"the files of {model} cannot be read ({error.strerror})") from error
        if not files:
            raise NotFast(f"{model} holds no files of a model")
        known = self._folder / "stamps" / f"{hashlib.blake2b(str(model).encode(), digest_size=16).hexdigest()}.json"
        told = _json(known)
        if isinstance(told, dict) and told.get("stamps") == stamps and isinstance(told.get("digest"), str):
            return str(told["digest"])
        try:
            digest = _hash(files, model)
        except OSError as error:
            raise NotFast(f"the files of {model} cannot be read ({error.strerror})") from error
        with suppress(OSError):  # then it is computed at each start, and an export that is there is used all the same
            known.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(known, {"stamps": stamps, "digest": digest})
        return digest


def _key(of: list[str]) -> str:
    quantiser = _installed("nncf") if of[-1] else ""
    return hashlib.blake2b("\n".join([*of, _installed("openvino"), quantiser]).encode(), digest_size=16).hexdigest()


def _files(model: Path) -> list[Path]:
    inside = (file for file in model.rglob("*") if not _OTHER_EXPORTS & set(file.relative_to(model).parts))
    return [file for file in inside if file.suffix in _MODEL_FILES and file.is_file()]


def _stamp(file: Path) -> list[int]:
    told = file.stat()
    return [told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino]


def _hash(files: list[Path], model: Path) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for file in files:
        digest.update(f"{file.relative_to(model).as_posix()}\n{file.stat().st_size}\n".encode())
        with file.open("rb") as content:
            while block := content.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def _note_use(place: Path, of: list[str]) -> None:
    """That the export was loaded now. Those of the same model that other versions made are removed once nobody has
    loaded them for a week: until then another environment may share the folder."""
    with suppress(OSError):
        os.utime(place / _OF)
        for other in place.parent.glob(f"*/{_OF}"):
            if other.parent != place and _json(other) == of and time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
                doomed = other.parent.rename(other.parent.with_name(f"{other.parent.name}.unused.part"))
                shutil.rmtree(doomed, ignore_errors=True)


def _refusal(place: Path) -> Path:
    return place.with_name(f"{place.name}.refused")


def _refuse(place: Path, reason: str) -> None:
    with suppress(OSError):
        _write(_refusal(place), {"reason": reason, "versions": _versions()})


def _check_not_refused(place: Path) -> None:
    told = _json(_refusal(place))
    if isinstance(told, dict) and told.get("versions") == _versions():
        raise NotExportable(f"{told.get('reason')}; it is not tried again before a package changes")


def _make(place: Path, of: list[str], make: Callable[[Path], None]) -> None:
    """Under the lock: what a killed process left is removed, and a new export takes its place in one step."""
    for left in place.parent.glob(f"{place.name}.*.part"):
        shutil.rmtree(left, ignore_errors=True)
    target = Path(tempfile.mkdtemp(prefix=f"{place.name}.", suffix=".part", dir=place.parent))
    try:
        make(target)
        _write(target / _OF, of)
        sizes = {file.name: file.stat().st_size for file in target.iterdir() if file.is_file()}
        _write(target / _WHOLE, sizes)
        if place.exists():
            place.rename(Path(tempfile.mkdtemp(prefix=f"{place.name}.", suffix=".part", dir=place.parent)) / "old")
        target.rename(place)
    finally:
        for left in place.parent.glob(f"{place.name}.*.part"):
            shutil.rmtree(left, ignore_errors=True)


def _is_whole(place: Path) -> bool:
    sizes = _json(place / _WHOLE)
    if not isinstance(sizes, dict) or not sizes:
        return False
    try:
        return all((place / name).stat().st_size == size for name, size in sizes.items())
    except OSError:
        return False


def _made_at(place: Path) -> int:
    try:
        return (place / _WHOLE).stat().st_mtime_ns
    except OSError:
        return 0


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write(file: Path, values: Any) -> None:
    """In one step, so that nobody reads half of it."""
    handle, name = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(values, out)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _versions() -> dict[str, str]:
    """Of all that an export depends on."""
    return {name: _installed(name) for name in _EXPORTERS}


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
