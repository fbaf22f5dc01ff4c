"""Models of questions, answers, documents, passages and pages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from agentformer import types
from agentformer.api.models import (
    AsOf,
    Cursor,
    Day,
    Limit,
    Name,
    Namespace,
    Next,
    ResponseModel,
    Text,
    Tier,
    fields_of,
)
from agentformer.api.request import ParameterModel, RequestModel
from agentformer.rag import documents
from agentformer.rag.answer import context
from agentformer.rag.removals import MAX_SECONDS
from agentformer.records.fields import MAX_LIMIT
from agentformer.tools.questions import MAX_CONTEXT_TOKENS, MAX_TOKENS
from agentformer.tools.result_json import NO_SCORES, ON_SERVER
from agentformer.types import ReasonCode

# Null is refused with the same message as an empty question.
_Question = Annotated[Text, BeforeValidator(lambda value: "" if value is None else value)]


class _BaseQuestion(RequestModel):
    question: _Question = Field(
        description="The question. The setting `max_question_chars` limits its length.",
        examples=["Who keeps the keys?"],
    )
    namespace: Namespace = None
    sources: Annotated[list[Literal["documents", "memories"]], Field(min_length=1, max_length=2)] | None = Field(
        default=None,
        description="Answer only from documents, or only from memories: facts, messages and summaries. By default, "
        "both are used, if the key may search memories.",
    )
    user_id: Name | None = Field(
        default=None,
        description="Also use the memories and documents of this user. By default, only those that belong to no user "
        "are used, and a document that `document_id` names.",
    )
    project: Name | None = Field(
        default=None,
        description="Use only memories of this project and memories without a project. Default: all memories.",
    )
    metadata: dict[str, Any] | None = Field(
        default=None,
        max_length=100,
        validation_alias=AliasChoices("metadata", "filters"),
        description="Answer only from documents with these values in their metadata. The former name `filters` is also "
        "accepted.",
        examples=[{"site": "north"}],
    )
    document_id: Name | None = Field(
        default=None,
        description="Answer only from the document with this id, whatever the field `sources` contains.",
    )
    since: Day | None = Field(
        default=None,
        description="Answer only from documents that were stored on this day (UTC), at this time, or later.",
    )
    until: Day | None = Field(
        default=None,
        description="Use only documents stored before this time. A date without a time includes that day (UTC).",
    )
    as_of: AsOf = None


class Question(_BaseQuestion):
    """A question about the documents of a namespace."""

    top_k: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = Field(
        default=None,
        description="The number of passages to use for the answer. By default, an answer made of quotations uses "
        "`top_k` passages (a setting, normally 3), and a language model receives passages with up to "
        "`answer_context_tokens` tokens in total (normally 2,000).",
    )
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = Field(
        default=None, description="The maximum number of tokens in an answer of a language model."
    )
    stream: bool | None = Field(
        default=None,
        description="If true, the answer is streamed as server-sent events. By default, the header `Accept` decides.",
    )


class ContextQuestion(_BaseQuestion):
    """A question for which passages are returned, but no answer."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_CONTEXT_TOKENS)] | None = Field(
        default=None,
        description="The maximum number of tokens of the passages together. The default is the server's setting "
        "`answer_context_tokens`, normally 2,000.",
    )


class DocumentParameters(ParameterModel):
    """Query parameters that select the namespace of a document."""

    namespace: Namespace = Field(
        default=None, description="The namespace of the document. By default, all namespaces of the key are searched."
    )


class RemovalParameters(DocumentParameters):
    """Query parameters that decide when a document is deleted: at once, or later."""

    undo_seconds: int | None = Field(
        default=None,
        ge=1,
        le=MAX_SECONDS,
        description="Hide the document now, and delete it after this number of seconds. Until then, it can be kept.",
    )


class DocumentNamespace(ParameterModel):
    """A query parameter with the namespace of documents."""

    namespace: Namespace = None


class Removal(ResponseModel):
    """A document that is hidden and is going to be deleted."""

    id: str
    name: str
    seconds_left: float = Field(ge=0, description="The seconds until the document is deleted.")
    replaced_by: str = Field(
        description="The id of the new version that has replaced this document. The undo deletes this new version. "
        "The id is an empty text if the document was not replaced."
    )


class Removals(ResponseModel):
    """The documents of a namespace that are going to be deleted."""

    removals: list[Removal]


class PageParameters(ParameterModel):
    """Query parameters that select a page of a list."""

    namespace: Namespace = None
    limit: Limit = 100
    after: Cursor = ""


class DocumentsParameters(PageParameters):
    """Query parameters that select a page of the list of documents."""

    user_id: Name | None = Field(default=None, description="Only the documents of this user.")


