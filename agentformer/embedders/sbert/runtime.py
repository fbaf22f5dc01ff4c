"""Runs a model on torch. The module also contains what torch and OpenVINO both need: facts about a model, the search
for its files, and the number of usable processors."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import platform
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agentformer.embedders.hub import local_folder
from agentformer.embedders.model_info import PROBES, QUICK_PROBES, fingerprint, mean_cosine, unit
from agentformer.errors import AgentFormerError, EmbedderUnavailable, install_command
from agentformer.types import Matrix, Span, Vector, spans_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Vectors of two runtimes may be in one index if their mean cosine over the probe texts is at least this.
SAME_SPACE = 0.9999
ADVICE = "check the connection to the model hub, or use --embedder multilingual"
_NO_ANSWER = "it is not cached, and the model hub does not answer"
_HUB_SECONDS = 3.0  # a hub that is reachable answers sooner; the start must not wait long for a hub that is not
_FLAGS = Path("/proc/cpuinfo")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # version 2: "200000 100000", or "max 100000"
_OLD_QUOTA = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
_OLD_PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


class Tokenized(NamedTuple):
    """The tokens of one text. `length` is the number of tokens, special tokens included. `content` is the text itself
    for torch, and the list of token ids for OpenVINO."""

    length: int
    content: Any


class TokenRows(NamedTuple):
    """The vector of a text, and the offsets and the vectors of its tokens, without special tokens. The vectors are not
    scaled to the length 1."""

    row: Vector
    offsets: list[tuple[int, int]]
    rows: Matrix


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Properties of a model that are the same on torch and on OpenVINO."""

    dimension: int
    max_tokens: int  # limit of the model, special tokens included
    special_tokens: int  # added to every text
    vocabulary: int
    prompts: Mapping[str, str]  # by name, from the model's configuration
    fingerprint: str  # fingerprint of the fp32 rows; for a quantized model, of its own rows


