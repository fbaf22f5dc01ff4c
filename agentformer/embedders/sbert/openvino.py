"""A model on OpenVINO: the export of the model from torch, and the runtime, which imports neither torch nor
transformers.

An export contains one graph of all modules (transformer, pooling, dense layers), the tokenizer, the model's facts, and
the fp32 rows of the probe texts. A separate process makes the export, because torch and the exporter's changes to torch
must not stay in the calling process.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentformer.embedders.model_info import PROBE, PROBES, QUICK_PROBES, mean_cosine, unit
from agentformer.embedders.sbert.runtime import (
    SAME_SPACE,
    BadExport,
    FastTokenizer,
    ModelFacts,
    NotExportable,
    OpenVinoUnavailable,
    Tokenized,
    fitting,
    has_bf16,
    import_package,
    usable_cpus,
)
from agentformer.embedders.sbert.torch_runtime import facts_of, load_model
from agentformer.errors import AgentFormerError
from agentformer.types import Matrix

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_MODEL, _TOKENIZER, _FACTS, _PROBE_ROWS = "model.xml", "tokenizer.json", "facts.json", "probes.npy"
# Mean cosine of the same int8 model on two processors, which round differently. Another model is far below it.
_SAME_INT8 = 0.99
_LEAST_INT8 = 0.97  # mean cosine of int8 and fp32; a model below it cannot be quantized well
# Lengths are rounded up, because OpenVINO compiles a kernel for each new length (5 ms for fp32, 25 ms for int8).
_LENGTH_STEP = 8
_REQUESTS = 2  # one request is filled or read while the other is computed; a third would only wait
_COMPILED = "compiled/*.blob"  # twice as large as the model; OpenVINO names a file by path, time and processor
_QUOTED = 300  # characters of the last line of a failed process
_NOT_EXPORTABLE = 3  # exit status if the export would fail again
_TELEMETRY = "openvino_telemetry"  # an optional package that sends reports about the use of OpenVINO and NNCF
_CONVERTER = "openvino.tools"  # another optional package
_import_lock = threading.Lock()


class OpenVinoRuntime:
    """The export in `folder`. It runs in bf16 if the processor supports bf16 and the vectors stay the same. Raises
    `BadExport` if the export is damaged or its vectors differ from the vectors of the model, and `OpenVinoUnavailable`
    without its packages."""

    def __init__(self, folder: Path, precision: str) -> None:
        ov = import_openvino()
        try:
            facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
            self._tokenizer = FastTokenizer(folder / _TOKENIZER, facts.pop("inputs"), facts.pop("pad_id"))
            self.facts = ModelFacts(**facts)
            self._compile(ov.Core(), folder, precision)
        except OpenVinoUnavailable:
            raise
        except Exception as error:  # OpenVINO and tokenizers raise many classes for a damaged file
            raise BadExport(f"its export cannot be read ({type(error).__name__}: {str(error)[:200]})") from error

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        return self._tokenizer.tokenize(texts)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return self._tokenizer.offsets(text)

    def rows(self, batch: Sequence[Tokenized]) -> Matrix:
        """See `Runtime.rows`."""
        longest = max(item.length for item in batch)
        width = -(-longest // _LENGTH_STEP) * _LENGTH_STEP
        inputs = self._tokenizer.arrays(batch, min(width, self.facts.max_tokens))
        request = self._requests.get()
        try:
            return np.array(request.infer(inputs, share_inputs=True)[0], dtype=np.float32)
        finally:
            self._requests.put(request)

    def _compile(self, core: Any, folder: Path, precision: str) -> None:
        probes = fitting(self.tokenize(PROBES), self.facts.max_tokens)[:QUICK_PROBES]
        reference = np.load(folder / _PROBE_ROWS)[: len(probes)]
        least = _SAME_INT8 if precision else SAME_SPACE
        options: dict[str, Any] = {
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": usable_cpus(),
            "ENABLE_CPU_PINNING": False,
        }
        compiled_before = set(folder.glob(_COMPILED))
        if precision and os.access(
            folder, os.W_OK
        ):  # packing int8 weights takes 1.5 s; reading packed weights takes 0.2 s
            options["CACHE_DIR"] = str(folder / "compiled")
        cosine = -1.0
        for kind in ("bf16", "f32") if has_bf16() else ("f32",):
            compiled = core.compile_model(folder / _MODEL, "CPU", {**options, "INFERENCE_PRECISION_HINT": kind})
            self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
            for _ in range(_REQUESTS):
                self._requests.put(compiled.create_infer_request())
            cosine = mean_cosine(self.rows(probes), reference)
            if cosine >= least:
                _delete_old_compiled(folder, compiled_before)
                return
        raise BadExport(
            f"its export computes different vectors: the mean cosine is {cosine:.5f}, but at least {least} is required"
        )


def _delete_old_compiled(folder: Path, before: set[Path]) -> None:
    """Delete the compiled models of other processors or folders after a new compilation. They are not read again."""
    with suppress(OSError):
        compiled = sorted(folder.glob(_COMPILED), key=lambda file: file.stat().st_mtime_ns)
        for former in compiled[:-1] if set(compiled) - before else []:
            former.unlink(missing_ok=True)


def import_openvino() -> Any:
    """Import OpenVINO without its model converter, because the converter reports each import to Intel. If the host
    application imports OpenVINO itself, it gets the complete package. Raise `OpenVinoUnavailable` if OpenVINO is
    missing or broken."""
    with _import_lock:
        if "openvino" in sys.modules:
            return import_package("openvino")  # waits while another thread imports the module
        with _hidden(_TELEMETRY, _CONVERTER):
            package = import_package("openvino")
        if "convert_model" not in vars(package):
            vars(package).setdefault("__getattr__", _import_converter)
        return package


def _import_converter(name: str) -> Any:
    if name == "convert_model":
        return importlib.import_module("openvino.tools.ovc").convert_model
    raise AttributeError(f"module 'openvino' has no attribute {name!r}")


@contextmanager
def _hidden(*names: str) -> Iterator[None]:
    """Hide packages that are not imported yet, as if they were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


