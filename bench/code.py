"""Source code of a real repository: `python -m bench.code FOLDER`.

FOLDER contains the folder `django` of an installed Django 5.2, which is not part of this repository. The documentation
strings are removed, the files are synced, and questions in plain words about 66 functions, written from the removed
strings, are searched. hit@5 is the share of questions for which one of the first five chunks overlaps the function:
for chunks by functions and classes, and for chunks of 50 lines with the same path in front. Because these are three
times as long, the share within the first 250 lines of hits is reported, too. Questions with even places were looked at
during development; those with odd places are reported.

`--sync` measures a sync of FOLDER as it is: the time against that of encoding the same windows alone, a second sync,
and a sync after one file of a hundred was changed, three were renamed and three were removed.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agentformer
from agentformer.embedders.guarded import GuardedEmbedder
from agentformer.index.embedding.windows import WindowCutter
from agentformer.memory.backends import all_entries
from agentformer.rag.folder_files import FolderFiles
from agentformer.types import Embedder, MemoryEntry, Query, Scope, Source, new_id

QUESTIONS = Path(__file__).parent / "code_questions.jsonl"
LINES = 50
FIRST = 5
MOST = 60  # hits that are looked at
IGNORED = "*.po\n*.pot\n"  # translations, which are no source code


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.code", description=str(__doc__).split(":", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sync", action="store_true", help="measure a sync instead of asking questions")
    parser.add_argument("--embedder", default="minilm")
    parser.add_argument("--sample", type=int, metavar="N", help="with --sync: only N random Python files")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "repository"
        shutil.copytree(chosen.folder / "django", root / "django")
        (root / ".agentformerignore").write_text(IGNORED)
        if chosen.sample:
            _reduce(root, chosen.sample)
        told = measured_sync(root, chosen.embedder) if chosen.sync else hits(root, chosen.embedder)
    print(json.dumps(told, indent=2))


def _reduce(root: Path, number: int) -> None:
    """Remove all files but `number` Python files that are chosen at random, always the same."""
    kept = set(random.Random(22).sample(sorted(root.rglob("*.py")), number))
    for path in root.rglob("*"):
        if path.is_file() and path not in kept:
            path.unlink()


def connect(folder: Path, embedder: str) -> agentformer.AgentFormer:
    return agentformer.connect(index_dir=folder / "index", upload_dir=folder / "uploads", embedder=embedder)


# ------------------------------------------------------------------ questions


def hits(root: Path, embedder: str) -> dict[str, Any]:
    """Return hit@5 of both kinds of chunks, for each half of the questions."""
    for path in sorted(root.rglob("*.py")):
        path.write_text(without_docstrings(path.read_text(encoding="utf-8")), encoding="utf-8")
    questions = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    spans = [function_lines(root / each["path"], each["symbol"]) for each in questions]
    told: dict[str, Any] = {}
    for name, store in (("functions", _sync), ("50 lines", _store_lines)):
        with connect(root.parent / name.replace(" ", "-"), embedder) as af:
            store(af, root)
            ranks = [_lines_before(af, each, span) for each, span in zip(questions, spans, strict=True)]
        found = [rank <= FIRST for rank, _ in ranks]
        read = [lines <= FIRST * LINES for _, lines in ranks]
        told[name] = {
            "chunks": _chunks(af_folder=root.parent / name.replace(" ", "-"), embedder=embedder),
            "development hit@5": _share(found[::2]),
            "test hit@5": _share(found[1::2]),
            f"development, within {FIRST * LINES} lines": _share(read[::2]),
            f"test, within {FIRST * LINES} lines": _share(read[1::2]),
            "missed": [each["symbol"] for each, hit in zip(questions, found, strict=True) if not hit],
        }
    return told


def _chunks(af_folder: Path, embedder: str) -> int:
    with connect(af_folder, embedder) as af:
        return af.backend.count(Scope(kinds=("chunk",)))


def _share(found: list[bool]) -> str:
    return f"{sum(found)} of {len(found)} = {sum(found) / len(found):.3f}"


def _lines_before(af: agentformer.AgentFormer, question: dict[str, str], lines: tuple[int, int]) -> tuple[float, float]:
    """Return the rank of the first hit that overlaps the function, and the number of lines in the hits before it."""
    read = 0
    hits = af.backend.search(Query(question["question"], Scope(kinds=("chunk",)), limit=MOST))
    for rank, hit in enumerate(hits, 1):
        first, last = hit.entry.metadata.get("lines", (0, -1))  # those of pages of HTML are unknown
        name = hit.entry.source.name if hit.entry.source else ""
        if name == question["path"] and first <= lines[1] and lines[0] <= last:
            return rank, read
        read += hit.entry.content.count("\n") + 1
    return math.inf, math.inf


def without_docstrings(source: str) -> str:
    """Return Python source without the documentation strings of its functions, classes and the module."""
    lines = source.split("\n")
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, holders) or ast.get_docstring(node, clean=False) is None:
            continue
        text = node.body[0]
        indent = lines[text.lineno - 1][: text.col_offset]
        filler = f"{indent}pass" if len(node.body) == 1 and not isinstance(node, ast.Module) else None
        assert text.end_lineno is not None
        for number in range(text.lineno - 1, text.end_lineno):
            lines[number] = "\0"
        if filler is not None:
            lines[text.lineno - 1] = filler
    return "\n".join(line for line in lines if line != "\0")


def function_lines(path: Path, symbol: str) -> tuple[int, int]:
    """Return the first and the last line of a function in a file."""
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    node: Any = None
    for name in symbol.split("."):
        node = next(each for each in body if getattr(each, "name", "") == name)
        body = node.body
    return node.lineno, node.end_lineno


def _sync(af: agentformer.AgentFormer, root: Path) -> None:
    report = af.rag.sync(root)
    print(f"{len(report.added)} files in {report.seconds:.0f} s, failed: {report.failed}", flush=True)


def _store_lines(af: agentformer.AgentFormer, root: Path) -> None:
    entries: list[MemoryEntry] = []
    for file in FolderFiles(root, 1 << 20).files():
        entries += _line_chunks(file.name, file.path.read_text(encoding="utf-8", errors="replace"))
    for at in range(0, len(entries), 500):
        af.backend.store(entries[at : at + 500])


def _line_chunks(name: str, text: str) -> Iterator[MemoryEntry]:
    lines = text.split("\n")
    for first in range(0, len(lines), LINES):
        piece = "\n".join(lines[first : first + LINES])
        if piece.strip():
            yield MemoryEntry(
                id=new_id(),
                content=piece,
                kind="chunk",
                context=name,
                metadata={"language": "en", "code": "python", "lines": [first + 1, first + LINES]},
                source=Source("", name),
            )


# ------------------------------------------------------------------ sync


def measured_sync(root: Path, embedder: str) -> dict[str, Any]:
    """Return the time of a sync against that of its embedding, and what later syncs embed."""
    told: dict[str, Any] = {}
    with connect(root.parent / "store", embedder) as af:
        af.rag.ready()
        before = _peak()
        report = af.rag.sync(root)
        told["files"] = len(report.added)
        told["failed"] = [list(problem) for problem in report.failed]
        told["skipped"] = len(report.skipped)
        told["sync seconds"] = round(report.seconds, 1)
        told["peak MB before and after"] = [before, _peak()]
        told |= _encoded(af, af.rag._ingest().embedder, report.seconds)
        counted = _Counted()
        again = af.rag.sync(root)
        told["unchanged"] = {"seconds": round(again.seconds, 2), "files": again.unchanged, "texts": counted.texts}
        told["changed"] = _changed(af, root, report.added, counted)
    return told


class _Counted:
    """Counts the texts that are embedded from now on."""

    def __init__(self) -> None:
        self.texts = 0
        original = GuardedEmbedder.embed_documents

        def counting(embedder: GuardedEmbedder, texts: Any) -> Any:
            self.texts += len(texts)
            return original(embedder, texts)

        GuardedEmbedder.embed_documents = counting  # type: ignore[method-assign]


def _encoded(af: agentformer.AgentFormer, embedder: Embedder, seconds: float) -> dict[str, Any]:
    cutter = WindowCutter(embedder)
    texts: dict[str, None] = {}
    for entry in all_entries(af.backend, Scope(kinds=("chunk",))):
        for windows in cutter.cut([entry]):
            if isinstance(windows, list):
                texts |= dict.fromkeys(cutter.text(entry, span) for span, _ in windows)
    distinct = list(texts)
    started = time.monotonic()
    for at in range(0, len(distinct), 64):
        embedder.embed_documents(distinct[at : at + 64])
    encoding = time.monotonic() - started
    return {"windows": len(distinct), "encode seconds": round(encoding, 1), "sync/encode": round(seconds / encoding, 2)}


def _changed(af: agentformer.AgentFormer, root: Path, names: tuple[str, ...], counted: _Counted) -> dict[str, Any]:
    rng = random.Random(22)
    chosen = rng.sample([name for name in names if name.endswith(".py")], len(names) // 100 + 6)
    touched, renamed, removed = chosen[6:], chosen[:3], chosen[3:6]
    for name in touched:
        with (root / name).open("a") as file:
            file.write(f"\n\ndef added_{rng.randrange(10**9)}():\n    return {rng.random()}\n")
    for name in renamed:
        (root / name).rename(root / f"{name}_renamed.py")
    for name in removed:
        (root / name).unlink()
    texts = counted.texts
    report = af.rag.sync(root)
    done = {name: len(getattr(report, name)) for name in ("added", "changed", "renamed", "removed", "failed")}
    return {**done, "touched": len(touched), "texts": counted.texts - texts, "seconds": round(report.seconds, 2)}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
