"""A corpus in which a known setting is better: small pieces of text.

What is asked stands in one sentence in the middle of a long text. Other long texts say both of its words more often,
but far apart. Whole, those are nearer to the question; cut into small pieces, none of them has both words.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from agentformer.evaluation.dataset import Dataset, Passage, Question, halves

_GROUP = 5  # facts whose words stand together in the same texts
_OTHERS = 6  # texts that say a group's words far apart: more than are looked at
_FILLER = "Some days nothing of note is seen, and the hours pass as they do. "
_SYLLABLES = ("ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu")


def word(number: int, first: str) -> str:
    """A word that no other text has."""
    syllables = []
    for _ in range(3):
        number, place = divmod(number, len(_SYLLABLES))
        syllables.append(_SYLLABLES[place])
    return first + "".join(syllables)


def far_apart(facts: int = 20, filler: int = 5) -> Dataset:
    """One question for each fact, which stands between `filler` sentences before and behind it."""
    passages, questions = [], []
    for n in range(facts):
        one, other = word(n * 7, "wa"), word(n * 7 + 3, "xe")
        text = f"{_FILLER * filler}The {one} keeps the {other} there. {_FILLER * filler}"
        passages.append(Passage(f"fact {n}", text))
        questions.append(Question(f"q{n}", f"Which {one} keeps the {other}?", (f"fact {n}",)))
    for start in range(0, facts, _GROUP):
        group = range(start, min(start + _GROUP, facts))
        ones = " ".join(f"The {word(n * 7, 'wa')} is here. A {word(n * 7, 'wa')} it is." for n in group)
        others = " ".join(f"The {word(n * 7 + 3, 'xe')} is here. A {word(n * 7 + 3, 'xe')} it is." for n in group)
        for n in range(_OTHERS):
            text = f"{ones} {_FILLER * (filler * 5 // 3 + n)} {others}"
            passages.append(Passage(f"others {start} {n}", text))
    return Dataset("far apart", tuple(passages), tuple(questions))


def easy_to_judge() -> Dataset:
    """The same, but the questions of the test half are answered whatever the settings are."""
    dataset = far_apart()
    names = sorted(question.id for question in halves(dataset.questions).test)
    easy = {name: word(n, "yo") for n, name in enumerate(names)}
    passages = [Passage(f"easy {name}", f"The lamp of {lamp} burns.") for name, lamp in easy.items()]
    questions = [
        replace(each, text=f"Does the lamp of {easy[each.id]} burn?", relevant=(f"easy {each.id}",))
        if each.id in easy
        else each
        for each in dataset.questions
    ]
    return replace(dataset, passages=(*dataset.passages, *passages)).asking(questions)


def written(dataset: Dataset, folder: Path) -> Path:
    """The folder, with the dataset in it as users have it."""
    folder.mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"id": each.id, "text": each.text}) + "\n" for each in dataset.passages)
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(
            json.dumps({"id": each.id, "text": each.text, "relevant": each.relevant}) + "\n"
            for each in dataset.questions
        )
    return folder
