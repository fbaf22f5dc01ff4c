"""A model from torch to OpenVINO's format, once: all its modules (transformer, pooling, dense layers) as one graph, its
tokenizer, its facts, and what its fp32 rows of the probe texts are.

Runs in a process of its own: torch and the exporter's own changes to it never stay in the process that asked.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentformer.embedders.sbert.fidelity import LEAST_INT8, PROBE, PROBES, SAME_SPACE, agreement, fitting, unit
from agentformer.embedders.sbert.processor import usable_cpus
from agentformer.embedders.sbert.quiet import never_report
from agentformer.embedders.sbert.runtime import NotExportable, NotFast, needed
from agentformer.embedders.sbert.tokenizing import FastTokenizer
from agentformer.embedders.sbert.torch_runtime import facts_of, load_model
from agentformer.errors import AgentFormerError
from agentformer.types import Matrix

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MODEL, TOKENIZER, FACTS, PROBE_ROWS = "model.xml", "tokenizer.json", "facts.json", "probes.npy"
_QUOTED = 300  # characters of a failed process's last words
_NEVER = 3  # the exit status of an export that fails each time


def export_apart(model: Path, target: Path, precision: str) -> None:
    """`export` in a process of its own, which ends with this one. Raises `NotFast` with its last words."""
    for package in _packages(precision):
        if importlib.util.find_spec(package) is None:
            extra = "sbert" if package == "sentence_transformers" else "fast"
            raise NotFast(f"it has to be exported once, with {package}: pip install 'agentformer[{extra}]'")
    code = f"import sys; sys.path[:0] = {sys.path!r}; from agentformer.embedders.sbert.exporting import main; main()"
    command = [sys.executable, "-P", "-c", code, str(model), str(target), precision]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, errors="replace", **pipes) as process:  # noqa: S603
        try:
            told = process.stderr.read() if process.stderr else ""
            status = process.wait()
        except BaseException:
            process.kill()
            raise
    if status < 0:
        raise NotFast(f"it could not be exported (the exporting process was ended by signal {-status})")
    if status:
        last = (told.strip().splitlines() or [f"exit status {status}"])[-1]
        kind = NotExportable if status == _NEVER else NotFast
        raise kind(f"it could not be exported ({' '.join(last.split())[:_QUOTED]})")


def main() -> None:
    never_report()
    threading.Thread(target=_end_with_asker, daemon=True).start()
    model, target, precision = sys.argv[1:]
    try:
        for package in _packages(precision):
            needed(package)
        export(Path(model), Path(target), precision)
    except Exception as error:
        told = " ".join(str(error).split()) if isinstance(error, (NotFast, AgentFormerError)) else _described(error)
        sys.stderr.write(f"\n{told}\n")
        raise SystemExit(_NEVER if isinstance(error, NotExportable) else 1) from error


def _end_with_asker() -> None:
    """Standard input is a pipe that nothing is written to: it ends when the process that holds its other end does."""
    os.read(0, 1)
    os._exit(1)


def _packages(precision: str) -> list[str]:
    """What an export needs; the ones that are imported fastest first."""
    return ["tokenizers", "openvino", *(["nncf"] if precision else []), "sentence_transformers"]


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def _by_the_model() -> Iterator[None]:
    """What fails here is the model's doing, but for what another time or a whole package would cure."""
    try:
        yield
    except (NotFast, ImportError, OSError, MemoryError):
        raise
    except Exception as error:
        if "alloc" in str(error):  # how torch and OpenVINO tell that there is too little memory
            raise
        raise NotExportable(_described(error)) from error


def export(folder: Path, target: Path, precision: str) -> None:
    """Fill the folder `target`. Raises `NotExportable` where the exported model is not the model, or none is made."""
    import openvino as ov
    import torch

    torch.set_num_threads(usable_cpus())
    model = load_model(str(folder), local_only=True, device="cpu").float().eval()
    with _by_the_model():
        tokenizer = _tokenizer(model, target / TOKENIZER)
    longest = int(model.max_seq_length or model.tokenizer.model_max_length)
    probes = [text for text in PROBES if tokenizer.read([text])[0].length <= longest]
    if probes[:1] != [PROBE]:
        raise NotExportable(f"it reads {longest} tokens only")
    reference = np.asarray(model.encode(probes, prompt="", show_progress_bar=False), dtype=np.float32)
    with _by_the_model():
        graph = _converted(model)
    rows = _rows(ov, graph, tokenizer, probes)
    _demand(agreement(rows, reference), SAME_SPACE, "its export")
    if precision:
        with _by_the_model():
            graph = _quantised(graph, tokenizer, longest)
        rows = _rows(ov, graph, tokenizer, probes)
        _demand(agreement(rows, reference), LEAST_INT8, precision)
        reference = rows  # of a space of its own
    ov.save_model(graph, target / MODEL, compress_to_fp16=False)
    np.save(target / PROBE_ROWS, unit(reference))
    told = dataclasses.asdict(facts_of(model, reference))
    (target / FACTS).write_text(json.dumps({**told, **tokenizer.described()}), encoding="utf-8")


def _demand(found: float, least: float, what: str) -> None:
    if found < least:
        raise NotExportable(f"{what} gives other vectors: a mean cosine of {found:.5f}, and {least} is the least")


def _tokenizer(model: SentenceTransformer, target: Path) -> FastTokenizer:
    """The model's tokenizer, written where the runtime will read it, and held against the original."""
    original: Any = model.tokenizer
    if not hasattr(original, "backend_tokenizer"):
        raise NotExportable("its tokenizer is not one that the package tokenizers reads")
    target.write_text(original.backend_tokenizer.to_str(), encoding="utf-8")
    inputs = list(original(["a"], padding=True))
    found = FastTokenizer(target, inputs, int(original.pad_token_id or 0))
    texts = list(PROBES)
    expected = original(texts, add_special_tokens=True, truncation=False, verbose=False)["input_ids"]
    if [read.content[0] for read in found.read(texts)] != expected:
        raise NotExportable("its tokenizer cuts texts otherwise outside of transformers")
    return found


def _converted(model: SentenceTransformer) -> Any:
    import openvino as ov
    import torch

    tokenizer: Any = model.tokenizer
    example = tokenizer(["the keys of the harbour", "x"], padding=True, return_tensors="pt")  # padded: keeps the mask
    names = list(example)
    size = model.truncate_dim

    class Whole(torch.nn.Module):
        """All modules in their order, from tokens to the vector."""

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
        graph = ov.convert_model(Whole().eval(), example_input=tuple(example[name] for name in names))
    for given, name in zip(graph.inputs, names, strict=True):
        given.get_tensor().set_names({name})
    graph.reshape({given: ov.PartialShape([-1, -1]) for given in graph.inputs})
    return graph


def _quantised(graph: Any, tokenizer: FastTokenizer, longest: int) -> Any:
    """Weights and activations of matrix products as int8, by the ranges that the calibration texts show."""
    import nncf

    texts = files("agentformer.embedders.sbert").joinpath("calibration.txt").read_text(encoding="utf-8").splitlines()
    reads = fitting(tokenizer.read([*texts, *PROBES]), longest)
    data = nncf.Dataset(reads, lambda read: tokenizer.arrays([read]))
    return nncf.quantize(graph, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(reads))


def _rows(ov: Any, graph: Any, tokenizer: FastTokenizer, texts: Sequence[str]) -> Matrix:
    """One by one, so that padding has no part in what is compared."""
    compiled = ov.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.concatenate([compiled(tokenizer.arrays([read]))[0] for read in tokenizer.read(texts)])
