"""The work folder of an optimisation. It contains the cached vectors and the journal of measurements.

The journal is a file with one line for each measurement of a configuration (a set of settings). A crash at any moment
does not damage the journal. The first line describes the passages, questions, model, version and fixed settings that
the measurements depend on. If one of these has changed, the old measurements are deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from agentformer.errors import EmbedderUnavailable, StoreFull
from agentformer.evaluation.optimizing.space import Configuration, key
from agentformer.records.integrity.files import read_file, write_atomically
from agentformer.records.vectors import text_hash
from agentformer.settings.access import create_empty, make_folder, opener
from agentformer.types import Embedder, EmbeddingSpace, Matrix, Span, Vector

OWN = "agentformer-optimize"
ANOTHER_FOLDER = "; choose another folder with --work"
_BATCH = 500  # hashes of one statement; well below every SQLite's limit of bound variables
_DEFAULT_REQUEST = 64  # texts in a request, if the embedder does not define `request_texts`
_DOCUMENT, _QUERY = b"d", b"q"  # a model may embed a document and a query differently
_TABLE = "CREATE TABLE IF NOT EXISTS rows (text BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID"


def work_folder(work: Path) -> Path:
    """Return the folder inside `work` in which optimisations change and delete files."""
    return work / OWN


@contextmanager
def writing(path: Path, advice: str = "", *, verb: str = "written") -> Iterator[None]:
    """Replace an `OSError` that the `with` block raises by `StoreFull`. The message consists of `path`, the words
    "cannot be", `verb`, the reason and `advice`."""
    try:
        yield
    except OSError as error:
        raise StoreFull(f"{path} cannot be {verb} ({error.strerror or error}){advice}") from error


class CachingEmbedder:
    """An embedder that keeps the vectors of another embedder in the work folder, in one file for each embedding space.
    So the many equal texts in the stores of an optimisation are embedded only once. Thread-safe. Raises the errors of
    the other embedder, and `StoreFull` if the file cannot be used."""

    def __init__(self, inner: Embedder, work: Path) -> None:
        self._inner = inner
        self._folder = work_folder(work)
        self._lock = threading.Lock()
        self._opened: tuple[EmbeddingSpace, sqlite3.Connection] | None = None
        self.embedded = 0  # texts that `inner` has embedded
        self.on_embedded: Callable[[int], None] | None = None  # called with `embedded` when it has grown
        self._pace = 0.0  # seconds for one text in the last request for passages
        # Called with the expected seconds of a request. If it returns False, the texts of the request are not embedded.
        self.has_time: Callable[[float], bool] = lambda seconds: True

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
        """Return one vector for each text. Only texts that are not in the cache are embedded. Raises
        `EmbedderUnavailable` before the embedding if the time left is probably too short for these texts."""
        keys = [_DOCUMENT + text_hash(text) for text in texts]
        with self._lock:
            rows = self._cached(keys)
            missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in rows}
            if missing:
                if not self.has_time(self._pace * len(missing)):
                    raise EmbedderUnavailable("the time budget is over")
                started = time.monotonic()
                vectors = self._inner.embed_documents(list(missing.values()))
                self._pace = (time.monotonic() - started) / len(missing)
                self._store(missing, vectors)
                rows.update(zip(missing, vectors, strict=True))
        return np.stack([rows[key] for key in keys]) if keys else np.zeros((0, self.space.dimension), dtype=np.float32)

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query. The query is embedded only if it is not in the cache."""
        key = _QUERY + text_hash(text)
        with self._lock:
            if (row := self._cached([key]).get(key)) is None:
                row = self._inner.embed_query(text)
                self._store([key], row[np.newaxis])
        return row

    def close(self) -> None:
        """Close the file of vectors. If the embedder is used again, the file is opened again."""
        with self._lock:
            if self._opened:
                self._opened[1].close()
                self._opened = None

    def _cached(self, keys: Sequence[bytes]) -> dict[bytes, Vector]:
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
        space = self.space
        try:
            if self._opened is None or self._opened[0] != space:
                path = self._folder / f"vectors-{short_name(space)}.sqlite3"
                make_folder(self._folder)
                create_empty(path)
                connection = sqlite3.connect(path, check_same_thread=False)
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
    """Return a hexadecimal name (16 characters) of an embedding space, for the names of files. Two spaces that differ
    only in their token limit have the same name; all other spaces have different names."""
    fields = json.dumps({**asdict(space), "max_tokens": 0}, sort_keys=True)
    return hashlib.blake2b(fields.encode(), digest_size=8).hexdigest()


