"""Documents and core blocks as MCP resources: what a client lists, and what it reads."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from urllib.parse import quote, unquote

import mcp_types as types

from agentformer.errors import AgentFormerError, InvalidInput, NotFound
from agentformer.factory import AgentFormer
from agentformer.rag.documents import Document
from agentformer.records import fields
from agentformer.text.prompt_quoting import escape_text
from agentformer.tools.caller import Caller
from agentformer.types import Page

_SCHEME = "agentformer://"
DATA = {"agentformer/content": "data"}  # `_meta` of what was stored by anybody: no host is to take it for instructions
_HEADER = re.compile(r"^\[(?=pages? \d)", re.MULTILINE)
_TEXT = "text/plain"
_PAGE = 100  # resources of one list
_MOST = 200_000  # characters of a document that one reading gives; a context of 50,000 tokens is full of them

TEMPLATES = (
    types.ResourceTemplate(
        name="document",
        title="A document",
        uri_template=f"{_SCHEME}documents/{{id}}",
        description="The stored text of an uploaded document, page by page: data. rag_list and citations tell ids.",
        mime_type=_TEXT,
    ),
    types.ResourceTemplate(
        name="page",
        title="A page of a document",
        uri_template=f"{_SCHEME}documents/{{id}}/pages/{{number}}",
        description="The stored text of one page, counted from 1: the start and end of a citation refer to it.",
        mime_type=_TEXT,
    ),
    types.ResourceTemplate(
        name="core",
        title="A core block",
        uri_template=f"{_SCHEME}core/{{name}}",
        description="A block of core memory, such as persona.",
        mime_type=_TEXT,
    ),
)


def listed(af: AgentFormer, caller: Caller, cursor: str | None) -> types.ListResourcesResult:
    """The documents that the caller reaches, namespace by namespace, oldest first. Raises `InvalidInput` for a cursor
    that is not one of ours."""
    if not caller.grant.may("read"):
        return types.ListResourcesResult(resources=[])
    namespaces = _namespaces(af, caller)
    start, after = _position(cursor)
    found: list[Document] = []
    for namespace in namespaces:
        if namespace < start:
            continue
        behind = after if namespace == start else ""
        found += af.rag.page_of_documents(namespace=namespace, after=behind, limit=_PAGE - len(found))
        if len(found) == _PAGE:
            break
    more = _cursor(found[-1]) if len(found) == _PAGE else None
    return types.ListResourcesResult(resources=[_resource(document) for document in found], next_cursor=more)


def read(af: AgentFormer, caller: Caller, uri: str) -> types.ReadResourceResult:
    """Raises `NotFound`, in the same words for what is not there and what the caller does not reach."""
    try:
        text = _text(af, caller, uri)
    except AgentFormerError as error:
        if isinstance(error, (NotFound, InvalidInput)):
            raise _missing(uri) from None
        raise
    return types.ReadResourceResult(contents=[_contents(uri, text)])


def _contents(uri: str, text: str) -> types.TextResourceContents:
    return types.TextResourceContents(uri=uri, mime_type=_TEXT, text=text, _meta=DATA)


def _text(af: AgentFormer, caller: Caller, uri: str) -> str:
    uri = fields.encodable("uri", uri)
    kind, *rest = uri.removeprefix(_SCHEME).split("/") if uri.startswith(_SCHEME) else [""]
    if not caller.grant.may("read"):
        raise _missing(uri)
    if kind == "core" and len(rest) == 1:
        place = {"agent_id": caller.agent_id, "user_id": caller.user_id}
        return af.memory.core.get(unquote(rest[0]), namespace=caller.namespace_for(None), **place).content
    if kind != "documents" or len(rest) not in (1, 3) or rest[1:2] not in ([], ["pages"]):
        raise _missing(uri)
    document = af.rag.document(rest[0])
    if document.namespace not in _namespaces(af, caller):
        raise _missing(uri)
    pages = af.rag.pages(document.id)
    if len(rest) == 1:
        return "".join(_marked(document, pages))
    wanted = [page for page in pages if str(page.number) == rest[2]]
    if not wanted:
        raise _missing(uri)
    return wanted[0].text


def _marked(document: Document, pages: list[Page]) -> Iterator[str]:
    """The pages, each below a line that says which it is; a document that is too long ends with where to go on."""
    told = 0
    for page in pages:
        if told + len(page.text) > _MOST and told:
            rest = f"pages {page.number} to {pages[-1].number} are at {_uri(document)}/pages/NUMBER"
            yield f"[{rest}]\n"
            return
        told += len(page.text)
        printed = f", printed {page.label}" if page.label not in ("", str(page.number)) else ""
        reason = f" ({page.status}: {page.reason})" if page.reason else ""
        text = _HEADER.sub("⟦", page.text)  # a page must not begin another one
        yield f"[page {page.number} of {document.pages}{printed}]{reason}\n{text}\n\n"


def _namespaces(af: AgentFormer, caller: Caller) -> list[str]:
    """Those that the caller reaches and that hold something, sorted."""
    there = [namespace for namespace in af.backend.namespaces() if caller.grant.reaches(namespace)]
    return sorted(name for name in there if caller.namespace in (None, name))


def _resource(document: Document) -> types.Resource:
    pages = f"{document.pages} page{'s' if document.pages != 1 else ''}"
    state = "" if document.status == "ready" else f", {document.status}: {document.reason}"
    return types.Resource(
        uri=_uri(document),
        name=" ".join(escape_text(document.name).split()),
        description=f"{document.media_type}, {pages}, namespace {document.namespace}{state}",
        mime_type=_TEXT,
        # Of other formats the size of the text is not known without reading it.
        size=document.bytes if document.media_type.startswith("text/plain") else None,
    )


def _uri(document: Document) -> str:
    return f"{_SCHEME}documents/{quote(document.id, safe='')}"


def _missing(uri: str) -> NotFound:
    return NotFound(f"there is no resource {uri!r:.200}; resources/list shows those that are there")


def _cursor(document: Document) -> str:
    position = json.dumps([document.namespace, document.id])
    return base64.urlsafe_b64encode(position.encode()).decode()


def _position(cursor: str | None) -> tuple[str, str]:
    """Namespace and id behind which to go on."""
    if cursor is None:
        return "", ""
    try:
        namespace, after = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        if isinstance(namespace, str) and isinstance(after, str):
            return namespace, after
    except (binascii.Error, ValueError, TypeError, RecursionError):
        pass
    raise InvalidInput("cursor", "is none of this server; leave it out to begin anew")
