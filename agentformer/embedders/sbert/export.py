"""Exports: copies of models that are converted for OpenVINO. This module contains the cache of the exports on disk, and
the code that makes an export in a child process.

An export contains one OpenVINO graph for all parts of the model (transformer, pooling, dense layers), the tokenizer,
facts about the model, and the vectors of the probe texts. The child process is needed because the export loads torch
and changes it, which must not affect the calling process. An export is either complete or absent. In the following
paths, KEY is a hash of the model's files, the precision and the package versions.

CACHE_DIR/models/KEY/           one export; `whole.json` has the size of each file; `of.json` has the hash of the model
                                and, as the time of the file, the time when the export was last loaded
CACHE_DIR/models/KEY.lock       locked by the process that makes the export
CACHE_DIR/models/KEY.refused    the reason why the model cannot be exported, and the versions of the packages
CACHE_DIR/stamps/FOLDER.json    the sizes and times of the files in a model's folder, and the hash of these files
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from agentformer.embedders.model_info import PROBE, PROBES, mean_cosine, unit
from agentformer.embedders.sbert import openvino
from agentformer.embedders.sbert.openvino import FastTokenizer, NotExportable, OpenVinoUnavailable, import_package
from agentformer.embedders.sbert.runtime import SAME_SPACE, facts_of, load_model, package_version, usable_cpus
from agentformer.errors import AgentFormerError, install_command
from agentformer.settings.access import file_lock, make_folder, make_private
from agentformer.types import Matrix

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

T = TypeVar("T")
_FORMAT = "2"  # version of the format of exports; a new number makes all exports invalid
_SIZES = "whole.json"
_SOURCE = "of.json"
_UNUSED_SECONDS = 7 * 24 * 3600.0
_EXPORTERS = ("agentformer", "openvino", "nncf", "tokenizers", "torch", "transformers", "sentence-transformers")
_MODEL_FILES = {".json", ".txt", ".model", ".safetensors", ".bin"}
_OTHER_EXPORTS = {"onnx", "openvino"}  # folders that some models contain; they are not read
_LEAST_INT8 = 0.97  # mean cosine of int8 and fp32; a model below it cannot be quantized well
_QUOTED = 300  # characters of the last line of a failed process
_NOT_EXPORTABLE = 3  # exit status if the export would fail again


class ExportCache:
    """The cache of exports in the directory `folder`. If several threads or processes request the same missing export,
    only one of them makes the export, and the others wait for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def export(self, model: Path, precision: str, make: Callable[[Path], None], *, replace: bool = False) -> Path:
        """Return the folder of the export of a model. `model` is the folder of the model. If the export is missing, or
        if `replace` is true, `make(target)` writes the export to the new folder `target`. Raise `OpenVinoUnavailable`
        if the cache cannot be used or the export cannot be made. If `make` raises `NotExportable`, this error is stored
        and raised again in later calls, until the version of a package changes."""
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
        """Store that this model cannot be exported, with `reason` as the reason, so that `export` does not try again
        until the version of a package changes. Call this method if an export is damaged, and the export that replaced
        it is damaged too."""
        _refuse(self._path([_FORMAT, self._digest(model), precision]), reason)

    def _path(self, source: list[str]) -> Path:
        quantizer = package_version("nncf") if source[-1] else ""
        return self._folder / "models" / _short_hash("\n".join([*source, package_version("openvino"), quantizer]))

    def _digest(self, model: Path) -> str:
        """Return a hash of all files of the model. The hash is cached, and computed again when the size, time or inode
        of a file has changed."""
        try:
            files = _files(model)
            stats = {str(file.relative_to(model)): file.stat() for file in files}
            stamps = [[name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for name, s in stats.items()]
            if not files:
                raise OpenVinoUnavailable(f"the folder {model} contains no model files")
            stamp_file = self._folder / "stamps" / f"{_short_hash(str(model))}.json"
            cached = _read_json(stamp_file, dict)
            if cached.get("stamps") == stamps and isinstance(cached.get("digest"), str):
                return str(cached["digest"])
            digest = _hash(files, model)
        except OSError as error:
            raise OpenVinoUnavailable(f"the model files in {model} cannot be read ({error.strerror})") from error
        with suppress(OSError):  # without the stamp, the digest is computed at each start
            make_folder(stamp_file.parent)
            _write_json(stamp_file, {"stamps": stamps, "digest": digest})
        return digest


def _files(model: Path) -> list[Path]:
    inside = (file for file in model.rglob("*") if not _OTHER_EXPORTS & set(file.relative_to(model).parts))
    return sorted(file for file in inside if file.suffix in _MODEL_FILES and file.is_file())


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _hash(files: list[Path], model: Path) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for file in files:
        digest.update(f"{file.relative_to(model).as_posix()}\n{file.stat().st_size}\n".encode())
        with file.open("rb") as content:
            hashlib.file_digest(content, lambda: digest)
    return digest.hexdigest()


def _make_locked(export: Path, source: list[str], make: Callable[[Path], None], replace: bool) -> None:
    """Make the export under a lock. Do nothing if another process has just made the export, or if the export is
    complete and `replace` is False. `source` is stored with the export and identifies the model. Raise `NotExportable`
    if the model cannot be exported."""
    make_folder(export.parent)
    before = _made_at(export)
    with file_lock(f"{export}.lock"):
        if _is_complete(export) and not (replace and _made_at(export) == before):
            return
        refusal = _read_json(_refusal_file(export), dict)
        if refusal.get("versions") == _versions():
            reason = refusal.get("reason")
            raise NotExportable(f"{reason}; the next attempt is made when the version of a package has changed")
        _delete_parts(export)  # the parts that a killed process left behind
        try:
            _make(export, source, make)
        except NotExportable as error:
            _refuse(export, str(error))
            raise
        finally:
            _delete_parts(export)
        _refusal_file(export).unlink(missing_ok=True)


def _make(export: Path, source: list[str], make: Callable[[Path], None]) -> None:
    target = Path(tempfile.mkdtemp(prefix=f"{export.name}.", suffix=".part", dir=export.parent))
    make(target)
    _write_json(target / _SOURCE, source)
    _write_json(target / _SIZES, {file.name: file.stat().st_size for file in target.iterdir() if file.is_file()})
    make_private(target)
    if export.exists():
        export.rename(export.with_name(f"{export.name}.old.part"))
    target.rename(export)


def _delete_parts(export: Path) -> None:
    for part in export.parent.glob(f"{export.name}.*.part"):
        shutil.rmtree(part, ignore_errors=True)


def _is_complete(export: Path) -> bool:
    sizes = _read_json(export / _SIZES, dict)
    try:
        return bool(sizes) and all((export / name).stat().st_size == size for name, size in sizes.items())
    except OSError:
        return False


def _made_at(export: Path) -> int:
    try:
        return (export / _SIZES).stat().st_mtime_ns
    except OSError:
        return 0


def _note_use(export: Path, source: list[str]) -> None:
    """Record that an export was loaded now, and delete old exports of the same model: those that other package versions
    made and that were not loaded for a week. A younger one is kept, because another Python environment may use it."""
    with suppress(OSError):
        os.utime(export / _SOURCE)
        for other in export.parent.glob(f"*/{_SOURCE}"):
            unused = time.time() - other.stat().st_mtime > _UNUSED_SECONDS
            if other.parent != export and unused and _read_json(other, list) == source:
                deleted = other.parent.rename(other.parent.with_name(f"{other.parent.name}.unused.part"))
                shutil.rmtree(deleted, ignore_errors=True)


def _refusal_file(export: Path) -> Path:
    return export.with_name(f"{export.name}.refused")


def _refuse(export: Path, reason: str) -> None:
    with suppress(OSError):
        _write_json(_refusal_file(export), {"reason": reason, "versions": _versions()})


def _read_json(file: Path, kind: type[T]) -> T:
    """Return the JSON value in the file. If the file has no value of the type `kind`, return an empty value of this
    type."""
    with suppress(OSError, ValueError):
        content = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(content, kind):
            return content
    return kind()


def _write_json(file: Path, values: Any) -> None:
    """Write the values as JSON. Concurrent readers see the old content or the complete new content."""
    handle, name = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(values, out)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _versions() -> dict[str, str]:
    return {name: package_version(name) for name in _EXPORTERS}


def export_in_process(model: Path, target: Path, precision: str) -> None:
    """Run `export` in a child process, which ends when this process ends. If it fails, raise `OpenVinoUnavailable` with
    the last line of its output, or `NotExportable` if another attempt would fail too."""
    for package in _packages(precision):
        if importlib.util.find_spec(package) is None:
            extra = "sbert" if package == "sentence_transformers" else "fast"
            raise OpenVinoUnavailable(f"the export needs {package}; install it: {install_command(extra)}")
    code = f"import sys; sys.path[:0] = {sys.path!r}; from agentformer.embedders.sbert.export import main; main()"
    command = [sys.executable, "-P", "-c", code, str(model), str(target), precision]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, errors="replace", **pipes) as process:  # noqa: S603
        try:
            output = process.stderr.read() if process.stderr else ""
            status = process.wait()
        except BaseException:
            process.kill()
            raise
    if status < 0:
        raise OpenVinoUnavailable(f"the model could not be exported (signal {-status} ended the process)")
    if status:
        last = (output.strip().splitlines() or [f"exit status {status}"])[-1]
        kind = NotExportable if status == _NOT_EXPORTABLE else OpenVinoUnavailable
        raise kind(f"the model could not be exported ({' '.join(last.split())[:_QUOTED]})")


