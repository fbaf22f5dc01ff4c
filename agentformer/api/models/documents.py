"""Documents, their parts, and answers from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agentformer.api.models import NEXT, NOT_BLANK, Cursor, Limit, Namespace, ResponseModel, Tier
from agentformer.api.request import ParameterModel, RequestModel
from agentformer.records.fields import MAX_LIMIT
from agentformer.types import DocumentStatus, PageStatus

_MAX_TOKENS = 4096


def _empty(value: Any) -> Any:
    """Convert null to "", so that the error is the same as for an empty question."""
    return "" if value is None else value


class Question(RequestModel):
    """A question about the documents of a namespace."""

    question: Annotated[
        str,
        Field(
            min_length=1,
            pattern=NOT_BLANK,
            description="The question. The setting `max_question_chars` limits its length.",
            examples=["Who keeps the keys?"],
        ),
        BeforeValidator(_empty),
    ]
    top_k: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = Field(
        default=None,
        description="The number of passages to answer from. Default: a setting of the server, 3 unless changed.",
    )
    namespace: Namespace = None
    filters: dict[str, Any] | None = Field(
        default=None,
        max_length=100,
        description="Metadata that the documents must have; values are compared by equality.",
        examples=[{"site": "north"}],
    )
    max_tokens: Annotated[int, Field(ge=1, le=_MAX_TOKENS)] | None = Field(
        default=None, description="The maximum length of the answer of a language model."
    )
    stream: bool | None = Field(
        default=None,
        description="True: stream the answer as server-sent events. Default: the preference of the header `Accept`.",
    )


class DocumentParameters(ParameterModel):
    """The namespace of a document."""

    namespace: Namespace = Field(
        default=None, description="The document's namespace. Default: all namespaces of the key."
    )


class DocumentsParameters(ParameterModel):
    """A page of documents."""

    namespace: Namespace = None
    limit: Limit = 100
    after: Cursor = ""


class PartsParameters(DocumentParameters):
    """A page of the parts of a document."""

    limit: Limit = 100
    after: Cursor = ""


class Document(ResponseModel):
    """A document, or a file that could not be stored, with its `reason`.

    `pending`: found by its words only, until it is embedded.
    """

    name: str
    namespace: str
    status: DocumentStatus
    reason: str
    id: str = Field(description="Empty for a file that was not stored, and for a key without the right to read.")
    pages: int
    chunks: int
    media_type: str
    sha256: str = Field(description="SHA-256 of the original, in hexadecimal.")
    bytes: int
    unchanged: bool = Field(description="True if the same bytes were stored already.")
    metadata: dict[str, Any]


class Documents(ResponseModel):
    """A page of documents, oldest first."""

    documents: list[Document]
    next: str | None = Field(description=NEXT)


class Chunk(ResponseModel):
    """A passage of a document: `content` is the text of its page from `start` to `end`, in code points."""

    id: str
    document_id: str
    document: str
    page: int | None
    label: str = Field(description="The printed page number, or the name of the section.")
    start: int
    end: int
    content: str
    title: str
    context: str = Field(
        description="Text that is indexed with the chunk: the document's title and the headings above."
    )
    metadata: dict[str, Any]


class Chunks(ResponseModel):
    """A page of chunks, in document order."""

    chunks: list[Chunk]
    next: str | None = Field(description=NEXT)


class DocumentPage(ResponseModel):
    """The stored text of a page. The offsets of citations refer to it."""

    id: str
    number: int = Field(description="The page number, from 1.")
    label: str
    text: str
    status: PageStatus
    reason: str
    method: str = Field(description="The extractor that read the page.")


class DocumentPages(ResponseModel):
    """Pages of a document, in order."""

    pages: list[DocumentPage]
    next: str | None = Field(description=NEXT)


class Citation(ResponseModel):
    """Evidence for the answer. `quote` is the text of the page from `start` to `end`, in code points."""

    number: int = Field(description="The number n of [n] in the answer.")
    document: str
    document_id: str
    page: int | None
    label: str
    start: int
    end: int
    quote: str
    score: float
    entry_id: str = Field(description="The id of the cited chunk.")


class Vote(ResponseModel):
    """The part of one ranked list in the rank of a hit."""

    name: str = Field(description="`words`, `vectors`, `document`, `mentions`, `period` or `reranker`.")
    rank: int = Field(ge=1, description="The rank of the hit in this list.")
    weight: float = Field(ge=0, description="The weight of the list in this search. A reranker decides alone.")


class Scores(ResponseModel):
    """The scores of a hit. `score` is in 0..1, higher is better, and comparable within its own list."""

    score: float
    dense_score: float | None = Field(description="The cosine similarity of the best window.")
    lexical_score: float | None = Field(description="BM25, without an upper limit.")
    dense_rank: int | None
    lexical_rank: int | None
    span: Annotated[list[int], Field(min_length=2, max_length=2)] | None = Field(
        description="Start and end of the best-matching part of the content, in code points."
    )
    votes: list[Vote] = Field(description="The lists that decided the rank of the hit.")


class Hit(Scores):
    """A passage of a document."""

    id: str
    document: str | None
    document_id: str | None
    page: int | None
    label: str | None
    start: int
    end: int
    content: str
    kind: str
    tier: Tier
    metadata: dict[str, Any]


class Answer(ResponseModel):
    """An answer, its citations, and the passages that it is based on."""

    answer: str
    mode: Literal["llm", "extractive", "none"] = Field(
        description="The source of the answer: a language model, quotations, or none if nothing relevant was found."
    )
    citations: list[Citation]
    hits: list[Hit]
    timings: dict[str, float] = Field(description="Times in milliseconds.")
    warnings: list[str]
    complete: bool = Field(description="False if the model was interrupted or its answer was cut off.")
    confidence: float | None = Field(
        description="The probability, 0 to 1, that the hits contain the answer; estimated before answering."
    )
