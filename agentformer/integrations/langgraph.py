"""LangGraph: a store that keeps its items in a memory. Searches find the items by words and vectors, each item has a
history, and other programs that use the memory can read the items.

It differs from `InMemoryStore` in these points. A search with a query always ranks by words and vectors. The operators
`$gt` to `$lte` compare numbers with numbers and texts with texts, and never convert a value or raise an error. Values
must be JSON, keys and namespaces together have at most 1,000 characters, and a value has at most 80 keys. A namespace
whose last item was deleted is not listed. Items are listed in the order in which they were stored first. An item that
is put again with an equal value, and without a time to live, keeps its `updated_at`.

An item with a time to live is not returned after this time, and the next cleaning of the memory archives it. To restart
the time to live, a read stores a new version of the item, but only after a tenth of this time has passed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from agentformer.errors import Conflict, InvalidInput, NotFound
from agentformer.factory import AgentFormer
from agentformer.integrations import missing, owned, records
from agentformer.memory.backends import all_entries
from agentformer.records.codec import now
from agentformer.types import UNSEARCHED_KIND, MemoryEntry, Scope

try:
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        get_text_at_path,
        tokenize_path,
    )
except ImportError as error:
    raise missing("langgraph", error) from error

_TYPE = "langgraph"
_MAX_KEYS = 80  # of a value; each is a key of the metadata, of which an entry has at most 100
_REFRESHED = 0.1  # share of the time to live that passes before a read restarts it
_COMPARED = {"$eq": "eq", "$ne": "ne", "$gt": "gt", "$gte": "gte", "$lt": "lt", "$lte": "lte"}


class AgentFormerStore(BaseStore):
    """A store of LangGraph in a memory. All items are in the namespace `namespace` of the memory; LangGraph's own
    namespaces are paths inside it. An item that is put with `index=False` is never found by a query."""

    supports_ttl = True

    def __init__(self, af: AgentFormer, *, namespace: str = "langgraph") -> None:
        self._af = af
        self._namespace = namespace

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run the operations. Reads see the state before the writes of the same batch. If a batch writes an item
        several times, the last write counts."""
        results: list[Result] = []
        puts: dict[str, PutOp] = {}
        for op in ops:
            if isinstance(op, PutOp):
                puts[_source_id(op.namespace, op.key)] = op
                results.append(None)
            elif isinstance(op, GetOp):
                entries = self._entries([_source_id(op.namespace, op.key)])
                self._refresh(entries, op.refresh_ttl)
                results.append(Item(**_fields(entries[0])) if entries else None)
            elif isinstance(op, SearchOp):
                results.append(self._search(op))
            elif isinstance(op, ListNamespacesOp):
                results.append(self._namespaces(op))
            else:
                raise ValueError(f"Unknown operation type: {type(op)}")
        self._write(puts)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run the operations in a thread."""
        return await asyncio.to_thread(self.batch, [*ops])

    def _entries(self, source_ids: list[str]) -> list[MemoryEntry]:
        return [entry for entry in records(self._af, _TYPE, source_ids, namespace=self._namespace) if _is_item(entry)]

    def _write(self, puts: Mapping[str, PutOp]) -> None:
        """Store the items, and delete those whose value is None. If `index` makes a stored item searchable or hides it,
        the item is deleted and stored anew."""
        if not puts:
            return
        stored = {entry.source_id: entry for entry in self._entries([*puts])}
        hidden = {source: entry.kind == UNSEARCHED_KIND for source, entry in stored.items()}
        removed = [
            source for source, op in puts.items() if op.value is None or hidden.get(source) is (op.index is not False)
        ]
        if removed:
            old = records(self._af, _TYPE, removed, namespace=self._namespace, archived=True)
            self._af.memory.remove_many([entry.id for entry in old])
        items = [_new(source, op) for source, op in puts.items() if op.value is not None]
        if items:
            self._af.memory.upsert_many(items, namespace=self._namespace, source_type=_TYPE, verbatim=True)

    def _search(self, op: SearchOp) -> list[SearchItem]:
        """Return a page of the items below a path, ranked by the query or, without one, in the order of the backend."""
        conditions: list[dict[str, Any]] = [
            {"type": "eq", "key": f"path.{n}", "value": name} for n, name in enumerate(op.namespace_prefix)
        ]
        conditions += [part for key, value in (op.filter or {}).items() for part in _conditions(key, value)]
        scope: dict[str, Any] = {"namespace": self._namespace, "source_type": _TYPE}
        scope |= owned({"type": "and", "filters": conditions} if conditions else None, has=["path", "key"])
        end = op.offset + op.limit
        if end <= op.offset:
            return []
        if op.query and op.query.strip():
            hits = self._af.memory.search(op.query, limit=end, noise_floor=-1.0, **scope)  # every item is a hit
            found: list[tuple[MemoryEntry, float | None]] = [(hit.entry, hit.score) for hit in hits[op.offset :]]
        else:
            found = [(entry, None) for entry in self._af.backend.list(Scope(**scope), limit=end)[op.offset :]]
        self._refresh([entry for entry, _ in found], op.refresh_ttl)
        return [SearchItem(**_fields(entry), score=score) for entry, score in found if _is_item(entry)]

    def _refresh(self, entries: Iterable[MemoryEntry], wanted: bool) -> None:
        """Restart the time to live of the items that were read, unless it was restarted recently. An item that another
        caller changes meanwhile is left as it is."""
        for entry in entries if wanted else ():
            ttl = entry.metadata.get("ttl")
            if entry.expires_at is None or not isinstance(ttl, (int, float)):
                continue
            expires_at = now() + timedelta(minutes=ttl)
            if expires_at - entry.expires_at >= timedelta(minutes=ttl * _REFRESHED):
                with suppress(Conflict, NotFound):
                    self._af.backend.update(entry.id, {"expires_at": expires_at}, entry.version)

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        entries = all_entries(self._af.backend, Scope(self._namespace, source_type=_TYPE, **owned()))
        paths = {tuple(entry.metadata["path"]) for entry in entries if _is_item(entry)}
        for match in op.match_conditions or ():
            paths = {path for path in paths if _matches(match.match_type, match.path, path)}
        if op.max_depth is not None:
            paths = {path[: op.max_depth] for path in paths}
        return sorted(paths)[op.offset : op.offset + op.limit]


def _source_id(namespace: tuple[str, ...], key: str) -> str:
    return json.dumps([*namespace, key], ensure_ascii=False)


def _new(source_id: str, op: PutOp) -> dict[str, Any]:
    """Return an item as an item of `upsert_many`. Its text has the values at the paths `op.index`, or all values."""
    value = dict(op.value or {})
    if len(value) > _MAX_KEYS:
        raise InvalidInput("value", f"has {len(value)} keys, but the limit is {_MAX_KEYS}; nest some of them")
    metadata = {
        "path": list(op.namespace),
        "key": op.key,
        "empty": not value,
        **{f"path.{n}": name for n, name in enumerate(op.namespace)},
        **{f"value.{name}": item for name, item in value.items()},
    }
    expiry: dict[str, Any] = {}
    if op.ttl is not None:
        metadata["ttl"] = op.ttl
        expiry["expires_at"] = now() + timedelta(minutes=op.ttl)
    texts = [text for path in op.index or () for text in get_text_at_path(value, tokenize_path(path))]
    text = "\n".join(texts) if texts else "\n".join(_lines(value)) or "{}"
    return {
        "content": text if text.strip() else "{}",
        "source_id": source_id,
        "metadata": metadata,
        "searchable": op.index is not False,
        **expiry,
    }


def _lines(value: Any, name: str = "") -> list[str]:
    """Return the lines of the text by which searches find a value. Each text or number in the value becomes a line,
    such as "address city: Paris". `name` contains the keys that lead to the value."""
    if isinstance(value, Mapping):
        return [line for key, item in value.items() for line in _lines(item, f"{name} {key}".strip())]
    if isinstance(value, (list, tuple)):
        return [line for item in value for line in _lines(item, name)]
    return [f"{name}: {value}" if name else str(value)]


def _is_item(entry: MemoryEntry) -> bool:
    """Return whether the entry is an item. Another program may have stored an entry with the same source type."""
    path, key = entry.metadata.get("path"), entry.metadata.get("key")
    return isinstance(path, list) and all(isinstance(name, str) for name in path) and isinstance(key, str)


def _fields(entry: MemoryEntry) -> dict[str, Any]:
    data = entry.metadata
    value = {name.removeprefix("value."): item for name, item in data.items() if name.startswith("value.")}
    times = {"created_at": entry.created_at, "updated_at": entry.updated_at}
    return {"namespace": tuple(data["path"]), "key": data["key"], "value": value, **times}


def _conditions(key: str, wanted: Any) -> list[dict[str, Any]]:
    """Return the filters for one key of a value. `wanted` is an equal value, or operators such as {"$gte": 3}."""
    name = f"value.{key}"
    if not (isinstance(wanted, Mapping) and any(operator.startswith("$") for operator in wanted)):
        return [_equal(name, wanted)]
    parts = []
    for operator, value in wanted.items():
        if operator not in _COMPARED:
            raise ValueError(f"Unsupported operator: {operator!r:.80}; use one of {', '.join(_COMPARED)}")
        equal = _equal(name, value)
        plain = {"type": _COMPARED[operator], "key": name, "value": value}
        parts.append({"$eq": equal, "$ne": {"type": "not", "filters": [equal]}}.get(operator, plain))
    return parts


def _equal(name: str, value: Any) -> dict[str, Any]:
    """Return a filter for items whose value of the key `name` equals `value`. If `value` is None, items without this
    key match too, as in `InMemoryStore`."""
    equal = {"type": "eq", "key": name, "value": value}
    if value is not None:
        return equal
    return {"type": "or", "filters": [equal, {"type": "exists", "key": name, "value": False}]}


def _matches(kind: str, pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    part = path[: len(pattern)] if kind == "prefix" else path[len(path) - len(pattern) :]
    return len(path) >= len(pattern) and all(want in ("*", name) for want, name in zip(pattern, part, strict=True))
