"""Write a store with every kind of content, and ask it questions whose answers must not change between versions.

Each `former_store_VERSION.tar.xz` was written by that version with `python tests/records/former_store.py FILE`. A
release adds its own. This file uses the public interface only, so that code of each version can run it.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import agentformer
from agentformer.errors import AgentFormerError
from agentformer.testing import make_entry
from agentformer.types import Hit, Query, Scope

NAMES = ("indexes", "uploads", "export", "answers.json")
MOMENT = "2025-03-20T12:00:00+00:00"
_HANDBOOK = """# Pump handbook

## Service
The coolant pump of the press is serviced every 400 hours. The seal kit has the part number SKU-4711.

## Safety
Close the main valve before the housing is opened. The pressure must be below 0.5 bar.

## Suomeksi
Pumpun tiiviste vaihdetaan joka toinen vuosi. Työn saa tehdä vain koulutettu asentaja.
"""
_MENU = "Monday: pea soup and pancakes.\n\nTuesday: fried salmon with dill potatoes.\n\nFriday: pizza.\n"
_MESSAGES = (
    ("user", "Hello, I am Aino and I live in Turku."),
    ("assistant", "Hello Aino, how can I help you?"),
    ("user", "The order 1577 has not arrived, it was sent on 3 March 2025."),
    ("assistant", "The order 1577 is at the terminal in Lieto and arrives tomorrow."),
    ("user", "Please deliver it to the office, not to my home."),
    ("assistant", "I changed the address to the office at Linnankatu 5."),
    ("user", "My dog Musti bit the courier last time."),
    ("assistant", "I noted that the courier should ring first."),
    ("user", "Thanks. The invoice is paid by card."),
    ("assistant", "The payment of 84.50 euros was received."),
    ("user", "Can I return the lamp?"),
    ("assistant", "Yes, within 30 days."),
    ("user", "Good, I will think about it."),
    ("assistant", "Take your time."),
)
_QUERIES = (
    "coolant pump service interval",
    "Where does Aino live?",
    "SKU-4711",
    "order 1577 address",
    "tiivisteen vaihto",
    "what happened on 3 March 2025",
    "favourite colour",
    "which dog bit the courier",
    "Tuesday lunch salmon",
    "zebra quantum",
)
_KINDS = ("fact", "event", "decision", "message", "chunk")  # summaries fade with time, and their scores with them
_OPTIONS: dict[str, Any] = {"embedder": "hashing:64", "llm_model": "", "cleanup_interval": 0}


def connect(folder: Path) -> agentformer.AgentFormer:
    """Open the store in `folder`."""
    return agentformer.connect(index_dir=folder / "indexes", upload_dir=folder / "uploads", **_OPTIONS)


def write(folder: Path) -> None:
    """Store documents, messages, facts, summaries, former versions, superseded and removed entries in `folder`."""
    with connect(folder) as opened:
        memory, rag = opened.memory, opened.rag
        rag.upload(_HANDBOOK.encode(), name="pump-handbook.md", metadata={"site": "Turku"})
        rag.upload(_MENU.encode(), name="menu.txt", namespace="kitchen")
        rag.remove(rag.upload(b"This document is removed again.", name="removed.txt").id)
        for number, (role, content) in enumerate(_MESSAGES):
            moment = f"2025-03-10T08:{number:02}:00+00:00"
            memory.add_message("chat", role, content, user_id="aino", occurred_at=moment)
        colour = memory.store("The favourite colour of Aino is blue.", user_id="aino", category="preference")
        memory.update(colour.id, content="The favourite colour of Aino is green.", salience=0.7)
        memory.update(colour.id, metadata={"confirmed": True})
        old = memory.store("Aino lives in Tampere.", user_id="aino", metadata={"aliases": ["home town"]})
        new = memory.store("Aino lives in Turku.", user_id="aino", occurred_at="2025-02-01T00:00:00+00:00")
        memory.supersede(old.id, new.id)
        memory.store("Aino lives in Turku.", user_id="aino")
        memory.store("The board decided to buy a second press.", kind="decision", category="decisions", project="press")
        memory.store(
            "The press was moved to hall 2.", tier="episodic", kind="event", occurred_at="2024-11-05T10:00:00Z"
        )
        memory.store("Ticket about the pump.", source_type="ticket", source_id="17", speaker="Bo", title="Pump ticket")
        memory.store("I answer in short sentences.", tier="core", title="persona")
        memory.store("Ask about the lamp next time.", tier="working", session_id="chat", user_id="aino")
        memory.remove(memory.store("This fact is removed again.").id)
        memory.clean(session_id="chat")
        notes = [memory.store(f"Note {number} about the crane.", tier="episodic", kind="event").id for number in (1, 2)]
        summary = make_entry("There are two notes about the crane.", kind="summary", namespace="default")
        memory.restore(opened.backend.consolidate(summary, notes).id)


def answers(folder: Path) -> dict[str, Any]:
    """Return what the store answers, as JSON values. Only the counts of use change in the store."""
    with connect(folder) as opened:
        backend, memory, rag = opened.backend, opened.memory, opened.rag
        found: dict[str, Any] = {"namespaces": list(backend.namespaces())}
        everything = [e for name in found["namespaces"] for e in backend.list(Scope(name, include_archived=True))]
        found["entries"] = [_json(entry) for entry in everything]
        found["history"] = {e.id: [_json(former) for former in backend.history(e.id)] for e in everything}
        found["counts"] = {
            name: backend.count(scope)
            for name, scope in {
                "default": Scope(),
                "kitchen": Scope("kitchen"),
                "archived": Scope(include_archived=True),
                "messages": Scope(kinds=("message",), session_id="chat"),
                "of aino": Scope(user_id="aino"),
                "in March": Scope(occurred_from=_moment("2025-03-01"), occurred_to=_moment("2025-04-01")),
            }.items()
        }
        found["latest"] = [entry.id for entry in backend.latest(Scope(), limit=7)]
        found["spaces"] = [[s.space.spec, s.state, s.vectors, s.bytes, s.waiting] for s in backend.spaces()]
        found["checks"] = [[c.name, c.looked_at, c.found] for c in backend.verify()]
        found["searches"] = {
            f"{mode} {name}: {text}": [_hit(hit) for hit in backend.search(query)]
            for text in _QUERIES
            for mode in ("hybrid", "dense", "lexical")
            for name in ("default", "kitchen")
            for query in [Query(text, Scope(name), 5, mode=mode, at=_moment(MOMENT))]
        }
        found["scoped"] = [
            _hit(hit)
            for hit in backend.search(Query("Aino", Scope(user_id="aino", kinds=("fact",), include_archived=True)))
        ]
        found["memory"] = {
            text: [_hit(hit) for hit in memory.search(text, kinds=_KINDS, at=MOMENT)] for text in _QUERIES
        }
        found["relevant"] = {
            text: [hit.entry.id for hit in memory.search(text, relevant_only=True, kinds=_KINDS, at=MOMENT)]
            for text in _QUERIES
        }
        found["questions"] = {text: _answer(rag.query(text)) for text in _QUERIES[:5]}
        found["documents"] = [
            [d.id, d.name, d.status, d.pages, d.chunks]
            for name in ("default", "kitchen")
            for d in rag.documents(namespace=name)
        ]
        found["references"] = [dataclasses.asdict(r) for r in memory.references("pump ticket", at=MOMENT)]
        found["transcript"] = [entry.content for entry in memory.transcript("chat")]
    values: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return values


def export(folder: Path, target: Path) -> None:
    """Export the store in `folder` with its vectors."""
    with connect(folder) as opened:
        opened.export_to(target, vectors=True)


def _json(entry: Any) -> dict[str, Any]:
    return dataclasses.asdict(entry)


def _hit(hit: Hit) -> list[Any]:
    votes = [[vote.name, vote.rank, vote.weight] for vote in hit.votes]
    return [
        hit.entry.id,
        hit.score,
        hit.dense_score,
        hit.lexical_score,
        hit.span,
        hit.dense_rank,
        hit.lexical_rank,
        votes,
    ]


def _answer(answer: Any) -> list[Any]:
    citations = [dataclasses.asdict(citation) for citation in answer.citations]
    return [answer.text, answer.mode, citations, answer.warnings, answer.confidence]


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def main(target: Path) -> None:
    """Write a store, its answers and its export, and pack them into `target`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        copy = shutil.copytree(folder, folder / "copy")
        export(copy, folder / "export")
        (folder / "answers.json").write_text(json.dumps(answers(copy), ensure_ascii=False, indent=1, sort_keys=True))
        with tarfile.open(target, "w:xz") as archive:
            for part in NAMES:
                archive.add(folder / part, part)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except AgentFormerError as error:
        sys.exit(f"{type(error).__name__}: {error}")
