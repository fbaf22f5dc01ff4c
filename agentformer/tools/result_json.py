"""Converts answers, hits, documents and memories to JSON, for the command line, HTTP and tools."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agentformer.http.fetch_rules import is_url
from agentformer.records.entry_json import entry_to_json
from agentformer.search.steps import changes
from agentformer.types import (
    Answer,
    AnswerEvent,
    AnswerFault,
    AnswerPiece,
    EmbeddingSpace,
    Hit,
    Hits,
    MemoryEntry,
    Reembedding,
    SpaceState,
    shown_fields,
)

if TYPE_CHECKING:
    from agentformer.memory.context.blocks import Context
    from agentformer.rag.answer.context import ContextPassage, PassageContext
    from agentformer.rag.documents import Document
    from agentformer.rag.folder_sync import SyncReport

_FAULT = "urn:agentformer:problem:language-model-unavailable"
NO_SCORES = ("entry", "originals", "newer")  # the fields of a hit that are no scores
_NOT_PLAIN = (*NO_SCORES, "votes")
ON_SERVER = ("origin", "root", "stamp")  # the fields of a document that are not shown
_METADATA = 2_000  # characters of JSON that a model is shown


def answer_json(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON, with its citations and hits."""
    hits = [hit_json(hit) for hit in answer.hits]
    return {**report_json(answer, leave_out=("hits",)), "hits": hits}


def event_json(event: AnswerEvent) -> tuple[str, dict[str, Any]]:
    """Return the name and the data of an event of a streamed answer. The name is `token`, `error` or `answer`."""
    if isinstance(event, AnswerPiece):
        return "token", {"text": event.text}
    if isinstance(event, AnswerFault):
        return "error", {
            "type": _FAULT,
            "title": "The language model stopped with an error",
            "detail": event.message,
        }
    return "answer", answer_json(event)


def hit_json(hit: Hit) -> dict[str, Any]:
    """Return a hit as JSON, with the place of the passage in its document."""
    source = hit.entry.source
    return {
        "id": hit.entry.id,
        "document": source.name if source else None,
        "document_id": source.document_id if source else None,
        "page": source.page if source else None,
        "label": source.label if source else None,
        "start": source.start if source else 0,
        "end": source.end if source else len(hit.entry.content),
        "content": hit.entry.content,
        "kind": hit.entry.kind,
        "tier": hit.entry.tier,
        "metadata": dict(hit.entry.metadata),
        "newer": hit.newer,
        **_scores(hit),
    }


def memory_hit_json(hit: Hit) -> dict[str, Any]:
    """Return a hit as JSON: the fields of the entry, and the scores of the hit."""
    return {**entry_to_json(hit.entry), **_scores(hit), "originals": originals_json(hit), "newer": hit.newer}


def shown_json(entry: MemoryEntry) -> dict[str, Any]:
    """Return an entry as JSON for clients of a server: a document has no metadata about its file on the server."""
    value = entry_to_json(entry)
    if value["kind"] == "document":
        value["metadata"] = {name: each for name, each in value["metadata"].items() if name not in ON_SERVER}
    return value


def originals_json(hit: Hit) -> list[dict[str, Any]]:
    """Return the originals of a summary that answer the query best, each with its session, speaker and time."""
    return [
        {**each._asdict(), "at": each.at.isoformat(timespec="seconds") if each.at else None} for each in hit.originals
    ]


def sync_json(report: SyncReport, max_items: int | None = None) -> dict[str, Any]:
    """Return the report of a sync as JSON. Each problem is an object with a name and a reason. Each list is cut to
    `max_items` items; `counts` has the complete length of each list."""
    lists: dict[str, list[Any]] = {name: list(getattr(report, name)) for name in ("added", "changed", "removed")}
    lists["renamed"] = [list(pair) for pair in report.renamed]
    lists |= {name: [each._asdict() for each in getattr(report, name)] for name in ("skipped", "failed")}
    return {
        "folder": report.folder,
        **{name: values[:max_items] for name, values in lists.items()},
        "unchanged": report.unchanged,
        "left": report.left,
        "counts": {name: len(values) for name, values in lists.items()},
        "seconds": round(report.seconds, 3),
    }


