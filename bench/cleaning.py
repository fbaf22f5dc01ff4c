"""Summaries of long conversations without a model: `python -m bench.cleaning`.

Every turn of the development conversations is stored as a message of its session and summarised by the extractive
summariser. The first table counts the originals of each summary, its numbers and dates without a source (by our
verification and by a plain rule here), the share of kept tokens, and originals that `restore` returns byte for byte.

The second table measures what is kept: the most informative terms of the originals (TF-IDF over the conversation), and
the words of answers to questions with summarised evidence. Other selections get the same tokens: the first sentences,
evenly spread ones, and the longest. Most groups are short enough to keep more than half. The weights of
`summaries/extractive.py` were chosen on these three conversations, so the table shows how it performs where it was
chosen.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.memory.memory_cleaner import MemoryCleaner
from agentformer.memory.summaries.summarizer import Summarizer, unsupported_claims
from agentformer.records.entry_json import entry_to_json
from agentformer.text.analysis import text_terms
from agentformer.text.languages.detection import FUNCTION_WORDS, stem
from agentformer.text.splitting import sentence_spans
from agentformer.types import MemoryEntry, new_id
from bench.data import DataSet, Row, load

_TOP = 20  # terms of a group's originals that a summary should hold
_DIGITS = re.compile(r"\d+(?:[.,:/-]\d+)*")
_DATE_WORD = re.compile(
    r"\b(?:january|february|march|april|may|june|july|august|september|october|november|december|"
    r"monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b",
    re.IGNORECASE,
)
_IGNORED = frozenset(f"en~{stem(word, 'en')}" for word in FUNCTION_WORDS["en"])
_counter = HashingEmbedder()


@dataclass(frozen=True)
class Group:
    """A summary and its originals; `rows` are the originals' ids in the data set."""

    text: str
    originals: list[MemoryEntry]
    rows: list[str]


@dataclass(frozen=True)
class Cleaned:
    """The result of cleaning one conversation."""

    turns: int
    groups: list[Group]
    reachable: int
    alike: bool  # after restoring


def main() -> None:
    data = load("locomo_dev")
    cleaned = {name: clean([row for row in data.corpus if row.meta["conv"] == name]) for name in _names(data)}
    print(
        "| conversation | turns | summaries | originals | reachable | unverified | foreign | tokens kept | restored |"
    )
    print("|---" * 9 + "|")
    for name, each in cleaned.items():
        print(integrity(name, each))
    print("\n| conversation | kept of | summary | first sentences | ratio | spread | ratio | longest | ratio |")
    print("|---" * 9 + "|")
    for name, each in cleaned.items():
        for row in content(name, each, data):
            print(row)


def _names(data: DataSet) -> list[str]:
    return list(dict.fromkeys(row.meta["conv"] for row in data.corpus))


def clean(turns: Sequence[Row]) -> Cleaned:
    """Store, clean, compare, restore and compare again."""
    with tempfile.TemporaryDirectory() as folder:
        backend = FaissMemoryBackend(Path(folder), HashingEmbedder())
        stored = backend.store([_message(row) for row in turns])
        rows = {entry.id: row.id for entry, row in zip(stored, turns, strict=True)}
        before = {entry.id: _bytes(entry) for entry in backend.get(list(rows))}
        cleaner = MemoryCleaner(backend, Summarizer(None, tokens))
        report = cleaner.run()
        groups, reachable = [], 0
        for summary in backend.get(report.summaries):
            originals = backend.get([link.id for link in summary.derived_from])
            reachable += sum(entry.archived_by == summary.id for entry in originals)
            groups.append(Group(summary.content, originals, [rows[entry.id] for entry in originals]))
        for summary_id in report.summaries:
            backend.restore(summary_id)
        after = {entry.id: _bytes(entry) for entry in backend.get(list(rows))}
        backend.close()
    assert report.archived == sum(len(group.originals) for group in groups)
    return Cleaned(len(turns), groups, reachable, before == after)


