"""Questions over real Nordic PDFs: is the gold page among the first three? `python -m bench.pages`.

All readable files of the collection are uploaded, so the gold page competes with about a hundred others. Two ranks are
reported: of the page among distinct pages, and of its best chunk among chunks.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import agentformer
from agentformer.settings import Settings, load_settings
from bench.data import DATA, Row, load


def main() -> int:
    ranks = []
    print("| question | gold page | rank of the page | rank of the chunk |")
    print("|---|---|---|---|")
    for query, by_page, by_chunk in measure(load_settings({"embedder": "minilm"})):
        ranks.append(by_page)
        print(f"| {query.text} | {', '.join(query.relevant)} | {by_page} | {by_chunk} |")
    missed = sum(rank > 3 for rank in ranks)
    print(f"\n{len(ranks) - missed} of {len(ranks)} gold pages among the first three")
    return 1 if missed else 0


def measure(settings: Settings, sample: int = 0) -> Iterator[tuple[Row, int, int]]:
    """Return each question, or the first `sample` of them, with the ranks of its page and of its best chunk."""
    data = load("nordic_pdf_qa")
    with (
        tempfile.TemporaryDirectory() as folder,
        agentformer.AgentFormer(
            dataclasses.replace(settings, index_dir=Path(folder, "index"), upload_dir=Path(folder, "up"))
        ) as af,
    ):
        for path in sorted((DATA / "pdfs" / "files").iterdir()):
            af.rag.upload(path)
        for query in data.queries[: sample or None]:
            hits = af.rag.query(query.text, top_k=10).hits
            chunks = [f"{h.entry.source.name}#p{h.entry.source.page - 1}" for h in hits if h.entry.source]
            yield query, _rank(list(dict.fromkeys(chunks)), query), _rank(chunks, query)


def _rank(found: list[str], query: Row) -> int:
    """Return the rank of the first relevant item, from 1; one more than the number of items if there is none."""
    return next((rank for rank, page in enumerate(found, 1) if page in query.relevant), len(found) + 1)


if __name__ == "__main__":
    sys.exit(main())
