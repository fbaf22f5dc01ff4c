"""Extractive answers: how often the quotes hold the answer, and how honest the confidence is.
`python -m bench.answers [SET ...] [--sample N] [--reliability] [--fit]`.

Each passage is uploaded as a document and each question is asked as a user would, with the packaged MiniLM and without
a language model. Questions with even numbers chose the weights of `rag/answer/sentences.py` and of
`rag/answer/confidence.py`; those with odd numbers are reported. "Hits" is the bound: the text of a hit of the right
passage holds the answer. ECE is the expected calibration error of the confidence in ten bins; "sure and wrong" is the
share of the questions that get a wrong first quote with a confidence above .8. `pdfs` is the set of
`bench/pdf_questions.jsonl` over the PDFs of the collection, and `filings` the one of company filings; a quote of
`filings` is right if the evidence contains it. `--fit` prints the fitted weights (`bench/answers_fit.py`).
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import agentformer
from agentformer.rag.answer.quotes import MAX_QUOTE
from agentformer.types import Answer, Citation, Hit
from bench import answers_fit
from bench.data import DATA, load

SETS = ("norquad", "xquad/en", "xquad/de", "jsquad_valid", "pdfs", "nordic_pdf_qa", "filings")
_SURE = 0.8
_BINS = 10
# The answers of nordic_pdf_qa as its pages write them, where the set only summarises them.
_WRITTEN = {
    "HLR, Barn-HLR, Andningsstopp": ("HLR, Barn-HLR samt Andningsstopp",),
    "nej": ("Inga personuppgifter",),
    "30/6": ("30/6", "op til sommerferien"),
}


@dataclass(frozen=True)
class Asked:
    """A question, and which texts answer it: `right` tells it of the text of a page of a document."""

    number: int
    text: str
    right: Callable[[str, int | None, str], bool]


@dataclass(frozen=True)
class Outcome:
    """The result of one question. `chars` is the length of the first quote."""

    number: int
    possible: bool
    first: bool
    quoted: bool
    quotes: int
    chars: int
    confidence: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--sample", type=int, default=500, help="questions of a set at most, evenly spread; 0: all")
    parser.add_argument("--reliability", action="store_true", help="print the share of right quotes per bin")
    parser.add_argument("--fit", action="store_true")
    chosen = parser.parse_args()
    everything: list[Outcome] = []
    examples: dict[str, list[answers_fit.Example]] = {}
    print("| set | half | n | hits | first quote | any quote | quotes | characters | ECE | sure and wrong |")
    print("|---" * 10 + "|")
    for name in chosen.sets:
        outcomes, examples[name] = measure(name, chosen.sample)
        halves = {"even": [o for o in outcomes if o.number % 2 == 0], "odd": [o for o in outcomes if o.number % 2]}
        for half, part in halves.items() if min(map(len, halves.values())) >= 20 else [("all", outcomes)]:
            print(f"| {name} | {half} | {row(part)} |", flush=True)
        everything += halves["odd"]
    print(f"| all | odd | {row(everything)} |")
    if chosen.reliability:
        print("\n| confidence | n | mean confidence | first quote right |\n|---|---|---|---|")
        for line in reliability(everything):
            print(f"| {' | '.join(line)} |")
    if chosen.fit:
        print("\n".join(answers_fit.fitted(examples)))


def measure(name: str, sample: int = 0) -> tuple[list[Outcome], list[answers_fit.Example]]:
    """Return the outcomes of the questions of a set, and examples for a fit."""
    with (
        tempfile.TemporaryDirectory() as folder,
        agentformer.connect(index_dir=f"{folder}/index", upload_dir=f"{folder}/up", embedder="minilm") as af,
    ):
        questions = _spread(_stored(af, name), sample)
        found = [(asked, af.rag.query(asked.text)) for asked in questions]
        examples = [
            answers_fit.example(asked.number, asked.text, asked.right, answer, af.embedder)
            for asked, answer in found
            if answer.hits
        ]
        return [_outcome(asked, answer) for asked, answer in found], examples


def _stored(af: agentformer.AgentFormer, name: str) -> list[Asked]:
    """Store the documents of a set, and return its questions."""
    if name in ("pdfs", "nordic_pdf_qa", "filings"):
        for path in sorted((DATA / ("filings/pdfs" if name == "filings" else "pdfs/files")).iterdir()):
            af.rag.upload(path)
        return {"pdfs": _own_questions, "nordic_pdf_qa": _nordic_questions, "filings": _filings_questions}[name]()
    data = load(name)
    for row in data.corpus:
        af.rag.upload(row.text.encode(), name=f"{row.id}.txt")
    return [
        Asked(n, query.text, _holds({f"{each}.txt" for each in query.relevant}, None, query.meta["answers"]))
        for n, query in enumerate(query for query in data.queries if query.relevant)
    ]


def _own_questions() -> list[Asked]:
    lines = Path(__file__).with_name("pdf_questions.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [Asked(n, r["question"], _holds({r["document"]}, {r["page"]}, r["answers"])) for n, r in enumerate(rows)]


def _nordic_questions() -> list[Asked]:
    questions = []
    for n, query in enumerate(load("nordic_pdf_qa").queries):
        pages = {int(each.rpartition("#p")[2]) + 1 for each in query.relevant}
        answer = query.meta["answer"]
        right = _holds({query.meta["file"]}, pages, _WRITTEN.get(answer, (answer,)))
        questions.append(Asked(n, query.text, right))
    return questions


def _filings_questions() -> list[Asked]:
    lines = (DATA / "filings" / "questions.jsonl").read_text("utf-8").splitlines()
    return [Asked(n, row["text"], _within(row)) for n, row in enumerate(map(json.loads, lines))]


def _holds(documents: set[str], pages: set[int] | None, golds: Iterable[str]) -> Callable[[str, int | None, str], bool]:
    wanted = [_plain(gold) for gold in golds]

    def right(document: str, page: int | None, text: str) -> bool:
        in_place = document in documents and (pages is None or page in pages)
        return in_place and any(gold in _plain(text) for gold in wanted)

    return right


def _within(row: dict[str, object]) -> Callable[[str, int | None, str], bool]:
    """Return a function that tells whether a text of a filing has most of its words in the evidence of its page. A text
    that is longer than a quote is a passage, which only has to be on the page."""
    evidence: dict[object, set[str]] = {}
    for each in row["evidence"]:  # type: ignore[attr-defined]
        evidence.setdefault(each["page"], set()).update(_words(each["text"]))

    def right(document: str, page: int | None, text: str) -> bool:
        words = _words(text)
        in_place = document == row["file"] and page in evidence
        if len(text) > MAX_QUOTE:
            return in_place
        return in_place and len(words) > 2 and sum(word in evidence[page] for word in words) >= 0.9 * len(words)

    return right


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().replace("\u00ad", "").split())


def _spread(questions: list[Asked], sample: int) -> list[Asked]:
    step = -(-len(questions) // sample) if sample else 1
    return [asked for asked in questions if asked.number % (2 * step) < 2]


def _outcome(asked: Asked, answer: Answer) -> Outcome:
    def right(one: Citation | Hit) -> bool:
        if isinstance(one, Citation):
            return asked.right(one.document, one.page, one.quote)
        source = one.entry.source
        return source is not None and asked.right(source.name, source.page, one.entry.content)

    holds = [right(citation) for citation in answer.citations]
    return Outcome(
        asked.number,
        any(right(hit) for hit in answer.hits),
        bool(holds and holds[0]),
        any(holds),
        len(holds),
        len(answer.citations[0].quote) if holds else 0,
        answer.confidence or 0.0,
    )


def row(outcomes: Sequence[Outcome]) -> str:
    """Return the cells of a table for these questions."""
    names = ("possible", "first", "quoted")
    shares = [f"{mean(getattr(o, name) for o in outcomes):.3f}" for name in names]
    wrong = mean(not o.first and o.quotes > 0 and o.confidence > _SURE for o in outcomes)
    sizes = [f"{mean(o.quotes for o in outcomes):.2f}", f"{mean(o.chars for o in outcomes):.0f}"]
    return " | ".join([str(len(outcomes)), *shares, *sizes, f"{calibration_error(outcomes):.3f}", f"{wrong:.3f}"])


def _bins(outcomes: Sequence[Outcome]) -> dict[int, list[Outcome]]:
    bins: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        bins.setdefault(min(_BINS - 1, int(outcome.confidence * _BINS)), []).append(outcome)
    return dict(sorted(bins.items()))


def calibration_error(outcomes: Sequence[Outcome]) -> float:
    """Return the expected calibration error, 0..1: the mean distance between the confidence of a bin and its share of
    right first quotes, weighted by the number of questions."""
    gaps = [abs(sum(o.confidence for o in part) - sum(o.first for o in part)) for part in _bins(outcomes).values()]
    return sum(gaps) / len(outcomes)


def reliability(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Return a row for each bin of the confidence."""
    return [
        [
            f"{n / _BINS:.1f} to {(n + 1) / _BINS:.1f}",
            str(len(part)),
            f"{mean(o.confidence for o in part):.2f}",
            f"{mean(o.first for o in part):.2f}",
        ]
        for n, part in _bins(outcomes).items()
    ]


if __name__ == "__main__":
    main()
