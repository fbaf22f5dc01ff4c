"""The contract of the runtimes torch and OpenVINO, and the code that they share: model files, tokenizer, processor."""

from __future__ import annotations

import functools
import importlib
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from agentformer.types import Matrix, Span

# Vectors of two runtimes may be in one index if their mean cosine over the probe texts is at least this.
SAME_SPACE = 0.9999
_HUB_SECONDS = 3.0  # a hub that is reachable answers sooner; the start must not wait long for a hub that is not
_FLAGS = Path("/proc/cpuinfo")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # version 2: "200000 100000", or "max 100000"
_OLD_QUOTA = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
_OLD_PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


class Tokenized(NamedTuple):
    """A text in the form that its runtime reads. `length` is the number of tokens, special tokens included."""

    length: int
    content: Any


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Properties of a model that do not depend on the runtime."""

    dimension: int
    max_tokens: int  # limit of the model, special tokens included
    special_tokens: int  # added to every text
    vocabulary: int
    prompts: Mapping[str, str]  # by name, from the model's configuration
    fingerprint: str  # fingerprint of the fp32 rows; for a quantized model, of its own rows


class Runtime(Protocol):
    """A loaded model. Thread-safe."""

    @property
    def facts(self) -> ModelFacts: ...

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Return the tokens of each text. No text is cut."""
        ...

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the start and the end of each token in the text, without special tokens."""
        ...

    def rows(self, batch: Sequence[Tokenized]) -> Matrix:
        """Return (len(batch), dimension) rows of float32, not normalized."""
        ...


class OpenVinoUnavailable(Exception):
    """A model cannot run on OpenVINO, but it can run on torch."""


class BadExport(OpenVinoUnavailable):
    """An export is damaged or belongs to another model."""


class NotExportable(OpenVinoUnavailable):
    """The installed versions of the packages cannot export the model."""


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


def local_folder(name: str, publisher: str = "sentence-transformers") -> Path | None:
    """Return the folder of a model on this machine: a local folder, or a folder in the hub's cache. Return None if
    there is no such folder. If the name has no publisher, `publisher` is used."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve()
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    repository = name if "/" in name else f"{publisher}/{name}"
    for file in ("modules.json", "config.json"):  # a model of plain transformers has only the second file
        try:
            cached = try_to_load_from_cache(repository, file)
        except ValueError:  # no repository can have this name
            return None
        if isinstance(cached, str):
            return Path(cached).parent
    return None


def why_unavailable(name: str) -> str:
    """Return the reason why a model of the hub can neither be loaded from the cache nor be downloaded now, or "".

    If the model is not cached, one short request is sent to the hub. With `HF_HUB_OFFLINE=1` no request is sent.
    """
    try:
        from huggingface_hub import hf_hub_url, try_to_load_from_cache
        from huggingface_hub.constants import HF_HUB_OFFLINE
    except ImportError:
        return "sentence-transformers is not installed"
    repository = name if "/" in name else f"sentence-transformers/{name}"
    if isinstance(try_to_load_from_cache(repository, "modules.json"), str):
        return ""
    if HF_HUB_OFFLINE:
        return "it is not cached, and HF_HUB_OFFLINE is set"
    import urllib.request  # imports TLS

    try:  # a plain request, because the hub's client retries for 15 seconds
        with urllib.request.urlopen(hf_hub_url(repository, "modules.json"), timeout=_HUB_SECONDS):  # noqa: S310
            return ""
    except (OSError, ValueError):
        return "it is not cached, and the model hub does not answer"


class FastTokenizer:
    """The tokenizer of a model, read from `tokenizer.json` without transformers. `inputs` are the names of the model's
    inputs in their order. Immutable and thread-safe. Raises `OpenVinoUnavailable` if the package tokenizers is not
    installed."""

    def __init__(self, file: Path, inputs: Sequence[str], pad_id: int) -> None:
        self._tokenizer = import_package("tokenizers").Tokenizer.from_file(str(file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.inputs = list(inputs)
        self.pad_id = pad_id

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Return the tokens of each text. `content` is (ids, type ids)."""
        texts = [replace_surrogates(text) for text in texts]
        # For a single text, threads would make it slower.
        one = len(texts) == 1
        encoded = [self._tokenizer.encode(texts[0])] if one else self._tokenizer.encode_batch_fast(texts)
        return [Tokenized(len(item.ids), (item.ids, item.type_ids)) for item in encoded]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the start and the end of each token, without special tokens."""
        encoded = self._tokenizer.encode(replace_surrogates(text), add_special_tokens=False)
        offsets: list[tuple[int, int]] = encoded.offsets
        return offsets

    def arrays(self, batch: Sequence[Tokenized], width: int = 0) -> dict[str, NDArray[np.int64]]:
        """Return the model's inputs by name. Each is an array of (len(batch), length of the longest text or `width`),
        padded at the end."""
        width = max(width, *(item.length for item in batch))
        ids = np.full((len(batch), width), self.pad_id, dtype=np.int64)
        types = np.zeros_like(ids)
        mask = np.zeros_like(ids)
        for row, item in enumerate(batch):
            ids[row, : item.length], types[row, : item.length] = item.content
            mask[row, : item.length] = 1
        arrays = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
        return {name: arrays[name] for name in self.inputs}


def replace_surrogates(text: str) -> str:
    """Return the text without lone surrogates, because strings in Rust cannot contain them. Offsets stay valid."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def token_spans(offsets: Sequence[tuple[int, int]]) -> list[Span]:
    """Return the offsets of tokens without overlaps. A byte-level tokenizer may split one character into several
    tokens."""
    spans: list[Span] = []
    end = 0
    for start, stop in offsets:
        start = max(start, end)
        end = max(stop, start)
        spans.append(Span(start, end))
    return spans


def fitting(batch: Sequence[Tokenized], max_tokens: int) -> list[Tokenized]:
    """Return the texts that are short enough for a model of `max_tokens`."""
    return [item for item in batch if item.length <= max_tokens]


def usable_cpus() -> int:
    """Return the number of threads that a model may use, at least 1: the processors of this process, limited by the
    quota of the container and by `OMP_NUM_THREADS`."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    limits = [count, math.ceil(_quota())] if _quota() else [count]
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if threads.isdecimal() and int(threads):
        limits.append(int(threads))
    return max(1, min(limits))


def _quota() -> float:
    """Return the quota of the container in processors. Return 0.0 if there is no limit."""
    try:
        if _QUOTA.exists():
            quota, period = _QUOTA.read_text().split()
        else:
            quota, period = _OLD_QUOTA.read_text().strip(), _OLD_PERIOD.read_text().strip()
        return max(0.0, int(quota) / int(period)) if quota != "max" else 0.0
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0


def limit_torch_threads() -> None:
    """Limit the threads of torch to `usable_cpus`, because torch counts all cores of the machine. A smaller limit that
    is already set stays."""
    import torch

    if torch.get_num_threads() > usable_cpus():
        torch.set_num_threads(usable_cpus())


@functools.cache
def has_bf16() -> bool:
    """Return True if the processor has instructions for bf16. Without them bf16 is slower than fp32."""
    try:
        text = _FLAGS.read_text()
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def may_have_accelerator() -> bool:
    """Return True if torch would probably find a GPU or another accelerator. Torch is not imported."""
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    cards = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
    return apple or (not hidden and any(card.exists() for card in cards))
