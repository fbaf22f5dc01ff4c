"""The corpus of an optimisation: its questions in two halves, generated questions, and the stores that contain its
passages.

Settings are chosen with one half of the questions and tested with the other half. Questions with a common relevant
passage are in the same half, because a setting that is good for one of these questions is probably good for all of
them. A hash of question ids and a seed decides which half a question belongs to. So the halves are the same on every
machine and for every order of the questions.

Configurations that split and index the passages in different ways need different stores. Each store has its own folder.
A complete store has a marker file. A store without this file was interrupted while it was filled, so it is built again.
Only a few stores are kept, because vectors are cached elsewhere, and everything else is quickly built again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from agentformer.errors import DocumentError, EmbedderUnavailable, InvalidInput, NotFound, StoreError
from agentformer.evaluation.corpus_loader import Progress
from agentformer.evaluation.dataset import Dataset, Passage, Question
from agentformer.evaluation.memory_evaluation import DocumentQuestion, Trial, contains, is_correct, normalize, page_name
from agentformer.evaluation.optimizing.cache import CachingEmbedder, work_folder, writing
from agentformer.evaluation.optimizing.space import Configuration, present, settings_of, stored_key
from agentformer.evaluation.synthetic import Built, build, corpus_sources, passage_of, with_questions
from agentformer.index.words.fields import ANALYSIS
from agentformer.memory.backends import all_entries
from agentformer.rag.documents import Document, document_of, page_of
from agentformer.rag.originals import Originals
from agentformer.readers import ReadLimits, read
from agentformer.records.integrity.files import delete, read_file, write_atomically
from agentformer.settings import Settings
from agentformer.settings.access import make_folder
from agentformer.types import DEFAULT_NAMESPACE, DocumentText, Hit, LanguageModel, MemoryBackend, Page, Scope

_EXPECTED = ("document", "page", "answer")  # fields of a question that describe its correct passages
OpensIn = Callable[[Settings, Path], AbstractContextManager[Trial]]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The passages, questions and current settings of an optimisation. `opens(settings, folder)` opens a memory that
    uses `embedder`. `passage_of(hit, question)` returns the id of the passage that the hit belongs to."""

    dataset: Dataset
    settings: Settings
    embedder: CachingEmbedder
    opens: OpensIn
    passage_of: Callable[[Hit, Question], str] = passage_of


class Halves(NamedTuple):
    """The questions with which settings are chosen (`development`), and those with which they are tested (`test`)."""

    development: tuple[Question, ...]
    test: tuple[Question, ...]


def halves(questions: Sequence[Question], seed: int = 0) -> Halves:
    """Divide the questions that have an answer into two halves. A hash with `seed` decides which half a question
    belongs to. The order of the questions stays the same in each half."""
    answerable = [question for question in questions if question.relevant]
    leader = _leaders(answerable)
    divided: tuple[list[Question], list[Question]] = [], []
    for question in answerable:
        name = f"{seed}:{leader[question.id]}"
        divided[hashlib.blake2b(name.encode(), digest_size=1).digest()[0] & 1].append(question)
    return Halves(tuple(divided[0]), tuple(divided[1]))


def _leaders(questions: Sequence[Question]) -> dict[str, str]:
    """Return question id -> group id, which is the smallest question id of the group. Questions are in the same group
    if they have a common relevant passage, directly or through other questions (union-find: Tarjan and van Leeuwen
    1984)."""
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


class StoredDocument(NamedTuple):
    """A document of an open memory, with its title and its stored pages."""

    about: Document
    title: str
    pages: tuple[Page, ...]


def stored_documents(backend: MemoryBackend, namespace: str) -> list[StoredDocument]:
    """Return all documents with text in a namespace. Raises `InvalidInput` if there are none."""
    documents = []
    for entry in all_entries(backend, Scope(namespace, kinds=("document",))):
        if entry.metadata["chunks"]:
            pages = all_entries(backend, Scope(namespace, kinds=("page",), document_id=entry.id))
            documents.append(StoredDocument(document_of(entry), entry.title, tuple(map(page_of, pages))))
    if not documents:
        message = f"namespace {namespace} has no documents with text; add documents with: agentformer ingest PATH..."
        raise InvalidInput("--namespace", message)
    return documents


