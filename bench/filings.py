"""Questions over ten company filings in one memory: do the hits and the context hold the gold evidence?
`python -m bench.filings`.

Evidence counts as held if a passage of its page is there ("page"), and by the share of its words ("words"). The
context has the default budget. Its constants (`rag/answer/context.py`) were chosen with the even questions; the odd
ones report.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import agentformer
from bench.data import DATA

FILINGS = DATA / "filings"
_WORD = re.compile(r"[\w.,%]+")
_HALF = 0.5  # of the words of the evidence

Place = tuple[str, int | None]


def main() -> int:
    questions = [json.loads(line) for line in (FILINGS / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    with (
        tempfile.TemporaryDirectory() as folder,
        agentformer.connect(index_dir=f"{folder}/index", upload_dir=f"{folder}/up", embedder="minilm") as af,
    ):
        for path in sorted((FILINGS / "pdfs").iterdir()):
            af.rag.upload(path)
        held = [measure(af, question) for question in questions]
    print("| passages | questions | page | half of the words | words | tokens |")
    print("|---|---|---|---|---|---|")
    for name in held[0]:
        for half, part in (("all", held), ("even", held[::2]), ("odd", held[1::2])):
            rows = [row[name] for row in part]
            shares = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
            print(f"| {name} | {half} | {' | '.join(f'{share:.3f}' for share in shares[:3])} | {shares[3]:.0f} |")
    return 0


def measure(af: agentformer.AgentFormer, question: dict[str, Any]) -> dict[str, tuple[float, float, float, float]]:
    """Return for the first hits and for the context: whether they hold a page of the evidence (0 or 1), whether they
    hold half of its words (0 or 1), the share of its words (0..1), and the number of their tokens."""
    hits = af.rag.query(question["text"], top_k=10).hits
    chunks = [((h.entry.source.name, h.entry.source.page), h.entry.content) for h in hits if h.entry.source]
    context = af.rag.context(question["text"])
    passages = [((p.document, p.page), p.text) for p in context.passages]
    sizes = [len(af.embedder.token_spans(text)) for _, text in chunks]
    return {
        "first 3 chunks": (*evidence(question, chunks[:3]), sum(sizes[:3])),
        "first 10 chunks": (*evidence(question, chunks), sum(sizes)),
        "context": (*evidence(question, passages), context.tokens),
    }


def evidence(question: dict[str, Any], passages: Sequence[tuple[Place, str]]) -> tuple[float, float, float]:
    """Return whether the passages hold a page of the evidence, whether they hold half of its words, and the share of
    its words that they hold. `passages` are places with texts."""
    pages = {(question["file"], page) for page in question["pages"]}
    shares = []
    for each in question["evidence"]:
        gold = _words([each["text"]])
        own = _words(text for place, text in passages if place == (question["file"], each["page"]))
        shares.append((gold & own).total() / gold.total())
    share = sum(shares) / len(shares)
    return float(any(place in pages for place, _ in passages)), float(share >= _HALF), share


def _words(texts: Iterable[str]) -> Counter[str]:
    return Counter(word.strip(".,") for text in texts for word in _WORD.findall(text.lower()))


if __name__ == "__main__":
    sys.exit(main())
