"""Documents, their parts, and answers from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agentformer.api.models import Cursor, Limit, Namespace, Next, ResponseModel, Text, Tier
from agentformer.api.request import ParameterModel, RequestModel
from agentformer.records.fields import MAX_LIMIT
from agentformer.types import DocumentStatus, PageStatus

_MAX_TOKENS = 4096


def _empty(value: Any) -> Any:
    """Convert null to "", so that the error is the same as for an empty question."""
    return "" if value is None else value


class Question(RequestModel):
    """A question about the documents of a namespace."""

    question: Annotated[Text, BeforeValidator(_empty)] = Field(
        description="The question. The setting `max_question_chars` limits the length.",
        examples=["Who keeps the keys?"],
    )
    top_k: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = Field(
        default=None,
        description="The number of passages to answer from. The default is a setting of the server, normally 3.",
    )
    namespace: Namespace = None
    filters: dict[str, Any] | None = Field(
        default=None,
        max_length=100,
        description="Answer only from documents with these values in their metadata.",
        examples=[{"site": "north"}],
    )
    max_tokens: Annotated[int, Field(ge=1, le=_MAX_TOKENS)] | None = Field(
        default=None, description="The maximum length of the answer of a language model."
    )
    stream: bool | None = Field(
        default=None,
        description="If true, the answer is streamed as server-sent events. The default follows the header `Accept`.",
    )


class DocumentParameters(ParameterModel):
    """The namespace of a document."""

    namespace: Namespace = Field(
        default=None, description="The namespace of the document. By default, all namespaces of the key are searched."
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
    """A document, or a file that could not be stored. `reason` explains the `status`.

    A document with the status `pending` is found only by its words until it is embedded.
    """

    name: str
    namespace: str
    status: DocumentStatus
    reason: str
    id: str = Field(description="The id is empty if the file was not stored, or if the key has no right to read.")
    pages: int
    chunks: int
    media_type: str
    sha256: str = Field(description="The SHA-256 of the original file in hexadecimal.")
    bytes: int
    unchanged: bool = Field(description="True if the same bytes were stored already.")
    metadata: dict[str, Any]


class Documents(ResponseModel):
    """A page of documents, oldest first."""

    documents: list[Document]
    next: Next


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
        description="The title of the document and the headings above the passage. It is indexed with the passage."
    )
    metadata: dict[str, Any]


class Chunks(ResponseModel):
    """A page of chunks, in document order."""

    chunks: list[Chunk]
    next: Next


class DocumentPage(ResponseModel):
    """The stored text of a page. The offsets of citations refer to it."""

    id: str
    number: int = Field(description="The number of the page. The first page has the number 1.")
    label: str
    text: str
    status: PageStatus
    reason: str
    method: str = Field(description="The extractor that read the page.")


class DocumentPages(ResponseModel):
    """Pages of a document, in order."""

    pages: list[DocumentPage]
    next: Next


class Citation(ResponseModel):
    """Evidence for the answer. `quote` is the text of the page from `start` to `end`, in code points."""

    number: int = Field(description="The number of the citation, such as 1 for `[1]` in the answer.")
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
    """The influence of one ranked list on the rank of a hit."""

    name: str = Field(description="The list: `words`, `vectors`, `document`, `mentions`, `period` or `reranker`.")
    rank: int = Field(ge=1, description="The rank of the hit in this list.")
    weight: float = Field(ge=0, description="The weight of the list. If a reranker is used, only its list decides.")


class Scores(ResponseModel):
    """The scores of a hit. `score` is in 0..1, higher is better, and comparable within its own list."""

    score: float
    dense_score: float | None = Field(description="The cosine similarity of the best window.")
    lexical_score: float | None = Field(description="The BM25 score. It has no upper limit.")
    dense_rank: int | None
    lexical_rank: int | None
    span: Annotated[list[int], Field(min_length=2, max_length=2)] | None = Field(
        description="The start and the end of the part of the content that matches best, in code points."
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
        description="`llm`: written by a language model. `extractive`: quotations. `none`: nothing relevant was found."
    )
    citations: list[Citation]
    hits: list[Hit]
    timings: dict[str, float] = Field(description="Times in milliseconds.")
    warnings: list[str]
    complete: bool = Field(description="False if the model was interrupted or its answer was cut off.")
    confidence: float | None = Field(description="The estimated probability, 0 to 1, that the hits contain the answer.")
