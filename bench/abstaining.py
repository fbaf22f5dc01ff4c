"""Who is answered, and who is told that nothing was found. `python -m bench.abstaining [PASSAGES] [QUESTIONS]`.

Each passage of a set is uploaded as a document, with the packaged MiniLM, and the questions of the same set or of one
with the same ids (xquad/de over xquad/en: another language) are searched for. Two bounds are looked at: that of the
extractive answerer, and the lower one below which a language model is not even asked. A question is lost when the
right passage is among the hits and the bound declines it; it is rightly declined when that passage is taken out.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence

import agentformer
from agentformer.llms.echo import EchoModel
from agentformer.rag.answer import Answerer
from agentformer.types import DEFAULT_NAMESPACE, Hit, Query, Scope
from bench.data import DataSet, load

_HITS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("passages", nargs="?", default="xquad/en")
    parser.add_argument("questions", nargs="?", default="")
    parser.add_argument("--sample", type=int, default=300, help="questions at most, evenly spread; 0: all")
    chosen = parser.parse_args()
    passages = load(chosen.passages)
    questions = load(chosen.questions) if chosen.questions else passages
    print("| bound of | passage among the hits | lost | passage taken out | declined |")
    print("|---|---|---|---|---|")
    for name, lost, declined in measure(passages, questions, chosen.sample):
        print(f"| {name} | {len(lost)} | {_share(lost)} | {len(declined)} | {_share(declined)} |")


def measure(passages: DataSet, questions: DataSet, sample: int) -> list[tuple[str, list[bool], list[bool]]]:
    """Per bound its name, and of each question whether it is declined: with its passage, and without it."""
    asked = [query for query in questions.queries if query.relevant]
    if sample and len(asked) > sample:
        asked = asked[:: -(-len(asked) // sample)]
    with (
        tempfile.TemporaryDirectory() as folder,
        agentformer.connect(index_dir=f"{folder}/index", upload_dir=f"{folder}/up", embedder="minilm") as af,
    ):
        for row in passages.corpus:
            af.rag.upload(row.text.encode(), name=f"{row.id}.txt")
        # Echo answers whenever it is asked, so that what is declined was declined by the bound.
        answerers = {
            "the extractive answerer": Answerer(None, af.embedder),
            "a model": Answerer(EchoModel(), af.embedder),
        }
        found: dict[str, tuple[list[bool], list[bool]]] = {name: ([], []) for name in answerers}
        for query in asked:
            hits = af.backend.search(Query(query.text, Scope(DEFAULT_NAMESPACE, kinds=("chunk",)), 2 * _HITS))
            right = {f"{name}.txt" for name in query.relevant}
            for name, answerer in answerers.items():
                lost, declined = found[name]
                if any(_document(hit) in right for hit in hits[:_HITS]):
                    lost.append(answerer.answer(query.text, hits[:_HITS]).mode == "none")
                wrong = [hit for hit in hits if _document(hit) not in right]
                declined.append(answerer.answer(query.text, wrong[:_HITS]).mode == "none")
    return [(name, *outcome) for name, outcome in found.items()]


def _document(hit: Hit) -> str:
    return hit.entry.source.name if hit.entry.source else ""


def _share(outcomes: Sequence[bool]) -> str:
    return f"{sum(outcomes) / len(outcomes):.3f}" if outcomes else "-"


if __name__ == "__main__":
    main()
