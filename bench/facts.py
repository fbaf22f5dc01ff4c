"""Newer facts before older ones: pairs of statements that one user stores one after the other, and a question.
`python -m bench.facts`.

A pair expects `second` (the newer statement replaces the older one: it is found first and quoted first), `both` (both
hold: both are among the first two hits, and none is marked as former), or `first` (the second statement is about
another thing or time: the first is found and quoted first, and is not marked). The pairs are `facts_update` of the data
sets, and those of `tests/search/fact_pairs.jsonl` with a question. `bench.facts_fit` uses all but `facts_update`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agentformer
from bench.data import DATA

OWN = Path(__file__).resolve().parents[1] / "tests" / "search" / "fact_pairs.jsonl"
EMBEDDERS = ("minilm", "multilingual")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embedders", nargs="+", default=EMBEDDERS)
    parser.add_argument("--failed", action="store_true", help="list the pairs that are wrong")
    chosen = parser.parse_args()
    print("| embedder | pairs | language | search | first quote | marks |\n|---|---|---|---|---|---|")
    for embedder in chosen.embedders:
        counts: defaultdict[tuple[str, str], list[tuple[bool, ...]]] = defaultdict(list)
        wrong = []
        for kind, pair, right in judged(embedder):
            for language in (pair["language"], "all"):
                counts[kind, language].append(right)
            wrong += [f"  {kind} {pair['id']} {right} {pair['first']} | {pair['second']}"] * (not all(right))
        for (kind, language), rights in sorted(counts.items()):
            cells = " | ".join(f"{sum(column)}/{len(rights)}" for column in zip(*rights, strict=True))
            print(f"| {embedder} | {kind} | {language} | {cells} |")
        print("\n".join(wrong) if chosen.failed else "", flush=True)


def pairs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of a set and a pair of it."""
    update = DATA / "facts_update" / "pairs.jsonl"
    for line in update.read_text("utf-8").splitlines() if update.exists() else ():
        yield update.parent.name, json.loads(line)
    for line in OWN.read_text("utf-8").splitlines():
        pair = json.loads(line)
        if pair["question"]:
            yield pair["half"], pair


def judged(embedder: str) -> Iterator[tuple[str, dict[str, Any], tuple[bool, ...]]]:
    """Yield for each pair whether the search, the first quote and the marks of former facts are right."""
    with (
        tempfile.TemporaryDirectory() as folder,
        agentformer.connect(index_dir=f"{folder}/index", upload_dir=f"{folder}/up", embedder=embedder) as af,
    ):
        for kind, pair in pairs():
            space, question = f"{kind}{pair['id']}", pair["question"]
            ids = [
                af.memory.store(
                    pair[name], namespace=space, user_id="anna", occurred_at=f"2026-0{month}-01T09:00:00Z"
                ).id
                for month, name in enumerate(("first", "second"), 1)
            ]
            hits = af.memory.search(question, namespace=space, user_id="anna", limit=2)
            answer = af.rag.query(question, namespace=space, user_id="anna", sources=["memories"])
            found = [ids.index(hit.entry.id) for hit in hits]
            quoted = [ids.index(citation.entry_id) for citation in answer.citations][:1]
            former = [ids.index(hit.entry.id) for hit in hits if getattr(hit, "newer", None)]
            best = {"first": [0], "second": [1]}.get(pair["expect"])
            quote = bool(quoted) if best is None else quoted == best
            search = len(found) == 2 if best is None else found[:1] == best
            yield kind, pair, (search, quote, former == [0] * (pair["expect"] == "second"))


if __name__ == "__main__":
    main()
