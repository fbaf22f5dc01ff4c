"""Extractive answers: how often the quotes hold the answer, and how honest the confidence is.
`python -m bench.answers [SET ...] [--sample N] [--reliability] [--fit] [--time]`.

Each passage is uploaded as a document and each question is asked as a user would, with the packaged MiniLM and without
a language model. Questions with even numbers chose the weights of `rag/answer/quotes.py` and of
`rag/answer/confidence.py`; those with odd numbers are reported. "Hits" is the bound: the text of a hit of the right
passage holds the answer. Every tenth
question is also asked of hits without the documents that answer it (*without*), so that the confidence is also measured
on questions without an answer. ECE is the expected calibration error of the confidence in ten bins, over the questions
and over both; "sure and wrong" is the share of both that get a wrong first quote with a confidence above .8. *Lost* is
the share of the questions with a right first quote that are declined. `pdfs` is the set of
`bench/pdf_questions.jsonl` over the PDFs of the collection, and `filings` the one of company filings; a quote of
`filings` is right if the evidence contains it; "on a page" are its 19 questions whose answer stands on a page and need
not be computed. `own_pdfs` and `own_filings` (`bench/report_questions.jsonl`) are
questions about other pages of these documents, which chose the constants for tables. `--fit` prints the fitted weights
and the coefficients of the confidence (`bench/answers_fit.py`), and `--time` the time of an answer against that of an
embedded question.
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
from statistics import mean, median
from time import perf_counter
from typing import Any

import agentformer
from agentformer.rag.answer.answerer import Answerer
from agentformer.rag.answer.quote_text import MAX_QUOTE
from agentformer.rag.answer.sources import Found
from agentformer.types import (
    DEFAULT_NAMESPACE,
    Answer,
    Citation,
    Embedder,
    Hit,
    MemoryEntry,
    Query,
    Scope,
    Source,
    new_id,
)
from bench import answers_fit
from bench.data import DATA, Row, load

SETS = ("norquad", "xquad/en", "xquad/de", "jsquad_valid", "pdfs", "nordic_pdf_qa", "filings")
_FILINGS = ("filings", "own_filings")
_PDFS = ("pdfs", "own_pdfs", "nordic_pdf_qa")
_STORES = {"own_filings": "filings", "own_pdfs": "pdfs", "nordic_pdf_qa": "pdfs"}  # sets with the same documents
# Questions of filings whose answer stands on no page: a ratio, a change or a judgement that has to be computed.
_COMPUTED = frozenset((0, 1, 2, 3, 6, 9, 12, 14, 18, 22, 23, 25, 30))
_SURE = 0.8
_TOP, _QUOTABLE = 3, 5  # hits of an answer, and hits that it may quote
_ADVERSARIAL = 5  # category of LoCoMo's questions without an answer
_DEEP = 10  # hits of a search; enough remain if those of the document are taken out
_EVERY = 10  # of so many questions, one is also asked without its documents
_COLUMNS = (
    *("n", "hits", "first quote", "any quote", "quotes", "characters", "lost", "ECE"),
    *("without", "declined", "ECE with them", "sure and wrong"),
)
_BINS = 10
_QUOTED = ("first", "quoted")
# The answers of nordic_pdf_qa as its pages write them, where the set only summarises them.
_WRITTEN = {
    "HLR, Barn-HLR, Andningsstopp": ("HLR, Barn-HLR samt Andningsstopp",),
    "nej": ("Inga personuppgifter",),
    "30/6": ("30/6", "op til sommerferien"),
}


@dataclass(frozen=True)
class Asked:
    """A question, and which texts answer it: `right` tells it of the text of a page of a document. `documents` are the
    names of the documents with the answer."""

    number: int
    text: str
    documents: frozenset[str]
    right: Callable[[str, int | None, str], bool]
    namespace: str = DEFAULT_NAMESPACE


@dataclass(frozen=True)
class Outcome:
    """The result of one question. `first` and `quoted` are true if the first quote or any quote is right, also if the
    question is declined; `chars` is the length of the first quote. `taken_out` is true if the question was asked
    without the documents that answer it."""

    number: int
    possible: bool
    first: bool
    quoted: bool
    quotes: int
    chars: int
    confidence: float
    declined: bool
    taken_out: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--sample", type=int, default=500, help="questions of a set at most, evenly spread; 0: all")
    parser.add_argument("--reliability", action="store_true", help="print the share of right quotes per bin")
    parser.add_argument("--fit", action="store_true", help="print the fitted weights and coefficients")
    parser.add_argument("--time", action="store_true", help="print the time of an answer against an embedded question")
    parser.add_argument("--embedder", default="minilm")
    parser.add_argument("--sentences", action="store_true", help="compare vectors of sentences and not of tokens")
    parser.add_argument("--stores", type=Path, help="a folder that keeps the stored sets for the next run")
    chosen = parser.parse_args()
    everything: list[Outcome] = []
    measured: dict[str, Measured] = {}
    print(f"| set | half | {' | '.join(_COLUMNS)} |")
    print("|---" * (len(_COLUMNS) + 2) + "|")
    for name in chosen.sets:
        measured[name] = measure(
            name,
            chosen.sample,
            embedder=chosen.embedder,
            fit=chosen.fit,
            stores=chosen.stores,
            sentences=chosen.sentences,
        )
        outcomes = measured[name].outcomes
        halves = {"even": [o for o in outcomes if o.number % 2 == 0], "odd": [o for o in outcomes if o.number % 2]}
        for half, part in halves.items() if min(map(len, halves.values())) >= 20 else [("all", outcomes)]:
            print(f"| {name} | {half} | {row(part)} |", flush=True)
        if name == "filings":
            print(f"| {name} | on a page | {row([o for o in outcomes if o.number not in _COMPUTED])} |", flush=True)
        everything += halves["odd"]
    print(f"| all | odd | {row(everything)} |")
    if chosen.reliability:
        print("\n| confidence | n | mean confidence | first quote right |\n|---|---|---|---|")
        for line in reliability(everything):
            print(f"| {' | '.join(line)} |")
    if chosen.time:
        print("\n| set | embedded question | answer | with the search | answer: times | with the search: times |")
        print("|---|---|---|---|---|---|")
        for name, each in measured.items():
            print(f"| {name} | {times(each.seconds)} |")
    if chosen.fit:
        print(answers_fit.fitted({name: each.examples for name, each in measured.items()}))
        judged = {name: each.judged for name, each in measured.items()}
        weights = ", ".join(f"{weight:.2f}" for weight in answers_fit.confidence_fitted(judged))
        print(f"_WEIGHTS = ({weights})  # of the confidence")
        print("\n| set (even) | ECE of the code | of fits without the passage | sure and wrong | of these fits |")
        print("|---|---|---|---|---|")
        for line in honesty(answers_fit.confidences_by_parts(judged)):
            print(f"| {' | '.join(line)} |")


@dataclass(frozen=True)
class Measured:
    """The results of a set. `examples` and `judged` are for the fits. `seconds` are times of each question: to embed
    it, to answer it from its hits, and to search and answer."""

    outcomes: list[Outcome]
    examples: list[answers_fit.Example]
    judged: list[answers_fit.Judged]
    seconds: list[tuple[float, float, float]]


def measure(
    name: str,
    sample: int = 0,
    *,
    embedder: str = "minilm",
    fit: bool = False,
    stores: Path | None = None,
    sentences: bool = False,
) -> Measured:
    """Return the results of a set. Every tenth question is also asked of hits without the documents that answer it.
    With `sentences`, the embedder returns no vectors of tokens."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = stores / _STORES.get(name, name).replace("/", "_") if stores else Path(temporary)
        with agentformer.connect(index_dir=folder / "index", upload_dir=folder / "up", embedder=embedder) as af:
            result = Measured([], [], [], [])
            reading = _WithoutTokens(af.embedder) if sentences else af.embedder
            quoting = Answerer(None, reading, abstain=0.0)
            if not (stored := folder / "stored").exists():
                _store(af, name)
                stored.touch()
            for n, asked in enumerate(_spread(_questions(name), sample)):
                _ask(af, quoting, asked, result, without=n % (2 * _EVERY) < 2, fit=fit)
            return result


