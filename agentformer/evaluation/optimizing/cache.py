"""The work folder of an optimisation, and an embedder that caches vectors in this folder."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from agentformer.errors import StoreFull
from agentformer.records.vectors import text_hash
from agentformer.types import Embedder, EmbeddingSpace, Matrix, Span, Vector

OWN = "agentformer-optimize"


def work_folder(work: Path) -> Path:
    """Return the folder inside `work` that belongs to optimisations. An optimisation changes and deletes nothing
    outside of this folder."""
    return work / OWN


_BATCH = 500  # hashes of one statement; well below every SQLite's limit of bound variables
_WHOLE = 64  # texts in a request, if the embedder does not define `request_texts`
_DOCUMENT, _QUERY = b"d", b"q"  # a model may embed a document and a query differently
_TABLE = "CREATE TABLE IF NOT EXISTS rows (text BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID"


class CachingEmbedder:
    """An embedder that caches vectors, so that each text is embedded once. Each embedding space has a file in the work
    folder.

    Stores with different chunk sizes share most texts, and all stores are searched with the same questions.
    Thread-safe. Raises the errors of the wrapped embedder, and `StoreFull` if the file cannot be used.
    """

    def __init__(self, inner: Embedder, work: Path) -> None:
        self._inner = inner
        self._folder = work_folder(work)
        self._lock = threading.Lock()
        self._opened: tuple[EmbeddingSpace, sqlite3.Connection] | None = None
        self.embedded = 0  # texts that `inner` has embedded
        self.on_embedded: Callable[[int], None] | None = None  # called with `embedded` when it has grown

    @property
    def space(self) -> EmbeddingSpace:
        return self._inner.space

    @property
    def request_texts(self) -> int:
        """The number of texts in a request of the wrapped embedder."""
        return int(getattr(self._inner, "request_texts", _WHOLE))

    def token_spans(self, text: str) -> list[Span]:
        return self._inner.token_spans(text)

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return the vectors of `texts`; see `Embedder`."""
        keys = [_DOCUMENT + text_hash(text) for text in texts]
        with self._lock:
            rows = self._cached(keys)
            missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in rows}
            if missing:
                vectors = self._inner.embed_documents(list(missing.values()))
                self._store(missing, vectors)
                rows.update(zip(missing, vectors, strict=True))
        return np.stack([rows[key] for key in keys]) if keys else np.zeros((0, self.space.dimension), dtype=np.float32)

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query; see `Embedder`."""
        key = _QUERY + text_hash(text)
        with self._lock:
            if (row := self._cached([key]).get(key)) is None:
                row = self._inner.embed_query(text)
                self._store([key], row[np.newaxis])
        return row

    def close(self) -> None:
        """Close the file. A later call opens the file again. A second call of `close` does nothing."""
        with self._lock:
            if self._opened:
                self._opened[1].close()
                self._opened = None

    def _cached(self, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return key -> vector for the cached keys."""
        cached: dict[bytes, Vector] = {}
        size = self.space.dimension * 4
        with self._file() as rows:
            for start in range(0, len(keys), _BATCH):
                group = keys[start : start + _BATCH]
                marks = ",".join("?" * len(group))
                for key, data in rows.execute(f"SELECT text, data FROM rows WHERE text IN ({marks})", group):
                    if len(data) == size:
                        cached[key] = np.frombuffer(data, "<f4").astype(np.float32, copy=False)
        return cached

    def _store(self, keys: Iterable[bytes], vectors: Matrix) -> None:
        data = np.ascontiguousarray(vectors, dtype="<f4")
        self.embedded += len(data)
        if self.on_embedded:
            self.on_embedded(self.embedded)
        with self._file() as rows, rows:
            rows.executemany(
                "INSERT OR REPLACE INTO rows VALUES (?, ?)",
                ((key, row.tobytes()) for key, row in zip(keys, data, strict=True)),
            )

    @contextmanager
    def _file(self) -> Iterator[sqlite3.Connection]:
        """Yield the open file of the current space."""
        space = self.space
        try:
            if self._opened is None or self._opened[0] != space:
                self._folder.mkdir(parents=True, exist_ok=True)
                connection = sqlite3.connect(
                    self._folder / f"vectors-{short_name(space)}.sqlite3", check_same_thread=False
                )
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")  # a vector that is lost is embedded again
                connection.execute(_TABLE)
                if self._opened:
                    self._opened[1].close()
                self._opened = space, connection
            yield self._opened[1]
        except (OSError, sqlite3.Error) as error:
            raise StoreFull(
                f"the cached vectors in {self._folder} cannot be used ({error}); choose another folder with --work"
            ) from error


def short_name(space: EmbeddingSpace) -> str:
    """Return a short name that is unique for each space."""
    fields = json.dumps({**asdict(space), "max_tokens": 0}, sort_keys=True)
    return hashlib.blake2b(fields.encode(), digest_size=8).hexdigest()
