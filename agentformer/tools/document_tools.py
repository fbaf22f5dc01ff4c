"""`DocumentTools`: tools with which a language model uploads documents and asks questions about them."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AliasChoices, Field

from agentformer.access.permissions import PERMISSIONS, Grant
from agentformer.errors import InvalidInput
from agentformer.rag.answer.sources import SOURCES, SourceName
from agentformer.rag.documents import FORMER_KEPT, METADATA_REPLACED, Document
from agentformer.rag.uploads import OnConflict, Origin
from agentformer.records.fields import encodable
from agentformer.tools.caller import Caller
from agentformer.tools.definition import Hints, tool
from agentformer.tools.memory_tools import AsOf, Metadata, Namespace, Since, Until
from agentformer.tools.questions import ChunkFilters
from agentformer.tools.rag_tool import RAGTool
from agentformer.tools.result_json import (
    answer_json,
    brief_document_json,
    context_passage_json,
    document_json,
    passage_json,
    sync_json,
)

_PASSAGE = 1_500  # characters of a passage that is returned with an answer; few chunks are longer
_NAMES_OF_METADATA = AliasChoices("metadata", "filters")  # the second name is the former one
_MAX_NAMES = 100  # names in each list of a report for a language model
_NOT_FOR_MODELS = ("hits", "timings", "complete", "unsupported")  # fields of an answer; `passages` has the hits
_NO_QUOTE = "No single sentence answers this; read the passages."


class DocumentTools:
    """The tools for the documents of a memory."""

    def __init__(self, rag: RAGTool) -> None:
        self._rag = rag

    @tool("Upload a document", Hints(PERMISSIONS["rag_upload"], idempotent=True))
    def rag_upload(
        self,
        caller: Caller,
        name: Annotated[str, Field(description="The document's name, such as report.pdf.")] = "",
        path: Annotated[
            str | None,
            Field(description="The path of a file. The application must have allowed the tool to read files."),
        ] = None,
        text: Annotated[str | None, Field(description="The content of a text document.")] = None,
        content_base64: Annotated[str | None, Field(description="The content in base64.")] = None,
        url: Annotated[str | None, Field(description="The URL of a document, if its host is allowed.")] = None,
        metadata: Metadata = None,
        namespace: Namespace = None,
        on_conflict: Annotated[
            OnConflict, Field(description="What to do if the document is stored with other content.")
        ] = "replace",
    ) -> dict[str, Any]:
        """Upload a document (PDF, Office, e-mail, HTML, Markdown, text, image). Give its path, its URL, its text, or
        its bytes in base64. By default, a former version with the same path, URL or name is replaced."""
        contents = {"path": path, "text": text, "content_base64": content_base64, "url": url}
        if [value is not None for value in contents.values()].count(True) != 1:
            raise InvalidInput("path", f"give exactly one of {', '.join(contents)}")
        if path is None and url is None and not name:
            raise InvalidInput("name", "is missing; a document given by its content needs a name, such as notes.txt")
        place = {"namespace": caller.namespace_for(namespace), "user_id": caller.user_id, "metadata": metadata}
        place["on_conflict"] = on_conflict
        if on_conflict == "fail":
            PERMISSIONS["rag_upload unless stored"].require(caller.grant)
        if url is not None:
            document = self._rag.upload_url(url, name=name, listed=True, **place)  # type: ignore[arg-type]
        elif path is None:
            document = self._rag.upload(_content(text, content_base64), name=name, **place)  # type: ignore[arg-type]
        else:
            relative, file = caller.open_file(path)
            assert caller.folder is not None  # else the file was not opened
            with file:
                origin = Origin.of_file(caller.folder / relative, caller.folder)
                document = self._rag.upload(file, name=name or relative, origin=origin, **place)  # type: ignore[arg-type]
        shown = name or url or document.name
        return {"document": upload_json(self._rag, document, caller.grant, shown, metadata)}

    @tool("Sync a folder", Hints(PERMISSIONS["rag_sync"], idempotent=True))
    def rag_sync(
        self,
        caller: Caller,
        folder: Annotated[str, Field(min_length=1, description="The absolute path of a folder that may be synced.")],
        delete: Annotated[bool, Field(description="Allow that more than half of the documents are removed.")] = False,
        seconds: Annotated[
            float, Field(gt=0, le=600, description="Stop after this many seconds; the next call continues.")
        ] = 60.0,
        metadata: Metadata = None,
        namespace: Namespace = None,
    ) -> dict[str, Any]:
        """Make the documents of a folder equal to its files: store new, changed and moved files, and remove the
        documents of deleted files. If `left` is not 0, call the tool again."""
        report = self._rag.sync_allowed(
            folder,
            namespace=caller.namespace_for(namespace),
            user_id=caller.user_id,
            metadata=metadata,
            delete=delete,
            seconds=seconds,
        )
        return sync_json(report, _MAX_NAMES)

    @tool("Answer from documents and memories", Hints(PERMISSIONS["rag_query"], idempotent=True))
    def rag_query(
        self,
        caller: Caller,
        question: Annotated[str, Field(min_length=1, description="The question, in plain words.")],
        top_k: Annotated[int | None, Field(ge=1, le=20, description="The number of passages to use.")] = None,
        context_tokens: Annotated[
            int | None, Field(ge=1, le=20_000, description="Return passages with at most this many tokens in total.")
        ] = None,
        metadata: Annotated[
            dict[str, Any] | None,
            Field(description="Only documents with this metadata.", validation_alias=_NAMES_OF_METADATA),
        ] = None,
        sources: Annotated[
            list[SourceName] | None, Field(min_length=1, max_length=2, description="Only documents, or only memories.")
        ] = None,
        since: Since = None,
        until: Until = None,
        as_of: AsOf = None,
        namespace: Namespace = None,
    ) -> dict[str, Any]:
        """Answer a question from the uploaded documents and the memories, with exact quotes. Cite the document and the
        page of each quote, or describe the quoted memory. If the quotes are not enough, ask for more passages with
        `context_tokens`, such as 2000."""
        scope, place = allowed_sources(caller.grant, sources), caller.namespace_for(namespace)
        scope |= {"namespace": place, "user_id": caller.user_id, "project": caller.project, "every_user": True}
        scope |= {"metadata": metadata, "where": caller.filter(None, place), "since": since, "until": until}
        scope |= {"as_of": as_of, "session_id": caller.session_id}
        answer = self._rag.query(question, top_k=top_k, extractive=caller.extractive, **scope)
        if context_tokens is None:
            passages = [passage_json(hit, _PASSAGE) for hit in answer.hits]
        else:
            context = self._rag.context(question, max_tokens=context_tokens, **scope)
            passages = [context_passage_json(passage) for passage in context.passages]
        told = {name: value for name, value in answer_json(answer).items() if name not in _NOT_FOR_MODELS}
        if caller.extractive and answer.mode == "none" and answer.hits:
            told["answer"] = _NO_QUOTE
        confidence = None if answer.confidence is None else round(answer.confidence, 2)
        return {**told, "confidence": confidence, "passages": passages}

    @tool("List documents", Hints(PERMISSIONS["rag_list"], idempotent=True))
    def rag_list(
        self,
        caller: Caller,
        limit: Annotated[int, Field(ge=1, le=200, description="The maximum number of documents.")] = 50,
        after: Annotated[str | None, Field(description="The `next` of the previous page.")] = None,
        namespace: Namespace = None,
    ) -> dict[str, Any]:
        """List the uploaded documents, oldest first. For the next page, pass `next` as `after`."""
        place = {"namespace": caller.namespace_for(namespace), "user_id": caller.user_id, "or_nobody": True}
        page = self._rag.page_of_documents(after=after or "", limit=limit, **place)  # type: ignore[arg-type]
        following = page[-1].id if len(page) == limit else None
        return {"documents": [brief_document_json(document) for document in page], "next": following}


def allowed_sources(grant: Grant, sources: Sequence[SourceName] | None) -> ChunkFilters:
    """Return the filters for the sources from which a caller may get an answer. If the caller chose no `sources`,
    memories are used only if the caller may search memories, and messages only if the caller may search conversations.
    Raises `Forbidden` if the caller chose memories but may not search them."""
    needed = PERMISSIONS["rag_query from memories"]
    if sources is not None and "memories" in sources:
        needed.require(grant)
    allowed: Sequence[SourceName] = sources or (SOURCES if needed.allows(grant) else SOURCES[:1])
    return {"sources": allowed, "messages": PERMISSIONS["rag_query from messages"].allows(grant)}


def upload_json(
    rag: RAGTool,
    document: Document,
    grant: Grant,
    name: str,
    metadata: Mapping[str, Any] | None,
    password: str | None = None,
) -> dict[str, Any]:
    """Return an uploaded document as JSON. A caller without the right to read gets only the name and metadata that this
    caller has sent, because this caller must not learn whether another caller has stored the document earlier. For the
    same reason, a file that is stored already is read and embedded again, and the result is the same as for a new
    document."""
    if grant.may("read"):
        return document_json(document)
    if document.unchanged or document.reason.startswith(METADATA_REPLACED):
        document = rag.rehearse(document, password)
    reason = document.reason.removesuffix(FORMER_KEPT)
    own = Document(name, document.namespace, document.status, reason, metadata=metadata or {})
    same = {name: getattr(document, name) for name in ("reason_code", "sha256", "bytes", "user_id")}
    return document_json(dataclasses.replace(own, **same))


def _content(text: str | None, content_base64: str | None) -> bytes:
    if text is not None:
        return encodable("text", text).encode("utf-8")
    try:
        return base64.b64decode(content_base64 or "", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(
            "content_base64", "is not base64; encode the bytes of the file, without line breaks"
        ) from None
