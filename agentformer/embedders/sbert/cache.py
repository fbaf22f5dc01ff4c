"""The folder of exported models. An export is complete or absent. Its KEY depends on the content of its model.

CACHE_DIR/models/KEY/           one export; `whole.json` has the size of each file; `of.json` has the model and the
                                time of the last load
CACHE_DIR/models/KEY.lock       locked by the process that makes the export
CACHE_DIR/models/KEY.refused    the reason why the model cannot be exported, and the versions of the packages
CACHE_DIR/stamps/FOLDER.json    the sizes and times of the files in a model's folder, and their digest
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

from agentformer.embedders.sbert.runtime import NotExportable, OpenVinoUnavailable

_FORMAT = "1"  # of the format of exports; a new number makes all exports invalid
_SIZES = "whole.json"
_SOURCE = "of.json"
_UNUSED_SECONDS = 7 * 24 * 3600.0
_EXPORTERS = ("agentformer", "openvino", "nncf", "tokenizers", "torch", "transformers", "sentence-transformers")
_MODEL_FILES = {".json", ".txt", ".model", ".safetensors", ".bin"}
_OTHER_EXPORTS = {"onnx", "openvino"}  # folders that some models contain; they are not read
_BLOCK = 1 << 20


class ExportCache:
    """The cache of exports that `make(target)` writes to a new folder. Concurrent callers of the same export wait for
    one of them, also across processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def export(self, model: Path, precision: str, make: Callable[[Path], None], *, replace: bool = False) -> Path:
        """Return the folder of the export of the model in the folder `model`. With `replace`, make the export again.

        Raise `OpenVinoUnavailable` if the export can neither be read nor made. A `NotExportable` from `make` is stored
        and raised again until the versions of the packages change.
        """
        source = [_FORMAT, self._digest(model), precision]
        export = self._path(source)
        try:
            if replace or not _is_complete(export):
                _make_locked(export, source, make, replace)
            _note_use(export, source)
        except (OSError, NotImplementedError) as error:  # file systems without locks raise the second class
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise OpenVinoUnavailable(f"the cache folder {self._folder} cannot be used ({reason})") from error
        return export

    def refuse(self, model: Path, precision: str, reason: str) -> None:
        """Store that the export of this model stays bad, even if it is made again."""
        _refuse(self._path([_FORMAT, self._digest(model), precision]), reason)

    def _path(self, source: list[str]) -> Path:
        quantizer = _version("nncf") if source[-1] else ""
        key = "\n".join([*source, _version("openvino"), quantizer])
        return self._folder / "models" / hashlib.blake2b(key.encode(), digest_size=16).hexdigest()

    def _digest(self, model: Path) -> str:
        """Return the digest of all files of the model. It is cached until the size, time or inode of a file changes."""
        try:
            files = sorted(_files(model))
            stamps = [[str(file.relative_to(model)), *_stamp(file)] for file in files]
            if not files:
                raise OpenVinoUnavailable(f"{model} contains no files of a model")
            name = hashlib.blake2b(str(model).encode(), digest_size=16).hexdigest()
            stamp_file = self._folder / "stamps" / f"{name}.json"
            cached = _read_json(stamp_file)
            if isinstance(cached, dict) and cached.get("stamps") == stamps and isinstance(cached.get("digest"), str):
                return str(cached["digest"])
            digest = _hash(files, model)
        except OSError as error:
            raise OpenVinoUnavailable(f"the files of {model} cannot be read ({error.strerror})") from error
        with suppress(OSError):  # without the stamp, the digest is computed at each start
            stamp_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_json(stamp_file, {"stamps": stamps, "digest": digest})
        return digest


def _files(model: Path) -> list[Path]:
    inside = (file for file in model.rglob("*") if not _OTHER_EXPORTS & set(file.relative_to(model).parts))
    return [file for file in inside if file.suffix in _MODEL_FILES and file.is_file()]


def _stamp(file: Path) -> list[int]:
    stat = file.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _hash(files: list[Path], model: Path) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for file in files:
        digest.update(f"{file.relative_to(model).as_posix()}\n{file.stat().st_size}\n".encode())
        with file.open("rb") as content:
            while block := content.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def _make_locked(export: Path, source: list[str], make: Callable[[Path], None], replace: bool) -> None:
    """Make the export, unless another process makes it while this process waits for the lock."""
    export.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    before = _made_at(export)
    with FileLock(f"{export}.lock"):
        if _is_complete(export) and not (replace and _made_at(export) == before):
            return
        refusal = _read_json(_refusal_file(export))
        if isinstance(refusal, dict) and refusal.get("versions") == _versions():
            raise NotExportable(
                f"{refusal.get('reason')}; the export is tried again when the version of a package changes"
            )
        try:
            _make(export, source, make)
        except NotExportable as error:
            _refuse(export, str(error))
            raise
        _refusal_file(export).unlink(missing_ok=True)


def _make(export: Path, source: list[str], make: Callable[[Path], None]) -> None:
    """Make the export while the lock is held: delete what a killed process left, then rename the complete export to its
    name."""
    _delete_parts(export)
    target = Path(tempfile.mkdtemp(prefix=f"{export.name}.", suffix=".part", dir=export.parent))
    try:
        make(target)
        _write_json(target / _SOURCE, source)
        sizes = {file.name: file.stat().st_size for file in target.iterdir() if file.is_file()}
        _write_json(target / _SIZES, sizes)
        if export.exists():
            old = tempfile.mkdtemp(prefix=f"{export.name}.", suffix=".part", dir=export.parent)
            export.rename(Path(old) / "old")
        target.rename(export)
    finally:
        _delete_parts(export)


def _delete_parts(export: Path) -> None:
    for part in export.parent.glob(f"{export.name}.*.part"):
        shutil.rmtree(part, ignore_errors=True)


def _is_complete(export: Path) -> bool:
    sizes = _read_json(export / _SIZES)
    if not isinstance(sizes, dict) or not sizes:
        return False
    try:
        return all((export / name).stat().st_size == size for name, size in sizes.items())
    except OSError:
        return False


def _made_at(export: Path) -> int:
    try:
        return (export / _SIZES).stat().st_mtime_ns
    except OSError:
        return 0


def _note_use(export: Path, source: list[str]) -> None:
    """Store the time of this load. Delete exports of the same model by other package versions that were not loaded for
    a week. A newer export may belong to another environment that uses the same folder."""
    with suppress(OSError):
        os.utime(export / _SOURCE)
        for other in export.parent.glob(f"*/{_SOURCE}"):
            unused = time.time() - other.stat().st_mtime > _UNUSED_SECONDS
            if other.parent != export and unused and _read_json(other) == source:
                deleted = other.parent.rename(other.parent.with_name(f"{other.parent.name}.unused.part"))
                shutil.rmtree(deleted, ignore_errors=True)


def _refusal_file(export: Path) -> Path:
    return export.with_name(f"{export.name}.refused")


def _refuse(export: Path, reason: str) -> None:
    with suppress(OSError):
        _write_json(_refusal_file(export), {"reason": reason, "versions": _versions()})


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write_json(file: Path, values: Any) -> None:
    """Write the file atomically."""
    handle, name = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(values, out)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _versions() -> dict[str, str]:
    """Return the versions of all packages that an export depends on."""
    return {name: _version(name) for name in _EXPORTERS}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