def _message(row: Row) -> MemoryEntry:
    return MemoryEntry(
        new_id(),
        row.text,
        tier="episodic",
        kind="message",
        session_id=f"{row.meta['conv']}, session {row.meta['session']}",
        role="user",
        speaker=row.meta["speaker"],
        occurred_at=datetime.strptime(row.meta["date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC),
    )


def _bytes(entry: MemoryEntry) -> bytes:
    return json.dumps(entry_to_json(entry), sort_keys=True, ensure_ascii=False).encode()


def integrity(name: str, cleaned: Cleaned) -> str:
    """Return the row of the conversation in the first table."""
    originals = sum(len(group.originals) for group in cleaned.groups)
    wrong = sum(len(unsupported_claims(group.text, group.originals)) for group in cleaned.groups)
    foreign = sum(len(_claims(group.text) - _claims(_said(group))) for group in cleaned.groups)
    kept = sum(tokens(group.text) for group in cleaned.groups)
    share = kept / sum(tokens(entry.content) for group in cleaned.groups for entry in group.originals)
    cells = (
        name,
        cleaned.turns,
        len(cleaned.groups),
        originals,
        f"{cleaned.reachable / originals:.0%}",
        wrong,
        foreign,
    )
    return f"| {' | '.join(map(str, cells))} | {share:.2f} | {'alike' if cleaned.alike else 'NOT ALIKE'} |"


def _said(group: Group) -> str:
    return " ".join(f"{entry.speaker} {entry.content}" for entry in group.originals)


def _claims(text: str) -> set[str]:
    """Return numbers as written, and the words of dates."""
    return {*_DIGITS.findall(text), *(word.casefold() for word in _DATE_WORD.findall(text))}


def content(name: str, cleaned: Cleaned, data: DataSet) -> list[str]:
    """Return the rows of the conversation in the second table."""
    texts = {
        "summary": [group.text for group in cleaned.groups],
        "first": [_within(group, lambda sentences: sentences) for group in cleaned.groups],
        "spread": [_within(group, _spread) for group in cleaned.groups],
        "longest": [
            _within(group, lambda sentences: sorted(sentences, key=len, reverse=True)) for group in cleaned.groups
        ],
    }
    lines = []
    for what, measure in (("terms", kept_terms), ("answers", kept_answers)):
        mean, *peers = [_mean(measure(cleaned.groups, each, data)) for each in texts.values()]
        cells = [f"{peer:.3f} | {mean / peer:.2f}" for peer in peers]
        lines.append(f"| {name} | {what} | {mean:.3f} | {' | '.join(cells)} |")
    return lines


def kept_terms(groups: Sequence[Group], texts: Sequence[str], data: DataSet) -> list[float]:
    """Return for each group the share of its originals' most informative terms that its text holds."""
    said = [set(_terms(row.text)) for row in data.corpus]
    spread = Counter(term for terms in said for term in terms)
    shares = []
    for group, text in zip(groups, texts, strict=True):
        counts = _terms(" ".join(entry.content for entry in group.originals))
        ranked = sorted(counts, key=lambda term: (-counts[term] * math.log(len(said) / spread[term]), term))
        shares.append(len({*ranked[:_TOP]} & set(_terms(text))) / len(ranked[:_TOP]))
    return shares


def kept_answers(groups: Sequence[Group], texts: Sequence[str], data: DataSet) -> list[float]:
    """Return for each question with its evidence in groups the share of its answer's words, as the evidence has
    them, that the texts hold."""
    place = {row: n for n, group in enumerate(groups) for row in group.rows}
    turns = {row.id: row.text for row in data.corpus}
    shares = []
    for query in data.queries:
        if not query.relevant or not all(row in place for row in query.relevant):
            continue
        evidence = set(_terms(" ".join(turns[row] for row in query.relevant)))
        if answer := set(_terms(str(query.meta["answer"]))) & evidence:
            held = set(_terms(" ".join(texts[n] for n in {place[row] for row in query.relevant})))
            shares.append(len(answer & held) / len(answer))
    return shares


def _terms(text: str) -> Counter[str]:
    return Counter(term for term in text_terms(text, "en").stems if term not in _IGNORED)


def tokens(text: str) -> int:
    return len(_counter.token_spans(text))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _within(group: Group, order: Callable[[Sequence[str]], Iterable[str]]) -> str:
    """Return as many sentences, in this order, as fit the tokens of the summary."""
    sentences = [e.content[span.start : span.end] for e in group.originals for span in sentence_spans(e.content)]
    chosen: list[str] = []
    left = tokens(group.text)
    for sentence in order(sentences):
        if tokens(sentence) <= left:
            chosen.append(sentence)
            left -= tokens(sentence)
    return " ".join(chosen)


def _spread(sentences: Sequence[str]) -> list[str]:
    """Return every third sentence, then the others."""
    return [sentence for start in range(3) for sentence in sentences[start::3]]


if __name__ == "__main__":
    main()
