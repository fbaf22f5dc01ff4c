"""Unsupported claims of answers: how many are found, and how many correct answers are reported.
`python -m bench.claims`.

Each answer consists of one or two sentences of a real passage with a citation. In the changed answers, one number, date
or name is replaced by one of another passage that does not occur in the cited passage. The sets
are in four languages. German writes every noun with a capital letter, so most of its changed names are ordinary nouns.
The rule for such nouns was found with the German answers of even number; no other answer was used to choose a rule.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from agentformer.rag.answer.passages import Passage, read_passages
from agentformer.rag.answer.support import unsupported_sentences
from agentformer.text.splitting import sentence_spans
from agentformer.types import Hit, MemoryEntry, Source
from bench.data import load

SETS = ("xquad/en", "xquad/de", "norquad", "squad_fi", "hotpot_small")
_NUMBER = re.compile(r"(?<![\w.,])\d{2,}(?:[.,]\d+)*(?![\w%])")
_NAME = re.compile(r"(?<=[a-zäöåæøü,] )[A-ZÄÖÅÆØ][a-zäöåæøüß]{3,}(?: [A-ZÄÖÅÆØ][a-zäöåæøüß]{3,})*")
_DATE = re.compile(
    r"\b\d{1,2}\.? (?:January|March|April|May|June|July|August|October|Januar|März|Mai|Juni|Juli|mars|juni|august"
    r"|tammikuuta|maaliskuuta|kesäkuuta|heinäkuuta|elokuuta) \d{4}\b"
)
_KINDS = {"date": _DATE, "number": _NUMBER, "name": _NAME}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="answers of each set and kind, at most")
    chosen = parser.parse_args()
    print("| set | changed | answers | found | false alarms |\n|---|---|---|---|---|")
    totals = [0, 0, 0]
    for name in SETS:
        for kind, rows in _measure(name, chosen.count).items():
            if rows:
                found, alarms = sum(row[0] for row in rows), sum(row[1] for row in rows)
                print(f"| {name} | {kind} | {len(rows)} | {found / len(rows):.3f} | {alarms / len(rows):.3f} |")
                totals = [total + more for total, more in zip(totals, (len(rows), found, alarms), strict=True)]
    print(f"| all | | {totals[0]} | {totals[1] / totals[0]:.3f} | {totals[2] / totals[0]:.3f} |")


def _measure(name: str, count: int) -> dict[str, list[tuple[bool, bool]]]:
    """Return for each kind of claim a pair for each answer: whether the changed answer is reported, and whether the
    unchanged answer is."""
    texts = [row.text for row in load(name).corpus]
    chooser = random.Random(20)
    results: dict[str, list[tuple[bool, bool]]] = {kind: [] for kind in _KINDS}
    for n, text in enumerate(texts):
        others = [texts[(n + step) % len(texts)] for step in (1, 2)]
        passages = _passages([text, *others])
        for kind, pattern in _KINDS.items():
            if len(results[kind]) < count and (pair := _pair(text, texts, pattern, chooser)):
                true, changed = (bool(unsupported_sentences(f"{each} [1]", passages, "")) for each in pair)
                results[kind].append((changed, true))
    return results


def _pair(text: str, texts: Sequence[str], pattern: re.Pattern[str], chooser: random.Random) -> tuple[str, str] | None:
    """Return sentences of a text, and the same with one claim replaced; None if there is no claim of this kind."""
    spans = sentence_spans(text)
    sentences = [text[a.start : b.end] for a, b in pairwise(spans)] + [text[span.start : span.end] for span in spans]
    held = [(sentence, match) for sentence in sentences for match in pattern.finditer(sentence)]
    if not held:
        return None
    sentence, match = chooser.choice(held)
    for other in _others(texts, pattern, chooser):
        if not any(word in text for word in re.findall(r"\w+", other)):
            return sentence, sentence[: match.start()] + other + sentence[match.end() :]
    return None


def _others(texts: Sequence[str], pattern: re.Pattern[str], chooser: random.Random) -> Iterator[str]:
    for _ in range(200):
        if held := pattern.findall(chooser.choice(texts)):
            yield chooser.choice(held)


def _passages(texts: Sequence[str]) -> list[Passage]:
    return read_passages(
        Hit(MemoryEntry(f"e{n}", text, kind="chunk", source=Source("d", "a.txt", 1, "1", 0, len(text))), 1.0)
        for n, text in enumerate(texts)
    )


if __name__ == "__main__":
    main()
