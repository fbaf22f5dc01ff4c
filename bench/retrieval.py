"""Recall of words, vectors and both, through the public API: `python -m bench.retrieval [SET ...]`.

Every passage is stored once, every question asked in each mode. Recall@k is the share of questions with at
least one relevant passage among the first k. The embedder is the packaged MiniLM unless `--embedder` says
otherwise; nothing is tuned here.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable

import agentformer
from bench.data import DataSet, Row, load

SETS = (
    "xquad/en",
    "xquad/de",
    "pubmedqa",
    "norquad",
    "squad_fi",
    "swefaq",
    "jsquad_valid",
    "hotpot_small",
    "locomo_dev",
    "madial_en",
    "code_pypdf",
)
MODES = ("lexical", "dense", "hybrid")
_LIMIT = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--embedder", default="minilm")
    parser.add_argument("--sample", type=int, default=0, help="questions per set at most, evenly spread")
    chosen = parser.parse_args()
    columns = [f"R@{k} {side}" for k in (5, 10) for side in ("words", "vectors", "both")]
    print("| " + " | ".join(["set", "passages", "questions", *columns, "ms"]) + " |")
    print("|---" * (len(columns) + 4) + "|")
    for name in chosen.sets:
        print(measure(load(name), chosen.embedder, chosen.sample), flush=True)


def measure(data: DataSet, embedder: str, sample: int) -> str:
    """The set's row of the table."""
    queries = [query for query in data.queries if query.relevant]
    if sample and len(queries) > sample:
        queries = queries[:: -(-len(queries) // sample)]
    with (
        tempfile.TemporaryDirectory() as folder,
        agentformer.connect(index_dir=f"{folder}/index", upload_dir=f"{folder}/up", embedder=embedder) as af,
    ):
        store(af, data)
        ranked = {mode: [ids(af, query, mode) for query in queries] for mode in MODES}
        started = time.perf_counter()
        for query in queries[:50]:
            ids(af, query, "hybrid")
        per_query = (time.perf_counter() - started) * 1000 / len(queries[:50])
    cells = [f"{recall(queries, ranked[mode], k):.3f}" for k in (5, 10) for mode in MODES]
    return f"| {data.name} | {len(data.corpus)} | {len(queries)} | {' | '.join(cells)} | {per_query:.1f} |"


def recall(queries: Iterable[Row], ranked: Iterable[list[str]], k: int) -> float:
    """The share of questions with a relevant passage among the first `k`."""
    found = [bool(set(query.relevant) & set(ids[:k])) for query, ids in zip(queries, ranked, strict=True)]
    return sum(found) / len(found)


def store(af: agentformer.AgentFormer, data: DataSet) -> None:
    af.memory.store_many(
        {"content": _said(row), "namespace": _namespace(row), "metadata": {"row": row.id}} for row in data.corpus
    )


def _said(row: Row) -> str:
    """A conversation's turn with its speaker and date, another passage as it is."""
    who, when = row.meta.get("speaker"), row.meta.get("date_time")
    return f"{who} ({when}): {row.text}" if who and when else row.text


def ids(af: agentformer.AgentFormer, query: Row, mode: str) -> list[str]:
    hits = af.memory.search(query.text, namespace=_namespace(query), limit=_LIMIT, mode=mode)
    return [hit.entry.metadata["row"] for hit in hits]


def _namespace(row: Row) -> str:
    """Conversations are searched one by one."""
    return f"conversation-{row.meta['conv']}" if "conv" in row.meta else "default"


if __name__ == "__main__":
    main()