Half = Literal["development", "test"]


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one configuration with the questions of `half`, one of the two halves of all questions. `ranks` has
    an item for each question, in order: the ranks of its relevant passages, from 1. A rank is None if the passage is
    not among the first ten. `seconds` is the duration of the measurement. If the configuration cannot run on this
    machine, `ranks` is empty, and `skipped` is the reason. The journal does not store such a result, because a missing
    package may be installed later."""

    configuration: Configuration
    half: Half
    ranks: tuple[tuple[int | None, ...], ...]
    seconds: float
    skipped: str = ""


class Journal:
    """The measurements of one optimisation, stored in a file. `about` describes the inputs that the measurements depend
    on. If the file has the same `about`, its measurements are used. Otherwise, the journal starts empty, and
    `reset_reason` is the reason. Raises `StoreFull` if the file cannot be written."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path = path
        self._measurements: dict[tuple[str, Half], Measured] = {}
        about = json.loads(json.dumps(about))
        self.reset_reason = ""
        with writing(path, ANOTHER_FOLDER):
            header, measured, valid_bytes = _read(path)
            if header != about:
                changed = sorted(name for name in {*header, *about} if header.get(name) != about.get(name))
                self.reset_reason = (
                    f"changed since the last run: {', '.join(changed)}" if header else "there was no earlier run"
                )
                write_atomically(path, _line(about))
            else:
                self._measurements = {(key(one.configuration), one.half): one for one in measured}
                os.truncate(path, valid_bytes)  # removes an incomplete line at the end
            self._file = open(path, "ab", opener=opener)  # noqa: SIM115 - closed by `close`

    def find(self, configuration: Configuration, half: Half) -> Measured | None:
        """Return the stored measurement of a configuration with the questions of a half, or None."""
        return self._measurements.get((key(configuration), half))

    def add(self, measured: Measured) -> None:
        """Add a measurement. The measurement is on disk when this method returns."""
        self._measurements[key(measured.configuration), measured.half] = measured
        values = {name: getattr(measured, name) for name in ("configuration", "half", "seconds", "ranks")}
        with writing(self._path):
            self._file.write(_line({**values, "seconds": round(measured.seconds, 3)}))
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._measurements)


def _read(path: Path) -> tuple[dict[str, Any], Sequence[Measured], int]:
    """Read a journal. Return (header, measurements, number of bytes of the valid lines). The header is the first line
    of the file; it is empty if the file is missing or is not a journal."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        return {}, (), 0
    header: dict[str, Any] = {}
    measured: list[Measured] = []
    valid_bytes = 0
    for number, line in enumerate(data.splitlines(keepends=True)):
        try:
            given = json.loads(line)
            if not line.endswith(b"\n") or not isinstance(given, dict):
                break
            if number:
                measured.append(_measured(given))
            else:
                header = given
        except (ValueError, KeyError, TypeError):
            break
        valid_bytes += len(line)
    return header, measured, valid_bytes


def _measured(given: Mapping[str, Any]) -> Measured:
    ranks = tuple(tuple(None if rank is None else int(rank) for rank in row) for row in given["ranks"])
    return Measured(given["configuration"], given["half"], ranks, float(given["seconds"]))


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"