def document_dataset(name: str, asked: Sequence[DocumentQuestion], documents: Sequence[StoredDocument]) -> Dataset:
    """Return a dataset with the name `name`: the pages of the documents, and the answerable questions about them.

    Questions with a common correct page, directly or through other questions, form a group. A question that names only
    a document is a group of its own. `relevant` of a question contains the name of its group instead of pages, so that
    `halves` puts all questions of a group into the same half. `answered_passage` decides whether a hit answers a
    question."""
    pages = {
        page_name(document.about.name, page.number): (document.about.name, page.text)
        for document in documents
        for page in document.pages
    }
    texts = {place: (document, normalize(text)) for place, (document, text) in pages.items()}
    answerable = [question for question in asked if not question.unanswerable]
    places = [Question(question.text, question.text, tuple(_places(question, texts))) for question in answerable]
    leader = _leaders(places)
    notes = []
    if lost := [str(one.line) for one, place in zip(answerable, places, strict=True) if not place.relevant]:
        notes.append(f"{len(lost)} answers are on no page, such as the answer in line {lost[0]}; correct them")
    if broad := sum(question.page is None and question.answer is None for question in answerable):
        notes.append(f"{broad} questions name only a document: every passage of the document counts as correct")
    if skipped := len(asked) - len(answerable):
        notes.append(f"questions that are marked as unanswerable were not used: {skipped}")
    return Dataset(
        name,
        tuple(Passage(place, text) for place, (_, text) in pages.items()),
        tuple(
            Question(q.text, q.text, (leader[q.text],), {key: getattr(q, key) for key in _EXPECTED}) for q in answerable
        ),
        tuple(notes),
    )


