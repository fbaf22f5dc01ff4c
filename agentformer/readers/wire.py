"""Documents and errors as JSON, between the parsing child and its parent. Never pickle: the child has read
hostile bytes, and what it says is data."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from agentformer.errors import (
    CorruptDocument,
    DocumentError,
    DocumentTooLarge,
    EmptyDocument,
    EncryptedDocument,
    UnsupportedFormat,
)
from agentformer.readers.limits import ReadLimits, ReadOptions
from agentformer.types import DocumentText, Heading, Page, Span

_ERRORS = {
    e.__name__: e
    for e in (EmptyDocument, UnsupportedFormat, CorruptDocument, EncryptedDocument, DocumentTooLarge, DocumentError)
}


def document_to_json(document: DocumentText) -> dict[str, Any]:
    return dataclasses.asdict(document)


def document_from_json(value: dict[str, Any]) -> DocumentText:
    pages = tuple(_page(page) for page in value.pop("pages"))
    return DocumentText(pages=pages, **value)


def _page(value: dict[str, Any]) -> Page:
    body = value.pop("body")
    headings = tuple(Heading(**heading) for heading in value.pop("headings"))
    return Page(body=Span(*body) if body else None, headings=headings, **value)


def error_to_json(error: DocumentError) -> dict[str, str]:
    return {"error": type(error).__name__, "message": str(error)}


def error_from_json(value: dict[str, str]) -> DocumentError:
    return _ERRORS.get(value["error"], CorruptDocument)(value["message"])


def options_to_json(options: ReadOptions) -> dict[str, Any]:
    value = dataclasses.asdict(options)
    del value["deadline"]  # clocks of two processes need not agree
    return value


def options_from_json(value: dict[str, Any]) -> ReadOptions:
    limits = ReadLimits(**value.pop("limits"))
    engines = tuple(value.pop("engines"))
    return ReadOptions(limits=limits, engines=engines, **value)


def to_line(value: dict[str, Any]) -> bytes:
    # ASCII escapes carry lone surrogates that a damaged font may yield, where UTF-8 would fail.
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
