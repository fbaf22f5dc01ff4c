"""Runs a model on OpenVINO, from an export of the model. This module imports neither torch nor transformers, so that it
loads fast."""

from __future__ import annotations

import importlib
import json
import math
import os
import queue
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentformer.embedders.model_info import PROBES, QUICK_PROBES, mean_cosine
from agentformer.embedders.sbert.runtime import (
    SAME_SPACE,
    ModelFacts,
    Tokenized,
    TokenRows,
    has_bf16,
    inner_tokens,
    replace_surrogates,
    usable_cpus,
)
from agentformer.types import Matrix, Vector

# The files of an export.
MODEL, TOKENIZER, FACTS, PROBE_ROWS = "model.xml", "tokenizer.json", "facts.json", "probes.npy"
# Mean cosine of the same int8 model on two processors, which round differently. Another model is far below it.
_SAME_INT8 = 0.99
# Lengths are rounded up, because OpenVINO compiles a kernel for each new length (5 ms for fp32, 25 ms for int8).
_LENGTH_STEP = 8
_SMALL = 512  # numbers in a vector of a small model, whose short texts are not faster with more threads than two
_MOST_STREAMS = 8  # each stream has its own memory for the numbers between the layers
_PIECE_TOKENS = 256  # of a batch of documents that is computed while questions wait; takes 10% longer for each token
_KEPT_QUERIES, _KEPT_TOKENS = 64, 64  # cached queries, and tokens of a cached query: at most 6 MB for MiniLM
_SPARE = 1  # requests that are filled or read while the others are computed; more would only wait
_ASKED_SECONDS = 0.5  # after a computation for a question; its answer may need further ones
_COMPILED = "compiled/*.blob"  # a file is twice as large as the model; its name depends on path, time and processor
_import_lock = threading.Lock()


class OpenVinoUnavailable(Exception):
    """Raised if a model cannot run on OpenVINO. It can still run on torch."""


class BadExport(OpenVinoUnavailable):
    """Raised if an export is damaged, or computes other vectors than its model."""


class NotExportable(OpenVinoUnavailable):
    """Raised if a model cannot be exported with the installed versions of the packages."""


def import_package(package: str) -> Any:
    """Import a package of the OpenVINO runtime. Raise `OpenVinoUnavailable` if it is missing or broken."""
    try:
        return importlib.import_module(package)
    except Exception as error:  # a broken package can raise anything
        reason = " ".join(str(error).split())[:200]
        raise OpenVinoUnavailable(
            f"the package {package} cannot be imported ({type(error).__name__}: {reason}); reinstall it: "
            f"pip install --force-reinstall {package}"
        ) from error