class _WithoutTokens:
    """An embedder without vectors of tokens."""

    def __init__(self, embedder: Embedder) -> None:
        self.space = embedder.space
        self.embed_documents, self.embed_query = embedder.embed_documents, embedder.embed_query
        self.token_spans = embedder.token_spans


def _ask(
    af: agentformer.AgentFormer, quoting: Answerer, asked: Asked, result: Measured, *, without: bool, fit: bool
) -> None:
    started = perf_counter()
    found = af.backend.search(Query(asked.text, Scope(asked.namespace, kinds=("chunk",)), _DEEP))
    searched = perf_counter()
    answer = quoting.answer(Found(asked.text, found.with_hits(found[:_TOP]), more=found[_TOP:_QUOTABLE]))
    answered = perf_counter()
    af.embedder.embed_query(asked.text)
    result.seconds.append((perf_counter() - answered, answered - searched, answered - started))
    others = [hit for hit in found if _document(hit) not in asked.documents] if without else []
    further = others[_TOP:_QUOTABLE]
    for given in [answer, quoting.answer(Found(asked.text, others[:_TOP], more=further))] if others else [answer]:
        outcome = _outcome(asked, given, af.settings.abstain, taken_out=given is not answer)
        result.outcomes.append(outcome)
        hits, more = (found, found[_TOP:_QUOTABLE]) if given is answer else (others, further)
        ranked, grounds = quoting.judged(Found(asked.text, hits[:_TOP], more)) if fit else ([], None)
        if grounds and (example := answers_fit.example(asked.number, asked.right, ranked)):
            result.judged.append(answers_fit.Judged(asked.number, grounds, outcome.first, asked.documents))
            result.examples.append(example)


