"""A memory with entries of every kind, and functions to export and import it."""

from __future__ import annotations

import filecmp
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentformer.archive.export import Exported, export_to
from agentformer.archive.format import FORMATS
from agentformer.archive.importer import Destination, Imported, import_into
from agentformer.archive.reader import read
from agentformer.memory.hierarchical import CoreMemory
from agentformer.rag.originals import Originals
from agentformer.testing import make_entry
from agentformer.types import Link, MemoryBackend, MemoryEntry, Scope

ODD = ("default", "Board/日本", "board/日本", "../x", "a" * 200, "CON", "%2e", "ä\u0301\u202e", "'; --", "\u0000n")


def fill(backend: MemoryBackend) -> None:
    """Store histories, live and restored summaries, superseded, archived and used entries; odd names and texts."""
    for name in ODD:
        backend.store(
            [make_entry(f"NUL \u0000, \u2028 and 🛠 in {name}", namespace=name, raw="\ufeff\r\n\t", title="\x7f")]
        )
    for summed in ("live", "restored"):
        said = [make_entry(f"{summed} talk {n}", tier="episodic", kind="message", session_id=summed) for n in range(3)]
        backend.store(said)
        links = tuple(Link(entry.id) for entry in said)
        summary = make_entry(f"{summed} talk in short", kind="summary", session_id=summed, derived_from=links)
        backend.consolidate(summary, [entry.id for entry in said])
        if summed == "restored":
            backend.restore(summary.id)
    old, new, gone = backend.store([make_entry("lives in Oulu"), make_entry("lives in Turku"), make_entry("gone")])
    backend.update(old.id, {"superseded_by": new.id})
    for n in range(3):
        backend.update(new.id, {"content": f"lives in Turku, house {n}", "metadata": {"n": [n, None, {"½": 0.5}]}})
    backend.update(gone.id, {"archived_at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)})
    backend.update(gone.id, {"namespace": "moved", "salience": 0.1})
    backend.store([make_entry("You help.", tier="core", kind="block", title="persona")])
    day = datetime(2026, 1, 2, tzinfo=UTC)
    times = {"valid_from": day, "valid_to": day.replace(microsecond=7), "expires_at": day.replace(year=2126)}
    (timed,) = backend.store([make_entry("open on Sundays", **times)])
    backend.update(timed.id, {"valid_to": None})
    for _ in range(2):
        backend.store([make_entry("prefers tea", user_id="aino")], unique=True)


def everything(backend: MemoryBackend) -> dict[str, tuple[MemoryEntry, list[MemoryEntry]]]:
    """Return every entry with its former versions, by id."""
    return {
        entry.id: (entry, list(backend.history(entry.id)))
        for name in backend.namespaces()
        for entry in backend.list(Scope(name, include_archived=True), limit=10_000)
    }


def exported(backend: MemoryBackend, folder: Path, *, vectors: bool = False) -> Exported:
    return export_to(folder, backend, Originals(folder.parent / "uploads", backend), None, vectors=vectors)


def imported(backend: MemoryBackend, folder: Path) -> Imported:
    core = CoreMemory(backend, lambda text: len(text.split()), block_tokens=500)
    uploads = Originals(folder.parent / "uploads-too", backend)
    return import_into(Destination(backend, uploads, core), read(folder))


def same(one: Path, other: Path) -> bool:
    """Return True if two folders have the same files, byte for byte."""
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
    others = sorted(str(path.relative_to(other)) for path in other.rglob("*") if path.is_file())
    return names == others and filecmp.cmpfiles(one, other, names, shallow=False) == (names, [], [])


def manifest_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def resign(folder: Path, **values: Any) -> None:
    """Change the manifest, and set its checksums to those of the present files."""
    manifest = {**manifest_of(folder), **values}
    for path in manifest["files"]:
        manifest["files"][path]["sha256"] = hashlib.sha256((folder / path).read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def to_first_format(folder: Path) -> None:
    """Rewrite an export to the first format: former versions in the line of their entry, and no vectors."""
    for path in (folder / "entries").iterdir():
        found: list[dict[str, Any]] = []
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            values = json.loads(line)
            if "former" in values:
                found[-1].setdefault("history", []).append(values["former"])
            else:
                found.append(values)
        path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in found), encoding="utf-8")
    resign(folder, format=FORMATS[1])
