"""Models of the requests and responses below `/v1`, in the format of OpenAI."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentformer.api.models import ResponseModel, Text
from agentformer.api.request import ParameterModel, RequestModel
from agentformer.records.fields import MAX_NAME

MAX_LISTED = 100  # items of a page
MAX_QUERIES = 8  # of one search
MAX_RESULTS = 50  # of one search
MAX_INPUTS = 2048  # texts of one request for embeddings
_MAX_KEYS = 16  # of attributes and metadata
_MAX_KEY = 64  # characters
_MAX_VALUE = 512  # characters

Key = Annotated[str, Field(min_length=1, max_length=_MAX_KEY)]
Value = Annotated[str, Field(max_length=_MAX_VALUE)] | bool | int | float
Attributes = Annotated[dict[Key, Value], Field(max_length=_MAX_KEYS)]
Id = Annotated[str, Field(min_length=1, max_length=MAX_NAME * 4)]


class ErrorDetails(BaseModel):
    """The details of an error."""

    message: str = Field(description="The reason of the error, and how to correct it.")
    type: str = Field(examples=["invalid_request_error"])
    param: str | None = Field(description="The name of the invalid field, if there is one.")
    code: str | None = Field(examples=["invalid_input"])


class OpenAIError(BaseModel):
    """An error in the format of OpenAI."""

    error: ErrorDetails


class PageQuery(ParameterModel):
    """Query parameters that select a page of a list."""

    limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 20
    order: Literal["asc", "desc"] = Field(default="desc", description="The order by the time of creation.")
    after: Id | None = Field(default=None, description="The id of the last item of the previous page.")
    before: Id | None = Field(
        default=None, description="Return the page that ends before the item with this id; `after` is then ignored."
    )


class FilesQuery(ParameterModel):
    """Query parameters that select a page of the list of files."""

    limit: Annotated[int, Field(ge=1, le=10_000)] = 100
    order: Literal["asc", "desc"] = Field(default="desc", description="The order by the time of creation.")
    after: Id | None = Field(default=None, description="The id of the last item of the previous page.")
    purpose: str | None = Field(
        default=None, description="`assistants` and `user_data` list all files. Other values list none."
    )


class StoreFilesQuery(PageQuery):
    """Query parameters that select a page of the files of a vector store."""

    filter: Literal["in_progress", "completed", "failed", "cancelled"] | None = Field(
        default=None, description="Only files of this status."
    )


class FileForm(ParameterModel):
    """The fields of an upload, except the file."""

    purpose: Literal["assistants", "user_data"] = Field(
        description="The purpose of the file. Both values have the same effect."
    )


class File(ResponseModel):
    """A file as OpenAI's protocol describes it."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["assistants"]
    status: Literal["processed"]
    expires_at: None
    status_details: None


class Deleted(ResponseModel):
    """The result of a deletion."""

    id: str
    object: Literal["file.deleted", "vector_store.deleted", "vector_store.file.deleted"]
    deleted: Literal[True]


class _Page(ResponseModel):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Files(_Page):
    """A page of the list of files."""

    data: list[File]