class TorchRuntime:
    """A model that torch runs on `device`; if this is empty, torch chooses the device. On a processor that supports the
    format bf16, the model runs in bf16, unless the vectors then differ from the vectors in float32. `bf16` says whether
    the processor supports bf16; with None, this is tested. Thread-safe."""

    def __init__(self, model: str, *, local_only: bool = False, device: str = "", bf16: bool | None = None) -> None:
        self.model = load_model(model, local_only=local_only, device=device)
        self._tokenizer: Any = self.model.tokenizer
        self._lock = threading.Lock()  # a fast tokenizer fails if two threads use it at the same time
        if self.model.device.type == "cpu":
            limit_torch_threads()
            self.model.float()  # weights saved in half precision are slow here
        reference = self._encode(list(PROBES[:QUICK_PROBES]))
        self.facts = facts_of(self.model, reference)
        if self.model.device.type == "cpu" and (has_bf16() if bf16 is None else bf16):
            self._try_bf16(reference)

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Return the number of tokens of each text, together with the text. No text is cut."""
        texts = [replace_surrogates(text) for text in texts]
        with self._lock:
            encoded = self._tokenizer(texts, add_special_tokens=True, truncation=False, verbose=False)
        return [Tokenized(len(ids), text) for ids, text in zip(encoded["input_ids"], texts, strict=True)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the start and the end of each token in the text. Special tokens are left out."""
        with self._lock:
            return token_offsets(self._tokenizer, replace_surrogates(text))

    def rows(self, batch: Sequence[Tokenized]) -> Matrix:
        """Return the vectors of the texts in the batch: a float32 array of shape (len(batch), dimension). The vectors
        are not scaled to the length 1."""
        return self._encode([item.content for item in batch])

    query_rows = rows

    def rows_of(self, batches: Sequence[Sequence[Tokenized]]) -> Iterator[Matrix]:
        """Yield the vectors of the texts of all batches, in order, as `rows` returns them. An array has the vectors of
        one batch or of a part of it."""
        return map(self.rows, batches)

    def token_rows_of(self, batches: Sequence[Sequence[str]]) -> Iterator[list[TokenRows]] | None:
        """Yield the vectors of the texts of each batch and of their tokens, in order. Return None if the model has no
        vectors of tokens."""
        read = [self._token_rows(texts) for texts in batches]
        return None if None in read else iter([rows for rows in read if rows is not None])

    def _token_rows(self, texts: Sequence[str]) -> list[TokenRows] | None:
        """Return None if the tokenizer has no offsets of tokens, or the model no vectors of tokens."""
        texts = [replace_surrogates(text) for text in texts]
        with self._lock:
            if not self._tokenizer.is_fast:
                return None
            encoded = self._tokenizer(texts, return_offsets_mapping=True, return_special_tokens_mask=True)
            read = self.model.encode(texts, prompt="", output_value=None, show_progress_bar=False)
        if not all("token_embeddings" in each for each in read):
            return None
        offsets, special = encoded["offset_mapping"], encoded["special_tokens_mask"]
        return [
            inner_tokens(
                each["sentence_embedding"].float().cpu().numpy(),
                offsets[n],
                each["token_embeddings"].float().cpu().numpy(),
                special[n],
            )
            for n, each in enumerate(read)
        ]

    def has_unknown(self, item: Tokenized) -> bool:
        """Return True: whether a text has unknown tokens is not looked up on torch."""
        return True

    def padded(self, length: int) -> int:
        """Return 0 (no padded length): on torch, padding cannot give a text the same vector in a batch as alone."""
        return 0

    def _encode(self, texts: list[str]) -> Matrix:
        with self._lock:
            rows = self.model.encode(
                texts,
                prompt="",  # the texts already have their prefix; without this the model would add its default prompt
                batch_size=len(texts),
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return np.asarray(rows, dtype=np.float32)

    def _try_bf16(self, reference: Matrix) -> None:
        import torch

        fp32 = {name: weights.detach().clone() for name, weights in self.model.state_dict().items()}
        self.model.to(torch.bfloat16)
        if mean_cosine(self._encode(list(PROBES[:QUICK_PROBES])), reference) < SAME_SPACE:
            self.model.float()
            self.model.load_state_dict(fp32)  # restores the weights from before the rounding to bf16


def load_model(model: str, *, local_only: bool, device: str) -> SentenceTransformer:
    """Load a model by its name on the model hub or by its folder. With `local_only`, nothing is downloaded. Raise
    `EmbedderUnavailable` if the model cannot be loaded."""
    with loading(EmbedderUnavailable, f"the model {model!r}", ADVICE):
        if not local_only and local_folder(model) is None and (reason := _why_not_downloaded(model)):
            raise EmbedderUnavailable(f"the model {model!r} cannot be loaded: {reason}; {ADVICE}")
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(model, local_files_only=local_only, device=device or None)


@contextmanager
def loading(error: type[AgentFormerError], subject: str, advice: str) -> Iterator[None]:
    """A context manager for code that loads a model with sentence-transformers. It converts any exception in the `with`
    block to the class `error`. Exceptions of the classes of agentformer are raised unchanged. The new message begins
    with `subject` and ends with `advice`."""
    try:
        import sentence_transformers  # noqa: F401
        from transformers.utils import logging as transformers_logging
    except ImportError:
        raise error(f"sentence-transformers is not installed; install it: {install_command('sbert')}") from None
    transformers_logging.disable_progress_bar()  # loading takes a second
    try:
        yield
    except AgentFormerError:
        raise
    except Exception as cause:  # the hub's client, transformers and torch raise different classes
        reason = str(cause).strip().split("\n", 1)[0][:200]
        raise error(
            f"{subject} could not be loaded ({type(cause).__name__}: {reason}); give the folder of the model, {advice}"
        ) from cause


def facts_of(model: SentenceTransformer, reference: Matrix) -> ModelFacts:
    """Return properties of a model that torch has loaded, such as its dimension and token limit. `reference` contains
    the vectors that the model computes for the first few probe texts, which are fixed texts. The fingerprint of the
    model is made from them."""
    tokenizer: Any = model.tokenizer
    return ModelFacts(
        dimension=reference.shape[1],
        max_tokens=int(model.max_seq_length or tokenizer.model_max_length),
        special_tokens=len(tokenizer("", add_special_tokens=True)["input_ids"]),
        vocabulary=len(tokenizer),
        prompts={name: text for name, text in (model.prompts or {}).items() if text},
        fingerprint=fingerprint(unit(reference)[0]),
    )


def _why_not_downloaded(name: str) -> str:
    """Return the reason why a model that is not cached cannot be downloaded now, or "" if no reason is known. The
    function only tests whether the model hub answers, and not whether the hub has the model. If `HF_HUB_OFFLINE` or a
    proxy is set, no request is sent, because its result would not show what the hub's client does with these
    settings."""
    import urllib.request  # imports TLS

    from huggingface_hub import hf_hub_url
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE or urllib.request.getproxies():
        return ""
    repository = name if "/" in name else f"sentence-transformers/{name}"
    try:
        url = hf_hub_url(repository, "config.json")
    except ValueError:  # no repository can have this name
        return ""
    return "" if _hub_answers(url) else _NO_ANSWER


def _hub_answers(url: str) -> bool:
    """Return True if the model hub answers a request, whatever it says. The request is not sent with the hub's client,
    because this client retries for minutes."""
    import ssl
    import urllib.error
    import urllib.request

    try:
        urllib.request.urlopen(url, timeout=_HUB_SECONDS).close()  # noqa: S310
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError) as error:
        return isinstance(getattr(error, "reason", None), ssl.SSLError)
    return True