def export_in_process(model: Path, target: Path, precision: str) -> None:
    """Run `export` in a child process, which ends when this process ends. Raise `OpenVinoUnavailable` with the last
    line of the child's output."""
    for package in _packages(precision):
        if importlib.util.find_spec(package) is None:
            extra = "sbert" if package == "sentence_transformers" else "fast"
            raise OpenVinoUnavailable(f"its export needs {package}: pip install 'agentformer[{extra}]'")
    code = f"import sys; sys.path[:0] = {sys.path!r}; from agentformer.embedders.sbert.openvino import main; main()"
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
        raise OpenVinoUnavailable(f"it could not be exported (signal {-status} ended the process)")
    if status:
        last = (output.strip().splitlines() or [f"exit status {status}"])[-1]
        kind = NotExportable if status == _NOT_EXPORTABLE else OpenVinoUnavailable
        raise kind(f"it could not be exported ({' '.join(last.split())[:_QUOTED]})")


def main() -> None:
    """Make an export in this process. The arguments of the process are the model, the target and the precision."""
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    model, target, precision = sys.argv[1:]
    try:
        for package in _packages(precision):
            import_package(package)
        export(Path(model), Path(target), precision)
    except Exception as error:
        ours = isinstance(error, (OpenVinoUnavailable, AgentFormerError))
        sys.stderr.write(f"\n{' '.join(str(error).split()) if ours else _describe(error)}\n")
        raise SystemExit(_NOT_EXPORTABLE if isinstance(error, NotExportable) else 1) from error


def _exit_with_parent() -> None:
    """Wait until standard input ends, then exit. It is a pipe, which closes when the parent process ends."""
    os.read(0, 1)
    os._exit(1)


def _packages(precision: str) -> list[str]:
    """Return the packages that an export needs. The packages that import fastest come first."""
    return ["tokenizers", "openvino", *(["nncf"] if precision else []), "sentence_transformers"]


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def _blame_model() -> Iterator[None]:
    """Convert errors to `NotExportable`, except errors that could disappear after a retry or a repair of a package."""
    try:
        yield
    except (OpenVinoUnavailable, ImportError, OSError, MemoryError):
        raise
    except Exception as error:
        if "alloc" in str(error):  # errors of torch and OpenVINO for too little memory
            raise
        raise NotExportable(_describe(error)) from error


