"""An exported model on OpenVINO: neither torch nor transformers is imported."""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from agentformer.embedders.sbert.exporting import FACTS, MODEL, PROBE_ROWS, TOKENIZER
from agentformer.embedders.sbert.fidelity import PROBES, QUICK, SAME_INT8, SAME_SPACE, agreement, fitting
from agentformer.embedders.sbert.processor import has_bf16, usable_cpus
from agentformer.embedders.sbert.quiet import openvino
from agentformer.embedders.sbert.runtime import BadExport, Facts, NotFast, Read
from agentformer.embedders.sbert.tokenizing import FastTokenizer
from agentformer.types import Matrix

# Kernels are made for each new length of text, for 5 ms in fp32 and 25 in int8, and kept; so there are few lengths.
_STEP = 8
_REQUESTS = 2  # one is filled or emptied while the other is computed; more would only wait
_COMPILED = "compiled/*.blob"  # twice as large as the model; OpenVINO names it by path, time and processor


class OpenVinoRuntime:
    """The export in the folder `place`, in bf16 where the processor has it and the vectors stay the same. Raises
    `BadExport` where it is damaged, or where its vectors are not those that its model gave when it was exported, and
    `NotFast` where a package cannot be imported."""

    def __init__(self, place: Path, precision: str) -> None:
        ov = openvino()
        try:
            told = json.loads((place / FACTS).read_text(encoding="utf-8"))
            self._tokenizer = FastTokenizer(place / TOKENIZER, told.pop("inputs"), told.pop("pad_id"))
            self.facts = Facts(**told)
            self._start(ov.Core(), place, precision)
        except NotFast:
            raise
        except Exception as error:  # OpenVINO and tokenizers raise kinds of their own for a damaged file
            raise BadExport(f"its export cannot be read ({type(error).__name__}: {str(error)[:200]})") from error

    def read(self, texts: Sequence[str]) -> list[Read]:
        return self._tokenizer.read(texts)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return self._tokenizer.offsets(text)

    def rows(self, batch: Sequence[Read]) -> Matrix:
        longest = max(read.length for read in batch)
        inputs = self._tokenizer.arrays(batch, min(-(-longest // _STEP) * _STEP, self.facts.max_tokens))
        request = self._requests.get()
        try:
            return np.array(request.infer(inputs, share_inputs=True)[0], dtype=np.float32)
        finally:
            self._requests.put(request)

    def _start(self, core: Any, place: Path, precision: str) -> None:
        probes = fitting(self.read(PROBES), self.facts.max_tokens)[:QUICK]
        reference = np.load(place / PROBE_ROWS)[: len(probes)]
        least = SAME_INT8 if precision else SAME_SPACE
        options: dict[str, Any] = {
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": usable_cpus(),
            "ENABLE_CPU_PINNING": False,
        }
        compiled_before = set(place.glob(_COMPILED))
        if precision and os.access(place, os.W_OK):  # packing its weights takes 1.5 s, reading them packed 0.2
            options["CACHE_DIR"] = str(place / "compiled")
        found = -1.0
        for kind in ("bf16", "f32") if has_bf16() else ("f32",):
            compiled = core.compile_model(place / MODEL, "CPU", {**options, "INFERENCE_PRECISION_HINT": kind})
            self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
            for _ in range(_REQUESTS):
                self._requests.put(compiled.create_infer_request())
            found = agreement(self.rows(probes), reference)
            if found >= least:
                _keep_one(place, compiled_before)
                return
        raise BadExport(f"its export gives other vectors: a mean cosine of {found:.5f}, and {least} is the least")


def _keep_one(place: Path, before: set[Path]) -> None:
    """What was compiled for another processor or another place is not read again once there is a new one."""
    with suppress(OSError):
        found = sorted(place.glob(_COMPILED), key=lambda file: file.stat().st_mtime_ns)
        for former in found[:-1] if set(found) - before else []:
            former.unlink(missing_ok=True)
