"""Extractive answers: how often the quoted sentences hold the answer. `python -m bench.answers [SET]`.

Each passage is uploaded as a document and each question is asked as a user would, with the packaged MiniLM and without
a language model. The weights of `rag/answer/passages.py` were chosen on passages with even numbers; both halves are
reported. Bounds of the same run: how often the right passage is among the hits, and how often any of their sentences
holds the answer.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass

import agentformer
from bench.data import DataSet, Row, load


@dataclass(frozen=True)
class Outcome:
    """The result of one question; `half` is 0 for the passages that chose the weights."""

    half: int
    retrieved: bool
    possible: bool
    first: bool
    quoted: bool
    quotes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", nargs="?", default="xquad/en")
    parser.add_argument("--sample", type=int, default=0, help="questions at most, evenly spread")
    chosen = parser.parse_args()
    outcomes = measure(load(chosen.set), chosen.sample)
    print("| questions | n | passage in top 3 | answer in top 3 | in the first quote | in the quotes | quotes |")
    print("|---|---|---|---|---|---|---|")
    for name, part in (
        ("all", outcomes),
        ("chose the weights", [o for o in outcomes if not o.half]),
        ("test", [o for o in outcomes if o.half]),
    ):
        print(f"| {name} | {len(part)} | {' | '.join(_shares(part))} |")


def measure(data: DataSet, sample: int = 0) -> list[Outcome]:
    queries = [query for query in data.queries if query.relevant]
    if sample and len(queries) > sample:
        queries = queries[:: -(-len(queries) // sample)]
    half = {row.id: n % 2 for n, row in enumerate(sorted(data.corpus, key=lambda row: row.id))}
    with (
        tempfile.TemporaryDirectory() as folder,
        agentformer.connect(index_dir=f"{folder}/index", upload_dir=f"{folder}/up", embedder="minilm") as af,
    ):
        for row in data.corpus:
            af.rag.upload(row.text.encode(), name=f"{row.id}.txt")
        return [_outcome(af, query, half[query.relevant[0]]) for query in queries]


def _outcome(af: agentformer.AgentFormer, query: Row, half: int) -> Outcome:
    answer = af.rag.query(query.text)
    right = {f"{name}.txt" for name in query.relevant}
    golds = query.meta["answers"]
    hits = [hit for hit in answer.hits if hit.entry.source and hit.entry.source.name in right]
    holds = [c.document in right and any(gold in c.quote for gold in golds) for c in answer.citations]
    possible = any(gold in hit.entry.content for hit in hits for gold in golds)
    return Outcome(half, bool(hits), possible, bool(holds and holds[0]), any(holds), len(answer.citations))


def _shares(outcomes: list[Outcome]) -> list[str]:
    names = ("retrieved", "possible", "first", "quoted", "quotes")
    return [f"{sum(getattr(o, name) for o in outcomes) / len(outcomes):.3f}" for name in names]


if __name__ == "__main__":
    main()
