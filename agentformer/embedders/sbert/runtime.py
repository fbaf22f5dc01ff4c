"""The contract of the runtimes torch and OpenVINO, and what both use: model files, tokenizer, processor."""

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

# Cosine from which vectors of two runtimes may be in one index, on average over the probe texts.
SAME_SPACE = 0.9999
_HUB_SECONDS = 3.0  # a reachable hub answers sooner, and a start must not wait long for an unreachable one
_FLAGS = Path("/proc/cpuinfo")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # version 2: "200000 100000", or "max 100000"
_OLD_QUOTA = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
_OLD_PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


class Tokenized(NamedTuple):
    """A text as its runtime reads it. `length` counts tokens, special tokens included."""

    length: int
    content: Any


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Properties of a model, the same on every runtime."""

    dimension: int
    max_tokens: int  # that the model reads, special tokens included
    special_tokens: int  # added to every text
    vocabulary: int
    prompts: Mapping[str, str]  # by name, from the model's configuration
    fingerprint: str  # of the fp32 rows, unless the model is quantized


class Runtime(Protocol):
    """A loaded model. Thread-safe."""

    @property
    def facts(self) -> ModelFacts: ...

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Return each text in tokens; nothing is cut."""
        ...

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return start and end of each token in the text, without special tokens."""
        ...

    def rows(self, batch: Sequence[Tokenized]) -> Matrix:
        """Return (len(batch), dimension) rows of float32, not normalized."""
        ...


class OpenVinoUnavailable(Exception):
    """OpenVINO cannot be used for a model; torch can."""


class BadExport(OpenVinoUnavailable):
    """An export is damaged, or belongs to another model."""


class NotExportable(OpenVinoUnavailable):
    """These versions of the packages cannot export the model."""


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
    """Return the folder of a model on this machine: a local folder or the hub's cache; None if there is none.
    `publisher` is that of a name without one."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve()
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    repository = name if "/" in name else f"{publisher}/{name}"
    for file in ("modules.json", "config.json"):  # a model of plain transformers has the second only
        try:
            cached = try_to_load_from_cache(repository, file)
        except ValueError:  # not the name of any repository
            return None
        if isinstance(cached, str):
            return Path(cached).parent
    return None


def why_unavailable(name: str) -> str:
    """Return why a hub model can be neither loaded from the cache nor downloaded now; "" if it can.

    The hub is asked once, briefly, and only if the model is not cached; never with `HF_HUB_OFFLINE=1`.
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

    try:  # one plain request: the hub's client retries for a quarter of a minute
        with urllib.request.urlopen(hf_hub_url(repository, "modules.json"), timeout=_HUB_SECONDS):  # noqa: S310
            return ""
    except (OSError, ValueError):
        return "it is not cached, and the model hub does not answer"


class FastTokenizer:
    """A model's tokenizer without transformers, from its `tokenizer.json`. `inputs` are the names of the model's inputs
    in their order. Immutable, therefore thread-safe. Raises `OpenVinoUnavailable` without the package tokenizers."""

    def __init__(self, file: Path, inputs: Sequence[str], pad_id: int) -> None:
        self._tokenizer = import_package("tokenizers").Tokenizer.from_file(str(file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.inputs = list(inputs)
        self.pad_id = pad_id

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Return each text in tokens; `content` is (ids, type ids)."""
        texts = [replace_surrogates(text) for text in texts]
        # For one text, threads cost more than they save.
        one = len(texts) == 1
        encoded = [self._tokenizer.encode(texts[0])] if one else self._tokenizer.encode_batch_fast(texts)
        return [Tokenized(len(item.ids), (item.ids, item.type_ids)) for item in encoded]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return start and end of each token, without special tokens."""
        encoded = self._tokenizer.encode(replace_surrogates(text), add_special_tokens=False)
        offsets: list[tuple[int, int]] = encoded.offsets
        return offsets

    def arrays(self, batch: Sequence[Tokenized], width: int = 0) -> dict[str, NDArray[np.int64]]:
        """Return the model's inputs by name: (len(batch), the longest or `width`), padded at the end."""
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
    """Return the text without lone surrogates, which Rust's strings cannot hold; offsets stay valid."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def token_spans(offsets: Sequence[tuple[int, int]]) -> list[Span]:
    """Return the offsets of tokens without overlaps: byte-level tokenizers give several tokens to one character."""
    spans: list[Span] = []
    end = 0
    for start, stop in offsets:
        start = max(start, end)
        end = max(stop, start)
        spans.append(Span(start, end))
    return spans


def fitting(batch: Sequence[Tokenized], max_tokens: int) -> list[Tokenized]:
    """Return the texts that a model of `max_tokens` reads whole."""
    return [item for item in batch if item.length <= max_tokens]


def usable_cpus() -> int:
    """Return the threads a model may use: the processors of this process, limited by a container's quota and by
    `OMP_NUM_THREADS`. At least 1."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    limits = [count, math.ceil(_quota())] if _quota() else [count]
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if threads.isdecimal() and int(threads):
        limits.append(int(threads))
    return max(1, min(limits))


def _quota() -> float:
    """Return the container's quota in processors; 0.0 for no limit."""
    try:
        if _QUOTA.exists():
            quota, period = _QUOTA.read_text().split()
        else:
            quota, period = _OLD_QUOTA.read_text().strip(), _OLD_PERIOD.read_text().strip()
        return max(0.0, int(quota) / int(period)) if quota != "max" else 0.0
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0


def limit_torch_threads() -> None:
    """Keep torch within `usable_cpus`: it counts all cores of the machine. Its own smaller number stays."""
    import torch

    if torch.get_num_threads() > usable_cpus():
        torch.set_num_threads(usable_cpus())


@functools.cache
def has_bf16() -> bool:
    """Return True if the processor multiplies bf16 itself; otherwise bf16 is slower than fp32."""
    try:
        text = _FLAGS.read_text()
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def may_have_accelerator() -> bool:
    """Return True if torch is likely to find a device faster than the processor, without loading torch."""
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    cards = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
    return apple or (not hidden and any(card.exists() for card in cards))
