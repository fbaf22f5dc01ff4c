"""The stored documents of a memory, with questions about them, as a dataset that can be stored again with other sizes
of chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from agentformer.errors import DocumentError, InvalidInput, NotFound, StoreError
from agentformer.evaluation.corpus_loader import Progress
from agentformer.evaluation.dataset import Dataset, Passage, Question, leaders
from agentformer.evaluation.memory_evaluation import DocumentQuestion, contains, is_correct, normalize, page_name
from agentformer.memory.backends import all_entries
from agentformer.rag.documents import Document, document_of, page_of
from agentformer.rag.originals import Originals
from agentformer.readers import ReadLimits, read
from agentformer.settings import Settings
from agentformer.types import DEFAULT_NAMESPACE, DocumentText, Hit, MemoryBackend, Page, Scope

_EXPECTED = ("document", "page", "answer")  # fields of a question that describe its correct passages


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
    """Return a dataset of the pages of the documents and the answerable questions about them. `relevant` of a question
    is the name of its group, so that `halves` keeps questions with a common correct page together. A question that
    names only a document is a group of its own. `answered_passage` decides whether a hit answers a question."""
    passages, pages = [], {}
    for document in documents:
        for page in document.pages:
            place = page_name(document.about.name, page.number)
            passages.append(Passage(place, page.text))
            pages[place] = document.about.name, normalize(page.text)
    answerable = [question for question in asked if not question.unanswerable]
    groups = [Question(one.text, one.text, tuple(_places(one, pages))) for one in answerable]
    leader = leaders(groups)
    lost = [one.line for one, group in zip(answerable, groups, strict=True) if not group.relevant]
    broad = sum(one.page is None and one.answer is None for one in answerable)
    skipped = len(asked) - len(answerable)
    notes = (
        (lost, f"{len(lost)} answers are on no page, such as the answer in line {next(iter(lost), 0)}; correct them"),
        (broad, f"{broad} questions name only a document: every passage of the document counts as correct"),
        (skipped, f"questions that are marked as unanswerable were not used: {skipped}"),
    )
    questions = [
        Question(one.text, one.text, (leader[one.text],), {key: getattr(one, key) for key in _EXPECTED})
        for one in answerable
    ]
    return Dataset(name, tuple(passages), tuple(questions), tuple(note for count, note in notes if count))


def _places(question: DocumentQuestion, pages: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Yield the names of the pages that answer a question. For a question that names only a document, yield one name
    that no other question has. `pages` maps the name of each page to its document and its text."""
    if question.document is not None and question.page is not None:
        yield page_name(question.document, question.page)
    elif question.answer is not None:
        answer = normalize(question.answer)
        for place, (document, text) in pages.items():
            if question.document in (None, document) and contains(text, answer):
                yield place
    elif question.document is not None:
        yield f"{question.document} {question.line}"


def answered_passage(hit: Hit, question: Question) -> str:
    """Return the value in `question.relevant` if the hit has the document, the page and the answer that the question
    names. Otherwise, return the id of the hit's entry."""
    expected = (question.meta[key] for key in _EXPECTED)
    return question.relevant[0] if is_correct(hit, *expected) else hit.entry.id


def with_documents(
    dataset: Dataset,
    documents: Sequence[StoredDocument],
    originals: Originals,
    settings: Settings,
    progress: Progress | None = None,
) -> Dataset:
    """Return the dataset with the documents. A memory does not store the headings of a page, so the original files are
    read again. If a file cannot be read, its document is used without headings, and a note reports this."""
    limits = ReadLimits.from_settings(settings)
    texts: list[tuple[Document, DocumentText]] = []
    unread: list[str] = []
    for number, document in enumerate(documents, 1):
        about = replace(document.about, namespace=DEFAULT_NAMESPACE)
        same: dict[tuple[int, str], Page] = {}
        try:
            pages = read(originals.get(about.sha256), about.name, limits=limits, ocr=False).pages
            same = {(page.number, page.text): page for page in pages if page.status == "text"}
        except (DocumentError, NotFound, StoreError):
            unread.append(about.name)
        kept = tuple(same.get((page.number, page.text), page) for page in document.pages)
        texts.append((about, DocumentText(about.media_type, kept, document.title)))
        if progress:
            progress(number, len(documents))
    note = (
        f"{len(unread)} original files cannot be read, such as {next(iter(unread), '')!r}; their headings were not used"
    )
    return replace(dataset, documents=tuple(texts), notes=(*dataset.notes, *((note,) if unread else ())))
