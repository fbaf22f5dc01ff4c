"""What a person gives on the command line, read and checked: text, metadata, references, a yes."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from agentformer.errors import InvalidInput
from agentformer.factory import present
from agentformer.records.fields import MAX_CONTENT
from agentformer.settings import Settings

_MAX_BYTES = 4 * MAX_CONTENT  # of standard input: what the longest content takes in UTF-8


def text_of(argument: str, name: str = "TEXT") -> str:
    """The argument, or standard input in the place of `-`."""
    if argument != "-":
        return argument
    if sys.stdin is None:  # closed by whoever started us
        raise InvalidInput(name, "standard input is closed; give the text itself, or something to read")
    data = sys.stdin.buffer.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise InvalidInput(name, f"has over {_MAX_BYTES} bytes; bring it in as a document: agentformer ingest FILE")
    try:
        return data.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError:
        raise InvalidInput(name, "standard input is not UTF-8; convert it, or bring it in as a document") from None


def object_of(text: str) -> dict[str, Any]:
    """The JSON object of `--metadata`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidInput("--metadata", """must be a JSON object such as '{"site": "north"}'""")
    return value


def source_of(text: str) -> dict[str, str]:
    """The record that `--source` names."""
    source_type, _, source_id = text.partition(":")
    if not source_type or not source_id:
        raise InvalidInput("--source", "must be TYPE:ID, such as ticket:4711")
    return {"source_type": source_type, "source_id": source_id}


def confirm(what: str) -> None:
    """Ask on standard error whether to delete `what`. Raises `InvalidInput` where nobody says yes."""
    try:
        agreed = sys.stdin is not None and click.confirm(f"Delete {what} for good?", err=True)
    except click.Abort as stopped:
        if isinstance(stopped.__context__, KeyboardInterrupt):
            raise
        agreed = False
    if not agreed:
        raise InvalidInput("--yes", f"was not said: {what} would go, and nothing was deleted")


def check_there(settings: Settings) -> None:
    """Raises `InvalidInput` where the index folder holds nothing: a wrong path is not well, and no memory is begun."""
    if not present(settings) and not (settings.index_dir.is_dir() and any(settings.index_dir.iterdir())):
        raise InvalidInput("--index-dir", f"there is no memory in {settings.index_dir}")