def main() -> None:
    """Make an export in the child process. The arguments are the folders of model and target, and the precision."""
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # it sends reports about the use of OpenVINO
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    model, target, precision = sys.argv[1:]
    try:
        for package in _packages(precision):
            import_package(package)
        export(Path(model), Path(target), precision)
    except Exception as error:
        kind = "" if isinstance(error, (OpenVinoUnavailable, AgentFormerError)) else f"{type(error).__name__}: "
        sys.stderr.write(f"\n{kind}{' '.join(str(error).split())}\n")
        raise SystemExit(_NOT_EXPORTABLE if isinstance(error, NotExportable) else 1) from error


def _exit_with_parent() -> None:
    os.read(0, 1)  # waits for the end of standard input: a pipe, which closes when the parent process ends
    os._exit(1)


def _packages(precision: str) -> list[str]:
    """Return the packages that an export needs, the fastest import first, so that a broken package is found early."""
    return ["tokenizers", "openvino", *(["nncf"] if precision else []), "sentence_transformers"]


@contextmanager
def _blame_model() -> Iterator[None]:
    """Convert errors of a conversion to `NotExportable`, which says that another attempt would fail too. Errors that
    can be temporary are raised unchanged: too little memory, a file error or an import error."""
    try:
        yield
    except (OpenVinoUnavailable, ImportError, OSError, MemoryError):
        raise
    except Exception as error:
        if "alloc" in str(error):  # errors of torch and OpenVINO for too little memory
            raise
        raise NotExportable(f"{type(error).__name__}: {error}") from error


