"""The corpus of an optimisation, its questions in two halves, synthetic questions, and stores of the corpus.

Questions with a common relevant passage are in the same half, because a setting that is good for one of these questions
is probably good for all of them. A hash of ids and seed decides the half. So the halves are the same on every machine
and for every order of the questions.

Each way of splitting and indexing the corpus has a store in its own folder. A complete store has a marker file. A store
without this file was interrupted while it was filled, and is built again. Only a few stores are kept, because vectors
are cached elsewhere and everything else is quickly rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agentformer.errors import EmbedderUnavailable
from agentformer.evaluation.dataset import Dataset, Question
from agentformer.evaluation.loading import Progress
from agentformer.evaluation.opened import Trial
from agentformer.evaluation.optimizing.cache import CachingEmbedder, work_folder, writing
from agentformer.evaluation.optimizing.space import Configuration, present, settings_of, stored_key
from agentformer.evaluation.synthetic import Built, build, corpus_sources, with_questions
from agentformer.records.files import delete, read_file, write_atomically
from agentformer.settings import Settings
from agentformer.types import LanguageModel

OpensIn = Callable[[Settings, Path], AbstractContextManager[Trial]]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Passages with questions, the current settings, and a function that opens a memory with given settings in a
    folder. The memory must use `embedder`."""

    dataset: Dataset
    settings: Settings
    embedder: CachingEmbedder
    opens: OpensIn


class Halves(NamedTuple):
    """The questions to choose settings with, and the questions to test settings with."""

    development: tuple[Question, ...]
    test: tuple[Question, ...]


def halves(questions: Sequence[Question], seed: int = 0) -> Halves:
    """Divide the questions that have an answer into two halves. Each half keeps their order. Time is linear in
    questions and relevant ids."""
    answerable = [question for question in questions if question.relevant]
    leader = _leaders(answerable)
    in_test = {name: _in_test(name, seed) for name in set(leader.values())}
    divided: tuple[list[Question], list[Question]] = [], []
    for question in answerable:
        divided[in_test[leader[question.id]]].append(question)
    return Halves(tuple(divided[False]), tuple(divided[True]))


def _leaders(questions: Sequence[Question]) -> dict[str, str]:
    """Return question -> the least id of all questions that it is connected with by common passages. Uses disjoint sets
    with path halving (Tarjan and van Leeuwen 1984)."""
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
    """Return the corpus with at most `count` questions that are made from its passages.

    A language model asks different questions each time. So its questions are stored in `work` for this corpus, `name`,
    `count` and `seed`, and another run reads them. `name` identifies the model. Raises the errors of `build`, and
    `StoreFull`.
    """
    if model is None:
        return with_questions(dataset, build(corpus_sources(dataset), count, seed=seed))
    about = {"passages": dataset.digest(questions=False), "count": count, "seed": seed, "model": name}
    path = work_folder(work) / "questions.json"
    built = _stored_questions(path, about)
    if built is None:
        built = build(corpus_sources(dataset), count, seed=seed, model=model)
        content = {"about": about, "questions": [asdict(question) for question in built.questions]}
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({**content, "notes": built.notes}, ensure_ascii=False).encode())
    return with_questions(dataset, built)


def _stored_questions(path: Path, about: Mapping[str, Any]) -> Built | None:
    """Return the questions that an earlier run with the same inputs stored, or None."""
    try:
        content = json.loads(read_file(path))
        if content["about"] != about:
            return None
        questions = [Question(q["id"], q["text"], tuple(q["relevant"]), q["meta"]) for q in content["questions"]]
        return Built(tuple(questions), tuple(content["notes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


_NAME = re.compile(r"[0-9a-f]{16}")  # of a store; nothing else is deleted
_KEPT = 3  # stores on disk in addition to the store of the current settings


class Stores:
    """The stores of one corpus. `vectors` says whether entries get vectors."""

    def __init__(self, folder: Path, corpus: Corpus, *, vectors: bool) -> None:
        self.vectors = vectors
        self._folder = folder
        self.corpus = corpus
        self._present = self._place(present(corpus.settings))
        self._used: list[Path] = []  # but for the present one; the latest last

    def has(self, configuration: Configuration) -> bool:
        """Return whether the store of a configuration exists and is complete."""
        return _whole(self._place(configuration)).exists()

    @contextmanager
    def opened(self, configuration: Configuration, progress: Progress | None = None) -> Iterator[Trial]:
        """Open the store of a configuration. If the store does not exist, fill it first. Raises `EmbedderUnavailable`
        if the embedder failed, `StoreFull`, and the errors of opening a memory."""
        settings, place = settings_of(self.corpus.settings, configuration), self._place(configuration)
        complete = self.has(configuration)
        if not complete:
            self._make_room(place)
        if place != self._present:
            self._used = [*(path for path in self._used if path != place), place]
        with self.corpus.opens(settings, place) as trial:
            if not complete:
                self._fill(trial, place, progress)
            yield trial

    def clear(self) -> None:
        """Delete all stores."""
        with writing(self._folder, verb="deleted"):
            self._delete(self._made())
            if self._folder.is_dir() and not any(self._folder.iterdir()):
                self._folder.rmdir()
        self._used.clear()

    def _fill(self, trial: Trial, place: Path, progress: Progress | None) -> None:
        trial.load(self.corpus.dataset, progress)
        if self.vectors and trial.backend.embed_pending(refused=False):
            raise EmbedderUnavailable("the embedder became unavailable while passages were embedded")
        with writing(self._folder):
            write_atomically(_whole(place), b"")

    def _make_room(self, place: Path) -> None:
        """Create an empty folder. Delete the stores that were not used for the longest time, including those of earlier
        processes."""
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            others = [path for path in self._made() if path != self._present and path not in self._used]
            old = [path for path in (*others, *self._used) if path != place]
            unused = old[: max(0, len(old) + 1 - _KEPT)] if place != self._present else []
            self._delete((*unused, place))
            self._used = [path for path in old if path not in unused]
            place.mkdir()

    def _delete(self, places: Iterable[Path]) -> None:
        for path in places:
            delete(_whole(path))
            delete(path)

    def _made(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return [path for path in self._folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]

    def _place(self, configuration: Configuration) -> Path:
        stored = stored_key(self.corpus.settings, configuration).encode()
        return self._folder / hashlib.blake2b(stored, digest_size=8).hexdigest()


def _whole(place: Path) -> Path:
    """Return the path of the marker file of a complete store."""
    return place.with_name(f"{place.name}.whole")
