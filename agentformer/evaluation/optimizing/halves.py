"""Questions in two halves: one to choose by, and one that tells whether the choice was right.

Questions that share a relevant passage stay together, since a setting that suits a passage suits all of them. The half
follows from a hash of ids and seed alone, so it is the same on every machine, and whatever order the questions are in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from agentformer.evaluation.dataset import Question


class Halves(NamedTuple):
    development: tuple[Question, ...]
    test: tuple[Question, ...]


def halves(questions: Sequence[Question], seed: int = 0) -> Halves:
    """The questions that something answers, in their order in each half. Linear in questions and relevant ids."""
    asked = [question for question in questions if question.relevant]
    leader = _leaders(asked)
    in_test = {name: _in_test(name, seed) for name in set(leader.values())}
    test = [in_test[leader[question.id]] for question in asked]
    return Halves(
        tuple(question for question, there in zip(asked, test, strict=True) if not there),
        tuple(question for question, there in zip(asked, test, strict=True) if there),
    )


def _leaders(questions: Sequence[Question]) -> dict[str, str]:
    """For each question, the least id of those that it is connected with by passages (disjoint sets with path
    halving; Tarjan and van Leeuwen 1984)."""
    above = {question.id: question.id for question in questions}

    def top(name: str) -> str:
        while above[name] != name:
            above[name] = name = above[above[name]]
        return name

    first: dict[str, str] = {}  # passage -> a question that it answers
    for question in questions:
        for passage in question.relevant:
            one, other = sorted((top(question.id), top(first.setdefault(passage, question.id))))
            above[other] = one
    return {question.id: top(question.id) for question in questions}


def _in_test(name: str, seed: int) -> bool:
    return bool(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=1).digest()[0] & 1)