def export(folder: Path, target: Path, precision: str) -> None:
    """Write an export of the model in `folder` to the folder `target`. Raise `NotExportable` if the model cannot be
    converted, or if the export computes vectors that differ from those of the model."""
    import openvino as ov
    import torch

    torch.set_num_threads(usable_cpus())
    model = load_model(str(folder), local_only=True, device="cpu").float().eval()
    with _blame_model():
        tokenizer = _export_tokenizer(model, target / openvino.TOKENIZER)
    max_tokens = int(model.max_seq_length or model.tokenizer.model_max_length)
    probes = [text for text in PROBES if tokenizer.fitting([text], max_tokens)]
    if probes[:1] != [PROBE]:
        raise NotExportable(f"the model reads only {max_tokens} tokens, which is too few to check the export")
    reference = np.asarray(model.encode(probes, prompt="", show_progress_bar=False), dtype=np.float32)
    with _blame_model():
        graph = _convert(model)
    _check_rows(_compute(graph, tokenizer, probes), reference, SAME_SPACE, "the export")
    if precision:
        with _blame_model():
            graph = _quantize(graph, tokenizer, max_tokens)
        rows = _compute(graph, tokenizer, probes)
        _check_rows(rows, reference, _LEAST_INT8, precision)
        reference = rows  # int8 has a separate space
    ov.save_model(graph, target / openvino.MODEL, compress_to_fp16=False)
    np.save(target / openvino.PROBE_ROWS, unit(reference))
    facts = dataclasses.asdict(facts_of(model, reference))
    facts |= {"inputs": tokenizer.inputs, "pad_id": tokenizer.pad_id}
    (target / openvino.FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _check_rows(rows: Matrix, reference: Matrix, least: float, name: str) -> None:
    if (cosine := mean_cosine(rows, reference)) < least:
        raise NotExportable(f"{name} differs from its model: the mean cosine is {cosine:.5f}, below {least}")


def _export_tokenizer(model: SentenceTransformer, target: Path) -> FastTokenizer:
    """Write the model's tokenizer to the file `target`, and return the tokenizer that is loaded from this file. Raise
    `NotExportable` if the two tokenizers return different tokens for the probe texts."""
    original: Any = model.tokenizer
    if not hasattr(original, "backend_tokenizer"):
        raise NotExportable("the package 'tokenizers' cannot read the tokenizer of the model")
    target.write_text(original.backend_tokenizer.to_str(), encoding="utf-8")
    tokenizer = FastTokenizer(target, list(original(["a"], padding=True)), int(original.pad_token_id or 0))
    expected = original(list(PROBES), add_special_tokens=True, truncation=False, verbose=False)["input_ids"]
    if [item.content[0] for item in tokenizer.tokenize(PROBES)] != expected:
        raise NotExportable("the exported tokenizer returns different tokens than the tokenizer of the model")
    return tokenizer


def _convert(model: SentenceTransformer) -> Any:
    """Convert the model to one graph, which returns the vector of a text and, if the model has such vectors, the
    vectors of its tokens."""
    import openvino as ov
    import torch

    tokenizer: Any = model.tokenizer
    example = tokenizer(["the keys of the harbour", "x"], padding=True, return_tensors="pt")  # padding keeps the mask
    names = list(example)
    size = model.truncate_dim

    class AllModules(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, *values: Any) -> Any:
            features = dict(zip(names, values, strict=True))
            for part in self.parts:
                features = part(features)
            vectors = features["sentence_embedding"][:, : size or None]
            return (vectors, features["token_embeddings"]) if "token_embeddings" in features else vectors

    with torch.no_grad():
        graph = ov.convert_model(AllModules().eval(), example_input=tuple(example[name] for name in names))
    for given, name in zip(graph.inputs, names, strict=True):
        given.get_tensor().set_names({name})
    graph.reshape({given: ov.PartialShape([-1, -1]) for given in graph.inputs})
    return graph


def _quantize(graph: Any, tokenizer: FastTokenizer, max_tokens: int) -> Any:
    """Convert a graph to the format int8, which is smaller and faster. Sample texts are computed to find the range of
    numbers that int8 must represent."""
    import nncf

    texts = files("agentformer.embedders.sbert").joinpath("calibration.txt").read_text(encoding="utf-8").splitlines()
    samples = tokenizer.fitting([*texts, *PROBES], max_tokens)
    data = nncf.Dataset(samples, lambda sample: tokenizer.arrays([sample]))
    return nncf.quantize(graph, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(samples))


def _compute(graph: Any, tokenizer: FastTokenizer, texts: Sequence[str]) -> Matrix:
    """Return the vectors of the texts. Each text is computed alone: padding would change its vector slightly."""
    import openvino as ov

    compiled = ov.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.concatenate([compiled(tokenizer.arrays([item]))[0] for item in tokenizer.tokenize(texts)])
