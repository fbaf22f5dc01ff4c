"""Runs a model on OpenVINO. This module imports neither torch nor transformers, so that it loads fast.

What is measured when a model is first loaded is kept in the file CACHE_DIR/models/KEY.json: the fingerprint of the
model, and whether bf16 changes its vectors. KEY is a hash of the places, sizes and times of the model's files. A
missing, damaged or unwritable file costs only the time to measure again."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import math
import queue
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentformer.embedders.model_info import PROBE, PROBES, QUICK_PROBES, fingerprint, mean_cosine, unit
from agentformer.embedders.sbert.runtime import (
    SAME_SPACE,
    ModelFacts,
    Tokenized,
    TokenRows,
    has_bf16,
    inner_tokens,
    package_version,
    usable_cpus,
)
from agentformer.embedders.sbert.tokenizer import Tokenizer
from agentformer.errors import AgentFormerError, EmbedderUnavailable, reinstall_command
from agentformer.settings.access import make_folder, write_whole
from agentformer.types import Matrix, Vector

_SAME_MODEL = (
    0.99  # cosine with the measured fingerprint; processors round differently, and a damaged model is far below
)
_SAME_INT8 = 0.999  # the same for a model with weights of 8 bits in another precision
_FORMAT = 1  # version of the file of measured values; a new number makes all of them invalid
# Lengths are rounded up, because OpenVINO compiles a kernel for each new length (5 ms for fp32, 25 ms for int8).
_LENGTH_STEP = 8
_SMALL = 512  # numbers in a vector of a small model, whose short texts are not faster with more threads than two
_MOST_STREAMS = 8  # each stream has its own memory for the numbers between the layers
_PIECE_TOKENS = 256  # of a batch of documents that is computed while questions wait; takes 10% longer for each token
_KEPT_QUERIES, _KEPT_TOKENS = 64, 64  # cached queries, and tokens of a cached query: at most 6 MB for MiniLM
_SPARE = 1  # requests that are filled or read while the others are computed; more would only wait
_ASKED_SECONDS = 0.5  # after a computation for a question; its answer may need further ones
_import_lock = threading.Lock()


class OpenVinoUnavailable(Exception):
    """Raised if a model cannot run on OpenVINO. It can still run on torch."""


def import_package(package: str) -> Any:
    """Import a package of the OpenVINO runtime. Raise `OpenVinoUnavailable` if it is missing or broken."""
    try:
        return importlib.import_module(package)
    except Exception as error:  # a broken package can raise anything
        reason = " ".join(str(error).split())[:200]
        raise OpenVinoUnavailable(
            f"the package {package} cannot be imported ({type(error).__name__}: {reason}); reinstall it: "
            f"{reinstall_command(package)}"
        ) from error


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is not loaded yet. `files` are its files, whose sizes and times tell whether it has changed. `graph`
    and `tokenizer` read them; `graph` returns an `openvino.Model` as the module `graph` describes it. `check` is called
    before values are measured. `max_tokens` includes special tokens."""

    files: Sequence[Path]
    graph: Callable[[], Any]
    tokenizer: Callable[[], Tokenizer]
    max_tokens: int
    vocabulary: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    precision: str = ""
    check: Callable[[], None] = lambda: None


