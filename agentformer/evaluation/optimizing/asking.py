"""Questions for an optimisation without any: built once, so that it can go on after an interruption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentformer.errors import StoreFull
from agentformer.evaluation.dataset import Dataset, Question
from agentformer.evaluation.optimizing.places import own_folder
from agentformer.evaluation.synthetic import Built, asked_of, build, sources_of
from agentformer.records.files import read_file, write_atomically
from agentformer.types import LanguageModel


def synthetic(
    dataset: Dataset, count: int, work: Path, *, seed: int = 0, model: LanguageModel | None = None, name: str = ""
) -> Dataset:
    """The corpus with at most `count` questions that are built from it. A model, whose `name` tells it from others,
    never asks the same twice; its questions are kept in `work` for this corpus, count and seed. Raises what `build`
    raises, and `StoreFull`."""
    if model is None:
        return asked_of(dataset, build(sources_of(dataset), count, seed=seed))
    about = {"passages": dataset.digest(questions=False), "count": count, "seed": seed, "model": name}
    path = own_folder(work) / "questions.json"
    built = _kept(path, about)
    if built is None:
        built = build(sources_of(dataset), count, seed=seed, model=model)
        told = [{"id": q.id, "text": q.text, "relevant": q.relevant, "meta": dict(q.meta)} for q in built.questions]
        whole = {"about": about, "questions": told, "notes": built.notes}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(whole, ensure_ascii=False).encode())
        except OSError as error:
            raise StoreFull(f"{path} cannot be written ({error.strerror or error})") from error
    return asked_of(dataset, built)


def _kept(path: Path, about: Mapping[str, Any]) -> Built | None:
    """The questions of an earlier run, where they are of the same."""
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