def brief_json(entry: MemoryEntry, content: str) -> dict[str, Any]:
    """Return the fields of an entry for a language model, without empty fields. `content` replaces the content."""
    moment = entry.occurred_at or entry.created_at
    values = {
        "id": entry.id,
        "content": content,
        "kind": entry.kind,
        "tier": entry.tier,
        "namespace": entry.namespace,
        "title": entry.title,
        "speaker": entry.speaker or entry.role,
        "session_id": entry.session_id,
        "user_id": entry.user_id,
        "at": _second(moment),
        "document": entry.source.name if entry.source else None,
        "page": entry.source.page if entry.source else None,
        "archived": True if entry.archived_at else None,
        "superseded_by": entry.superseded_by,
        **{name: _second(getattr(entry, name)) for name in ("valid_from", "valid_to", "expires_at")},
        "version": entry.version,
    }
    return {name: value for name, value in values.items() if value not in (None, "")}


def _second(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds") if moment else None


def cut_json(entry: MemoryEntry, max_chars: int) -> dict[str, Any]:
    """Return an entry as JSON for a language model, with at most the first `max_chars` characters of its content."""
    return {**brief_json(entry, entry.content[:max_chars]), **_cut(entry, max_chars)}


def brief_hit_json(hit: Hit, max_chars: int, *, explain: bool = False) -> dict[str, Any]:
    """Return a hit as JSON for a language model. The content is cut to at most `max_chars` characters, which include
    the best match. If `explain` is true, the result shows the ranked lists that contain the hit."""
    votes = {"votes": votes_json(hit)} if explain else {}
    brief = brief_json(hit.entry, _around(hit, max_chars))
    originals = {"originals": originals_json(hit)} if hit.originals else {}
    former = {"former": True, "newer": hit.newer} if hit.newer else {}
    return {**brief, **_cut(hit.entry, max_chars), "score": round(hit.score, 4), **former, **originals, **votes}


def votes_json(hit: Hit) -> list[dict[str, Any]]:
    """Return the ranked lists that contain the hit. Each has its name, the rank of the hit (from 1), and its weight."""
    return [*map(report_json, hit.votes)]


def factors_json(hits: Hits) -> list[dict[str, Any]]:
    """Return the names and values of the factors whose product is the weight of the vectors in a search."""
    return [*map(report_json, hits.factors)]


def steps_json(hits: Hits) -> list[dict[str, Any]]:
    """Return the steps of the search pipeline that changed the result. Each has its name, the number of hits that it
    left out, and the hits that it moved, with their ranks (from 1) before and after."""
    return [{**change._asdict(), "moved": [move._asdict() for move in change.moved]} for change in changes(hits)]


def _cut(entry: MemoryEntry, max_chars: int) -> dict[str, str]:
    size = len(entry.content)
    return {"cut": f"{size} characters in total; memory_get returns all"} if size > max_chars else {}


def metadata_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as JSON for a language model. If the metadata are too long, return a note about their length."""
    size = len(json.dumps(dict(metadata), ensure_ascii=False))
    if size <= _METADATA:
        return {"metadata": dict(metadata)}
    return {"metadata_left_out": f"the metadata have {size} characters as JSON; the limit is {_METADATA}"}


def passage_json(hit: Hit, max_chars: int) -> dict[str, Any]:
    """Return a passage of a document as JSON for a language model, with at most `max_chars` characters of its text."""
    source = hit.entry.source
    return {
        "id": hit.entry.id,
        "document": source.name if source else None,
        "page": source.page if source else None,
        "content": _around(hit, max_chars),
        **({} if source else _origin(hit.entry)),
        **({"former": True} if hit.newer else {}),
    }


def _origin(entry: MemoryEntry) -> dict[str, Any]:
    """Return the origin of a memory, as answers describe it: its kind, its speaker and its time."""
    moment = entry.occurred_at or entry.created_at
    at = moment.isoformat(timespec="seconds") if moment else None
    values = {"kind": entry.kind, "speaker": entry.speaker or entry.role, "at": at}
    return {name: value for name, value in values.items() if value}


def _around(hit: Hit, max_chars: int) -> str:
    """Return at most `max_chars` characters of the content of a hit. These characters include the best match."""
    content = hit.entry.content
    start = min(hit.span.start, max(len(content) - max_chars, 0)) if hit.span and hit.span.end > max_chars else 0
    return content[start : start + max_chars]


def passages_json(context: PassageContext) -> dict[str, Any]:
    """Return a context of passages as JSON: the text for a prompt, and the passages."""
    return report_json(context, leave_out=("hits", "chunks"))


def context_passage_json(passage: ContextPassage) -> dict[str, Any]:
    """Return a passage of a context as JSON for a language model, with its text in `content`."""
    return {
        "id": passage.entry_ids[0],
        "document": passage.document or None,
        "page": passage.page,
        "content": passage.text,
    }


def context_json(context: Context) -> dict[str, Any]:
    """Return a context as JSON: `messages` in the format of chat APIs, and `report`."""
    messages = [{"role": message.role, "content": message.content} for message in context.messages]
    return {"messages": messages, "report": report_json(context.report)}


def report_json(record: Any, *, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of a dataclass or a named tuple, such as a report, as JSON, except the fields in `leave_out`.
    Their types say how they are shown (see `types.Shown`)."""
    kind: type = type(record)
    return {shown: _plain(getattr(record, name), digits) for name, shown, digits in _shown_names(kind, leave_out)}


@functools.cache
def _shown_names(record: type, leave_out: tuple[str, ...]) -> list[tuple[str, str, int | None]]:
    """Return the name of each field, its name in JSON, and the decimal digits to which it is rounded."""
    fields = shown_fields(record).items()
    return [(name, shown.name, shown.digits) for name, (_, shown) in fields if name not in leave_out]


def space_json(state: SpaceState) -> dict[str, Any]:
    """Return an embedding space (the vectors of one embedding model in a store) as JSON. The result includes the state,
    the number of vectors and the size in bytes."""
    return {**_space(state.space), "state": state.state, "vectors": state.vectors, "bytes": state.bytes}


def move_json(moved: Reembedding) -> dict[str, Any]:
    """Return the report about a move from one embedding space (the vectors of one model) to another as JSON."""
    return {**report_json(moved), "former": moved.former and _space(moved.former), "space": _space(moved.space)}


def _space(space: EmbeddingSpace) -> dict[str, Any]:
    """Return an embedding space as JSON, with an empty fingerprint, because it means nothing to people."""
    return {"spec": space.spec, **dataclasses.asdict(dataclasses.replace(space, fingerprint=""))}


def document_json(document: Document) -> dict[str, Any]:
    """Return the fields of a document as JSON, except the fields about its file on the server: the paths, and the stamp
    with which a sync detects a changed file. `url` is the URL from which the document was fetched, or ""."""
    url = document.origin if is_url(document.origin) else ""
    return {**report_json(document, leave_out=ON_SERVER), "url": url}


def brief_document_json(document: Document) -> dict[str, Any]:
    """Return a document as JSON for a language model. Metadata that are too long are left out."""
    values = document_json(document)
    metadata = values.pop("metadata")
    return {**values, **metadata_json(metadata)}


def _scores(hit: Hit) -> dict[str, Any]:
    return {**report_json(hit, leave_out=_NOT_PLAIN), "votes": votes_json(hit)}


def _plain(value: Any, digits: int | None = None) -> Any:
    """Convert a value to JSON. A dataclass becomes an object, a time becomes a text in ISO 8601, and a number is
    rounded to `digits` decimal digits if they are given."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if digits is None else round(value, digits)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return report_json(value)
    return value.isoformat() if isinstance(value, datetime) else value