class OpenVinoRuntime:
    """A model that OpenVINO runs. The format bf16 is used if the processor supports it, and if it does not change the
    vectors of the probe texts. `cache` is the folder for what is measured at the first load. Thread-safe. Raises
    `EmbedderUnavailable` if the model is damaged, and `OpenVinoUnavailable` if a needed package is missing or
    broken."""

    def __init__(self, model: Model, cache: Path) -> None:
        ov = import_openvino()
        self._kept: OrderedDict[tuple[int, ...], tuple[Vector, Matrix]] = OrderedDict()  # by the ids of a query
        self._kept_lock = threading.Lock()
        self._max_tokens = model.max_tokens
        self._asked_at = -math.inf  # the time of the last question
        try:
            measured = self._load(ov.Core(), model, cache)
        except (AgentFormerError, OpenVinoUnavailable):
            raise
        except Exception as error:  # OpenVINO raises many classes
            reason = " ".join(str(error).split())[:200]
            raise EmbedderUnavailable(
                f"the model in {model.files[0].parent} cannot be loaded ({type(error).__name__}: {reason}); install or "
                "download it again, or use another embedder"
            ) from error
        self.facts = ModelFacts(
            dimension=len(measured.row),
            max_tokens=model.max_tokens,
            special_tokens=self._tokenizer.special_tokens,
            vocabulary=model.vocabulary,
            prompts=model.prompts,
            fingerprint=measured.fingerprint,
        )

    def _load(self, core: Any, model: Model, cache: Path) -> _Measured:
        """Read and compile the model. Return what was measured when it was first loaded, which may be now."""
        kept = _Measured.read(cache, model)
        if kept is None:
            model.check()
        with ThreadPoolExecutor(1) as pool:  # reading a large vocabulary takes as long as building the graph
            tokenizer = pool.submit(model.tokenizer)
            graph = model.graph()
            if kept:
                self._compile(core, graph, kept.precision)
            self._tokenizer = tokenizer.result()
        if self._tokenizer.vocabulary > model.vocabulary:
            raise ValueError(f"its tokenizer has {self._tokenizer.vocabulary} tokens, and it knows {model.vocabulary}")
        if kept and kept.fits(self._probe_rows([PROBE])[0]):
            return kept
        if kept:  # of other files with the same names, sizes and times
            model.check()
        measured = self._measure(core, graph, _SAME_INT8 if model.precision else SAME_SPACE)
        self._compile(core, graph, measured.precision)
        if not measured.fits(self._probe_rows([PROBE])[0]):
            raise ValueError("its vectors are not finite, or differ each time")
        measured.write(cache, model)
        return measured

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Return the tokens of each text, special tokens included. `content` of a result is the list of token ids."""
        return [Tokenized(len(ids), ids) for ids in self._tokenizer.ids_of(texts)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the start and the end of each token in the text. Special tokens are left out."""
        return self._tokenizer.offsets(text)

    def has_unknown(self, item: Tokenized) -> bool:
        """Return True if a token of the text is unknown, or if the tokenizer does not tell which token this is."""
        unknown = self._tokenizer.unknown_id
        return unknown is None or unknown in item.content

    def arrays(self, batch: Sequence[Tokenized], width: int = 0) -> dict[str, NDArray[np.int64]]:
        """Return the inputs of the model for a batch, each with its name: arrays with one row for each text. A row has
        the length of the longest text, or `width` if this is larger; shorter texts are padded at the end."""
        width = max(width, *(item.length for item in batch))
        ids = np.full((len(batch), width), self._tokenizer.pad_id, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, item in enumerate(batch):
            ids[row, : item.length] = item.content
            mask[row, : item.length] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def rows(self, batch: Sequence[Tokenized]) -> Matrix:
        """Return the vectors of the texts in the batch, as `TorchRuntime.rows` describes."""
        return self._infer(batch, 1)[0]

    def query_rows(self, batch: Sequence[Tokenized]) -> Matrix:
        """Return the vectors of queries, as `rows` does. The vectors of the last queries and of their tokens are
        cached, because an answer to a query needs them after the search."""
        vectors, tokens = self._infer(batch, 2)
        for vector, rows, item in zip(vectors, tokens, batch, strict=True):
            if item.length <= _KEPT_TOKENS:
                with self._kept_lock:
                    self._kept[tuple(item.content)] = vector.copy(), rows[: item.length].copy()
                    if len(self._kept) > _KEPT_QUERIES:
                        self._kept.popitem(last=False)
        return vectors

    def rows_of(self, batches: Sequence[Sequence[Tokenized]]) -> Iterator[Matrix]:
        """Yield the vectors of the texts of all batches, in order, as `TorchRuntime.rows_of` describes. A batch can be
        computed in several pieces, and several batches at the same time."""
        if len(batches) == 1:
            return iter([self.rows(batches[0])])
        return (rows for (rows,) in self._computed(batches, 1, self._requests))

    def token_rows_of(self, batches: Sequence[Sequence[str]]) -> Iterator[list[TokenRows]]:
        """Yield the vectors of the texts of each batch and of their tokens, in order."""
        encoded = [[self._tokenizer.encode(text) for text in texts] for texts in batches]
        if len(encoded) == len(encoded[0]) == 1 and (kept := self._kept.get(tuple(encoded[0][0].ids))):
            item = encoded[0][0]
            return iter([[inner_tokens(kept[0], item.offsets, kept[1], item.special)]])
        items = [[Tokenized(len(item.ids), item.ids) for item in batch] for batch in encoded]
        return (
            [inner_tokens(vectors[n], item.offsets, tokens[n], item.special) for n, item in enumerate(batch)]
            for batch, (vectors, tokens) in zip(encoded, self._computed(items, 2, self._short), strict=True)
        )

    def _infer(self, batch: Sequence[Tokenized], count: int) -> list[Matrix]:
        """Return the first `count` outputs of the model (arrays) for a batch."""
        request = self._short.get()
        try:
            inputs = self.arrays(batch, self.padded(max(item.length for item in batch)))
            found = request.infer(inputs, share_inputs=True, share_outputs=True)
            return [np.array(found[n], np.float32) for n in range(count)]
        finally:
            self._short.put(request)
            self._asked_at = time.monotonic()

    def _computed(
        self, batches: Sequence[Sequence[Tokenized]], count: int, requests: queue.SimpleQueue[Any]
    ) -> Iterator[list[Matrix]]:
        """Yield the first `count` outputs of the model (arrays) for each piece of a batch, in order. Several pieces are
        computed at the same time, each by one inference request of OpenVINO, if `requests` has free requests."""
        running: deque[tuple[Any, object]] = deque()  # requests, with their inputs, which must exist until the end
        try:
            for inputs in self._pieces(batches, requests):
                while len(running) >= self._most_running(requests):
                    yield _outputs(running[0][0], count)
                    requests.put(running.popleft()[0])
                if (request := _free_request(requests, wait=not running)) is None:
                    yield _outputs(running[0][0], count)
                    request = running.popleft()[0]
                running.append((request, inputs))
                request.start_async(inputs, share_inputs=True)
            while running:
                yield _outputs(running[0][0], count)
                requests.put(running.popleft()[0])
        finally:
            for request, _ in running:  # after an error, or if the caller does not need the rest
                with suppress(Exception):  # the error of this batch, which the caller does not need either
                    request.wait()
                requests.put(request)
            if requests is self._short:
                self._asked_at = time.monotonic()

    def _pieces(
        self, batches: Sequence[Sequence[Tokenized]], requests: queue.SimpleQueue[Any]
    ) -> Iterator[dict[str, NDArray[np.int64]]]:
        """Yield the inputs of the model for each batch, in order. If the model has only one stream (worker of
        OpenVINO), a batch of documents is yielded in pieces while questions are computed, because a question waits for
        the piece that was started before it. A piece is padded like its batch, so the vectors stay the same."""
        for batch in batches:
            width = self.padded(max(item.length for item in batch))
            start = 0
            while start < len(batch):
                split = self._streams == 1 and self._yields_to_questions(requests)
                end = start + (max(1, _PIECE_TOKENS // width) if split else len(batch))
                yield self.arrays(batch[start:end], width)
                start = end

    def _most_running(self, requests: queue.SimpleQueue[Any]) -> int:
        """Return how many pieces of batches one thread may compute at the same time. While questions are computed, one
        stream is left to them; if there is only one, the documents use it for one piece at a time."""
        return max(1, self._streams - 1) if self._yields_to_questions(requests) else self._streams + _SPARE

    def _yields_to_questions(self, requests: queue.SimpleQueue[Any]) -> bool:
        """Return True if `requests` are those for documents, and a question is computed or was computed shortly before.
        Then a question would have to wait for the batches of documents that were started before it."""
        asked = self._short.qsize() < self._streams or time.monotonic() - self._asked_at < _ASKED_SECONDS
        return asked and requests is self._requests

    def padded(self, length: int) -> int:
        """Return the number of tokens to which a text of `length` tokens is padded. In a batch of texts with the same
        padded length, each text has the same vector as alone."""
        return min(-(-length // _LENGTH_STEP) * _LENGTH_STEP, self._max_tokens)

    def _measure(self, core: Any, graph: Any, least: float) -> _Measured:
        """Measure the fingerprint of the model in float32, and whether its vectors stay the same in bf16: their mean
        cosine with those in float32 is at least `least`."""
        self._compile(core, graph, "f32")
        probes = [text for text in PROBES if self.tokenize([text])[0].length <= self._max_tokens][:QUICK_PROBES]
        if probes[:1] != [PROBE]:
            raise EmbedderUnavailable(f"the model reads only {self._max_tokens} tokens, which is too few")
        reference = self._probe_rows(probes)
        precision = "f32"
        if has_bf16():
            self._compile(core, graph, "bf16")
            precision = "bf16" if mean_cosine(self._probe_rows(probes), reference) >= least else "f32"
        return _Measured(precision, fingerprint(unit(reference)[0]))

    def _probe_rows(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors of the texts. Each text is computed alone: padding would change its vector slightly."""
        return np.concatenate([self.rows(self.tokenize([text])) for text in texts])

    def _compile(self, core: Any, graph: Any, precision: str) -> None:
        """Compile the graph, unless it is compiled in this precision already."""
        if getattr(self, "_precision", "") == precision:
            return
        self._precision = precision
        self._streams, threads = _streams(graph.outputs[0].get_partial_shape()[1].get_length(), usable_cpus())
        options = {
            "NUM_STREAMS": self._streams,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,
            "INFERENCE_PRECISION_HINT": precision,
        }
        compiled = core.compile_model(graph, "CPU", options)
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()  # for the batches of documents
        self._short: queue.SimpleQueue[Any] = queue.SimpleQueue()  # for questions; uploads do not use these
        for requests, number in ((self._requests, self._streams + _SPARE), (self._short, self._streams)):
            for _ in range(number):
                requests.put(compiled.create_infer_request())


@dataclass(frozen=True, slots=True)
class _Measured:
    """The values that the first load of a model measures: its precision on this processor, and its fingerprint."""

    precision: str
    fingerprint: str

    @property
    def row(self) -> Vector:
        """The vector of the first probe text, which the fingerprint contains."""
        row: Vector = unit(np.frombuffer(base64.b64decode(self.fingerprint), "<f2").astype(np.float32)[None])[0]
        return row

    def fits(self, row: Vector) -> bool:
        """Return True if the model computes this vector for the first probe text, apart from how it is rounded."""
        same_length = len(row) == len(self.row) and bool(np.isfinite(row).all())
        return same_length and float(unit(row[None])[0] @ self.row) >= _SAME_MODEL

    @classmethod
    def read(cls, cache: Path, model: Model) -> _Measured | None:
        """Return what was measured for these files on such a processor, or None if it is not known."""
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            content = json.loads(_measured_file(cache, model).read_text(encoding="utf-8"))
            measured = cls(content["precision"], content["fingerprint"])
            if measured.precision in ("f32", "bf16") and np.isfinite(measured.row).all():
                return measured
        return None

    def write(self, cache: Path, model: Model) -> None:
        """Store the result in the cache folder, if the folder can be written."""
        with suppress(OSError):  # a folder that cannot be written
            file = _measured_file(cache, model)
            make_folder(file.parent)
            write_whole(file, json.dumps({"precision": self.precision, "fingerprint": self.fingerprint}))


def _measured_file(cache: Path, model: Model) -> Path:
    stats = [(str(file), stat.st_size, stat.st_mtime_ns) for file in model.files for stat in [file.stat()]]
    key = [_FORMAT, model.precision, has_bf16(), package_version("openvino"), *stats]
    return cache / "models" / f"{hashlib.blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()}.json"


def _streams(dimension: int, processors: int) -> tuple[int, int]:
    """Return the number of batches that a model computes at the same time, and the number of threads for all of them. A
    small model uses two threads for each batch (three, if there are three processors): a short text needs .65 of the
    time of one thread, but more threads would wait for each other most of the time. `dimension` is the length of a
    vector."""
    if dimension > _SMALL:
        return 1, processors
    return min(max(1, processors // 2), _MOST_STREAMS), min(processors, 2 * _MOST_STREAMS)


def _free_request(requests: queue.SimpleQueue[Any], *, wait: bool) -> Any:
    """Return an inference request that no thread uses. If all requests are in use, wait for a free one, or return None
    if `wait` is False. Do not wait in a thread that already has a request: two such threads would wait for each
    other."""
    try:
        return requests.get(block=wait)
    except queue.Empty:
        return None


def _outputs(request: Any, count: int) -> list[Matrix]:
    """Wait for an inference request, and return copies of the first `count` arrays that the model returned."""
    request.wait()
    return [np.array(request.get_output_tensor(n).data, np.float32) for n in range(count)]


def import_openvino() -> Any:
    """Import OpenVINO without its model converter, because the converter sends a report of each import to Intel. The
    host application can still use the converter. Raise `OpenVinoUnavailable` if OpenVINO cannot be imported."""
    with _import_lock:
        if "openvino" in sys.modules:
            return import_package("openvino")  # waits while another thread imports the module
        with _hidden("openvino_telemetry", "openvino.tools"):
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
    """Make the import of these packages fail inside the `with` block, unless they are already imported."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