class PartsParameters(DocumentParameters):
    """Query parameters that select a part of the list of passages or pages of a document."""

    limit: Limit = 100
    after: Cursor = ""
    page: int | None = Field(
        default=None, ge=1, description="Return only the passages, or the text, of the page with this number."
    )


class ImageParameters(DocumentParameters):
    """Query parameters that select a page of a document, and the text to highlight."""

    page: int = Field(default=1, ge=1, description="The number of the page. The first page has the number 1.")
    start: int = Field(default=0, ge=0, description="The field `start` of the citation whose text is highlighted.")
    end: int = Field(default=0, ge=0, description="The field `end` of the citation whose text is highlighted.")


class Document(fields_of(documents.Document, leave_out=ON_SERVER, reason_code=ReasonCode)):  # type: ignore[misc]
    """A document that was stored, or a file that could not be stored. `reason` explains the `status`.

    A document with the status `pending` is found only by its words, because its vectors are not computed yet.
    """

    url: str = Field(description="The address from which the document was fetched, or an empty text.")


class Documents(ResponseModel):
    """A page of the list of documents. The oldest document comes first."""

    documents: list[Document]
    next: Next


class Chunk(ResponseModel):
    """A passage of a document. `content` is the part of the page's text from `start` to `end`. These positions count
    Unicode code points."""

    id: str
    document_id: str
    document: str
    page: int | None
    label: str = Field(
        description="The printed page number, the name of the section, or lines of code such as `lines 3-9`."
    )
    start: int
    end: int
    content: str
    title: str
    context: str = Field(
        description="The title of the document and the headings above the passage. They are indexed too."
    )
    metadata: dict[str, Any]


class Chunks(ResponseModel):
    """A part of the list of passages of a document, in the order of the text."""

    chunks: list[Chunk]
    next: Next


# The fields of a page that are not stored.
NOT_STORED = ("body", "headings", "tables", "line", "code", "symbols")


class DocumentPage(fields_of(types.Page, leave_out=NOT_STORED, reason_code=ReasonCode)):  # type: ignore[misc]
    """The stored text of a page. The fields `start` and `end` of a citation are positions in this text."""

    id: str


class PageImage(ResponseModel):
    """The image of a page, and the boxes of the requested text on the page."""

    width: int = Field(description="The width of the image in pixels.")
    height: int = Field(description="The height of the image in pixels.")
    boxes: list[Annotated[list[float], Field(min_length=4, max_length=4)]] = Field(
        description="The left, top, right and bottom of each line of the text, as shares (0 to 1) of the width and the "
        "height. The list is empty if the page is only a picture of the text, such as a scanned page."
    )
    png: str = Field(description="The image as a PNG file in Base64.")


class DocumentPages(ResponseModel):
    """A part of the list of the pages of a document, in order."""

    pages: list[DocumentPage]
    next: Next


class Citation(fields_of(types.Citation)):  # type: ignore[misc]
    """A quotation that supports the answer. `quote` is exactly the part of the page's text from `start` to `end`. These
    positions count Unicode code points. A citation of a memory has no document, and its positions are in the content of
    the memory."""


class Vote(fields_of(types.Vote)):  # type: ignore[misc]
    """The influence of one list of results on the rank of a hit. A search combines several lists, such as the results
    by words and the results by vectors."""


_Span = Annotated[list[int], Field(min_length=2, max_length=2)] | None


class Scores(fields_of(types.Hit, leave_out=NO_SCORES, span=_Span, votes=list[Vote])):  # type: ignore[misc]
    """The scores of a hit. `score` is from 0 to 1, and a higher score is better. Compare scores only with other hits of
    the same search."""


class Hit(Scores):
    """A passage of a document that a search returned."""

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
    newer: str | None = Field(description=types.NEWER)


class UnsupportedSentence(fields_of(types.UnsupportedSentence)):  # type: ignore[misc]
    """A sentence of the language model with claims that are not in the passages."""


_AnswerFields: Any = fields_of(
    types.Answer, citations=list[Citation], hits=list[Hit], unsupported=list[UnsupportedSentence]
)


class Answer(_AnswerFields):  # type: ignore[misc]
    """An answer with its citations, and the passages that the search returned for the question."""


class ContextPassage(fields_of(context.ContextPassage)):  # type: ignore[misc]
    """A passage of a context. `text` is the part of the page's text from `start` to `end`. These positions count
    Unicode code points."""


_ContextFields: Any = fields_of(context.PassageContext, leave_out=("hits", "chunks"), passages=list[ContextPassage])


class PassageContext(_ContextFields):  # type: ignore[misc]
    """The passages for a question, best first. No text occurs in two passages."""