def _places(question: DocumentQuestion, texts: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Yield the names of the pages that answer a question. For a question that names only a document, yield one name
    that no other question has. `texts` maps the name of each page to its document and its text."""
    if question.document is not None and question.page is not None:
        yield page_name(question.document, question.page)
    elif question.answer is not None:
        answer = normalize(question.answer)
        for place, (document, text) in texts.items():
            if question.document in (None, document) and contains(text, answer):
                yield place
    elif question.document is not None:
        yield f"{question.document} {question.line}"


def answered_passage(hit: Hit, question: Question) -> str:
    """Return the value in `question.relevant` if the hit answers the question: the hit has the document, the page and
    the answer that the question names. Otherwise, return the id of the hit's entry."""
    expected = (question.meta[key] for key in _EXPECTED)
    return question.relevant[0] if is_correct(hit, *expected) else hit.entry.id


def with_documents(
    dataset: Dataset,
    documents: Sequence[StoredDocument],
    originals: Originals,
    settings: Settings,
    progress: Progress | None = None,
) -> Dataset:
    """Return a copy of the dataset with the documents, so that an optimisation can try other sizes of chunks. The
    memory does not store the headings of a page, so the original files are read again. If an original file cannot be
    read, for example because it is encrypted, its document is used without headings, and a note reports this."""
    limits = ReadLimits.from_settings(settings)
    texts: list[tuple[Document, DocumentText]] = []
    unread: list[str] = []
    for number, document in enumerate(documents, 1):
        about = replace(document.about, namespace=DEFAULT_NAMESPACE)
        pages: tuple[Page, ...] = ()
        try:
            pages = read(originals.get(about.sha256), about.name, limits=limits, ocr=False).pages
        except (DocumentError, NotFound, StoreError):
            unread.append(about.name)
        same = {(page.number, page.text): page for page in pages if page.status == "text"}
        kept = tuple(same.get((page.number, page.text), page) for page in document.pages)
        texts.append((about, DocumentText(about.media_type, kept, document.title)))
        if progress:
            progress(number, len(documents))
    notes = [*dataset.notes]
    if unread:
        notes.append(
            f"{len(unread)} original files cannot be read, such as {unread[0]!r}; their headings were not used"
        )
    return replace(dataset, documents=tuple(texts), notes=tuple(notes))


def synthetic(
    dataset: Dataset, count: int, work: Path, *, seed: int = 0, model: LanguageModel | None = None, name: str = ""
) -> Dataset:
    """Return the dataset with at most `count` questions that are generated from its passages. A language model
    generates different questions in each call. Therefore these questions are stored in `work`, and a later call with
    the same passages, `count`, `seed` and `name` (the name of the model) reads them. Raises the errors of `build`, and
    `StoreFull` if `work` cannot be written."""
    if model is None:
        return with_questions(dataset, build(corpus_sources(dataset), count, seed=seed))
    about = {"passages": dataset.digest(questions=False), "count": count, "seed": seed, "model": name}
    path = work_folder(work) / "questions.json"
    built = _stored_questions(path, about)
    if built is None:
        built = build(corpus_sources(dataset), count, seed=seed, model=model)
        content = {"about": about, "questions": [asdict(question) for question in built.questions]}
        with writing(path):
            make_folder(path.parent)
            write_atomically(path, json.dumps({**content, "notes": built.notes}, ensure_ascii=False).encode())
    return with_questions(dataset, built)


def _stored_questions(path: Path, about: Mapping[str, Any]) -> Built | None:
    """Return the questions in the file `path` if they were generated from the inputs `about`, or None."""
    try:
        content = json.loads(read_file(path))
        if content["about"] != about:
            return None
        questions = [Question(q["id"], q["text"], tuple(q["relevant"]), q["meta"]) for q in content["questions"]]
        return Built(tuple(questions), tuple(content["notes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


_NAME = re.compile(r"[0-9a-f]{16}")  # folder name of a store; nothing else is deleted
_KEPT = 3  # stores on disk in addition to the store of the current settings


class Stores:
    """The stores of one corpus, each for different settings. If `vectors` is true, the passages are embedded."""

    def __init__(self, folder: Path, corpus: Corpus, *, vectors: bool) -> None:
        self.vectors = vectors
        self._folder = folder
        self.corpus = corpus
        self._present = self._place(present(corpus.settings))
        self._used: list[Path] = []  # without the store of the current settings; the last used one is last

    def has(self, configuration: Configuration) -> bool:
        """Return whether there is a complete store for a configuration."""
        return _marker(self._place(configuration)).exists()

    @contextmanager
    def opened(self, configuration: Configuration, progress: Progress | None = None) -> Iterator[Trial]:
        """Yield the opened store of a configuration. If there is no complete store, it is built first. Raises
        `EmbedderUnavailable`, `StoreFull` if the disk cannot be written, and the errors of opening a memory."""
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
            self._delete(self._existing())
            if self._folder.is_dir() and not any(self._folder.iterdir()):
                self._folder.rmdir()
        self._used.clear()

    def _fill(self, trial: Trial, place: Path, progress: Progress | None) -> None:
        trial.load(self.corpus.dataset, progress)
        if self.vectors and trial.backend.embed_pending(refused=False):
            raise EmbedderUnavailable(
                "the embedder became unavailable while passages were embedded; start it and repeat the command"
            )
        with writing(self._folder):
            write_atomically(_marker(place), b"")

    def _make_room(self, place: Path) -> None:
        """Create the empty folder `place`, and delete the stores that were not used for the longest time."""
        with writing(self._folder):
            make_folder(self._folder)
            others = [path for path in self._existing() if path != self._present and path not in self._used]
            old = [path for path in (*others, *self._used) if path != place]
            unused = old[: max(0, len(old) + 1 - _KEPT)] if place != self._present else []
            self._delete((*unused, place))
            self._used = [path for path in old if path not in unused]
            make_folder(place, new=True)

    def _delete(self, places: Iterable[Path]) -> None:
        for path in places:
            delete(_marker(path))
            delete(path)

    def _existing(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return [path for path in self._folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]

    def _place(self, configuration: Configuration) -> Path:
        stored = f"{ANALYSIS} {stored_key(self.corpus.settings, configuration)}"
        return self._folder / hashlib.blake2b(stored.encode(), digest_size=8).hexdigest()


def _marker(place: Path) -> Path:
    """Return the path of the marker file, which exists if the store in `place` is complete."""
    return place.with_name(f"{place.name}.whole")
