"""Questions over real Nordic PDFs: is the gold page among the first three? `python -m bench.pages`.

All readable files of the collection are uploaded, so the gold page stands among some hundred others. Two ranks
are given: of the page among distinct pages, and of its best chunk among chunks (a page may have several).
"""

from __future__ import annotations

import sys
import tempfile

import agentformer
from bench.data import DATA, Row, load


def main() -> int:
    data = load("nordic_pdf_qa")
    missed = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        agentformer.connect(index_dir=f"{folder}/index", upload_dir=f"{folder}/up", embedder="minilm") as af,
    ):
        for path in sorted((DATA / "pdfs" / "files").iterdir()):
            af.rag.upload(path)
        print("| question | gold page | rank of the page | rank of the chunk |")
        print("|---|---|---|---|")
        for query in data.queries:
            hits = af.rag.query(query.text, top_k=10).hits
            chunks = [f"{h.entry.source.name}#p{h.entry.source.page - 1}" for h in hits if h.entry.source]
            by_page, by_chunk = _rank(list(dict.fromkeys(chunks)), query), _rank(chunks, query)
            missed += by_page > 3
            print(f"| {query.text} | {', '.join(query.relevant)} | {by_page} | {by_chunk} |")
    print(f"\n{len(data.queries) - missed} of {len(data.queries)} gold pages among the first three")
    return 1 if missed else 0


def _rank(found: list[str], query: Row) -> int:
    """The first relevant one's rank, from 1; one more than were found where there is none."""
    return next((rank for rank, page in enumerate(found, 1) if page in query.relevant), len(found) + 1)


if __name__ == "__main__":
    sys.exit(main())