class FileCounts(ResponseModel):
    """The numbers of files of a vector store by status."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStore(ResponseModel):
    """A vector store: a namespace whose documents can be searched."""

    id: str
    object: Literal["vector_store"]
    created_at: int
    name: str
    usage_bytes: int = Field(description="The size of the files in bytes.")
    file_counts: FileCounts
    status: Literal["completed"]
    expires_after: None
    expires_at: None
    last_active_at: int
    metadata: dict[str, Any]


class VectorStores(_Page):
    """A page of the list of vector stores."""

    data: list[VectorStore]


class AutomaticChunks(RequestModel):
    """The only supported `chunking_strategy`: the settings of the server decide how files are divided into passages."""

    type: Literal["auto"]


class StoreChanges(RequestModel):
    """Changes of a vector store. A field that is left out keeps its value."""

    name: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    metadata: Attributes | None = None
    expires_after: None = Field(default=None, description="Only null: a vector store does not expire.")


class NewStore(StoreChanges):
    """A new vector store. Its namespace has the given name, or a new name."""

    description: Annotated[str, Field(max_length=1000)] | None = None
    file_ids: Annotated[list[Id], Field(max_length=100)] | None = None
    chunking_strategy: AutomaticChunks | None = None


class AddedFile(RequestModel):
    """A file to add to a vector store."""

    file_id: Id
    attributes: Attributes | None = Field(default=None, description="Values by which a search can select the file.")
    chunking_strategy: AutomaticChunks | None = None


class FileChanges(RequestModel):
    """New attributes of a file in a vector store."""

    attributes: Attributes | None


class LastError(ResponseModel):
    """The reason why the text of a file cannot be searched."""

    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class StoreFile(ResponseModel):
    """A file in a vector store."""

    id: str
    object: Literal["vector_store.file"]
    created_at: int
    vector_store_id: str
    status: Literal["completed", "failed"]
    last_error: LastError | None
    usage_bytes: int
    attributes: dict[str, Any]
    chunking_strategy: dict[str, Any]


class StoreFiles(_Page):
    """A page of the files of a vector store."""

    data: list[StoreFile]


class TextPart(ResponseModel):
    """A part of the text of a file."""

    type: Literal["text"]
    text: str


class FileText(ResponseModel):
    """The text of a file, one part for each page."""

    object: Literal["vector_store.file_content.page"]
    data: list[TextPart]
    has_more: Literal[False]
    next_page: None


class RankingOptions(RequestModel):
    """Options for the ranking of the results. Only `score_threshold` has an effect."""

    ranker: str | None = Field(default=None, description="Ignored: the server ranks by its own settings.")
    score_threshold: Annotated[float, Field(ge=0, le=1)] = 0.0


class StoreSearch(RequestModel):
    """A search in a vector store."""

    query: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_QUERIES)] = Field(
        examples=["Who keeps the keys?"]
    )
    filters: dict[str, Any] | None = Field(
        default=None,
        description="A condition on the attributes: `type` (eq, ne, gt, gte, lt, lte, in, nin, exists), `key` and "
        "`value`; or a group: `type` (and, or, not) and `filters`.",
        examples=[{"type": "eq", "key": "site", "value": "north"}],
    )
    max_num_results: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = 10
    ranking_options: RankingOptions | None = None
    rewrite_query: bool = Field(default=False, description="Ignored: the query is searched as it is.")


class SearchResult(ResponseModel):
    """A passage that matches a query. A higher `score` (0..1) is better."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, Any]
    content: list[TextPart]


class SearchResults(ResponseModel):
    """The passages that match a query, best first."""

    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[SearchResult]
    has_more: Literal[False]
    next_page: None


class EmbeddingsRequest(RequestModel):
    """Texts to embed. `model` is an id in the list of models, or `default`."""

    input: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS)]
    model: Id = Field(examples=["default"])
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="The dimension of the model; other values are refused."
    )
    user: str | None = None
    input_type: Literal["document", "query"] = Field(
        default="document", description="Use `query` for the text of a search, which some models embed in another way."
    )


class Embedding(ResponseModel):
    """The vector of one text: numbers, or the bytes of float32 numbers (little-endian) in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(ResponseModel):
    """The numbers of tokens of a request."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(ResponseModel):
    """The vectors of the texts, in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Model(ResponseModel):
    """A model that this server uses."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(ResponseModel):
    """The models that this server uses: the embedder, and the language model if one is configured."""

    object: Literal["list"]
    data: list[Model]


class ChatRequest(RequestModel):
    """A request for a chat completion. All fields are sent to the language model's server, including fields that are
    not listed here."""

    model_config = ConfigDict(extra="allow", strict=True)

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)] = Field(
        examples=[[{"role": "user", "content": "Which tea do I prefer?"}]]
    )
    model: str | None = Field(default=None, description="`default` is the configured model.", examples=["default"])
    stream: bool | None = None


class ChatCompletion(BaseModel):
    """The completion, as the language model's server returned it."""

    model_config = ConfigDict(extra="allow")
