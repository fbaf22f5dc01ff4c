"""Questions about company filings: which of the pages of all PDFs answer a question?

The folder has `questions.jsonl`, with the file and the pages (from 1) of each question, and `pdfs`. All documents are
stored together, so the pages of one company compete with those of the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from agentformer.evaluation.dataset import Dataset, Passage, Question
from agentformer.evaluation.memory_evaluation import names_of, page_name
from agentformer.rag.documents import Document
from agentformer.readers import read
from agentformer.types import DEFAULT_NAMESPACE, DocumentText, Hit

QUESTIONS = "questions.jsonl"


def read_filings(folder: Path) -> Dataset:
    """Return the documents of a folder and the questions with the names of their pages, such as `report.pdf#3`."""
    documents = [_document(path) for path in sorted((folder / "pdfs").iterdir())]
    pages = (
        Passage(page_name(document.name, page.number), page.text) for document, text in documents for page in text.pages
    )
    return Dataset(folder.name, tuple(pages), tuple(_questions(folder)), documents=tuple(documents))


def page_of(hit: Hit, question: Question) -> str:
    """Return the name of the page that contains the hit."""
    return names_of(hit).get("page", hit.entry.id)


def _document(path: Path) -> tuple[Document, DocumentText]:
    data = path.read_bytes()
    text = read(data, path.name, ocr=False)
    digest = hashlib.sha256(data).hexdigest()
    return Document(path.name, DEFAULT_NAMESPACE, "ready", sha256=digest, bytes=len(data)), text


def _questions(folder: Path) -> Iterator[Question]:
    with (folder / QUESTIONS).open(encoding="utf-8") as lines:
        for values in map(json.loads, lines):
            pages = tuple(page_name(values["file"], page) for page in values["pages"])
            yield Question(values["id"], values["text"], pages, {"category": values["type"]})
