"""The word index: tantivy (BM25) over our own terms, a follower of the change feed on disk.

Terms come analysed from `text.analysis`; tantivy only splits at spaces and scores. A manifest beside the
index says up to which `seq` it has followed. Any process brings the index up to date under one lock; an index
that cannot be read, does not fit its manifest, or is of another store or another analysis, is set aside and
rebuilt from the records.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tantivy
from filelock import FileLock

from agentformer.errors import StoreFull
from agentformer.index import manifest
from agentformer.index.scoping import Allowed
from agentformer.records import entries as records
from agentformer.records.database import Database
from agentformer.text.analysis import query_terms, text_terms
from agentformer.text.languages import detect_language
from agentformer.types import UNSEARCHED_KINDS, MemoryEntry

log = logging.getLogger("agentformer")

_HEAP = 64_000_000  # bytes that a writer gathers before it writes a segment
_GROUP = 2_000  # entries read from the records at a time
_TIES = 50  # times the limit that are looked at to put equals in order; more equals say nothing to order them by
_ANALYSIS = 1  # raised whenever the terms change: an index of other terms is rebuilt
_UNKNOWN = "und"  # ISO 639's code for a language not known
# How much a match counts in each field; chosen on development halves, see docs/BENCHMARKS.md.
BOOSTS = {"stems": 1.0, "surface": 0.1, "parts": 0.6}


class Match(NamedTuple):
    entry: int
    score: float  # BM25, unbounded, higher is better


class WordIndex:
    """BM25 search over entries. Thread-safe, and safe with other processes on the same folder."""

    def __init__(self, folder: Path, store_id: str) -> None:
        self._folder = folder
        self._identity = {"store": store_id, "analysis": _ANALYSIS}
        self._lock = threading.RLock()
        self._index: Any = None
        self._applied = -1
        self._point = ""  # the history's token at `_applied`
        self._languages: tuple[str, ...] = ()

    def refresh(self, database: Database) -> None:
        """Follow the records up to the newest acknowledged change."""
        with self._lock:
            with database.reading() as connection:
                newest = records.last_change(connection)
            if self._index is not None and self._applied >= newest:
                return
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(str(self._folder) + ".lock"):
                self._open()
                with database.reading() as connection:
                    newest = records.last_change(connection)
                    known = records.point(connection, self._applied)
                if self._applied and known != self._point:  # the records are another copy, put back in place
                    self._begin_anew()
                if self._applied < newest:
                    self._follow(database)

    def discard(self) -> None:
        """Delete the index: what was removed from it stays readable in its segments until they are merged. The
        next search builds it anew from the records."""
        with self._lock, FileLock(str(self._folder) + ".lock"):
            self._index, self._applied, self._point = None, -1, ""
            for folder in (self._folder, self._aside()):
                shutil.rmtree(folder, ignore_errors=True)

    def search(self, text: str, namespace: str, limit: int, allowed: Allowed) -> list[Match]:
        """The best `limit` entries of `namespace` among `allowed`, best first."""
        with self._lock:
            index, languages = self._index, self._languages
        if index is None:
            return []
        query = self._query(index.schema, text, languages, namespace)
        if query is None:
            return []
        searcher = index.searcher()
        limit, mask = min(limit, allowed.count), allowed.mask
        wanted = limit + 1
        while True:
            hits = searcher.search(query, limit=wanted, count=False).hits
            nums = searcher.fast_field_values("num", [address for _, address in hits])
            found = [
                Match(num, score) for (score, _), num in zip(hits, nums, strict=True) if num < len(mask) and mask[num]
            ]
            # Entries outside the scope may have filled the list, and equals may have been cut from its end:
            # tantivy orders equals by segment, which differs between two stores of the same entries.
            complete = len(found) > limit and (found[-1].score < found[limit - 1].score or wanted > limit * _TIES)
            if complete or len(hits) < wanted:
                return sorted(found, key=lambda match: (-match.score, match.entry))[:limit]
            wanted *= 4

    def _query(self, schema: Any, text: str, languages: Sequence[str], namespace: str) -> Any:
        terms = query_terms(text, languages)
        counts = Counter(
            [
                *(("stems", term) for term in terms.stems),
                *(("surface", term) for term in terms.surface),
                *(("parts", term) for term in terms.parts),
            ]
        )
        if not counts:
            return None
        should = [
            (tantivy.Occur.Should, tantivy.Query.boost_query(_term(schema, field, term), BOOSTS[field] * times))
            for (field, term), times in counts.items()
        ]
        inside = tantivy.Query.const_score_query(_term(schema, "namespace", namespace), 0.0)
        return tantivy.Query.boolean_query(
            [(tantivy.Occur.Must, tantivy.Query.boolean_query(should)), (tantivy.Occur.Must, inside)]
        )

    def _open(self) -> None:
        """Open or reload what is on disk, or begin anew when it is not ours or cannot be read."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            state = manifest.read(self._folder, verify=self._index is None)
            if self._index is None:
                self._index = tantivy.Index(_schema(), path=str(self._folder))
            self._index.reload()
            self._adopt(state or {**self._identity, "seq": 0, "point": ""})
        except manifest.Unfinished:
            shutil.rmtree(self._folder)
            self._begin_anew()
        except BaseException as error:
            _raise_if_full(error)
            # Tantivy answers some damage with a Rust panic, which is no `Exception`.
            if not isinstance(error, (ValueError, OSError, KeyError)) and type(error).__name__ != "PanicException":
                raise
            log.warning("the word index is rebuilt from the records: %s", error)
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._index = None
        self._set_aside()
        self._folder.mkdir(parents=True)
        self._index = tantivy.Index(_schema(), path=str(self._folder))
        self._applied, self._point = 0, ""

    def _adopt(self, state: Mapping[str, Any]) -> None:
        if {key: state.get(key) for key in self._identity} != self._identity:
            raise ValueError("the word index is of another store or of another analysis")
        self._applied, self._point = int(state["seq"]), str(state["point"])
        names = (name for name, _ in self._index.searcher().terms_with_prefix("language", ""))
        self._languages = tuple("" if name == _UNKNOWN else name for name in names)

    def _set_aside(self) -> None:
        if self._folder.exists():
            aside = self._aside()
            shutil.rmtree(aside, ignore_errors=True)
            self._folder.rename(aside)

    def _aside(self) -> Path:
        return self._folder.with_name(self._folder.name + ".damaged")

    def _follow(self, database: Database) -> None:
        manifest.clear(self._folder)
        writer = self._index.writer(heap_size=_HEAP, num_threads=1)
        try:
            with database.reading() as connection:
                newest = records.last_change(connection)
                state = {**self._identity, "seq": newest, "point": records.point(connection, newest)}
                changed = records.changed_since(connection, self._applied)
                for i in range(0, len(changed), _GROUP):
                    group = changed[i : i + _GROUP]
                    found = records.by_num(connection, group)
                    self._write(writer, group, found.get)
            writer.commit()
            writer.wait_merging_threads()
        except BaseException as error:
            _raise_if_full(error)
            raise
        manifest.write(self._folder, state)
        self._index.reload()
        self._adopt(state)

    def _write(self, writer: Any, nums: Sequence[int], find: Callable[[int], MemoryEntry | None]) -> None:
        for num in nums:
            if self._applied:
                writer.delete_documents_by_query(tantivy.Query.term_query(self._index.schema, "num", num))
            entry = find(num)
            if entry is not None and entry.kind not in UNSEARCHED_KINDS:
                writer.add_document(_document(num, entry))