def export(folder: Path, target: Path, precision: str) -> None:
    """Export the model in `folder` to `target`. Raise `NotExportable` if the export fails or computes different
    vectors."""
    import openvino as ov
    import torch

    torch.set_num_threads(usable_cpus())
    model = load_model(str(folder), local_only=True, device="cpu").float().eval()
    with _blame_model():
        tokenizer = _export_tokenizer(model, target / _TOKENIZER)
    max_tokens = int(model.max_seq_length or model.tokenizer.model_max_length)
    probes = [text for text in PROBES if tokenizer.tokenize([text])[0].length <= max_tokens]
    if probes[:1] != [PROBE]:
        raise NotExportable(f"it reads only {max_tokens} tokens")
    reference = np.asarray(model.encode(probes, prompt="", show_progress_bar=False), dtype=np.float32)
    with _blame_model():
        graph = _convert(model)
    rows = _compute(ov, graph, tokenizer, probes)
    _require(mean_cosine(rows, reference), SAME_SPACE, "its export")
    if precision:
        with _blame_model():
            graph = _quantize(graph, tokenizer, max_tokens)
        rows = _compute(ov, graph, tokenizer, probes)
        _require(mean_cosine(rows, reference), _LEAST_INT8, precision)
        reference = rows  # int8 has a separate space
    ov.save_model(graph, target / _MODEL, compress_to_fp16=False)
    np.save(target / _PROBE_ROWS, unit(reference))
    facts = dataclasses.asdict(facts_of(model, reference))
    facts |= {"inputs": tokenizer.inputs, "pad_id": tokenizer.pad_id}
    (target / _FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _require(cosine: float, least: float, what: str) -> None:
    if cosine < least:
        raise NotExportable(
            f"{what} computes different vectors: the mean cosine is {cosine:.5f}, but at least {least} is required"
        )


def _export_tokenizer(model: SentenceTransformer, target: Path) -> FastTokenizer:
    """Write the model's tokenizer to `target` and compare it with the original."""
    original: Any = model.tokenizer
    if not hasattr(original, "backend_tokenizer"):
        raise NotExportable("the package tokenizers cannot read its tokenizer")
    target.write_text(original.backend_tokenizer.to_str(), encoding="utf-8")
    tokenizer = FastTokenizer(target, list(original(["a"], padding=True)), int(original.pad_token_id or 0))
    texts = list(PROBES)
    expected = original(texts, add_special_tokens=True, truncation=False, verbose=False)["input_ids"]
    if [item.content[0] for item in tokenizer.tokenize(texts)] != expected:
        raise NotExportable("its tokenizer returns different tokens without transformers")
    return tokenizer


def _convert(model: SentenceTransformer) -> Any:
    """Return the OpenVINO graph of all modules of the model."""
    import openvino as ov
    import torch

    tokenizer: Any = model.tokenizer
    example = tokenizer(["the keys of the harbour", "x"], padding=True, return_tensors="pt")  # padding keeps the mask
    names = list(example)
    size = model.truncate_dim

    class AllModules(torch.nn.Module):
        """All modules of the model in their order, from the tokens to the vector."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, *values: Any) -> Any:
            features = dict(zip(names, values, strict=True))
            for part in self.parts:
                features = part(features)
            vectors = features["sentence_embedding"]
            return vectors[:, :size] if size else vectors

    with torch.no_grad():
        graph = ov.convert_model(AllModules().eval(), example_input=tuple(example[name] for name in names))
    for given, name in zip(graph.inputs, names, strict=True):
        given.get_tensor().set_names({name})
    graph.reshape({given: ov.PartialShape([-1, -1]) for given in graph.inputs})
    return graph


def _quantize(graph: Any, tokenizer: FastTokenizer, max_tokens: int) -> Any:
    """Return the graph with matrix products in int8. The range of their values is measured with sample texts."""
    import nncf

    texts = files("agentformer.embedders.sbert").joinpath("calibration.txt").read_text(encoding="utf-8").splitlines()
    samples = fitting(tokenizer.tokenize([*texts, *PROBES]), max_tokens)
    data = nncf.Dataset(samples, lambda sample: tokenizer.arrays([sample]))
    return nncf.quantize(graph, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(samples))


def _compute(ov: Any, graph: Any, tokenizer: FastTokenizer, texts: Sequence[str]) -> Matrix:
    """Return the rows of the texts. Each text is computed alone, so that padding does not affect the comparison."""
    compiled = ov.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.concatenate([compiled(tokenizer.arrays([item]))[0] for item in tokenizer.tokenize(texts)])
