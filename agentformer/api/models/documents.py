"""Documents, and answers from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agentformer.api.models.common import NOT_BLANK, Cursor, Limit, Namespace, ResponseModel, Tier
from agentformer.api.request import ParameterModel, RequestModel
from agentformer.records.fields import MAX_LIMIT
from agentformer.types import DocumentStatus, PageStatus

_MOST_TOKENS = 4096


def _empty(value: Any) -> Any:
    """A question that is null is called empty, as one without words is."""
    return "" if value is None else value


class Question(RequestModel):
    """A question about the documents of a namespace."""

    question: Annotated[
        str,
        Field(
            min_length=1,
            pattern=NOT_BLANK,
            description="In plain words. How long it may be is a setting, `max_question_chars`.",
            examples=["Who keeps the keys?"],
        ),
        BeforeValidator(_empty),
    ]
    top_k: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = Field(
        default=None, description="How many passages to answer from. Left out: as the server is set, 3 by default."
    )
    namespace: Namespace = None
    filters: dict[str, Any] | None = Field(
        default=None,
        max_length=100,
        description="Metadata that the documents must have, by equality.",
        examples=[{"site": "north"}],
    )
    max_tokens: Annotated[int, Field(ge=1, le=_MOST_TOKENS)] | None = Field(
        default=None, description="What a language model may write."
    )
    stream: bool | None = Field(
        default=None, description="True: server-sent events. Left out: as the header `Accept` prefers."
    )


class InNamespace(ParameterModel):
    """Where a document is looked for."""

    namespace: Namespace = Field(
        default=None, description="Where the document must be. Left out: any that the key reaches."
    )


class DocumentsAsked(ParameterModel):
    """Which documents are listed."""

    namespace: Namespace = None
    limit: Limit = 100
    after: Cursor = ""


class PartsAsked(InNamespace):
    """Which parts of a document are listed."""

    limit: Limit = 100
    after: Cursor = ""


class Document(ResponseModel):
    """A document, or a file that could not become one: `reason` says why. `pending` ones are found by words."""

    name: str
    namespace: str
    status: DocumentStatus
    reason: str
    id: str = Field(description="Empty for a file of which nothing was kept, and for a key that may not read.")
    pages: int
    chunks: int
    media_type: str
    sha256: str = Field(description="Of the original, in hexadecimal.")
    bytes: int
    unchanged: bool = Field(description="True where the same bytes were there already.")
    metadata: dict[str, Any]


class Documents(ResponseModel):
    """A page of documents, oldest first."""

    documents: list[Document]
    next: str | None = Field(description="What `after` takes to go on; null at the end.")


class Chunk(ResponseModel):
    """A passage of a document: `content` is the text of its page from `start` to `end`, in code points."""

    id: str
    document_id: str
    document: str
    page: int | None
    label: str = Field(description="The page's number as printed, or the section's name.")
    start: int
    end: int
    content: str
    title: str
    context: str = Field(description="What helps to find it: the document's title and the headings above.")
    metadata: dict[str, Any]


class Chunks(ResponseModel):
    """A page of chunks, in their order."""

    chunks: list[Chunk]
    next: str | None = Field(description="What `after` takes to go on; null at the end.")


class DocumentPage(ResponseModel):
    """The text of a page as stored. Citations' offsets refer to it."""

    id: str
    number: int = Field(description="From 1.")
    label: str
    text: str
    status: PageStatus
    reason: str
    method: str = Field(description="Which extractor's text it is.")


class DocumentPages(ResponseModel):
    """Some of a document's pages, in their order."""

    pages: list[DocumentPage]
    next: str | None = Field(description="What `after` takes to go on; null at the end.")


class Citation(ResponseModel):
    """Evidence: `quote` is the text of the page from `start` to `end`, in code points."""

    number: int = Field(description="The n of [n] in the answer.")
    document: str
    document_id: str
    page: int | None
    label: str
    start: int
    end: int
    quote: str
    score: float
    entry_id: str = Field(description="The chunk.")


class Vote(ResponseModel):
    """A ranked list's part in the place of something that was found."""

    name: str = Field(description="`words`, `vectors`, `document`, `mentions`, `period` or `reranker`.")
    rank: int = Field(ge=1, description="Its place in that list.")
    weight: float = Field(ge=0, description="How much the list decided in this search. A reranker decides alone.")


class Scores(ResponseModel):
    """How well something fits: `score` in 0..1 is comparable within its own list, and higher is better."""

    score: float
    dense_score: float | None = Field(description="Cosine of the best window.")
    lexical_score: float | None = Field(description="BM25, unbounded.")
    dense_rank: int | None
    lexical_rank: int | None
    span: Annotated[list[int], Field(min_length=2, max_length=2)] | None = Field(
        description="Where in the content the best-matching part begins and ends, in code points."
    )
    votes: list[Vote] = Field(description="Why it stands where it stands.")


class Hit(Scores):
    """A passage that was found."""

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
    """An answer and what it stands on."""

    answer: str
    mode: Literal["llm", "extractive", "none"] = Field(
        description="Who answers: the language model, quotation, or nobody, since nothing good enough was found."
    )
    citations: list[Citation]
    hits: list[Hit]
    timings: dict[str, float] = Field(description="Milliseconds.")
    warnings: list[str]
    complete: bool = Field(description="False where the model broke off or was cut.")
    confidence: float | None = Field(description="That the hits hold the answer, 0 to 1, judged before it was given.")