class FastTokenizer:
    """The tokenizer in the file `file`. `inputs` are the names of the model's inputs in their order, and `pad_id` is
    the number of the padding token. Immutable and thread-safe. Raises `OpenVinoUnavailable` if the package tokenizers
    is not installed."""

    def __init__(self, file: Path, inputs: Sequence[str], pad_id: int) -> None:
        self._tokenizer = import_package("tokenizers").Tokenizer.from_file(str(file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.inputs = list(inputs)
        self.pad_id = pad_id

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Return the tokens of each text, special tokens included. The field `content` of each result is a tuple: the
        list of token ids, and the list of token type ids."""
        texts = [replace_surrogates(text) for text in texts]
        one = len(texts) == 1  # threads would make a single text slower
        encoded = [self._tokenizer.encode(texts[0])] if one else self._tokenizer.encode_batch_fast(texts)
        return [Tokenized(len(item.ids), (item.ids, item.type_ids)) for item in encoded]

    def encoded(self, texts: Sequence[str]) -> list[Any]:
        """Return the tokens of each text with their offsets, special tokens included."""
        encoded: list[Any] = self._tokenizer.encode_batch([replace_surrogates(text) for text in texts])
        return encoded

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the start and the end of each token in the text. Special tokens are left out."""
        return list(self._tokenizer.encode(replace_surrogates(text), add_special_tokens=False).offsets)

    def fitting(self, texts: Sequence[str], max_tokens: int) -> list[Tokenized]:
        """Return the tokens of each text that has at most `max_tokens` tokens, special tokens included."""
        return [item for item in self.tokenize(texts) if item.length <= max_tokens]

    def arrays(self, batch: Sequence[Tokenized], width: int = 0) -> dict[str, NDArray[np.int64]]:
        """Return the inputs of the model for a batch, each with its name. Each input is an array with one row for each
        text. A row has the length of the longest text, or `width` if this is larger; shorter texts are padded at the
        end."""
        width = max(width, *(item.length for item in batch))
        ids = np.full((len(batch), width), self.pad_id, dtype=np.int64)
        types = np.zeros_like(ids)
        mask = np.zeros_like(ids)
        for row, item in enumerate(batch):
            ids[row, : item.length], types[row, : item.length] = item.content
            mask[row, : item.length] = 1
        arrays = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
        return {name: arrays[name] for name in self.inputs}


class OpenVinoRuntime(FastTokenizer):
    """A model that OpenVINO runs from the export in `folder`. The format bf16 is used if the processor supports it, and
    if it does not change the vectors of the probe texts. Raises `BadExport` if the export is damaged or computes other
    vectors than the model. Raises `OpenVinoUnavailable` if a needed package is missing or broken."""

    def __init__(self, folder: Path, precision: str) -> None:
        ov = import_openvino()
        self._kept: OrderedDict[tuple[int, ...], tuple[Vector, Matrix]] = OrderedDict()  # by the ids of a query
        self._kept_lock = threading.Lock()
        try:
            facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            super().__init__(folder / TOKENIZER, facts.pop("inputs"), facts.pop("pad_id"))
            self.facts = ModelFacts(**facts)
            self._compile(ov.Core(), folder, precision)
        except OpenVinoUnavailable:
            raise
        except Exception as error:  # OpenVINO and tokenizers raise many classes for a damaged file
            raise BadExport(
                f"the export of the model cannot be read ({type(error).__name__}: {str(error)[:200]})"
            ) from error

    def rows(self, batch: Sequence[Tokenized]) -> Matrix:
        """Return the vectors of the texts in the batch, as `TorchRuntime.rows` describes."""
        return self._infer(batch, 1)[0]

    def query_rows(self, batch: Sequence[Tokenized]) -> Matrix:
        """Return the vectors of queries, as `rows` does. The vectors of the last queries and of their tokens are
        cached, because an answer to a query needs them after the search."""
        if not self._has_tokens:
            return self.rows(batch)
        vectors, tokens = self._infer(batch, 2)
        for vector, rows, item in zip(vectors, tokens, batch, strict=True):
            if item.length <= _KEPT_TOKENS:
                with self._kept_lock:
                    self._kept[tuple(item.content[0])] = vector.copy(), rows[: item.length].copy()
                    if len(self._kept) > _KEPT_QUERIES:
                        self._kept.popitem(last=False)
        return vectors

    def rows_of(self, batches: Sequence[Sequence[Tokenized]]) -> Iterator[Matrix]:
        """Yield the vectors of the texts of all batches, in order, as `TorchRuntime.rows_of` describes. A batch can be
        computed in several pieces, and several batches at the same time."""
        if len(batches) == 1:
            return iter([self.rows(batches[0])])
        return (rows for (rows,) in self._computed(batches, 1, self._requests))

    def token_rows_of(self, batches: Sequence[Sequence[str]]) -> Iterator[list[TokenRows]] | None:
        """Yield the vectors of the texts of each batch and of their tokens, in order. Return None if the export has no
        vectors of tokens."""
        if not self._has_tokens:
            return None
        encoded = [self.encoded(texts) for texts in batches]
        if len(encoded) == len(encoded[0]) == 1 and (kept := self._kept.get(tuple(encoded[0][0].ids))):
            item = encoded[0][0]
            return iter([[inner_tokens(kept[0], item.offsets, kept[1], item.special_tokens_mask)]])
        items = [[Tokenized(len(item.ids), (item.ids, item.type_ids)) for item in batch] for batch in encoded]
        return (
            [
                inner_tokens(vectors[n], item.offsets, tokens[n], item.special_tokens_mask)
                for n, item in enumerate(batch)
            ]
            for batch, (vectors, tokens) in zip(encoded, self._computed(items, 2, self._short), strict=True)
        )

    def _infer(self, batch: Sequence[Tokenized], count: int) -> list[Matrix]:
        """Return the first `count` outputs of the model (arrays) for a batch."""
        request = self._short.get()
        try:
            found = request.infer(self._inputs(batch), share_inputs=True, share_outputs=True)
            return [np.array(found[n], np.float32) for n in range(count)]
        finally:
            self._short.put(request)
            self._asked_at = time.monotonic()

    def _inputs(self, batch: Sequence[Tokenized]) -> dict[str, NDArray[np.int64]]:
        return self.arrays(batch, self.padded(max(item.length for item in batch)))

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
        return min(-(-length // _LENGTH_STEP) * _LENGTH_STEP, self.facts.max_tokens)

    def _compile(self, core: Any, folder: Path, precision: str) -> None:
        probes = self.fitting(PROBES, self.facts.max_tokens)[:QUICK_PROBES]
        reference = np.load(folder / PROBE_ROWS)[: len(probes)]
        least = _SAME_INT8 if precision else SAME_SPACE
        self._streams, threads = _streams(self.facts.dimension, usable_cpus())
        self._asked_at = -math.inf  # the time of the last question
        options: dict[str, Any] = {
            "NUM_STREAMS": self._streams,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,
        }
        compiled_before = set(folder.glob(_COMPILED))
        if precision and os.access(folder, os.W_OK):  # packing int8 weights takes 1.5 s, reading packed ones 0.2 s
            options["CACHE_DIR"] = str(folder / "compiled")
        cosine = -1.0
        for kind in ("bf16", "f32") if has_bf16() else ("f32",):
            compiled = core.compile_model(folder / MODEL, "CPU", {**options, "INFERENCE_PRECISION_HINT": kind})
            self._has_tokens = len(compiled.outputs) > 1
            self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()  # for the batches of documents
            self._short: queue.SimpleQueue[Any] = queue.SimpleQueue()  # for questions; uploads do not use these
            for requests, number in ((self._requests, self._streams + _SPARE), (self._short, self._streams)):
                for _ in range(number):
                    requests.put(compiled.create_infer_request())
            cosine = mean_cosine(self.rows(probes), reference)
            if cosine >= least:
                _delete_old_compiled(folder, compiled_before)
                return
        raise BadExport(
            f"the export computes different vectors: the mean cosine is {cosine:.5f}, but at least {least} is required"
        )


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


def _delete_old_compiled(folder: Path, before: set[Path]) -> None:
    """If OpenVINO has just compiled the model, delete the older compiled models, because they are for another processor
    or folder. `before` are the compiled files that existed before OpenVINO loaded the model."""
    with suppress(OSError):
        compiled = sorted(folder.glob(_COMPILED), key=lambda file: file.stat().st_mtime_ns)
        for former in compiled[:-1] if set(compiled) - before else []:
            former.unlink(missing_ok=True)


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