def _raise_if_full(error: BaseException) -> None:
    """Tantivy tells every failure as a `ValueError`; one for lack of room is no damage and must not cost the index."""
    if any(text in str(error) for text in ("No space left", "Read-only file system", "Permission denied")):
        raise StoreFull(f"the word index cannot be written ({error}); free space or check permissions") from error


def _term(schema: Any, field: str, term: str) -> Any:
    return tantivy.Query.term_query(schema, field, term, "freq" if field in BOOSTS else "basic")


def _schema() -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("num", indexed=True, fast=True)
    for name in ("namespace", "language"):
        builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
    for name in BOOSTS:
        builder.add_text_field(name, tokenizer_name="whitespace", index_option="freq")
    return builder.build()


def _document(num: int, entry: MemoryEntry) -> Any:
    prior = entry.metadata.get("language")
    language = detect_language(entry.content, prior if isinstance(prior, str) else "")
    terms = text_terms(entry.content, language)
    context = text_terms(f"{entry.title} {entry.context}", language)
    document = tantivy.Document()
    document.add_unsigned("num", num)
    document.add_text("namespace", entry.namespace)
    document.add_text("language", language or _UNKNOWN)
    document.add_text("stems", " ".join((*terms.stems, *dict.fromkeys(context.stems))))
    document.add_text("surface", " ".join(terms.surface))
    document.add_text("parts", " ".join(terms.parts))
    return document
