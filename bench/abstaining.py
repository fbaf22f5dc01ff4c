"""Declined questions: `python -m bench.abstaining [SET ...] [--curve]`.

Each passage of a set is stored as a chunk, with the packaged MiniLM, and the questions are searched. A question is
answerable if the right passage is among its three hits; it is lost if it is declined. Four kinds of question have no
answer: *adversarial* ones (written without an answer, about the topic of a passage), those with their passage *taken
out* of the hits, those with their whole article taken out (*elsewhere*; for a conversation, another conversation is
searched), and *strays*: questions of other sets, mostly in another language. PASSAGES<QUESTIONS takes the questions
from another set (xquad/en<xquad/de: German questions over English passages).

"Declined" counts questions below `abstain`; "no model asked" counts those that no language model would get. AUROC is
the chance that an answerable question has more confidence than one of that kind. The coefficients of
`rag/answer/confidence.py` and the default were chosen on questions with even numbers (`--half even`); the odd ones are
reported. `--curve` shows other thresholds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import agentformer
from agentformer.llms.echo import EchoModel
from agentformer.rag.answer.answerer import Answerer
from agentformer.rag.answer.sources import Found
from agentformer.settings import Settings, load_settings
from agentformer.text.languages.detection import detect_language
from agentformer.types import DEFAULT_NAMESPACE, Hit, MemoryEntry, Query, Scope, new_id
from bench.data import DATA, DataSet, Row, load

SETS = (
    *("xquad/en", "locomo_dev", "hotpot_small", "squad_fi", "swefaq", "norquad", "jsquad_valid", "xquad/de"),
    "xquad/en<xquad/de",
)
STRAYS = {  # set of passages -> set of questions
    "xquad/en": ("pubmedqa", "madial_en", "swefaq"),
    "locomo_dev": ("pubmedqa", "xquad/en", "swefaq"),
    "hotpot_small": ("madial_en", "norquad"),
    "squad_fi": ("swefaq", "locomo_dev"),
    "swefaq": ("norquad", "squad_fi"),
    "norquad": ("swefaq", "squad_fi"),
    "jsquad_valid": ("squad_fi", "locomo_dev"),
    "xquad/de": ("locomo_dev", "norquad"),
}
KINDS = ("adversarial", "taken out", "elsewhere", "strays")
BOUNDS = (0.0, 0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_TOP = 3
_DEEP = 40  # hits of a search; enough remain if those of an article are taken out
_STRAYS = 80  # questions of one other set


@dataclass(frozen=True)
class Asked:
    """A question over given hits, and its result."""

    kind: str  # "answerable", or one of `KINDS`
    half: str  # even or odd: its number in its set
    confidence: float
    silenced: bool  # below the threshold for a language model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--sample", type=int, default=300, help="questions of a set at most, evenly spread; 0: all")
    parser.add_argument("--half", choices=("even", "odd", "both"), default="odd")
    parser.add_argument("--abstain", type=float)
    parser.add_argument("--embedder", default="minilm")
    parser.add_argument("--curve", action="store_true")
    chosen = parser.parse_args()
    settings = load_settings({"embedder": chosen.embedder, "abstain": chosen.abstain})
    found = {}
    print("| passages | kind | n | AUROC | declined | no model asked |\n|---|---|---|---|---|---|")
    for name in chosen.sets:
        found[name] = measure(name, settings, chosen.sample)
        for line in rows(name, half_of(found[name], chosen.half), settings.abstain):
            print(line, flush=True)
    halves = {name: half_of(asked, chosen.half) for name, asked in found.items()}
    if chosen.curve:
        print("\n".join(["", *curve(halves)]))


def half_of(asked: Sequence[Asked], half: str) -> list[Asked]:
    return [one for one in asked if half in (one.half, "both")]


def rows(name: str, asked: Sequence[Asked], bound: float) -> Iterator[str]:
    """Return the rows of the set; for answerable questions, "declined" are those lost."""
    answerable = [one.confidence for one in asked if one.kind == "answerable"]
    for kind in ("answerable", *KINDS):
        of_kind = [one for one in asked if one.kind == kind]
        if of_kind:
            sure = [one.confidence for one in of_kind]
            chance = f"{auroc(answerable, sure):.3f}" if kind != "answerable" else ""
            silenced = np.mean([one.silenced for one in of_kind])
            print_name = name if kind == "answerable" else ""
            yield f"| {print_name} | {kind} | {len(sure)} | {chance} | {_below(sure, bound):.3f} | {silenced:.3f} |"


def curve(found: dict[str, list[Asked]]) -> Iterator[str]:
    """Return for each threshold the share of lost answerable questions (mean and worst set) and of declined ones per
    kind (mean of the sets). Sets with foreign questions are left out."""
    sets = {name: asked for name, asked in found.items() if "<" not in name}
    yield "| abstain | lost | lost at worst | " + " | ".join(f"{kind} declined" for kind in KINDS) + " |"
    yield "|---" * (len(KINDS) + 3) + "|"
    for bound in BOUNDS:
        shares = {kind: _shares(sets, kind, bound) for kind in ("answerable", *KINDS)}
        lost = shares.pop("answerable")
        cells = [f"{np.mean(each):.3f}" if each else "-" for each in shares.values()]
        yield f"| {bound:.2f} | {np.mean(lost):.3f} | {max(lost):.3f} | {' | '.join(cells)} |"


def _shares(found: dict[str, list[Asked]], kind: str, bound: float) -> list[float]:
    of_kind = ([one.confidence for one in asked if one.kind == kind] for asked in found.values())
    return [_below(sure, bound) for sure in of_kind if sure]


def _below(sure: Sequence[float], bound: float) -> float:
    return float(np.mean(np.array(sure) < bound))


def auroc(higher: Sequence[float], lower: Sequence[float]) -> float:
    """Return the chance that one of `higher` is above one of `lower`; equals count a half."""
    more = np.array(higher)[:, None] - np.array(lower)[None, :]
    return float(np.mean((more > 0) + 0.5 * (more == 0)))


def measure(name: str, settings: Settings, sample: int) -> list[Asked]:
    """Return the questions of one set and of all kinds, at most `sample` of each, evenly spread; 0: all."""
    passages, _, other = name.partition("<")
    data = load(passages)
    questions = load(other) if other else data
    with (
        tempfile.TemporaryDirectory() as folder,
        agentformer.AgentFormer(
            dataclasses.replace(settings, index_dir=Path(folder, "index"), upload_dir=Path(folder, "up"))
        ) as af,
    ):
        asking = _Asking(af, data)
        found = [one for n, row in _spread(questions.queries, sample) for one in asking.ask(n, row)]
        if not other:
            found += [asking.given("adversarial", n, row) for n, row in _spread(_unanswerable(passages), sample)]
            strays = [row for each in STRAYS.get(passages, ()) for _, row in _spread(load(each).queries, _STRAYS)]
            found += [asking.given("strays", n, row) for n, row in enumerate(strays)]
        return found


def _spread(rows: Sequence[Row], sample: int) -> list[tuple[int, Row]]:
    """Return at most so many rows with their numbers, in pairs, so that even and odd ones are equally many."""
    step = -(-len(rows) // sample) if sample else 1
    return [(n, row) for n, row in enumerate(rows) if n % (2 * step) < 2]


def _unanswerable(name: str) -> list[Row]:
    path = DATA / name / "queries_unanswerable.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [Row(values["id"], values["text"], meta=values["meta"]) for values in map(json.loads, lines)]


class _Asking:
    """A stored set that is asked questions."""

    def __init__(self, af: agentformer.AgentFormer, data: DataSet) -> None:
        self._af = af
        self._articles = {row.id: _article(row) for row in data.corpus}
        self._namespaces = sorted({_namespace(row) for row in data.corpus})
        self._whole = len(set(self._articles.values())) < len(self._articles)  # do articles have several passages?
        self._quoting = Answerer(None, af.embedder, abstain=0.0)
        self._model = Answerer(EchoModel(), af.embedder)  # it always answers
        language = detect_language("\n".join(row.text for row in data.corpus[:40]))
        af.backend.store([_entry(row, language) for row in data.corpus])

    def ask(self, number: int, row: Row) -> Iterator[Asked]:
        """Return the results with the passage, without it, and without its article."""
        hits = self._search(row.text, _namespace(row))
        if row.meta.get("category_name") == "adversarial":
            yield self._judged("adversarial", number, row, hits)
        elif row.relevant:
            right = set(row.relevant)
            if any(_row(hit) in right for hit in hits[:_TOP]):
                yield self._judged("answerable", number, row, hits)
            yield self._judged("taken out", number, row, [hit for hit in hits if _row(hit) not in right])
            if len(self._namespaces) > 1:
                after = (self._namespaces.index(_namespace(row)) + 1) % len(self._namespaces)
                yield self._judged("elsewhere", number, row, self._search(row.text, self._namespaces[after]))
            elif self._whole:
                articles = {self._articles[each] for each in right}
                others = [hit for hit in hits if self._articles[_row(hit)] not in articles]
                yield self._judged("elsewhere", number, row, others)

    def given(self, kind: str, number: int, row: Row) -> Asked:
        return self._judged(kind, number, row, self._search(row.text, self._namespaces[0]))

    def _search(self, text: str, namespace: str) -> list[Hit]:
        return self._af.backend.search(Query(text, Scope(namespace, kinds=("chunk",)), _DEEP))

    def _judged(self, kind: str, number: int, row: Row, hits: Sequence[Hit]) -> Asked:
        hits = hits[:_TOP]
        half = "odd" if number % 2 else "even"
        if not hits:
            return Asked(kind, half, 0.0, True)
        silenced = self._model.answer(Found(row.text, hits)).mode == "none"
        sure = self._quoting.answer(Found(row.text, hits)).confidence or 0.0
        return Asked(kind, half, sure, silenced)


def _entry(row: Row, language: str) -> MemoryEntry:
    who, when = row.meta.get("speaker"), row.meta.get("date_time")
    content = f"{who} ({when}): {row.text}" if who and when else row.text
    given = {"language": language, "row": row.id}
    return MemoryEntry(id=new_id(), content=content, kind="chunk", namespace=_namespace(row), metadata=given)


def _row(hit: Hit) -> str:
    return str(hit.entry.metadata["row"])


def _article(row: Row) -> str:
    """Return the article or conversation of a passage, or the passage itself."""
    return str(row.meta.get("doc", row.meta.get("title", row.meta.get("category_id", row.id))))


def _namespace(row: Row) -> str:
    """Return a namespace per conversation, since each is searched separately."""
    return f"conversation-{row.meta['conv']}" if "conv" in row.meta else DEFAULT_NAMESPACE


if __name__ == "__main__":
    main()
