"""A folder of documents that takes a while to ingest, and all that can be seen of a store afterwards."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from long_form import LONG
from reportlab.pdfgen.canvas import Canvas

from agentformer.cli import main
from agentformer.embedders.hashing import HashingEmbedder
from agentformer.memory.backends.faiss.backend import FaissMemoryBackend
from agentformer.types import MemoryEntry, Scope

SUBJECTS = ("harbour", "lighthouse", "museum", "observatory", "railway", "library", "bakery", "forest")
VERBS = ("keeps", "repairs", "describes", "measures", "closes", "paints", "counts", "moves")
OBJECTS = ("keys", "lanterns", "timetables", "shelves", "engines", "maps", "ovens", "bells")
QUERIES = ("who repairs the engines of the railway", "lanterns", "the observatory measures bells in 17", "maps 4711")


def _sentences(seed: str, count: int) -> list[str]:
    choose = random.Random(seed)
    return [
        f"The {choose.choice(SUBJECTS)} {choose.choice(VERBS)} the {choose.choice(OBJECTS)} "
        f"of room {choose.randrange(5000)} since {choose.randrange(1500, 2024)}."
        for _ in range(count)
    ]


def _paragraphs(seed: str, count: int) -> str:
    sentences = _sentences(seed, count)
    return "\n\n".join(" ".join(sentences[i : i + 6]) for i in range(0, count, 6))


def _pdf(path: Path, pages: int) -> None:
    canvas = Canvas(str(path), invariant=1)
    for number in range(pages):
        for line, sentence in enumerate(_sentences(f"{path.name} {number}", 40)):
            canvas.drawString(50, 800 - 18 * line, sentence)
        canvas.showPage()
    canvas.save()


def write_documents(folder: Path) -> None:
    """Twelve documents, of which some have many chunks; in the long form, hundreds."""
    folder.mkdir()
    scale = 6 if LONG else 1
    for n, size in enumerate((5, 400, 1, 700, 50)):
        (folder / f"text{n}.txt").write_text(_paragraphs(f"text{n}", scale * size), encoding="utf-8")
    for n, size in enumerate((12, 250, 6)):
        body = "\n\n".join(f"## Part {i}\n\n{_paragraphs(f'md{n} {i}', size // 6)}" for i in range(6))
        (folder / f"notes{n}.md").write_text(f"# Notes {n}\n\n{body}\n", encoding="utf-8")
    for n, pages in enumerate((1, 4 * scale, 3)):
        _pdf(folder / f"paper{n}.pdf", pages)
    (folder / "empty.txt").write_bytes(b"")


def command(name: str, index: Path, uploads: Path, *arguments: str) -> list[str]:
    folders = ["--index-dir", str(index), "--upload-dir", str(uploads)]
    return [name, *arguments, *folders, "--embedder", "hashing", "--json"]


def _output(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def observe(index: Path, uploads: Path) -> dict[str, Any]:
    """What a user can see of a store, without ids and times."""
    documents = json.loads(_output(*command("list", index, uploads)))["documents"]
    export = [json.loads(line) for line in _output(*command("export", index, uploads, "--text")).splitlines()]
    searches = [json.loads(_output(*command("search", index, uploads, query)))["hits"] for query in QUERIES]
    status = json.loads(_output(*command("status", index, uploads)))
    return {
        "documents": sorted((d["name"], d["pages"], d["chunks"], d["status"]) for d in documents),
        "export": sorted((d["name"], [(p["number"], p["label"], p["text"]) for p in d["pages"]]) for d in export),
        "searches": [
            [(h["document"], h["page"], h["start"], h["end"], h["score"], h["dense_score"]) for h in hits]
            for hits in searches
        ],
        "counts": {name: status[name] for name in ("entries", "windows", "vectors", "pending", "kinds")},
        "entries": sorted(map(_shape, entries(index))),
        "originals": {  # without the folder, which is named after the memory
            "/".join(path.relative_to(uploads).parts[1:]): path.stat().st_size for path in _files(uploads)
        },
        "files": sorted(str(path.relative_to(index)) for path in _files(index) if path.parent.name != "words"),
    }


def half_documents(index: Path) -> list[str]:
    """Documents of which pages or chunks are missing."""
    found = entries(index)
    wrong = []
    for entry in found:
        parts = [part.kind for part in found if part.parent_id == entry.id]
        if entry.kind == "document" and entry.metadata["status"] == "ready":
            expected = (entry.metadata["pages"], entry.metadata["chunks"])
            if (parts.count("page"), parts.count("chunk")) != expected:
                wrong.append(entry.content)
        elif entry.kind != "document" and not any(other.id == entry.parent_id for other in found):
            wrong.append(f"orphan {entry.kind}")
    return wrong


def entries(index: Path) -> list[MemoryEntry]:
    backend = FaissMemoryBackend(index, HashingEmbedder())
    found: list[MemoryEntry] = []
    while page := backend.list(Scope(include_archived=True), after=found[-1].id if found else "", limit=1000):
        found += page
    backend.close()
    return found


def _shape(entry: MemoryEntry) -> tuple[str, ...]:
    source = entry.source
    place = (source.name, source.page, source.label, source.start, source.end) if source else ()
    metadata = json.dumps(dict(entry.metadata), sort_keys=True)
    return entry.kind, entry.content, entry.context, entry.title, str(place), metadata, entry.tier


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
