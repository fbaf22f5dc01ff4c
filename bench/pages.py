"""Questions over real PDFs: is the gold page among the first ones? `python -m bench.pages [filings]`.

All readable files of the collection are uploaded, so a gold page competes with all pages of all files. `nordic_pdf_qa`
(the default) has a gold page for each question; `filings` are questions over the filings of ten companies, some of
which need several pages. Two ranks are reported: of the first gold page among distinct pages, and of its best chunk
among chunks.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import agentformer
from agentformer.settings import Settings, load_settings
from agentformer.types import Query, Scope
from bench.data import DATA, Row, load

_HITS = 60  # chunks that are read for each question, so that ten distinct pages are among them
NORDIC, FILINGS = "nordic_pdf_qa", "filings"


class Asked(NamedTuple):
    """A question, the pages that were found, best first, and the ranks of its first gold page and its best chunk."""

    query: Row
    pages: Sequence[str]
    by_page: int
    by_chunk: int

    def recall(self, k: int) -> float:
        """Return the share of the gold pages among the first `k` distinct pages."""
        return len({*self.query.relevant} & {*self.pages[:k]}) / len(self.query.relevant)


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else NORDIC
    asked = []
    print("| question | gold page | rank of the page | rank of the chunk |")
    print("|---|---|---|---|")
    for one in measure(load_settings({"embedder": "minilm"}), name=name):
        asked.append(one)
        print(f"| {one.query.text} | {', '.join(one.query.relevant)} | {one.by_page} | {one.by_chunk} |", flush=True)
    for half, rows in (("all", asked), ("even", asked[::2]), ("odd", asked[1::2])):
        means = [f"{sum(one.recall(k) for one in rows) / len(rows):.3f} among the first {k}" for k in (3, 10)]
        print(f"\n{half} questions: share of the gold pages {', '.join(means)}")
    missed = sum(one.by_page > 3 for one in asked)
    return 1 if missed and name == NORDIC else 0


def measure(settings: Settings, sample: int = 0, name: str = NORDIC) -> Iterator[Asked]:
    """Yield each question of a set, or the first `sample` questions, with what was found."""
    queries = _filings() if name == FILINGS else load(name).queries
    with (
        tempfile.TemporaryDirectory() as folder,
        agentformer.AgentFormer(
            dataclasses.replace(settings, index_dir=Path(folder, "index"), upload_dir=Path(folder, "up"))
        ) as af,
    ):
        for path in sorted((DATA / (f"{FILINGS}/pdfs" if name == FILINGS else "pdfs/files")).iterdir()):
            af.rag.upload(path)
        for query in queries[: sample or None]:
            hits = af.backend.search(Query(query.text, Scope(kinds=("chunk",)), limit=_HITS))
            chunks = [f"{h.entry.source.name}#p{(h.entry.source.page or 0) - 1}" for h in hits if h.entry.source]
            pages = list(dict.fromkeys(chunks))
            yield Asked(query, pages, _rank(pages, query), _rank(chunks, query))


def _filings() -> list[Row]:
    lines = (DATA / FILINGS / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        Row(row["id"], row["text"], tuple(f"{row['file']}#p{page - 1}" for page in row["pages"]))
        for row in map(json.loads, lines)
    ]


def _rank(found: list[str], query: Row) -> int:
    """Return the rank of the first relevant item, from 1; one more than the number of items if there is none."""
    return next((rank for rank, page in enumerate(found, 1) if page in query.relevant), len(found) + 1)


if __name__ == "__main__":
    sys.exit(main())