def _document(hit: Hit) -> str:
    return hit.entry.source.name if hit.entry.source else ""


def _store(af: agentformer.AgentFormer, name: str) -> None:
    """Store the documents of a set."""
    if name in (*_FILINGS, *_PDFS):
        for path in sorted((DATA / ("filings/pdfs" if name in _FILINGS else "pdfs/files")).iterdir()):
            af.rag.upload(path)
        return
    corpus = load(name).corpus
    if "speaker" in corpus[0].meta:
        af.backend.store([_message(row) for row in corpus])
    else:
        for row in corpus:
            af.rag.upload(row.text.encode(), name=f"{row.id}.txt")


def _questions(name: str) -> list[Asked]:
    """Return the questions of a set that have an answer."""
    if name.startswith("own_"):
        return _report_questions(name)
    if name in (*_FILINGS, *_PDFS):
        return {"pdfs": _own_questions, "nordic_pdf_qa": _nordic_questions, "filings": _filings_questions}[name]()
    queries = load(name).queries
    answerable = [query for query in queries if query.relevant and query.meta.get("category") != _ADVERSARIAL]
    return [
        _asked(
            n,
            query.text,
            {f"{each}.txt" for each in query.relevant},
            None,
            query.meta.get("answers", [""]),
            _namespace(query),
        )
        for n, query in enumerate(answerable)
    ]


def _message(row: Row) -> MemoryEntry:
    """Return the entry of a message of a conversation. Its source is named as the document of a passage."""
    content = f"{row.meta['speaker']} ({row.meta['date_time']}): {row.text}"
    source = Source(row.id, f"{row.id}.txt", 1, "1", 0, len(content))
    return MemoryEntry(id=new_id(), content=content, kind="chunk", namespace=_namespace(row), source=source)


def _namespace(row: Row) -> str:
    """Return a namespace per conversation, because each is searched separately."""
    return f"conversation-{row.meta['conv']}" if "conv" in row.meta else DEFAULT_NAMESPACE


