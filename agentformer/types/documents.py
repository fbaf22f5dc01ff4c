"""Types for documents, which consist of pages with text, and for answers with citations that quote these pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal

from agentformer.types.memory import NEWER, Hit, Span
from agentformer.types.shown import Shown

# `stored`: the file is kept and not read.
DocumentStatus = Literal["pending", "ready", "no_text", "garbled", "encrypted", "failed", "stored"]
FINDABLE: frozenset[DocumentStatus] = frozenset({"ready", "pending"})  # searches find the text of such documents
Stopped = Callable[[], bool]  # returns whether nobody waits any more for the text of a file that is being read
MODEL_FAILED = "the language model failed, so"  # the beginning of a warning of an answer
PageStatus = Literal["text", "no_text", "garbled", "failed"]
# The reason why a file or a page has no usable text, for programs. A `reason` is a text and may change; a code does
# not. `encrypted`: no password opens the file. `parts_unread`: the text `reason` names the parts.
ReasonCode = Literal[
    "", "blank", "image", "ocr_missing", "no_time", "garbled", "page_damaged", "slide_images",  # of a page or a file
    "empty", "unsupported", "damaged", "encrypted", "password_needed", "password_wrong", "too_large", "unreadable",
    "parts_unread", "pending", "stored", "metadata_replaced", "invalid", "conflict", "server",
]  # fmt: skip


REASON_CODE = "The reason for programs: a word that stays the same in all versions, or an empty text."


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of a page. It applies until the next heading of the same or a higher level."""

    text: str
    level: int  # 1 is the outermost
    start: int  # offset in the page's text


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table in the text of a page. The text from `start` to `end` has the rows without the headers."""

    start: int  # offset in the page's text
    end: int
    headers: tuple[str, ...]  # of the columns; "" for a column without a header
    scale: str = ""  # unit of the amounts, such as "in millions"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named part of source code, such as a function, a class, or a section of a configuration. The text from `start`
    to `end` consists of whole lines, with the comments and decorators of the symbol. Two symbols do not overlap, unless
    one contains the other."""

    name: str  # includes the names of the symbols around it: "QuerySet.filter"
    start: int  # offset in the page's text
    end: int
    about: str = ""  # the signature, and the beginning of the documentation


@dataclass(frozen=True, slots=True)
class Page:
    """A page or section of a stored document. The positions of citations are offsets in `text`, in code points."""

    number: Annotated[int, Shown("The number of the page. The first page has the number 1.")]
    text: str
    label: str = ""  # the number as printed on the page ("iv", "12"), the name of the section, or "cell 2"
    status: PageStatus = "text"
    reason: str = ""  # a text for users: why the page has no usable text
    method: Annotated[str, Shown("The method that extracted the text of the page.")] = ""
    body: Span | None = None  # the part of `text` without running header and footer; None: the whole text
    headings: tuple[Heading, ...] = ()
    tables: tuple[PageTable, ...] = ()  # in the order of the text
    line: int = 0  # the number of the first line of `text` in the file; 0: unknown
    code: str = ""  # the programming language of source code, such as "python"; "": the text is not source code
    symbols: tuple[Symbol, ...] = ()  # in the order of the text; a symbol comes before the symbols that it contains
    reason_code: Annotated[str, Shown(REASON_CODE)] = ""  # see `ReasonCode`


@dataclass(frozen=True, slots=True)
class DocumentText:
    """The text of a document, page by page. `status` is `ready` if at least one page contains usable text. Otherwise
    `reason` says why the text cannot be used."""

    media_type: str
    pages: tuple[Page, ...]
    title: str = ""
    status: DocumentStatus = "ready"
    reason: str = ""
    reason_code: str = ""  # see `ReasonCode`; of several reasons, the code of the first one


@dataclass(frozen=True, slots=True)
class Citation:
    """A quotation that supports an answer, with its position in a stored page: `quote` is `text[start:end]` of this
    page. The citation of a memory has no document and no page; its `start` and `end` are positions in the content of
    the entry."""

    number: Annotated[int, Shown("The number of the citation, such as 1 for `[1]` in the answer.")]
    document: str
    document_id: str
    page: int | None
    label: str
    start: int
    end: int
    quote: str
    score: Annotated[float, Shown(digits=4)]
    entry_id: Annotated[str, Shown("The id of the cited chunk or memory.")]
    kind: Annotated[
        str, Shown("`document`, or the kind of a memory: `message`, `fact`, `summary` or another word.")
    ] = "document"
    speaker: Annotated[str, Shown("The speaker of a message.")] = ""
    at: Annotated[
        datetime | None,
        Shown(
            "The time of the event that the memory reports. If no event is known, the time when the memory was stored. "
            "Null for a document."
        ),
    ] = None
    originals: Annotated[tuple[str, ...], Shown("The ids of the messages that a summary replaces.")] = ()
    headings: Annotated[
        str,
        Shown(
            "Text from another place that explains the quote: the headers of the columns for a row of a table, "
            "the lead-in of a list, the sentence that names the subject, or the beginning of the sentence on the page "
            "before."
        ),
    ] = ""
    newer: Annotated[str | None, Shown(NEWER)] = None


@dataclass(frozen=True, slots=True)
class UnsupportedSentence:
    """A sentence of a language model with claims that the passages do not contain."""

    sentence: str
    claims: Annotated[tuple[str, ...], Shown('The missing numbers, dates, names and quotations, such as "number 7".')]
    citations: Annotated[
        tuple[int, ...],
        Shown("The numbers of the passages that the sentence cites. If empty, all passages were checked."),
    ]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question, with citations.

    `confidence` is not a judgment about the text of a model. It is None without hits. `complete` is False if the model
    stopped too early, and `text` is not complete. A new field is shown everywhere: it needs a description here, and
    nothing elsewhere.
    """

    text: Annotated[str, Shown(name="answer")]
    mode: Annotated[
        Literal["llm", "extractive", "none"],
        Shown("`llm`: written by a language model. `extractive`: quotations. `none`: nothing relevant was found."),
    ]
    citations: tuple[Citation, ...] = ()
    hits: tuple[Hit, ...] = ()
    warnings: tuple[str, ...] = ()
    timings: Annotated[Mapping[str, float], Shown("The milliseconds that each step of the answer took.")] = field(
        default_factory=dict
    )
    complete: Annotated[bool, Shown("False if the model was interrupted, or if the answer was cut off.")] = True
    confidence: Annotated[
        float | None,
        Shown("The estimated probability, 0 to 1, that the first quote answers the question.", digits=6),
    ] = None
    unsupported: tuple[UnsupportedSentence, ...] = ()  # the sentences of a model that its passages do not support

    @property
    def model_failed(self) -> bool:
        """True if a language model was asked, and failed before it wrote a word."""
        return any(warning.startswith(MODEL_FAILED) for warning in self.warnings)


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A piece of the text of a streamed answer. The piece can be shown immediately. The final `Answer` contains the
    whole text after its citations have been checked."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerFault:
    """An error of the language model during a streamed answer. The last event is an `Answer` with the text that arrived
    before the error."""

    message: str


AnswerEvent = AnswerPiece | AnswerFault | Answer  # of a streamed answer; only the last event is an `Answer`