def replace_surrogates(text: str) -> str:
    """Return the text with "?" in place of each lone surrogate, because the tokenizers are written in Rust, whose
    strings cannot contain surrogates. The positions of all other characters stay the same."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def token_offsets(tokenizer: Any, text: str) -> list[tuple[int, int]]:
    """Return the start and the end of each token in the text. Special tokens are left out. The caller must hold a lock
    for the tokenizer, because a fast tokenizer of transformers fails if two threads use it at the same time."""
    offsets: list[tuple[int, int]] = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
    )["offset_mapping"]
    return offsets


def inner_tokens(row: Vector, offsets: Sequence[tuple[int, int]], rows: Matrix, special: Sequence[int]) -> TokenRows:
    """Return the vectors of a text and of its tokens. `row` is the vector of the text. `offsets`, `rows` (the vectors)
    and `special` have one element for each token. Special tokens and padding, which have 1 in `special`, are left
    out."""
    kept = [n for n, mark in enumerate(special) if not mark]
    return TokenRows(row, [offsets[n] for n in kept], rows[kept])


def token_spans(offsets: Sequence[tuple[int, int]]) -> list[Span]:
    """Return the start and the end of each token, without overlaps. `offsets` may overlap, because a tokenizer may
    split the bytes of one character into several tokens."""
    numbers = [*chain.from_iterable(offsets)]
    if numbers == sorted(numbers):  # as usual; the loop takes several times as long
        return spans_of(offsets)
    spans: list[Span] = []
    end = 0
    for start, stop in offsets:
        start = max(start, end)
        end = max(stop, start)
        spans.append(Span(start, end))
    return spans


def usable_cpus() -> int:
    """Return the number of threads that a model may use, which is at least 1. The number is the smallest of three
    limits: the processors that this process may use, the processor quota of the container, and `OMP_NUM_THREADS`."""
    limits = [len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1]
    if quota := _quota():
        limits.append(math.ceil(quota))
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if threads.isdecimal() and int(threads):
        limits.append(int(threads))
    return max(1, min(limits))


def _quota() -> float:
    """Return the number of processors that the container may use, such as 1.5. Return 0.0 if there is no limit."""
    try:
        if _QUOTA.exists():
            quota, period = _QUOTA.read_text().split()
        else:
            quota, period = _OLD_QUOTA.read_text().strip(), _OLD_PERIOD.read_text().strip()
        return max(0.0, int(quota) / int(period)) if quota != "max" else 0.0
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0


def limit_torch_threads() -> None:
    """Set the number of torch's threads to at most `usable_cpus()`. Without this limit, torch uses a thread for each
    core of the machine, also in a container that may use fewer cores."""
    import torch

    torch.set_num_threads(min(torch.get_num_threads(), usable_cpus()))


def package_version(package: str) -> str:
    """Return the version of an installed package, or "" if it is not installed. The version is read from the name of
    the folder with the package's metadata. `importlib.metadata` is used only if there is no such folder, or more than
    one, because importing this module takes longer than opening a store."""
    name = package.replace("-", "_")
    spec = importlib.util.find_spec(name)
    place = Path(spec.origin).parent.parent if spec and spec.origin else Path()
    folders = [path.name for path in place.glob(f"{name}-*.dist-info")] if spec and spec.origin else []
    if len(folders) == 1:
        return folders[0].removeprefix(f"{name}-").removesuffix(".dist-info")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@functools.cache
def has_bf16() -> bool:
    """Return True if the processor has instructions for bf16. On other processors, bf16 is slower than float32."""
    try:
        text = _FLAGS.read_text()
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def may_have_accelerator() -> bool:
    """Return True if this machine seems to have a GPU that torch can use. This is a guess from files and environment
    variables, because importing torch is slow."""
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    cards = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
    return apple or (not hidden and any(card.exists() for card in cards))