def _own_questions() -> list[Asked]:
    lines = Path(__file__).with_name("pdf_questions.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [_asked(n, r["question"], {r["document"]}, {r["page"]}, r["answers"]) for n, r in enumerate(rows)]


def _report_questions(name: str) -> list[Asked]:
    """Return the questions that chose the constants for tables and reports. Their answers are regular expressions, in
    which a space matches any white space."""
    lines = Path(__file__).with_name("report_questions.jsonl").read_text("utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["set"] == name]
    return [Asked(n, row["question"], frozenset({row["document"]}), _matching(row)) for n, row in enumerate(rows)]


def _matching(row: dict[str, Any]) -> Callable[[str, int | None, str], bool]:
    patterns = [re.compile(answer.replace(" ", r"\s+"), re.DOTALL) for answer in row["answers"]]

    def right(document: str, page: int | None, text: str) -> bool:
        in_place = document == row["document"] and row["page"] in (None, page)
        return in_place and any(pattern.search(text) for pattern in patterns)

    return right


def _nordic_questions() -> list[Asked]:
    questions = []
    for n, query in enumerate(load("nordic_pdf_qa").queries):
        pages = {int(each.rpartition("#p")[2]) + 1 for each in query.relevant}
        answer = query.meta["answer"]
        questions.append(_asked(n, query.text, {query.meta["file"]}, pages, _WRITTEN.get(answer, (answer,))))
    return questions


def _filings_questions() -> list[Asked]:
    lines = (DATA / "filings" / "questions.jsonl").read_text("utf-8").splitlines()
    return [
        Asked(n, row["text"], frozenset({row["file"]}), _within(row)) for n, row in enumerate(map(json.loads, lines))
    ]


def _asked(
    number: int,
    text: str,
    documents: set[str],
    pages: set[int] | None,
    golds: Iterable[str],
    namespace: str = DEFAULT_NAMESPACE,
) -> Asked:
    wanted = [_plain(gold) for gold in golds]

    def right(document: str, page: int | None, text: str) -> bool:
        in_place = document in documents and (pages is None or page in pages)
        return in_place and any(gold in _plain(text) for gold in wanted)

    return Asked(number, text, frozenset(documents), right, namespace)


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


def _outcome(asked: Asked, answer: Answer, abstain: float, *, taken_out: bool = False) -> Outcome:
    def right(one: Citation | Hit) -> bool:
        if isinstance(one, Citation):
            shown = (one.quote, f"{one.headings} {one.quote}")
            return any(asked.right(one.document, one.page, text) for text in shown)
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
        (answer.confidence or 0.0) < abstain,
        taken_out,
    )


def row(outcomes: Sequence[Outcome]) -> str:
    """Return the cells of a table for these questions. A quote of a declined question is not counted."""
    asked = [o for o in outcomes if not o.taken_out]
    others = [o for o in outcomes if o.taken_out]
    shares = [
        mean(o.possible for o in asked),
        *(mean(getattr(o, n) and not o.declined for o in asked) for n in _QUOTED),
    ]
    sizes = [f"{mean(o.quotes for o in asked):.2f}", f"{mean(o.chars for o in asked):.0f}"]
    lost = mean([o.declined for o in asked if o.first] or [0])
    wrong = mean(not o.first and o.confidence > _SURE for o in outcomes)
    declined = f"{mean(o.declined for o in others):.3f}" if others else ""
    cells = [str(len(asked)), *(f"{share:.3f}" for share in shares), *sizes, f"{lost:.3f}"]
    errors = [f"{calibration_error(each):.3f}" for each in (asked, outcomes)]
    return " | ".join([*cells, errors[0], str(len(others)), declined, errors[1], f"{wrong:.3f}"])


def times(seconds: Sequence[tuple[float, float, float]]) -> str:
    """Return the cells of a table: the medians in milliseconds, and how many times that of an embedded question."""
    embedded, answered, together = (median(each) for each in zip(*seconds, strict=True))
    spans = [f"{each * 1000:.1f} ms" for each in (embedded, answered, together)]
    return " | ".join([*spans, f"{answered / embedded:.1f}", f"{together / embedded:.1f}"])


def _bins(outcomes: Sequence[Outcome]) -> dict[int, list[Outcome]]:
    bins: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        bins.setdefault(min(_BINS - 1, int(outcome.confidence * _BINS)), []).append(outcome)
    return dict(sorted(bins.items()))


def calibration_error(outcomes: Sequence[Outcome]) -> float:
    """Return the expected calibration error, 0..1: the mean distance between the confidence of a bin and its share of
    right first quotes, weighted by the number of questions."""
    return _calibration_error([(outcome.confidence, outcome.first) for outcome in outcomes])


def _calibration_error(judged: Sequence[tuple[float, bool]]) -> float:
    gaps: dict[int, float] = {}
    for confidence, right in judged:
        n = min(_BINS - 1, int(confidence * _BINS))
        gaps[n] = gaps.get(n, 0.0) + confidence - right
    return sum(map(abs, gaps.values())) / len(judged)


def honesty(judged: Iterable[tuple[str, float, float, bool]]) -> list[list[str]]:
    """Return a row for each set: the calibration error and the share of sure and wrong answers, of the confidence of
    the code and of that of fits without the passage."""
    sets: dict[str, list[tuple[float, float, bool]]] = {}
    for name, *each in judged:
        sets.setdefault(name, []).append(tuple(each))  # type: ignore[arg-type]
    rows = []
    for name, each in sets.items():
        both = [[(one[n], one[2]) for one in each] for n in (0, 1)]
        errors = [f"{_calibration_error(part):.3f}" for part in both]
        wrong = [f"{mean(confidence > _SURE and not right for confidence, right in part):.3f}" for part in both]
        rows.append([name, *errors, *wrong])
    return rows


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
