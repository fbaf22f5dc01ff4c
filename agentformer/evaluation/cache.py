"""Embeds texts once for many evaluations: an embedder that keeps its vectors in a file."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from agentformer.errors import StoreFull
from agentformer.records.vectors import text_hash
from agentformer.settings.access import create_empty, make_folder
from agentformer.types import Embedder, EmbeddingSpace, Matrix, Span, Vector

OWN = "agentformer-optimize"
_BATCH = 500  # keys of one statement; well below every SQLite's limit of bound variables
_DEFAULT_REQUEST = 64  # texts in a request, if the embedder does not define `request_texts`
_DOCUMENT, _QUERY = b"d", b"q"  # a model may embed a document and a query differently
_TABLE = "CREATE TABLE IF NOT EXISTS rows (text BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID"


def work_folder(work: Path) -> Path:
    """Return the folder inside `work` in which evaluations change and delete files."""
    return work / OWN


@contextmanager
def using(folder: Path) -> Iterator[None]:
    """Raise errors of the disk and of SQLite in the `with` block as `StoreFull`."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreFull(f"{folder} cannot be used ({reason}); choose another folder with --work") from error


class Rows:
    """Values under keys in an SQLite file. A row that was put survives a crash if `durable` is true. Raises `StoreFull`
    if the file cannot be used."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self._folder = path.parent
        with using(self._folder):
            make_folder(path.parent)
            create_empty(path)
            self._file = sqlite3.connect(path, check_same_thread=False)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._file.execute(_TABLE)

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return key -> value. A key without a row is left out."""
        rows: dict[bytes, bytes] = {}
        with using(self._folder):
            for start in range(0, len(keys), _BATCH):
                group = keys[start : start + _BATCH]
                marks = ",".join("?" * len(group))
                rows |= self._file.execute(f"SELECT text, data FROM rows WHERE text IN ({marks})", group).fetchall()
        return rows

    def put(self, rows: Mapping[bytes, bytes]) -> None:
        """Store the rows in one transaction."""
        with using(self._folder), self._file:
            self._file.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", rows.items())

    def close(self) -> None:
        self._file.close()


class CachingEmbedder:
    """An embedder that keeps the vectors of another embedder in a file of the work folder, one file for each embedding
    space, so that equal texts are embedded once. Thread-safe. Raises the errors of the other embedder, and `StoreFull`
    if the file cannot be used."""

    def __init__(self, inner: Embedder, work: Path) -> None:
        self._inner = inner
        self._folder = work_folder(work)
        self._lock = threading.Lock()
        self._opened: tuple[EmbeddingSpace, Rows] | None = None
        self.embedded = 0  # texts that `inner` has embedded
        self.before: Callable[[], None] = lambda: None  # called before a request of `inner`; may raise, to prevent it

    @property
    def space(self) -> EmbeddingSpace:
        return self._inner.space

    @property
    def request_texts(self) -> int:
        """The number of texts that the cached embedder accepts in one request."""
        return int(getattr(self._inner, "request_texts", _DEFAULT_REQUEST))

    def token_spans(self, text: str) -> list[Span]:
        return self._inner.token_spans(text)

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Return one vector for each text. Only texts that are not in the file are embedded."""
        if not texts:
            return np.zeros((0, self.space.dimension), dtype=np.float32)
        return self._vectors(_DOCUMENT, texts, self._inner.embed_documents)

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query. The query is embedded only if its vector is not in the file."""
        vector: Vector = self._vectors(_QUERY, [text], lambda texts: self._inner.embed_query(texts[0])[np.newaxis])[0]
        return vector

    def close(self) -> None:
        """Close the file of vectors. If the embedder is used again, the file is opened again."""
        with self._lock:
            if self._opened:
                self._opened[1].close()
                self._opened = None

    def _vectors(self, kind: bytes, texts: Sequence[str], embed: Callable[[Sequence[str]], Matrix]) -> Matrix:
        """Return one row for each text, float32[texts, dimension]. Only texts without a stored vector are embedded."""
        keys = [kind + text_hash(text) for text in texts]
        with self._lock:
            rows = self._rows()
            size = self.space.dimension * 4  # bytes of a vector
            data = {key: row for key, row in rows.get(keys).items() if len(row) == size}
            if missing := {key: text for key, text in zip(keys, texts, strict=True) if key not in data}:
                self.before()
                vectors = np.ascontiguousarray(embed(list(missing.values())), dtype="<f4")
                self.embedded += len(missing)
                new = {key: vector.tobytes() for key, vector in zip(missing, vectors, strict=True)}
                rows.put(new)
                data |= new
        matrix = np.frombuffer(b"".join(data[key] for key in keys), "<f4")
        return matrix.astype(np.float32).reshape(len(keys), -1)

    def _rows(self) -> Rows:
        """Return the rows of the present space. The embedder may change to another space."""
        if self._opened is None or self._opened[0] != self.space:
            rows = Rows(self._folder / f"vectors-{short_name(self.space)}.sqlite3", durable=False)
            if self._opened:
                self._opened[1].close()
            self._opened = self.space, rows
        return self._opened[1]


def short_name(space: EmbeddingSpace) -> str:
    """Return a hexadecimal name (16 characters) of an embedding space, for the names of files. Two spaces that differ
    only in their token limit have the same name; all other spaces have different names."""
    fields = json.dumps({**asdict(space), "max_tokens": 0}, sort_keys=True)
    return hashlib.blake2b(fields.encode(), digest_size=8).hexdigest()
