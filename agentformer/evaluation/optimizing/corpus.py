"""The corpus of an optimisation, its questions in two halves, and synthetic questions.

Questions with a common relevant passage are in the same half, because a setting that suits a passage suits all of them.
The half follows from a hash of ids and seed, so it is the same on every machine and for every order of questions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agentformer.errors import StoreFull
from agentformer.evaluation.dataset import Dataset, Question
from agentformer.evaluation.opened import Trial
from agentformer.evaluation.optimizing.cache import CachingEmbedder, work_folder
from agentformer.evaluation.synthetic import Built, build, corpus_sources, with_questions
from agentformer.records.files import read_file, write_atomically
from agentformer.settings import Settings
from agentformer.types import LanguageModel

OpensIn = Callable[[Settings, Path], AbstractContextManager[Trial]]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Passages with questions, the current settings, and a function that opens a memory with other settings in a
    folder; its embedder must be `embedder`."""

    dataset: Dataset
    settings: Settings
    embedder: CachingEmbedder
    opens: OpensIn


class Halves(NamedTuple):
    """Questions for choosing and for testing."""

    development: tuple[Question, ...]
    test: tuple[Question, ...]


def halves(questions: Sequence[Question], seed: int = 0) -> Halves:
    """Divide the questions that have an answer; each half keeps their order. Linear in questions and relevant ids."""
    asked = [question for question in questions if question.relevant]
    leader = _leaders(asked)
    in_test = {name: _in_test(name, seed) for name in set(leader.values())}
    test = [in_test[leader[question.id]] for question in asked]
    return Halves(
        tuple(question for question, there in zip(asked, test, strict=True) if not there),
        tuple(question for question, there in zip(asked, test, strict=True) if there),
    )


def _leaders(questions: Sequence[Question]) -> dict[str, str]:
    """Return for each question the least id of those connected with it by passages (disjoint sets with path halving;
    Tarjan and van Leeuwen 1984)."""
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


def synthetic(
    dataset: Dataset, count: int, work: Path, *, seed: int = 0, model: LanguageModel | None = None, name: str = ""
) -> Dataset:
    """Return the corpus with at most `count` questions made from it. A model's questions, identified by its `name`, are
    kept in `work` for this corpus, count and seed, because a model never asks the same twice. Raises what `build`
    raises, and `StoreFull`."""
    if model is None:
        return with_questions(dataset, build(corpus_sources(dataset), count, seed=seed))
    about = {"passages": dataset.digest(questions=False), "count": count, "seed": seed, "model": name}
    path = work_folder(work) / "questions.json"
    built = _kept(path, about)
    if built is None:
        built = build(corpus_sources(dataset), count, seed=seed, model=model)
        told = [{"id": q.id, "text": q.text, "relevant": q.relevant, "meta": dict(q.meta)} for q in built.questions]
        whole = {"about": about, "questions": told, "notes": built.notes}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(whole, ensure_ascii=False).encode())
        except OSError as error:
            raise StoreFull(f"{path} cannot be written ({error.strerror or error})") from error
    return with_questions(dataset, built)


def _kept(path: Path, about: Mapping[str, Any]) -> Built | None:
    """Return the questions of an earlier run with the same inputs, else None."""
    try:
        found = json.loads(read_file(path))
        if found["about"] != about:
            return None
        questions = [
            Question(each["id"], each["text"], tuple(each["relevant"]), each["meta"]) for each in found["questions"]
        ]
        return Built(tuple(questions), tuple(found["notes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
